//! Reading a record from the fields that a server has. Anybody may have written there, so nothing is
//! trusted, and nothing that is missing is made up: a lease that reads as zero would be taken over from
//! its living owner, and a deadline that does would let an operation run again.

use bytes::Bytes;

use crate::backend::MalformedRecord;
use crate::fingerprint::Fingerprint;
use crate::shared::{Record, State};

/// The last millisecond of the year 9999: no time that was ever written is later.
pub(crate) const TIME_MS_MAX: u64 = 253_402_300_799_999;
/// The greatest token that every server can count on from without rounding.
pub(crate) const TOKEN_MAX: u64 = (1 << 53) - 2;

/// A field under both its names: a column, or a letter in a hash.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "each kind of server has one of the names")]
pub(crate) struct Field {
    pub(crate) column: &'static str,
    pub(crate) letter: &'static str,
}

macro_rules! fields {
    ($($name:ident $column:literal $letter:literal,)*) => {
        $(pub(crate) const $name: Field = Field { column: $column, letter: $letter };)*
    };
}

fields! {
    STATE "state" "s",
    TOKEN "token" "t",
    ATTEMPT "attempt" "a",
    CREATED "created_ms" "c",
    STARTED "started_ms" "b",
    LEASE_UNTIL "lease_until_ms" "l",
    COMPLETED "completed_ms" "d",
    EXPIRES "expires_ms" "e",
    CHECKPOINT "checkpoint" "n",
    RESPONSE "response" "r",
    PRINCIPAL "principal" "p",
}

/// What a server has for one key.
pub(crate) trait Fields {
    /// The name by which it calls a field.
    fn name(field: Field) -> &'static str;

    /// The number in a field, or what is wrong with it. `None` where the field is missing.
    fn number(&self, field: Field) -> Result<Option<u64>, String>;

    /// The bytes in a field.
    fn bytes(&self, field: Field) -> Result<Option<Bytes>, String>;

    /// The fingerprint, which servers keep differently.
    fn fingerprint(&self) -> Result<Fingerprint, (&'static str, String)>;
}

/// Reads a record. `place` is asked for where it can't be read.
pub(crate) fn read_record<F: Fields>(
    fields: &F,
    now_ms: u64,
    place: impl Fn() -> String,
) -> Result<Record, MalformedRecord> {
    read(fields, now_ms).map_err(|(field, problem)| MalformedRecord {
        place: place(),
        field,
        problem,
    })
}

fn read<F: Fields>(fields: &F, now_ms: u64) -> Result<Record, (&'static str, String)> {
    let number = |field, min, max| {
        let read = fields.number(field).and_then(|number| match number {
            None => Err("nothing".to_owned()),
            Some(number) if (min..=max).contains(&number) => Ok(number),
            Some(number) => Err(format!("{number}, which is not within {min} to {max}")),
        });
        read.map_err(|problem| (F::name(field), problem))
    };
    let time = |field| number(field, 0, TIME_MS_MAX);
    // A key that is completed has no lease, and one that is not has neither of the other two.
    let time_if = |is_needed: bool, field| if is_needed { time(field) } else { Ok(0) };
    let bytes = |field| {
        let read = fields.bytes(field);
        read.map_err(|problem| (F::name(field), problem))
    };
    let state = number(STATE, 0, 2)?;
    let state = State::from_number(state).ok_or((F::name(STATE), "no state".to_owned()))?;
    let is_completed = state == State::Completed;
    let attempt = number(ATTEMPT, 1, u32::MAX.into())?;
    Ok(Record {
        now_ms,
        fingerprint: fields.fingerprint()?,
        state,
        token: number(TOKEN, 1, TOKEN_MAX)?,
        attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
        created_ms: time(CREATED)?,
        started_ms: time(STARTED)?,
        lease_until_ms: time_if(!is_completed, LEASE_UNTIL)?,
        completed_ms: time_if(is_completed, COMPLETED)?,
        expires_ms: time_if(is_completed, EXPIRES)?,
        checkpoint: bytes(CHECKPOINT)?,
        response: bytes(RESPONSE)?,
        principal: bytes(PRINCIPAL)?,
    })
}
