//! One key of every kind, for tests of what lies in a store's files.

use std::time::Duration;

use oncekey::{ClaimOptions, Forget, Lease, ManualClock, Store, Ticket};

use super::{key, lease, ms, owned, request, started};

/// Whom some of the results are for.
pub const PRINCIPAL: &str = "user-7";

/// One key of every kind: every kind of record, and every state a key can be in. Returns the ticket
/// of the one that waits to be resumed.
pub fn every_kind(store: &Store, clock: &ManualClock, prefix: &str) -> Ticket {
    let of = |name: &str| key(&format!("{prefix}-{name}"));
    let claim = |name: &str| started(store.claim(&of(name), request()).expect("a claim"));
    claim("paid").complete(b"paid").expect("completes");
    claim("empty").complete(b"").expect("completes");
    clock.advance(ms(1));
    let large: Vec<_> = (0..1_500_u32).map(|byte| (byte % 251) as u8).collect();
    claim("large").complete(large).expect("completes");
    claim("silent")
        .complete_without_response()
        .expect("completes");
    claim("principal")
        .complete_with(b"yours")
        .principal(PRINCIPAL)
        .commit()
        .expect("completes");
    claim("expired")
        .complete_with(b"over")
        .retention(Duration::from_secs(1))
        .commit()
        .expect("completes");
    let mut pending = claim("pending");
    clock.advance(ms(1));
    pending.checkpoint(b"half way").expect("a note");
    drop(pending);
    claim("released").release().expect("a release");
    claim("forgotten").complete(b"gone").expect("completes");
    let forgotten = store.forget(&of("forgotten"), Forget::IfCompleted);
    assert!(forgotten.expect("forgotten"));
    drop(started(
        store
            .claim_with(&of("overtaken"), request(), lease(5))
            .expect("a claim"),
    ));
    clock.advance(ms(10));
    let mut second = owned(store.claim(&of("overtaken"), request()).expect("a claim"));
    second.checkpoint(b"second").expect("a note");
    second.complete(b"by the second").expect("completes");
    let ticket = |name: &str| {
        let long = ClaimOptions::new().lease(Lease::For(Duration::from_secs(60)));
        let operation = owned(
            store
                .claim_with(&of(name), request(), long)
                .expect("a claim"),
        );
        operation.into_ticket().expect("a ticket")
    };
    let resumed = store.resume(&ticket("ticket-done")).expect("resumed");
    owned(resumed).complete(b"by ticket").expect("completes");
    ticket("ticket-out")
}
