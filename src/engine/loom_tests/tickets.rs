//! Tickets: however often one is delivered, and whatever happens to its key meanwhile, there is one
//! guard.

use super::*;
use crate::engine::TicketParts;
use crate::ticket::ResumeError;

fn resume(store: &Store, ticket: &TicketParts) -> Result<Outcome, ResumeError> {
    let mut request = store.request(BUFFERED);
    request.options.lease_ms = ticket.lease_ms;
    block_on(store.engine.resume(ticket, &request))
}

fn ticket(store: &Store) -> TicketParts {
    let grant = store.start_leased();
    store.engine.detach(&grant).expect("still held")
}

#[test]
fn a_ticket_delivered_twice_gives_one_guard() {
    explore(3, || {
        let store = Store::new(3);
        let ticket = ticket(&store);
        let again = ticket.clone();
        let other = spawn(&store, move |store| resume(store, &again));
        let outcomes = [resume(&store, &ticket), other.join().expect("answered")];
        let resumed = |outcome: &&Result<Outcome, _>| matches!(outcome, Ok(Outcome::Started(grant)) if grant.attempt == 1);
        assert_eq!(outcomes.iter().filter(resumed).count(), 1, "{outcomes:?}");
        let told = |outcome: &&Result<Outcome, _>| matches!(outcome, Ok(Outcome::InProgress(_)));
        assert_eq!(outcomes.iter().filter(told).count(), 1, "{outcomes:?}");
        store.check_quiet(1);
    });
}

/// The ticket comes again while the guard that was made of it completes.
#[test]
fn a_ticket_comes_again_while_its_guard_completes() {
    explore(3, || {
        let store = Store::new(3);
        let ticket = ticket(&store);
        let Ok(Outcome::Started(grant)) = resume(&store, &ticket) else {
            panic!("it was not resumed before")
        };
        let owner = spawn(&store, move |store| store.complete(&grant, b"a"));
        match resume(&store, &ticket) {
            Ok(Outcome::InProgress(progress)) => assert_eq!(progress.attempt, 1),
            Ok(Outcome::Completed(stored)) => assert_eq!(response_of(&stored), b"a"),
            other => panic!("{other:?}"),
        }
        owner.join().expect("answered").expect("still held");
        store.check_quiet(0);
    });
}

/// Its lease is over: the ticket is resumed as a new attempt, or somebody else takes over.
#[test]
fn a_late_ticket_is_resumed_or_overtaken() {
    explore(3, || {
        let store = Store::new(3);
        let ticket = ticket(&store);
        store.let_the_lease_end();
        let other = spawn(&store, Store::claim);
        match (resume(&store, &ticket), other.join().expect("answered")) {
            (Ok(Outcome::Interrupted(grant)), Outcome::InProgress(_))
            | (Err(ResumeError::LeaseLost { .. }), Outcome::Interrupted(grant)) => {
                assert_eq!(grant.attempt, 2);
            }
            both => panic!("{both:?}"),
        }
        store.check_quiet(1);
    });
}

/// A late owner hands its work on while somebody takes over: the ticket is void then.
#[test]
fn work_is_handed_on_or_overtaken() {
    explore(3, || {
        let store = Store::new(4);
        let grant = store.start_leased();
        store.let_the_lease_end();
        let owner = spawn(&store, move |store| store.engine.detach(&grant));
        let taken = store.claim();
        assert!(matches!(&taken, Outcome::Interrupted(grant) if grant.attempt == 2));
        match owner.join().expect("answered") {
            Err(WriteError::LeaseLost { .. }) => {}
            Ok(ticket) => assert!(matches!(
                resume(&store, &ticket),
                Err(ResumeError::LeaseLost { .. })
            )),
            Err(other) => panic!("{other:?}"),
        }
        store.check_quiet(1);
    });
}
