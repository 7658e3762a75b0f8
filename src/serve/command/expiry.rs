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

/// A number and its unit, as they were given. What options there are is looked at before any number is,
/// as Redis does.
#[derive(Clone, Debug)]
pub(super) struct Time {
    number: Bytes,
    ms: i64,
    is_absolute: bool,
}

impl Time {
    pub(super) fn new(number: &Bytes, ms: i64, is_absolute: bool) -> Self {
        Self {
            number: number.clone(),
            ms,
            is_absolute,
        }
    }

    /// Of `EX`, `PX`, `EXAT` or `PXAT` and what follows it. One that stands there twice counts as it was
    /// given last; two different ones contradict each other.
    pub(super) fn option(
        unit: &[u8],
        number: Option<&Bytes>,
        before: Option<&Self>,
    ) -> Result<Self, Failure> {
        let (ms, is_absolute) = match unit {
            b"EX" => (1_000, false),
            b"PX" => (1, false),
            b"EXAT" => (1_000, true),
            b"PXAT" => (1, true),
            _ => return Err(Failure::syntax()),
        };
        let number = number.ok_or_else(Failure::syntax)?;
        match before {
            Some(other) if (other.ms, other.is_absolute) != (ms, is_absolute) => {
                Err(Failure::syntax())
            }
            _ => Ok(Self::new(number, ms, is_absolute)),
        }
    }

    /// In ms, below zero too.
    fn milliseconds(&self, command: &str) -> Result<i64, Failure> {
        let number = integer(&self.number).ok_or_else(Failure::not_integer)?;
        let ms = number.checked_mul(self.ms);
        ms.filter(|ms| *ms < NEVER_MS as i64)
            .ok_or_else(|| invalid(command))
    }

    /// When a value is to expire: above zero.
    pub(super) fn expiry(&self, command: &str) -> Result<Expiry, Failure> {
        let ms = u64::try_from(self.milliseconds(command)?).ok();
        let ms = ms.filter(|ms| *ms > 0).ok_or_else(|| invalid(command))?;
        Ok(match self.is_absolute {
            true => Expiry::At(ms),
            false => Expiry::In(ms),
        })
    }
}

fn invalid(command: &str) -> Failure {
    Failure::new(format!("ERR invalid expire time in '{command}' command"))
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
    let [key, options @ ..] = arguments else {
        return Err(Failure::syntax());
    };
    let (mut time, mut persists, mut rest) = (None, false, options.iter());
    while let Some(option) = rest.next() {
        match &option.to_ascii_uppercase()[..] {
            b"PERSIST" => persists = true,
            unit => time = Some(Time::option(unit, rest.next(), time.as_ref())?),
        }
    }
    let expiry = match &time {
        Some(_) if persists => return Err(Failure::syntax()),
        Some(time) => match time.expiry("getex") {
            Ok(expiry) => Some(Some(expiry)),
            // Of an absent key Redis looks at no number.
            Err(failure) => {
                let (value, end) = values.look(key).await?;
                return value.map_or(Ok((Reply::Null, end)), |_| Err(failure));
            }
        },
        None => persists.then_some(None),
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
    if nx && (xx || gt || lt) {
        return Err(Failure::new(
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if gt && lt {
        return Err(Failure::new(
            "ERR GT and LT options at the same time are not compatible",
        ));
    }
    let is_absolute = name.ends_with("at");
    let unit_ms = if name.starts_with('p') { 1 } else { 1_000 };
    let ms = Time::new(number, unit_ms, is_absolute).milliseconds(name)?;
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
