//! Setting and getting.

use bytes::Bytes;

use super::expiry::{Expiry, Time, deadline};
use super::{Answer, Failure};
use crate::engine::Next;
use crate::serve::reply::{OK, Reply};
use crate::values::{Value, Values};

/// What `SET` asks for.
#[derive(Debug, Default)]
struct Set {
    only_new: bool,
    only_old: bool,
    gives_old: bool,
    keeps_expiry: bool,
    expiry: Option<Expiry>,
}

impl Set {
    fn parse(options: &[Bytes]) -> Result<Self, Failure> {
        let (mut set, mut time, mut rest) = (Self::default(), None, options.iter());
        while let Some(option) = rest.next() {
            match &option.to_ascii_uppercase()[..] {
                b"NX" => set.only_new = true,
                b"XX" => set.only_old = true,
                b"GET" => set.gives_old = true,
                b"KEEPTTL" => set.keeps_expiry = true,
                unit => time = Some(Time::option(unit, rest.next(), time.as_ref())?),
            }
        }
        let is_contradiction = set.only_new && set.only_old || set.keeps_expiry && time.is_some();
        if is_contradiction {
            return Err(Failure::syntax());
        }
        set.expiry = time.map(|time| time.expiry("set")).transpose()?;
        Ok(set)
    }

    /// Does it: what was there before, whether it was set, and the position to wait for.
    async fn run(
        &self,
        values: &Values,
        key: &[u8],
        value: &Bytes,
    ) -> Result<(Option<Value>, bool, u64), Failure> {
        let (mut before, mut is_set) = (None, false);
        let end = values.change(key, |old, now_ms| {
            before = old.cloned();
            is_set = match old {
                Some(_) => !self.only_new,
                None => !self.only_old,
            };
            let kept_ms = old.filter(|_| self.keeps_expiry).map(|old| old.deadline_ms);
            let deadline_ms = kept_ms.unwrap_or_else(|| deadline(self.expiry, now_ms));
            match is_set {
                false => Next::Keep,
                true if deadline_ms <= now_ms => Next::Remove,
                true => Next::Store {
                    response: value.clone(),
                    deadline_ms,
                },
            }
        });
        let end = end.await?;
        Ok((before, is_set, end))
    }
}

pub(super) async fn set(values: &Values, arguments: &[Bytes]) -> Result<Answer, Failure> {
    let [key, value, options @ ..] = arguments else {
        return Err(Failure::syntax());
    };
    let set = Set::parse(options)?;
    let (before, is_set, end) = set.run(values, key, value).await?;
    let reply = match (set.gives_old, is_set) {
        (true, _) => Reply::bulk_or_null(before.map(|before| before.bytes)),
        (false, true) => OK,
        (false, false) => Reply::Null,
    };
    Ok((reply, end))
}

/// `SETNX`, `SETEX`, `PSETEX`.
pub(super) async fn set_short(
    values: &Values,
    name: &'static str,
    arguments: &[Bytes],
) -> Result<Answer, Failure> {
    let (key, value, set) = match arguments {
        [key, value] => {
            let set = Set {
                only_new: true,
                ..Set::default()
            };
            (key, value, set)
        }
        [key, time, value] => {
            let unit_ms = if name == "setex" { 1_000 } else { 1 };
            let set = Set {
                expiry: Some(Time::new(time, unit_ms, false).expiry(name)?),
                ..Set::default()
            };
            (key, value, set)
        }
        _ => return Err(Failure::syntax()),
    };
    let (_, is_set, end) = set.run(values, key, value).await?;
    let reply = match name {
        "setnx" => Reply::Integer(is_set.into()),
        _ => OK,
    };
    Ok((reply, end))
}

/// `GET`, `STRLEN`, `TYPE`.
pub(super) async fn look(
    values: &Values,
    name: &'static str,
    arguments: &[Bytes],
) -> Result<Answer, Failure> {
    let key = arguments.first().ok_or_else(Failure::syntax)?;
    let (value, end) = values.look(key).await?;
    let reply = match name {
        "strlen" => Reply::Integer(value.map_or(0, |value| value.bytes.len() as i64)),
        "type" => Reply::Simple(value.map_or("none", |_| "string")),
        _ => Reply::bulk_or_null(value.map(|value| value.bytes)),
    };
    Ok((reply, end))
}

/// `MGET`, of which all values together are at most so many bytes: a request of a few bytes must not
/// make an answer that fills the memory.
pub(super) async fn get_many(
    values: &Values,
    keys: &[Bytes],
    bytes_max: usize,
) -> Result<Answer, Failure> {
    let (mut replies, mut newest, mut bytes) = (Vec::with_capacity(keys.len()), 0, 0);
    for key in keys {
        let (value, end) = values.look(key).await?;
        bytes += value.as_ref().map_or(0, |value| value.bytes.len());
        if bytes > bytes_max && keys.len() > 1 {
            return Err(Failure::new(format!(
                "ERR the values are over {bytes_max} bytes together: ask for fewer keys at once"
            )));
        }
        replies.push(Reply::bulk_or_null(value.map(|value| value.bytes)));
        newest = newest.max(end);
    }
    Ok((Reply::Array(replies), newest))
}

pub(super) async fn get_and_remove(
    values: &Values,
    arguments: &[Bytes],
) -> Result<Answer, Failure> {
    let key = arguments.first().ok_or_else(Failure::syntax)?;
    let mut before = None;
    let end = values.change(key, |old, _| {
        before = old.map(|old| old.bytes.clone());
        Next::Remove
    });
    let end = end.await?;
    Ok((Reply::bulk_or_null(before), end))
}
