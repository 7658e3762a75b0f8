//! oncekey itself.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use oncekey::{Claim, Durability, Fingerprint, Operation, Options, Replay, Response, Store};

use super::{Claimed, Class, Contestant, Entrant, Fault, Place, Room, Sample, Session};

pub(super) const NAME: &str = "oncekey";
const REQUEST: &[u8] = br#"{"amount":1200,"currency":"eur","card":"tok_visa"}"#;
/// Bytes of a segment, the default.
const SEGMENT_BYTES: usize = 64 << 20;
/// Bytes of two records beside keys and response; see `docs/format.md`.
const LIFECYCLE_BYTES: usize = 256;

/// The store at each level.
pub(crate) fn entrants() -> Vec<Entrant> {
    let levels = [
        (
            Class::Buffered,
            Durability::Buffered,
            "Durability::Buffered",
        ),
        (Class::Sync, Durability::Sync, "Durability::Sync"),
    ];
    levels
        .into_iter()
        .map(|(class, durability, named)| {
            let settings = format!("{named}, segments for the lap prepared ahead");
            Entrant::new(
                NAME,
                class,
                Place::Files,
                &settings,
                move |directory, room| Own::open(directory, durability, room),
            )
        })
        .collect()
}

struct Own {
    store: Store,
    prepared: u64,
}

impl Own {
    fn open(directory: &Path, durability: Durability, room: Room) -> Result<Self, Fault> {
        let each = 2 * room.key_bytes + room.response_bytes + LIFECYCLE_BYTES;
        let prepared = (room.keys * each).div_ceil(SEGMENT_BYTES).clamp(1, 16);
        let store = Options::new()
            .durability(durability)
            .segment_size(SEGMENT_BYTES as u64)
            .prepared_segments(prepared)
            .reserved_response(room.response_bytes.max(1))
            .max_response(room.response_bytes.max(1))
            .open(directory)?;
        Ok(Self {
            store,
            prepared: prepared as u64,
        })
    }
}

impl Contestant for Own {
    type Session = OwnSession;

    fn session(&self) -> Result<OwnSession, Fault> {
        Ok(OwnSession {
            store: self.store.clone(),
            fingerprint: Fingerprint::of(REQUEST),
        })
    }

    fn settle(&self) -> Result<(), Fault> {
        let patience = Instant::now();
        while self.store.stats().segments_prepared < self.prepared {
            if patience.elapsed() > Duration::from_secs(120) {
                return Err("no segments were prepared within two minutes".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn close(self) -> Result<(), Fault> {
        Ok(self.store.close()?)
    }
}

struct OwnSession {
    store: Store,
    fingerprint: Fingerprint,
}

impl Session for OwnSession {
    type Guard = Operation;
    type Response = Response;

    fn claim(&mut self, key: &Sample) -> Result<Claimed<Operation, Response>, Fault> {
        match self.store.claim(&key.key, self.fingerprint)? {
            Claim::Started(operation) => Ok(Claimed::Started(operation)),
            Claim::InProgress(_) => Ok(Claimed::Running),
            Claim::Completed(saved) => match saved.by_scope()? {
                Replay::Response(response) => Ok(Claimed::Done(response)),
                other => Err(format!("a result without a response: {other:?}").into()),
            },
            other => Err(format!("an unexpected outcome: {other:?}").into()),
        }
    }

    fn complete(&mut self, operation: Operation, response: &[u8]) -> Result<(), Fault> {
        operation.complete(response)?;
        Ok(())
    }
}
