//! When a value expires: saying so, and asking.

use bytes::Bytes;

use super::{Answer, Failure};
use crate::engine::Next;
use crate::serve::reply::Reply;
use crate::serve::request::integer;
use crate::values::{NEVER_MS, Value, Values};

/// When a value is to expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// So many ms from now on.
    In(u64),
    /// At this time, in ms since the Unix epoch.
    At(u64),
}

/// The deadline in store time, in ms.
pub(super) fn deadline(expiry: Option<Expiry>, now_ms: u64) -> u64 {
    match expiry {
        None => NEVER_MS,
        Some(Expiry::In(ms)) => now_ms.saturating_add(ms).min(NEVER_MS - 1),
        Some(Expiry::At(ms)) => ms,
    }
}

impl Expiry {
    /// Of `EX`, `PX`, `EXAT` or `PXAT` and its number, which is above zero.
    pub(super) fn parse(
        unit: &[u8],
        number: Option<&Bytes>,
        command: &str,
    ) -> Result<Self, Failure> {
        let (times, is_absolute) = match unit {
            b"EX" => (1_000, false),
            b"PX" => (1, false),
            b"EXAT" => (1_000, true),
            b"PXAT" => (1, true),
            _ => return Err(Failure::syntax()),
        };
        let number = number.ok_or_else(Failure::syntax)?;
        let number = integer(number).ok_or_else(Failure::not_integer)?;
        let ms = u64::try_from(number).ok().filter(|number| *number > 0);
        let ms = ms
            .and_then(|number| number.checked_mul(times))
            .filter(|ms| *ms < NEVER_MS);
        let invalid = || Failure::new(format!("ERR invalid expire time in '{command}' command"));
        let ms = ms.ok_or_else(invalid)?;
        Ok(if is_absolute {
            Self::At(ms)
        } else {
            Self::In(ms)
        })
    }
}

/// The old value, to be kept until then.
fn until(old: &Value, deadline_ms: u64, now_ms: u64) -> Next {
    match deadline_ms {
        same if same == old.deadline_ms => Next::Keep,
        past if past <= now_ms => Next::Remove,
        deadline_ms => Next::Store {
            response: old.bytes.clone(),
            deadline_ms,
        },
    }
}

/// `GETEX`.
pub(super) async fn get_and_expire(
    values: &Values,
    arguments: &[Bytes],
) -> Result<Answer, Failure> {
    let (key, expiry) = match arguments {
        [key] => (key, None),
        [key, option] if option.eq_ignore_ascii_case(b"PERSIST") => (key, Some(None)),
        [key, unit, number] => {
            let expiry = Expiry::parse(&unit.to_ascii_uppercase(), Some(number), "getex")?;
            (key, Some(Some(expiry)))
        }
        _ => return Err(Failure::syntax()),
    };
    let mut before = None;
    let end = values.change(key, |old, now_ms| {
        before = old.map(|old| old.bytes.clone());
        match (old, expiry) {
            (Some(old), Some(expiry)) => until(old, deadline(expiry, now_ms), now_ms),
            _ => Next::Keep,
        }
    });
    let end = end.await?;
    Ok((Reply::bulk_or_null(before), end))
}

/// `EXPIRE`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT`.
pub(super) async fn expire(
    values: &Values,
    name: &'static str,
    arguments: &[Bytes],
) -> Result<Answer, Failure> {
    let [key, number, conditions @ ..] = arguments else {
        return Err(Failure::syntax());
    };
    let number = integer(number).ok_or_else(Failure::not_integer)?;
    let times = if name.starts_with('p') { 1 } else { 1_000 };
    let is_absolute = name.ends_with("at");
    let invalid = || Failure::new(format!("ERR invalid expire time in '{name}' command"));
    let ms = number
        .checked_mul(times)
        .filter(|ms| ms.unsigned_abs() < NEVER_MS);
    let ms = ms.ok_or_else(invalid)?;
    let [mut nx, mut xx, mut gt, mut lt] = [false; 4];
    for condition in conditions {
        match &condition.to_ascii_uppercase()[..] {
            b"NX" => nx = true,
            b"XX" => xx = true,
            b"GT" => gt = true,
            b"LT" => lt = true,
            _ => {
                return Err(Failure::new(format!(
                    "ERR Unsupported option {}",
                    condition.escape_ascii()
                )));
            }
        }
    }
    if nx && (xx || gt || lt) || gt && lt {
        return Err(Failure::new(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    let mut is_done = false;
    let end = values.change(key, |old, now_ms| {
        is_done = false;
        let Some(old) = old else {
            return Next::Keep;
        };
        let from_ms = if is_absolute { 0 } else { now_ms };
        let deadline_ms = from_ms.saturating_add_signed(ms).min(NEVER_MS - 1);
        let expires = old.deadline_ms < NEVER_MS;
        is_done = !(nx && expires
            || xx && !expires
            || gt && deadline_ms <= old.deadline_ms
            || lt && deadline_ms >= old.deadline_ms);
        match is_done {
            true => until(old, deadline_ms, now_ms),
            false => Next::Keep,
        }
    });
    let end = end.await?;
    Ok((Reply::Integer(is_done.into()), end))
}

pub(super) async fn persist(values: &Values, arguments: &[Bytes]) -> Result<Answer, Failure> {
    let key = arguments.first().ok_or_else(Failure::syntax)?;
    let mut is_done = false;
    let end = values.change(key, |old, now_ms| {
        is_done = old.is_some_and(|old| old.deadline_ms < NEVER_MS);
        old.map_or(Next::Keep, |old| until(old, NEVER_MS, now_ms))
    });
    let end = end.await?;
    Ok((Reply::Integer(is_done.into()), end))
}

/// `TTL`, `PTTL`, `EXPIRETIME`, `PEXPIRETIME`.
pub(super) async fn left(
    values: &Values,
    name: &'static str,
    arguments: &[Bytes],
) -> Result<Answer, Failure> {
    let key = arguments.first().ok_or_else(Failure::syntax)?;
    let (value, end) = values.look(key).await?;
    let Some(value) = value else {
        return Ok((Reply::Integer(-2), end));
    };
    let Some(left_ms) = value.left_ms(values.now_ms()) else {
        return Ok((Reply::Integer(-1), end));
    };
    let ms = match name.ends_with("time") {
        true => value.deadline_ms,
        false => left_ms,
    };
    let number = match name.starts_with('p') {
        true => ms,
        // Rounded, as Redis does.
        false => (ms + 500) / 1_000,
    };
    Ok((Reply::Integer(number as i64), end))
}
