//! Keys as such: removing, counting, listing.

use bytes::Bytes;

use super::{Answer, Failure};
use crate::engine::Next;
use crate::serve::glob;
use crate::serve::reply::Reply;
use crate::serve::request::integer;
use crate::serve::session::Shared;
use crate::values::Values;

/// Keys that one `SCAN` looks at, at most.
const COUNT_MAX: i64 = 10_000;

pub(super) async fn remove(values: &Values, keys: &[Bytes]) -> Result<Answer, Failure> {
    let (mut removed, mut newest) = (0, 0);
    for key in keys {
        let mut is_there = false;
        let end = values.change(key, |old, _| {
            is_there = old.is_some();
            Next::Remove
        });
        newest = newest.max(end.await?);
        removed += i64::from(is_there);
    }
    Ok((Reply::Integer(removed), newest))
}

pub(super) async fn exist(values: &Values, keys: &[Bytes]) -> Result<Answer, Failure> {
    let (mut found, mut newest) = (0, 0);
    for key in keys {
        let (value, end) = values.look(key).await?;
        found += i64::from(value.is_some());
        newest = newest.max(end);
    }
    Ok((Reply::Integer(found), newest))
}

pub(super) fn scan(values: &Values, arguments: &[Bytes]) -> Result<Answer, Failure> {
    let (cursor, options) = arguments.split_first().ok_or_else(Failure::syntax)?;
    let cursor = integer(cursor).and_then(|cursor| u64::try_from(cursor).ok());
    let cursor = cursor.ok_or_else(|| Failure::new("ERR invalid cursor"))?;
    let (mut pattern, mut count, mut is_string) = (None, 10, true);
    let (pairs, rest) = options.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Failure::syntax());
    }
    for [option, value] in pairs {
        match &option.to_ascii_uppercase()[..] {
            b"MATCH" => pattern = Some(value),
            b"TYPE" => is_string = value.eq_ignore_ascii_case(b"string"),
            b"COUNT" => {
                count = integer(value).ok_or_else(Failure::not_integer)?;
                if count < 1 {
                    return Err(Failure::syntax());
                }
            }
            _ => return Err(Failure::syntax()),
        }
    }
    let mut found = Vec::new();
    let next = values.scan(cursor, count.min(COUNT_MAX) as usize, |id| {
        if is_string && pattern.is_none_or(|pattern| glob::matches(pattern, id)) {
            found.push(Reply::Bulk(Bytes::copy_from_slice(id)));
        }
    })?;
    let reply = Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(found)]);
    Ok((reply, 0))
}

/// Every result of the store, those of other scopes and expired ones not yet reclaimed included.
pub(super) fn count(shared: &Shared) -> Reply {
    Reply::Integer(shared.store.stats().completed_keys as i64)
}
