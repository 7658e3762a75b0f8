//! The outbox: what is sent with a completion is delivered, in order, until it is acknowledged.

#![cfg(feature = "testing")]

mod support;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use oncekey::outbox::{Delivery, Outbox};
use oncekey::testing::SimulatedDisk;
use oncekey::{AttachmentError, Durability, Key, KeyState, ManualClock, Store, WriteError};

use support::attached::{claim, options, roll};
use support::*;

const SECOND: Duration = Duration::from_secs(1);

/// Completes an operation of its own with one message.
fn send(store: &Store, lane: &str, payload: &str) {
    let completion = claim(store, payload).complete_with(b"done");
    completion
        .send("topic", lane, payload)
        .commit()
        .expect("sent");
}

fn next(outbox: &Outbox) -> Option<Delivery> {
    outbox.next(Duration::ZERO).expect("an answer")
}

fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload().to_vec()).expect("text")
}

/// All that is delivered, in order, and acknowledged.
fn drain(store: &Store) -> Vec<String> {
    let outbox = Outbox::new(store);
    let mut all = Vec::new();
    while let Some(delivery) = next(&outbox) {
        all.push(text(&delivery));
        delivery.acknowledge().expect("acknowledged");
    }
    all
}

#[test]
fn messages_come_in_order_for_each_key_and_once_if_acknowledged() {
    for mode in modes() {
        let (_directory, store) = mode.store();
        for (lane, payload) in [("a", "a1"), ("b", "b1"), ("a", "a2")] {
            let completion = claim(&store, payload).complete_with(b"done");
            let completion = completion.send("topic", lane, payload);
            match mode.style {
                Style::Blocking => completion.commit(),
                Style::Async => block_on(completion.commit_async()),
            }
            .expect("sent");
        }
        let outbox = Outbox::new(&store);
        let take = || match mode.style {
            Style::Blocking => next(&outbox).expect("one is due"),
            Style::Async => block_on(outbox.next_async()).expect("one is due"),
        };
        let (first, second) = (take(), take());
        assert_eq!((first.topic(), first.key()), (&b"topic"[..], &b"a"[..]));
        assert_eq!([text(&first), text(&second)], ["a1", "b1"]);
        assert!(next(&outbox).is_none(), "a2 waits for a1");
        assert_ne!(first.id(), second.id());
        match mode.style {
            Style::Blocking => first.acknowledge(),
            Style::Async => block_on(first.acknowledge_async()),
        }
        .expect("acknowledged");
        let third = take();
        assert_eq!((text(&third).as_str(), third.attempt()), ("a2", 1));
        let id = third.id();
        drop((second, third));
        let stats = store.stats();
        assert_eq!((stats.outbox_messages, stats.completed_keys), (2, 3));
        assert!(next(&outbox).is_none(), "they wait a second");
        let again = outbox
            .next(LONG)
            .expect("an answer")
            .expect("it comes again");
        let other = outbox
            .next(LONG)
            .expect("an answer")
            .expect("it comes again");
        assert!(again.id() == id || other.id() == id);
    }
}

#[test]
fn a_message_that_fails_waits_longer_each_time_and_is_dead_in_the_end() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let mut store = options(&clock).open(directory.path()).expect("opens");
    send(&store, "a", "bad");
    send(&store, "a", "good");
    let outbox = |store: &Store| {
        Outbox::new(store)
            .max_attempts(4)
            .backoff(SECOND, 3 * SECOND)
    };
    let id = next(&outbox(&store)).expect("due").id();
    clock.advance(SECOND);
    for (attempt, seconds) in [(1, 1), (2, 2), (3, 3)] {
        let delivery = next(&outbox(&store)).expect("due");
        assert_eq!(
            (text(&delivery).as_str(), delivery.attempt()),
            ("bad", attempt)
        );
        assert_eq!(delivery.id(), id);
        delivery.fail().expect("noted");
        clock.advance(seconds * SECOND - ms(1));
        assert!(next(&outbox(&store)).is_none(), "after attempt {attempt}");
        clock.advance(ms(1));
        if attempt == 2 {
            // What was counted is counted after a restart, and it is due at once.
            drop(store);
            store = options(&clock).open(directory.path()).expect("reopens");
        }
    }
    next(&outbox(&store)).expect("due").fail().expect("noted");
    for reopened in [false, true] {
        if reopened {
            drop(store);
            store = options(&clock).open(directory.path()).expect("reopens");
        }
        let dead = outbox(&store).dead_letters().expect("a list");
        assert_eq!(dead.len(), 1);
        assert_eq!((dead[0].id(), dead[0].attempts()), (id, 4));
        assert_eq!((dead[0].payload(), dead[0].key()), (&b"bad"[..], &b"a"[..]));
        let stats = store.stats();
        assert_eq!((stats.outbox_messages, stats.outbox_dead_letters), (1, 1));
        assert_eq!(stats.completed_keys, 2);
    }
    let good = next(&outbox(&store)).expect("it is passed by");
    assert_eq!(text(&good), "good");
    assert!(outbox(&store).retry(id).expect("written"));
    assert!(!outbox(&store).retry(id).expect("not dead any more"));
    assert!(next(&outbox(&store)).is_none(), "one of a key at a time");
    good.acknowledge().expect("acknowledged");
    let again = next(&outbox(&store)).expect("due");
    assert_eq!((again.id(), again.attempt()), (id, 1));
    again.reject().expect("dead at once");
    assert!(outbox(&store).discard(id).expect("removed"));
    assert!(!outbox(&store).discard(id).expect("gone"));
    drop(store);
    let store = options(&clock).open(directory.path()).expect("reopens");
    let stats = store.stats();
    assert_eq!((stats.outbox_messages, stats.outbox_dead_letters), (0, 0));
}

#[test]
fn a_full_outbox_refuses_and_the_guard_is_held() {
    let directory = directory();
    let options = || small(Durability::Sync).max_outbox(2);
    let store = options().open(directory.path()).expect("opens");
    send(&store, "a", "1");
    let two = claim(&store, "two")
        .complete_with(b"")
        .send("t", "k", "x")
        .send("t", "k", "y");
    let error = two.commit().expect_err("one too many");
    assert!(
        matches!(error.error(), WriteError::OutboxFull { limit: 2 }),
        "{error}"
    );
    let guard = error.into_operation().expect("held");
    drain(&store);
    let two = guard
        .complete_with(b"")
        .send("t", "k", "x")
        .send("t", "k", "y");
    two.commit().expect("there is room now");
    // A version that is refused takes no place.
    drain(&store);
    for number in 0..5 {
        let operation = claim(&store, &format!("gap {number}")).complete_with(b"");
        let error = operation.send("t", "k", "z").version("e", 7, 8).commit();
        error
            .expect_err("a gap")
            .into_operation()
            .expect("held")
            .release()
            .expect("released");
    }
    assert_eq!(store.stats().outbox_messages, 0);
    let large = claim(&store, "large")
        .complete_with(b"")
        .send("t", "k", vec![0; 1 << 20]);
    let error = large.commit().expect_err("too large");
    let WriteError::Attachment(reason) = error.error() else {
        panic!("{error:?}");
    };
    assert!(
        matches!(reason, AttachmentError::PayloadTooLarge { .. }),
        "{reason:?}"
    );
    drop(error);
    send(&store, "a", "2");
    send(&store, "a", "3");
    drop(store);
    let store = options().open(directory.path()).expect("reopens");
    let one = claim(&store, "one").complete_with(b"").send("t", "k", "x");
    one.commit().expect_err("what is there counts");
    assert_eq!(drain(&store), ["2", "3"]);
}

#[test]
fn users_do_not_meet_messages() {
    let (_directory, store) = buffered();
    send(&store, "a", "m");
    // Whatever a message's key is, one of a user's keys could have the same parts.
    assert_eq!(store.stats().completed_keys, 1);
    assert!(store.pending().expect("a list").is_empty());
    assert!(store.interrupted().expect("a list").is_empty());
    let same = Key::new("topic", "a", "m").expect("a good key");
    assert!(matches!(
        store.get(&same).expect("an answer"),
        KeyState::Absent
    ));
}

#[test]
fn a_dispatcher_that_waits_is_woken_and_a_close_ends_it() {
    let (_directory, store) = buffered();
    let (sent, waiting) = (store.clone(), store.clone());
    thread::scope(|scope| {
        let blocking = scope.spawn(move || {
            let outbox = Outbox::new(&waiting);
            let delivery = outbox.next(LONG).expect("an answer").expect("a message");
            delivery.acknowledge().expect("acknowledged");
            outbox.next(LONG).expect_err("closed")
        });
        send(&sent, "a", "m");
        eventually("it is delivered", || sent.stats().outbox_messages == 0);
        let outbox = Outbox::new(&sent);
        let other = scope.spawn(move || block_on(outbox.next_async()).expect_err("closed"));
        sent.close().expect("closed");
        blocking.join().expect("no panic");
        other.join().expect("no panic");
    });
}

#[test]
fn completions_at_once_keep_the_order_of_their_keys() {
    let (_directory, store) = buffered();
    const SENDERS: usize = 4;
    const EACH: usize = 200;
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let store = &store;
            scope.spawn(move || {
                for number in 0..EACH {
                    let operation = claim(store, &format!("{sender}-{number}"));
                    let completion = operation.complete_with(b"");
                    let completion = completion.send("t", "shared", format!("{sender} {number}"));
                    let own = format!("{sender}");
                    completion
                        .send("t", own, format!("{number}"))
                        .commit()
                        .expect("sent");
                }
            });
        }
        let outbox = Outbox::new(&store);
        let mut last = BTreeMap::<String, Vec<usize>>::new();
        let mut ids = Vec::new();
        for _ in 0..2 * SENDERS * EACH {
            let delivery = outbox.next(LONG).expect("an answer").expect("a message");
            let payload = text(&delivery);
            let (lane, number) = match delivery.key() {
                b"shared" => {
                    ids.push(delivery.id());
                    let (sender, number) = payload.split_once(' ').expect("both");
                    (format!("shared {sender}"), number.to_owned())
                }
                own => (String::from_utf8_lossy(own).into_owned(), payload),
            };
            last.entry(lane)
                .or_default()
                .push(number.parse().expect("a number"));
            delivery.acknowledge().expect("acknowledged");
        }
        assert!(ids.is_sorted(), "by position");
        let expected: Vec<_> = (0..EACH).collect();
        assert!(
            last.values().all(|numbers| *numbers == expected),
            "{last:?}"
        );
    });
    assert_eq!(store.stats().outbox_messages, 0);
}

#[test]
fn messages_outlive_maintenance_and_acknowledged_ones_leave_nothing() {
    let (directory, clock) = (directory(), ManualClock::new(START_MS));
    let mut store = options(&clock).open(directory.path()).expect("opens");
    for number in 0..6 {
        send(&store, &format!("{}", number % 2), &format!("m{number}"));
    }
    roll(&store, &clock, 0);
    store.maintain().expect("a pass");
    assert!(store.stats().segments_compacted > 0, "they were copied");
    assert!(matches!(
        store.get(&key("m0")).expect("an answer"),
        KeyState::Absent
    ));
    assert_eq!(store.stats().outbox_lag_ms, 7_200_000);
    for payload in ["m0", "m1"] {
        let delivery = next(&Outbox::new(&store)).expect("due");
        assert_eq!(text(&delivery), payload);
        delivery.acknowledge().expect("acknowledged");
    }
    next(&Outbox::new(&store))
        .expect("due")
        .fail()
        .expect("noted");
    for round in 1..5 {
        roll(&store, &clock, round);
        store.maintain().expect("a pass");
        store.close().expect("closed");
        store = options(&clock).open(directory.path()).expect("reopens");
        assert_eq!(store.stats().outbox_messages, 4, "round {round}");
    }
    let delivery = next(&Outbox::new(&store)).expect("due");
    assert_eq!((text(&delivery).as_str(), delivery.attempt()), ("m2", 2));
    drop(delivery);
    clock.advance(SECOND);
    // The one that was dropped waited, and the other key did not wait for it.
    assert_eq!(drain(&store), ["m3", "m5", "m2", "m4"]);
    for round in 5..9 {
        roll(&store, &clock, round);
        store.maintain().expect("a pass");
    }
    let stats = store.stats();
    assert_eq!(
        (stats.segments_compacted, stats.outbox_messages),
        (0, 0),
        "{stats:?}"
    );
}

/// What is handed out survives every loss of power from then on; what was acknowledged may come again.
#[test]
fn a_loss_of_power_loses_no_message_and_makes_none_up() {
    let (disk, clock) = (SimulatedDisk::new(), ManualClock::new(START_MS));
    // Completions are not waited for, so that only the dispatcher makes them durable.
    let store = options(&clock).open_simulated(&disk).expect("opens");
    disk.keep_states();
    let mut handed_out = Vec::new();
    for number in 0..4 {
        let operation = claim(&store, &format!("k{number}"));
        let completion = operation
            .complete_with(vec![1; 3_000])
            .durability(Durability::Buffered);
        let completion = completion.send("t", "k", format!("m{number}"));
        completion
            .send("t", "other", vec![b'x'; 3_000])
            .commit()
            .expect("sent");
        let delivery = next(&Outbox::new(&store)).expect("due");
        handed_out.push((disk.operations(), number));
        delivery.acknowledge().expect("acknowledged");
    }
    let mut states = disk.take_states();
    states.push((disk.operations(), disk.clone()));
    for (at, state) in states {
        let mut found = vec![state.crash_all_lost(), state.crash_none_lost()];
        found.extend((0..8).map(|seed| state.crash_random(at * 8 + seed)));
        for found in found {
            let store = options(&clock).open_simulated(&found).expect("opens");
            let done = (0..4).filter(|number| {
                let state = store.get(&key(&format!("k{number}"))).expect("an answer");
                matches!(state, KeyState::Completed(_))
            });
            let done = done.count();
            let least = handed_out
                .iter()
                .filter(|(reached, _)| *reached <= at)
                .count();
            assert!(
                done >= least.div_ceil(2),
                "operation {at}: {done} of {least}"
            );
            let all = drain(&store);
            assert!(all.len() <= 2 * done, "{all:?} of {done}");
            let own: Vec<_> = all.iter().filter(|text| text.starts_with('m')).collect();
            assert!(own.is_sorted());
            assert!(
                own.iter()
                    .all(|text| text[1..].parse::<usize>().expect("a number") < done)
            );
            // Nothing is lost: all but the acknowledged ones are there.
            assert!(
                all.len() + least >= 2 * done,
                "{} and {least} of {done}",
                all.len()
            );
        }
    }
}

/// A waker may come back to the store at once, also for the very key that is being completed.
#[test]
fn whoever_is_woken_by_a_message_finds_its_operation_completed() {
    struct Looks(Store, Mutex<Vec<bool>>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let state = self.0.get(&key("m")).expect("an answer");
            let is_completed = matches!(state, KeyState::Completed(_));
            self.1.lock().expect("no panic").push(is_completed);
        }
    }
    let (_directory, store) = buffered();
    let looks = Arc::new(Looks(store.clone(), Mutex::default()));
    let outbox = Outbox::new(&store);
    let mut next = pin!(outbox.next_async());
    let waker = Waker::from(Arc::clone(&looks));
    let mut context = Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut context).is_pending());
    send(&store, "a", "m");
    assert_eq!(*looks.1.lock().expect("no panic"), [true]);
    let Poll::Ready(delivery) = next.as_mut().poll(&mut context) else {
        panic!("a message is due");
    };
    delivery
        .expect("a message")
        .acknowledge()
        .expect("acknowledged");
}

#[test]
fn an_acknowledgement_on_a_full_disk_is_kept_and_written_once_there_is_room() {
    let disk = SimulatedDisk::new();
    disk.capacity(6_u64 * (64 << 10));
    let opened = || {
        small(Durability::Sync)
            .max_outbox(1_000)
            .open_simulated(&disk)
    };
    let store = opened().expect("opens");
    for number in 0..200 {
        send(&store, &format!("lane {number}"), &format!("m{number}"));
    }
    // Whatever room there is, claims take.
    let mut guards = Vec::new();
    while let Ok(claimed) = store.claim(&key(&format!("n-{}", guards.len())), request()) {
        guards.push(claimed);
        assert!(guards.len() < 10_000, "the disk never fills");
    }
    assert_eq!(drain(&store).len(), 200);
    assert!(
        drain(&store).is_empty(),
        "what is acknowledged does not come again"
    );
    assert_eq!(store.stats().outbox_messages, 0);
    // Those without a removal come again where the process ends now.
    let copy = disk.crash_none_lost();
    let restarted = small(Durability::Sync)
        .open_simulated(&copy)
        .expect("opens");
    let again = drain(&restarted).len();
    assert!((1..200).contains(&again), "{again} removals found no room");
    drop(restarted);
    // And are removed once there is room.
    disk.capacity(None);
    drop(guards);
    for number in 0..40 {
        send(&store, "later", &format!("l{number}"));
    }
    assert_eq!(drain(&store).len(), 40);
    store.close().expect("closed");
    let store = opened().expect("reopens");
    assert!(drain(&store).is_empty(), "nothing is owed any more");
}
