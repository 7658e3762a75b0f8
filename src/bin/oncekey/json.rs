//! Records as JSON, and back. Bytes that are not UTF-8 stand in a field of their own, whose name ends
//! in `_hex`.

use std::time::{SystemTime, UNIX_EPOCH};

use oncekey::{Key, KeyRecord, Recorded};
use serde_json::{Map, Value, json};

/// Milliseconds since the Unix epoch.
pub(crate) fn ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn state(state: Recorded) -> &'static str {
    match state {
        Recorded::Pending => "pending",
        Recorded::Interrupted => "interrupted",
        Recorded::Completed => "completed",
        Recorded::Expired => "expired",
        Recorded::Released => "released",
        Recorded::Forgotten => "forgotten",
        _ => "unknown",
    }
}

/// What a record says happened.
pub(crate) fn event(record: &KeyRecord) -> &'static str {
    match record.state {
        Recorded::Pending | Recorded::Interrupted if record.is_checkpoint => "checkpoint",
        Recorded::Pending | Recorded::Interrupted => "claimed",
        Recorded::Completed | Recorded::Expired => "completed",
        other => state(other),
    }
}

/// All of a record but its response, of which the size is told.
pub(crate) fn record(record: &KeyRecord) -> Map<String, Value> {
    let mut object = key(&record.key);
    let mut put = |name: &str, value: Value| {
        object.insert(name.to_owned(), value);
    };
    put("state", state(record.state).into());
    put("fingerprint", record.fingerprint.to_string().into());
    put("attempt", record.attempt.into());
    // Beyond 2^53 many readers of JSON lose digits.
    put("token", record.token.as_u64().to_string().into());
    put("sequence", record.sequence.to_string().into());
    put("created_ms", ms(record.created_at).into());
    put("started_ms", ms(record.started_at).into());
    if let Some(ended) = record.ended_at {
        put("ended_ms", ms(ended).into());
    }
    if let Some(expires) = record.expires_at {
        put("expires_ms", ms(expires).into());
    }
    if let Some(response) = &record.response {
        put("response_bytes", response.len().into());
    }
    if let Some(principal) = &record.principal {
        put_bytes(&mut object, "principal", principal);
    }
    if !record.checkpoint.is_empty() {
        put_bytes(&mut object, "checkpoint", &record.checkpoint);
    }
    object
}

/// The same with the response.
pub(crate) fn with_response(found: &KeyRecord) -> Map<String, Value> {
    let mut object = record(found);
    if let Some(response) = &found.response {
        put_bytes(&mut object, "response", response);
    }
    object
}

pub(crate) fn key(key: &Key) -> Map<String, Value> {
    let mut object = Map::new();
    put_bytes(&mut object, "scope", key.scope());
    put_bytes(&mut object, "operation", key.operation());
    put_bytes(&mut object, "id", key.id());
    object
}

fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), json!(text)),
        Err(_) => object.insert(format!("{name}_hex"), json!(to_hex(bytes))),
    };
}

/// Bytes that [`record`] put there; `None` where they are missing, an error where they are none.
pub(crate) fn bytes(object: &Map<String, Value>, name: &str) -> Result<Option<Vec<u8>>, String> {
    if let Some(value) = object.get(name) {
        let text = value.as_str().ok_or_else(|| format!("{name} is no text"))?;
        return Ok(Some(text.as_bytes().to_vec()));
    }
    let name = format!("{name}_hex");
    match object.get(&name) {
        None => Ok(None),
        Some(value) => match value.as_str().and_then(from_hex) {
            Some(bytes) => Ok(Some(bytes)),
            None => Err(format!("{name} is not hexadecimal")),
        },
    }
}

fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string never fails.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}
