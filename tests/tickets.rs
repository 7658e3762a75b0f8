//! A ticket hands a pending operation on: once, however often it is delivered.

mod support;

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use oncekey::{
    Claim, ClaimOptions, Forget, KeyState, Lease, Operation, ResumeError, Store, Ticket, WriteError,
};

use support::*;

const LEASE_MS: u64 = 10_000;

fn resume(mode: Mode, store: &Store, ticket: &Ticket) -> Result<Claim, ResumeError> {
    match mode.style {
        Style::Blocking => store.resume(ticket),
        Style::Async => block_on(store.resume_async(ticket)),
    }
}

/// Claims `k-1` with a lease and a checkpoint, as work that is handed on has.
fn begun(mode: Mode, store: &Store) -> Operation {
    let claim = mode.claim_with(store, &key("k-1"), request(), lease(LEASE_MS));
    let mut operation = started(claim.expect("a claim"));
    mode.checkpoint(&mut operation, b"half way")
        .expect("a checkpoint");
    operation
}

#[track_caller]
fn lost(result: Result<Claim, ResumeError>) -> Option<u32> {
    match result {
        Err(ResumeError::LeaseLost { new_attempt }) => new_attempt,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ticket_travels_as_bytes_and_becomes_the_guard_of_the_same_attempt() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let operation = begun(mode, &store);
        let (token, began) = (operation.token(), operation.started_at());
        let downstream = operation.downstream_key("charge");
        let sent = operation.into_ticket().expect("a ticket").encode();
        clock.advance(ms(100));
        let progress = in_progress(mode.claim(&store, &key("k-1"), request()));
        assert_eq!((progress.attempt(), progress.since()), (1, began));
        assert_eq!(progress.lease_left(), Some(ms(LEASE_MS - 100)));
        let listed = store.pending().expect("a list").remove(0);
        assert!(listed.is_detached);
        assert_eq!(listed.token, token);

        let ticket = Ticket::decode(&sent).expect("as it was sent");
        assert_eq!((ticket.key(), ticket.attempt()), (&key("k-1"), 1));
        let resumed = started(resume(mode, &store, &ticket).expect("a guard"));
        assert_eq!(resumed.attempt(), 1, "{mode:?}");
        assert!(resumed.token() > token, "the old one is void");
        assert_eq!(resumed.started_at(), began);
        assert!(resumed.previous().is_none());
        let checkpoint = resumed.last_checkpoint().map(|note| &note[..]);
        assert_eq!(checkpoint, Some(&b"half way"[..]));
        assert_eq!(resumed.downstream_key("charge"), downstream);
        assert!(!store.pending().expect("a list").remove(0).is_detached);
        // Its lease begins anew.
        let progress = in_progress(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(progress.lease_left(), Some(ms(LEASE_MS)));
        let saved = mode.complete(resumed, b"paid").expect("a completion");
        assert_eq!(saved.attempt(), 1);
    }
}

#[test]
fn a_ticket_delivered_twice_gives_one_guard() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        let first = started(resume(mode, &store, &ticket).expect("a guard"));
        let second = in_progress(resume(mode, &store, &ticket).expect("an answer"));
        assert_eq!(second.attempt(), 1);
        let third = in_progress(resume(mode, &store, &ticket).expect("an answer"));
        mode.complete(first, b"paid").expect("a completion");
        // Whoever holds the second delivery can wait like any duplicate.
        let waited = completed(mode.wait(third).expect("an answer"));
        assert_eq!(bytes(&waited), b"paid");
        let fourth = completed(resume(mode, &store, &ticket).expect("an answer"));
        assert_eq!(bytes(&fourth), b"paid");
        assert_eq!(store.stats().completed, 1);
    }
}

#[test]
fn a_ticket_delivered_ten_times_at_once_gives_one_guard() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        for round in 0..5 {
            let key = key(&format!("k-{round}"));
            let claim = mode.claim_with(&store, &key, request(), lease(60_000));
            let ticket = started(claim.expect("a claim")).into_ticket().expect("one");
            let barrier = Barrier::new(10);
            let claims: Vec<_> = thread::scope(|scope| {
                let handles: Vec<_> = (0..10)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            resume(mode, &store, &ticket).expect("an answer")
                        })
                    })
                    .collect();
                handles
                    .into_iter()
                    .map(|handle| handle.join().expect("no panic"))
                    .collect()
            });
            let owners = claims.iter().filter(|claim| claim.is_owned()).count();
            assert_eq!(owners, 1, "{mode:?}: {claims:?}");
            for claim in claims {
                if claim.is_owned() {
                    assert_eq!(started(claim).attempt(), 1);
                }
            }
        }
    }
}

#[test]
fn a_ticket_whose_guard_is_gone_gives_an_interrupted_one_with_the_next_attempt() {
    for mode in modes() {
        let (directory, store) = mode.store();
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        drop(started(resume(mode, &store, &ticket).expect("a guard")));
        let operation = interrupted(resume(mode, &store, &ticket).expect("a guard"));
        assert_eq!(operation.attempt(), 2);
        let previous = operation.previous().expect("an attempt before");
        assert_eq!(previous.attempt, 1);
        assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
        drop(operation);
        // As often as it is delivered, also after a restart.
        drop(interrupted(resume(mode, &store, &ticket).expect("a guard")));
        drop(store);
        let store = mode.options().open(directory.path()).expect("reopens");
        let operation = interrupted(resume(mode, &store, &ticket).expect("a guard"));
        assert_eq!(operation.attempt(), 4);
        mode.complete(operation, b"paid").expect("a completion");
        completed(resume(mode, &store, &ticket).expect("an answer"));
    }
}

#[test]
fn a_ticket_that_was_on_its_way_during_a_restart_gives_an_interrupted_guard() {
    for mode in modes() {
        let (directory, store, clock) = mode.store_and_clock();
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        let copy = killed(&store);
        store.close().expect("closes");
        drop(store);
        for directory in [&directory, &copy] {
            let store = mode.reopen(directory, &clock);
            let operation = interrupted(resume(mode, &store, &ticket).expect("a guard"));
            assert_eq!(operation.attempt(), 2, "{mode:?}");
            let previous = operation.previous().expect("an attempt before");
            assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
            in_progress(resume(mode, &store, &ticket).expect("an answer"));
            mode.complete(operation, b"paid").expect("a completion");
            completed(resume(mode, &store, &ticket).expect("an answer"));
        }
    }
}

#[test]
fn a_ticket_that_nobody_resumes_holds_the_key_for_its_lease_and_no_longer() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        clock.advance(ms(LEASE_MS - 1));
        in_progress(mode.claim(&store, &key("k-1"), request()));
        clock.advance(ms(1));
        assert!(matches!(
            store.get(&key("k-1")),
            Ok(KeyState::Interrupted { attempt: 1, .. })
        ));
        // Late, but still before anybody else: it is told that it comes late.
        let late = interrupted(resume(mode, &store, &ticket).expect("a guard"));
        assert_eq!(late.attempt(), 2);
        clock.advance(ms(LEASE_MS));
        let other = interrupted(mode.claim(&store, &key("k-1"), request()));
        assert_eq!(other.attempt(), 3);
        assert_eq!(lost(resume(mode, &store, &ticket)), Some(3));
        assert!(late.complete(b"too late").is_err());
    }
}

#[test]
fn a_ticket_whose_operation_went_on_without_it_is_lost() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let key = key("k-1");
        // Taken over.
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        clock.advance(ms(LEASE_MS));
        let operation = interrupted(mode.claim(&store, &key, request()));
        assert_eq!(lost(resume(mode, &store, &ticket)), Some(2), "{mode:?}");
        // Released by whoever took over.
        mode.release(operation).expect("a release");
        lost(resume(mode, &store, &ticket));
        assert!(matches!(store.get(&key), Ok(KeyState::Absent)));
        // Claimed anew.
        let operation = started(mode.claim(&store, &key, request()));
        assert_eq!(lost(resume(mode, &store, &ticket)), Some(1));
        mode.release(operation).expect("a release");
        // Released by the guard that the ticket gave.
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        let operation = started(resume(mode, &store, &ticket).expect("a guard"));
        mode.release(operation).expect("a release");
        lost(resume(mode, &store, &ticket));
        // Forgotten.
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        store.forget(&key, Forget::Force).expect("forgotten");
        lost(resume(mode, &store, &ticket));
        // Completed, for another request.
        let operation = started(mode.claim(&store, &key, other_request()));
        mode.complete(operation, b"the other").expect("done");
        lost(resume(mode, &store, &ticket));
        store.forget(&key, Forget::Force).expect("forgotten");
        // Completed and expired.
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        let operation = started(resume(mode, &store, &ticket).expect("a guard"));
        mode.complete(operation, b"paid").expect("a completion");
        clock.advance(Duration::from_secs(24 * 3_600));
        lost(resume(mode, &store, &ticket));
        assert_eq!(store.stats().pending_keys, 0);
    }
}

#[test]
fn an_operator_takes_a_key_back_from_a_ticket() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        let listed = store.pending().expect("a list").remove(0);
        store.interrupt(&listed.key, listed.token).expect("taken");
        assert!(store.pending().expect("a list").is_empty());
        // The ticket is still the newest word on it: its owner is gone, so it is a new attempt.
        let operation = interrupted(resume(mode, &store, &ticket).expect("a guard"));
        assert_eq!(operation.attempt(), 2);
    }
}

#[test]
fn a_ticket_needs_a_lease_and_the_guard_comes_back_without_one() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let operation = started(mode.claim(&store, &key("k-1"), request()));
        let error = operation.into_ticket().expect_err("refused");
        assert!(matches!(error.error(), WriteError::TicketNeedsLease));
        let operation = error.into_operation().expect("the guard");
        mode.complete(operation, b"paid").expect("still ours");
    }
}

#[test]
fn a_guard_from_a_ticket_can_be_handed_on_again_and_older_tickets_are_void() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let first = begun(mode, &store).into_ticket().expect("a ticket");
        let operation = started(resume(mode, &store, &first).expect("a guard"));
        let second = operation.into_ticket().expect("a ticket");
        // The first one is attached still, through the second.
        in_progress(resume(mode, &store, &first).expect("an answer"));
        let operation = started(resume(mode, &store, &second).expect("a guard"));
        assert_eq!(operation.attempt(), 1);
        assert_eq!(lost(resume(mode, &store, &first)), Some(1));
        in_progress(resume(mode, &store, &second).expect("an answer"));
        mode.complete(operation, b"paid").expect("a completion");
        for ticket in [&first, &second] {
            completed(resume(mode, &store, ticket).expect("an answer"));
        }
    }
}

#[test]
fn a_ticket_of_another_store_is_refused() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let ticket = begun(mode, &store).into_ticket().expect("a ticket");
        let (_other_directory, other) = mode.store();
        let own = begun(mode, &other);
        let refused = resume(mode, &other, &ticket);
        assert!(
            matches!(refused, Err(ResumeError::OtherStore)),
            "{refused:?}"
        );
        mode.complete(own, b"paid").expect("untouched");
    }
}

#[test]
fn a_ticket_keeps_the_lease_and_the_retention_of_its_claim() {
    for mode in modes() {
        let (_directory, store, clock) = mode.store_and_clock();
        let options = ClaimOptions::new()
            .lease(Lease::For(ms(700)))
            .retention(ms(5_000));
        let claim = mode.claim_with(&store, &key("k-1"), request(), options);
        let ticket = started(claim.expect("a claim")).into_ticket().expect("one");
        let ticket = Ticket::decode(&ticket.encode()).expect("as it was sent");
        clock.advance(ms(699));
        let mut operation = started(resume(mode, &store, &ticket).expect("a guard"));
        clock.advance(ms(699));
        in_progress(mode.claim(&store, &key("k-1"), request()));
        operation.renew().expect("still ours");
        clock.advance(ms(699));
        in_progress(mode.claim(&store, &key("k-1"), request()));
        let saved = mode.complete(operation, b"paid").expect("a completion");
        assert_eq!(saved.expires_at(), saved.completed_at() + ms(5_000));
    }
}

#[test]
fn a_resume_that_is_cancelled_frees_nothing_because_work_was_done_before_it() {
    // Durable guards are handed out only after a sync, so there is a moment to cancel at.
    let mode = Mode {
        durability: oncekey::Durability::Sync,
        style: Style::Async,
    };
    let (_directory, store) = mode.store();
    let ticket = begun(mode, &store).into_ticket().expect("a ticket");
    let future = Polled::new(store.resume_async(&ticket)).pending();
    drop(future);
    match store.get(&key("k-1")).expect("a look") {
        KeyState::Interrupted { attempt: 1, .. } => {}
        other => panic!("{other:?}"),
    }
    // The ticket is still good for it: it will be delivered again.
    let operation = interrupted(resume(mode, &store, &ticket).expect("a guard"));
    let previous = operation.previous().expect("an attempt before");
    assert_eq!(operation.attempt(), 2);
    assert_eq!(previous.checkpoint.as_deref(), Some(&b"half way"[..]));
}

#[test]
fn those_who_wait_stay_waiting_while_a_ticket_travels() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        let operation = begun(mode, &store);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let progress = in_progress(mode.claim(&store, &key("k-1"), request()));
                bytes(&completed(mode.wait(progress).expect("an answer")))
            });
            eventually("the waiter", || store.stats().waiters == 1);
            let ticket = operation.into_ticket().expect("a ticket");
            let operation = started(resume(mode, &store, &ticket).expect("a guard"));
            mode.complete(operation, b"paid").expect("a completion");
            assert_eq!(waiting.join().expect("no panic"), b"paid", "{mode:?}");
        });
    }
}

#[test]
fn a_ticket_shows_neither_its_token_nor_the_raw_id() {
    let (_directory, store) = buffered();
    let key = oncekey::Key::new("acct_1", "charge", "very-secret").expect("a key");
    let claim = store.claim_with(&key, request(), lease(1_000));
    let operation = started(claim.expect("a claim"));
    let token = operation.token().to_string();
    let ticket = operation.into_ticket().expect("a ticket");
    let shown = format!("{ticket:?}");
    assert!(
        !shown.contains("very-secret") && !shown.contains(&token),
        "{shown}"
    );
}
