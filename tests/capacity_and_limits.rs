//! Limits are typed errors, exact, and change nothing; and no way through a key's life leaks the
//! room or the places that it was promised.

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oncekey::{
    AdminError, ClaimError, ClaimOptions, Durability, Forget, Key, KeyError, KeyPart, KeyState,
    Lease, OpenError, Options, Store, WriteError,
};

use support::*;

#[test]
fn no_more_keys_are_pending_than_allowed_and_nothing_is_evicted() {
    for mode in modes() {
        let directory = directory();
        let options = mode.options().max_pending(3);
        let store = options.open(directory.path()).expect("a store");
        let claim = |id: &str| mode.try_claim(&store, &key(id), request());
        let full = |id: &str| match claim(id) {
            Err(ClaimError::TooManyPending { limit: 3 }) => {}
            other => panic!("{mode:?}: {other:?}"),
        };
        let one = started(claim("1").expect("a claim"));
        let two = started(claim("2").expect("a claim"));
        let three = started(claim("3").expect("a claim"));
        full("4");
        full("4");
        assert!(matches!(store.get(&key("4")), Ok(KeyState::Absent)));
        // What is known is answered, and a takeover needs no new place.
        in_progress(claim("1").expect("an answer"));
        drop(two);
        full("4");
        let two = interrupted(claim("2").expect("a claim"));
        // Every end of an operation makes room for one.
        mode.complete(one, b"paid").expect("a completion");
        let four = started(claim("4").expect("a claim"));
        full("5");
        completed(claim("1").expect("an answer"));
        mode.release(two).expect("a release");
        let five = started(claim("5").expect("a claim"));
        full("6");
        assert!(store.forget(&key("5"), Forget::Force).expect("forgotten"));
        drop(five);
        let _six = started(claim("6").expect("a claim"));
        full("7");
        drop((three, four));
        full("7");
        assert_eq!(store.stats().pending_keys, 3);
    }
}

#[test]
fn the_limit_of_pending_keys_counts_those_of_an_earlier_process() {
    for mode in modes() {
        let (directory, store) = mode.store();
        for number in 0..3 {
            drop(started(mode.claim(
                &store,
                &key(&number.to_string()),
                request(),
            )));
        }
        drop(store);
        // Fewer than there are: they are kept, and no new ones are taken.
        let store = mode
            .options()
            .max_pending(2)
            .open(directory.path())
            .expect("reopens");
        assert_eq!(store.stats().pending_keys, 3);
        let full = mode.try_claim(&store, &key("4"), request());
        assert!(matches!(full, Err(ClaimError::TooManyPending { limit: 2 })));
        for number in 0..2 {
            let claim = mode.claim(&store, &key(&number.to_string()), request());
            mode.complete(interrupted(claim), b"paid").expect("done");
        }
        drop(started(mode.claim(&store, &key("4"), request())));
    }
}

#[test]
fn key_parts_of_every_length_up_to_the_limit_are_taken_and_longer_ones_refused() {
    for (limit, options) in [
        (255, small(Durability::Buffered)),
        (1, small(Durability::Buffered).max_key_part(1)),
        (1_024, small(Durability::Buffered).max_key_part(1_024)),
    ] {
        let directory = directory();
        let store = options.open(directory.path()).expect("a store");
        let part = |len: usize| vec![b'x'; len];
        let longest = Key::new(part(limit), part(limit), part(limit)).expect("a key");
        finish(&store, &longest, b"paid");
        finish(&store, &Key::new("", "", "i").expect("a key"), b"paid");
        drop(store);
        let store = options.open(directory.path()).expect("reopens");
        completed(store.claim(&longest, request()).expect("a claim"));
        for (index, expected) in [KeyPart::Scope, KeyPart::Operation, KeyPart::Id]
            .into_iter()
            .enumerate()
        {
            let mut lengths = [1; 3];
            lengths[index] = limit + 1;
            let [scope, operation, id] = lengths.map(part);
            let key = match Key::new(scope, operation, id) {
                Ok(key) => key,
                // Longer than any store takes: it does not even get as far as the store.
                Err(error) => {
                    assert_eq!(limit, 1_024);
                    too_long(error, expected, limit);
                    continue;
                }
            };
            match store.claim(&key, request()) {
                Err(ClaimError::Key(error)) => too_long(error, expected, limit),
                other => panic!("{other:?}"),
            }
            match store.get(&key) {
                Err(ClaimError::Key(error)) => too_long(error, expected, limit),
                other => panic!("{other:?}"),
            }
            match store.forget(&key, Forget::Force) {
                Err(AdminError::Claim(ClaimError::Key(error))) => {
                    too_long(error, expected, limit);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(store.stats().pending_keys, 0);
    }
}

#[track_caller]
fn too_long(error: KeyError, expected: KeyPart, limit: usize) {
    match error {
        KeyError::TooLong { part, len, max } => {
            assert_eq!((part, len, max), (expected, limit + 1, limit));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_id_is_no_key_and_neither_is_an_endless_one() {
    assert_eq!(
        Key::new("acct_1", "charge", "").unwrap_err(),
        KeyError::Empty { part: KeyPart::Id }
    );
    assert!(matches!(
        Key::new("", "", vec![b'x'; 64 << 10]),
        Err(KeyError::TooLong { .. })
    ));
    assert!(matches!(
        Key::new("", "", vec![b'x'; (64 << 10) + 1]),
        Err(KeyError::TooLong { len: 65_537, .. })
    ));
}

#[test]
fn any_bytes_make_a_key_and_none_of_them_gets_raw_into_a_log() {
    let (directory, store) = buffered();
    let odd: [&[u8]; 7] = [
        b" ",
        b"\0",
        b"\n[ERROR] forged line",
        "\u{202e}\u{1F4B3}".as_bytes(),
        b"\xff\xfe",
        b"../../etc/passwd",
        b"%s%n{}",
    ];
    for id in odd {
        let key = Key::new(id, id, id).expect("a key");
        finish(&store, &key, id);
        for shown in [
            key.to_string(),
            format!("{key:?}"),
            key.display_raw().to_string(),
        ] {
            assert!(
                shown.is_ascii() && !shown.contains(['\n', '\0']),
                "{shown:?}"
            );
        }
    }
    drop(store);
    let store = reopen(&directory, Durability::Buffered);
    for id in odd {
        let key = Key::new(id, id, id).expect("a key");
        let saved = completed(store.claim(&key, request()).expect("a claim"));
        assert_eq!(bytes(&saved), id);
    }
}

#[test]
fn a_ticket_for_a_key_longer_than_the_store_takes_now_is_refused() {
    let directory = directory();
    let options = small(Durability::Buffered);
    let store = options
        .clone()
        .max_key_part(1_024)
        .open(directory.path())
        .expect("a store");
    let key = Key::new("", "", vec![b'x'; 1_024]).expect("a key");
    let claim = store.claim_with(&key, request(), lease(1_000));
    let ticket = started(claim.expect("a claim")).into_ticket().expect("one");
    drop(store);
    let store = options.open(directory.path()).expect("reopens");
    let refused = store.resume(&ticket);
    assert!(
        matches!(
            refused,
            Err(oncekey::ResumeError::Claim(ClaimError::Key(_)))
        ),
        "{refused:?}"
    );
    // It is kept and listed all the same.
    assert_eq!(store.interrupted().expect("a list")[0].key, key);
}

#[test]
fn a_response_over_the_limit_is_refused_and_one_at_the_limit_is_taken() {
    for mode in modes() {
        for limit in [0, 1, 4_096, 15_000] {
            let directory = directory();
            let options = mode.options().max_response(limit);
            let store = options.open(directory.path()).expect("a store");
            let operation = started(mode.claim(&store, &key("k-1"), request()));
            let error = mode
                .complete(operation, vec![7; limit + 1])
                .expect_err("refused");
            match error.error() {
                WriteError::ResponseTooLarge { len, max } => {
                    assert_eq!((*len, *max), (limit + 1, limit));
                }
                other => panic!("{other:?}"),
            }
            let operation = error.into_operation().expect("the guard");
            in_progress(mode.claim(&store, &key("k-1"), request()));
            let saved = mode.complete(operation, vec![7; limit]).expect("fits");
            assert_eq!(bytes(&saved), vec![7; limit]);
        }
    }
}

#[test]
fn responses_larger_than_what_is_set_aside_find_their_room() {
    for mode in modes() {
        let directory = directory();
        let options = mode.options().reserved_response(0);
        let store = options.open(directory.path()).expect("a store");
        // Most of a segment's half each: every other one needs a new segment.
        for number in 0..40 {
            let key = key(&number.to_string());
            let operation = started(mode.claim(&store, &key, request()));
            mode.complete(operation, vec![number; 15_000])
                .expect("there is room");
        }
        for number in 0..40 {
            let key = key(&number.to_string());
            let saved = completed(mode.claim(&store, &key, request()));
            assert_eq!(bytes(&saved), vec![number; 15_000]);
        }
    }
}

#[test]
fn options_out_of_range_are_named_and_nothing_is_made_on_the_disk() {
    let base = || small(Durability::Buffered);
    let cases: [(&str, Options); 16] = [
        ("segment_size", base().segment_size(0)),
        ("segment_size", base().segment_size((64 << 20) + 4_096)),
        ("segment_size", base().segment_size((64 << 10) + 8)),
        ("segment_size", base().segment_size(u64::MAX)),
        ("stripes", base().stripes(0)),
        ("stripes", base().stripes(3)),
        ("stripes", base().stripes(usize::MAX)),
        ("prepared_segments", base().prepared_segments(0)),
        ("prepared_segments", base().prepared_segments(65)),
        ("max_key_part", base().max_key_part(0)),
        ("max_key_part", base().max_key_part(1_025)),
        ("max_response", base().max_response((16 << 20) + 1)),
        ("max_response", base().max_response(1 << 20)),
        (
            "reserved_response",
            base().max_response(100).reserved_response(101),
        ),
        ("max_pending", base().max_pending(0)),
        ("max_waiters", base().max_waiters(usize::MAX)),
    ];
    for (name, options) in cases {
        let parent = directory();
        let path = parent.path().join("store");
        match options.open(&path) {
            Err(OpenError::Options(error)) => {
                let message = error.to_string();
                assert!(message.contains(name), "{message}");
                assert!(message.contains("choose"), "it says what to do: {message}");
            }
            other => panic!("{name}: {other:?}"),
        }
        assert!(!path.exists(), "{name}");
    }
}

#[test]
fn options_at_their_limits_make_a_store_that_works() {
    let base = || small(Durability::Buffered);
    for options in [
        base().segment_size(64 << 10).stripes(1),
        base().stripes(65_536),
        base().prepared_segments(64),
        base().max_key_part(1_024).max_pending(1),
        base().max_pending(100_000_000),
        base().retention(oncekey::limits::RETENTION_MIN),
        base().retention(oncekey::limits::RETENTION_MAX),
        base().lease(Lease::For(oncekey::limits::LEASE_MAX)),
        base().segment_size(64 << 20).max_response(16 << 20),
        base().max_response(0).reserved_response(0),
        base().max_clock_jump(Duration::MAX),
        base().max_clock_jump(Duration::ZERO),
    ] {
        let directory = directory();
        let clock = oncekey::ManualClock::new(START_MS);
        let options = options.clock(Arc::new(clock));
        let store = options.open(directory.path()).expect("a store");
        finish(&store, &key("k-1"), b"");
        drop(store);
        let store = options.open(directory.path()).expect("reopens");
        completed(store.claim(&key("k-1"), request()).expect("a claim"));
    }
}

/// A store whose log stays in its first segment, so that what is free and what is written add up.
fn one_segment(durability: Durability) -> (tempfile::TempDir, Store, oncekey::ManualClock) {
    let (directory, clock) = (directory(), oncekey::ManualClock::new(START_MS));
    let store = small(durability)
        .segment_size(64 << 20)
        .clock(Arc::new(clock.clone()))
        .open(directory.path())
        .expect("a store");
    eventually("the prepared segment", || {
        store.stats().segments_prepared == 1
    });
    (directory, store, clock)
}

type Way = (&'static str, fn(&Store, &oncekey::ManualClock, &Key));

/// Every way through a key's life. All of them end with the key absent, interrupted or completed.
const WAYS: [Way; 16] = [
    ("claim, drop", |store, _, key| {
        drop(owned(store.claim(key, request()).expect("a claim")));
    }),
    ("claim, release", |store, _, key| {
        owned(store.claim(key, request()).expect("a claim"))
            .release()
            .expect("a release");
    }),
    ("claim, complete, forget", |store, _, key| {
        owned(store.claim(key, request()).expect("a claim"))
            .complete(b"paid")
            .expect("a completion");
        store.forget(key, Forget::IfCompleted).expect("forgotten");
    }),
    (
        "claim, complete with more than was set aside",
        |store, _, key| {
            owned(store.claim(key, request()).expect("a claim"))
                .complete(vec![7; 9_000])
                .expect("a completion");
            store.forget(key, Forget::IfCompleted).expect("forgotten");
        },
    ),
    ("claim, complete, expire", |store, clock, key| {
        owned(store.claim(key, request()).expect("a claim"))
            .complete_with(b"paid")
            .retention(ms(1_000))
            .principal("alice")
            .commit()
            .expect("a completion");
        clock.advance(ms(1_000));
    }),
    ("claim, checkpoint, drop", |store, _, key| {
        let mut operation = owned(store.claim(key, request()).expect("a claim"));
        operation.checkpoint(vec![7; 1_000]).expect("a checkpoint");
        operation.checkpoint(b"").expect("a checkpoint");
    }),
    (
        "lease over, taken over, both dropped",
        |store, clock, key| {
            let claim = store.claim_with(key, request(), lease(1_000));
            let stale = owned(claim.expect("a claim"));
            clock.advance(ms(1_000));
            let fresh = interrupted(store.claim(key, request()).expect("a claim"));
            drop(stale);
            drop(fresh);
        },
    ),
    (
        "lease over, taken over, both completing",
        |store, clock, key| {
            let claim = store.claim_with(key, request(), lease(1_000));
            let stale = owned(claim.expect("a claim"));
            clock.advance(ms(1_000));
            let fresh = interrupted(store.claim(key, request()).expect("a claim"));
            assert!(stale.complete(vec![7; 9_000]).is_err());
            fresh.complete(b"").expect("a completion");
            store.forget(key, Forget::Force).expect("forgotten");
        },
    ),
    ("forgotten by force", |store, _, key| {
        let operation = owned(store.claim(key, request()).expect("a claim"));
        store.forget(key, Forget::Force).expect("forgotten");
        assert!(operation.release().is_err());
    }),
    ("interrupted by an operator", |store, _, key| {
        let operation = owned(store.claim(key, request()).expect("a claim"));
        store.interrupt(key, operation.token()).expect("taken");
        assert!(operation.complete(b"stale").is_err());
    }),
    ("handed on by ticket", |store, clock, key| {
        let claim = store.claim_with(key, request(), lease(1_000));
        let ticket = owned(claim.expect("a claim")).into_ticket().expect("one");
        let operation = owned(store.resume(&ticket).expect("a guard"));
        let ticket = operation.into_ticket().expect("a ticket");
        clock.advance(ms(1_000));
        drop(interrupted(store.resume(&ticket).expect("a guard")));
    }),
    ("claim future dropped", |store, _, key| {
        let sync = ClaimOptions::new().durability(Durability::Sync);
        let mut future = Polled::new(store.claim_with_async(key, request(), sync));
        match future.poll() {
            Poll::Pending => drop(future),
            Poll::Ready(claim) => drop(owned(claim.expect("a claim"))),
        }
    }),
    ("refused completions", |store, _, key| {
        let operation = owned(store.claim(key, request()).expect("a claim"));
        let error = operation.complete(vec![0; 2 << 20]).expect_err("too large");
        let operation = error.into_operation().expect("the guard");
        let error = operation
            .complete_with(b"")
            .principal(vec![0; 256])
            .commit()
            .expect_err("too long");
        let operation = error.into_operation().expect("the guard");
        drop(operation.into_ticket().expect_err("no lease"));
    }),
    ("mismatches and duplicates", |store, _, key| {
        let operation = owned(store.claim(key, request()).expect("a claim"));
        mismatch(store.claim(key, other_request()).expect("a claim"));
        let progress = in_progress(store.claim(key, request()).expect("a claim"));
        drop(Polled::new(progress.wait_async()).pending());
        let progress = in_progress(store.claim(key, request()).expect("a claim"));
        in_progress(progress.wait(Duration::ZERO).expect("an answer"));
        operation.release().expect("a release");
    }),
    ("a batch with duplicates", |store, _, key| {
        let pairs = [(key, request()), (key, request()), (key, other_request())];
        drop(store.claim_many(pairs, ClaimOptions::new()));
    }),
    ("too late", |store, _, key| {
        store.forget(key, Forget::Force).expect("forgotten");
        let late = ClaimOptions::new().first_sent(std::time::SystemTime::UNIX_EPOCH);
        drop(store.claim_with(key, request(), late).expect("an answer"));
    }),
];

#[test]
fn no_way_through_a_keys_life_leaks_room_or_places() {
    const ROUNDS: usize = 1_000;
    for (name, way) in WAYS {
        let (_directory, store, clock) = one_segment(Durability::Buffered);
        let keys = [key("k-1"), key("k-2"), key("k-3")];
        // What is promised to nobody and what was written make up the whole, unless something
        // leaks. A sync takes bytes out of the second account.
        let written = |store: &Store| store.stats().unsynced_bytes;
        let free = |store: &Store| store.stats().available_bytes;
        let syncing = name == "claim future dropped";
        let whole = free(&store) + written(&store);
        for round in 0..ROUNDS {
            way(&store, &clock, &keys[round % keys.len()]);
        }
        if syncing {
            // Each round appends a claim and a release, or interrupts: less than 400 bytes.
            let used = whole - free(&store);
            assert!(used < ROUNDS as u64 * 400, "{name}: {used} bytes are gone");
        } else {
            assert_eq!(free(&store) + written(&store), whole, "{name}");
        }
        let stats = store.stats();
        assert_eq!(stats.waiters, 0, "{name}");
        assert_eq!(stats.pending_keys, stats.interrupted_keys, "{name}");
        assert!(stats.pending_keys <= 3, "{name}");
        for key in &keys {
            store.forget(key, Forget::Force).expect("forgotten");
        }
        assert_eq!(store.stats().pending_keys, 0, "{name}");
        assert_eq!(store.stats().completed_keys, 0, "{name}");
    }
}

#[test]
fn a_held_key_sets_aside_the_same_room_whatever_it_went_through() {
    let (_directory, store, clock) = one_segment(Durability::Buffered);
    let key = key("k-1");
    let free = || store.stats().available_bytes + store.stats().unsynced_bytes;
    let whole = free();
    let operation = started(store.claim(&key, request()).expect("a claim"));
    let promised = whole - free();
    assert!((4_096..8_192).contains(&promised), "{promised} bytes");
    drop(operation);
    assert_eq!(free(), whole);
    let mut operation = interrupted(store.claim(&key, request()).expect("a claim"));
    assert_eq!(whole - free(), promised, "taken over");
    operation.checkpoint(vec![7; 4_096]).expect("a checkpoint");
    assert_eq!(whole - free(), promised, "with a checkpoint");
    drop(operation);
    let claim = store.claim_with(&key, request(), lease(1_000));
    let stale = interrupted(claim.expect("a claim"));
    assert_eq!(whole - free(), promised, "taken over with a checkpoint");
    clock.advance(ms(1_000));
    let claim = store.claim_with(&key, request(), lease(1_000));
    let operation = interrupted(claim.expect("a claim"));
    assert_eq!(whole - free(), promised, "after a lease was over");
    drop(stale);
    assert_eq!(whole - free(), promised, "a stale guard's end");
    let ticket = operation.into_ticket().expect("a ticket");
    assert_eq!(whole - free(), promised, "a ticket");
    let operation = started(store.resume(&ticket).expect("a guard"));
    assert_eq!(whole - free(), promised, "resumed");
    operation.complete(vec![7; 20_000]).expect("a completion");
    assert_eq!(free(), whole, "completed");
}

#[test]
fn thousands_of_lives_over_many_small_segments_leak_no_room() {
    for durability in DURABILITIES {
        let directory = directory();
        let clock = oncekey::ManualClock::new(START_MS);
        let segment = 64 << 10;
        let store = small(durability)
            .clock(Arc::new(clock.clone()))
            .open(directory.path())
            .expect("a store");
        let rounds = match durability {
            Durability::Buffered => 200,
            Durability::Sync => 8,
        };
        let free = || {
            eventually("the prepared segment", || {
                store.stats().segments_prepared >= 1
            });
            store.stats().available_bytes
        };
        // Everything that is free lies in the segment being written and in those prepared.
        let most = |prepared: u64| (1 + prepared) * segment;
        for round in 0..rounds {
            for (_, way) in WAYS {
                way(&store, &clock, &key(&(round % 3).to_string()));
            }
            let (free, prepared) = (free(), store.stats().segments_prepared);
            assert!(free <= most(prepared), "{free} bytes free, {prepared}");
            assert!(free >= 3 * segment / 4, "{free} bytes free, {prepared}");
        }
        let segments = store.stats().segments;
        assert!(segments > rounds / 8, "{segments} segments");
    }
}

#[test]
fn keys_by_the_thousand_come_and_go_without_a_trace_in_the_index() {
    let (_directory, store, clock) = one_segment(Durability::Buffered);
    for round in 0..5 {
        let mut held = Vec::new();
        for number in 0..2_000 {
            let claim = store.claim_with(&key(&format!("{number}")), request(), lease(1_000));
            held.push(owned(claim.expect("a claim")));
        }
        assert_eq!(store.stats().pending_keys, 2_000);
        match round {
            0 => held.into_iter().for_each(|operation| {
                operation.release().expect("a release");
            }),
            1 => drop(held),
            2 => {
                clock.advance(ms(1_000));
                drop(held);
            }
            _ => {
                for operation in held {
                    let completion = operation.complete_with(b"paid").retention(ms(1_000));
                    completion.commit().expect("a completion");
                }
                clock.advance(ms(1_000));
            }
        }
        let left = store.stats();
        assert_eq!(left.pending_keys, left.interrupted_keys);
    }
    let stats = store.stats();
    assert_eq!((stats.pending_keys, stats.completed_keys), (0, 2_000));
}

#[test]
fn a_store_opened_often_uses_no_more_room_than_it_holds() {
    let directory = directory();
    let options = small(Durability::Buffered);
    let used = |path: &Path| -> u64 {
        fs::read_dir(path)
            .expect("a list")
            .map(|entry| entry.expect("an entry").metadata().expect("it").len())
            .sum()
    };
    drop(options.open(directory.path()).expect("a store"));
    let empty = used(directory.path());
    for life in 0..20 {
        let store = options.open(directory.path()).expect("a store");
        finish(&store, &key(&life.to_string()), b"paid");
        drop(store);
    }
    // A header page and the records of one life each, in whole pages, and a side-car.
    assert!(used(directory.path()) <= empty + 20 * (8_192 + 4_608));
}

#[test]
fn a_store_of_many_segments_keeps_few_files_open() {
    for durability in DURABILITIES {
        let directory = directory();
        let path = fs::canonicalize(directory.path()).expect("a path");
        let open_files = || {
            let list = fs::read_dir("/proc/self/fd").expect("a list");
            let links = list.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
            links.filter(|link| link.starts_with(&path)).count()
        };
        let options = small(durability);
        let store = options.open(directory.path()).expect("a store");
        for number in 0..400 {
            finish(&store, &key(&number.to_string()), vec![7; 4_000]);
        }
        store.flush().expect("synced");
        let segments = store.stats().segments;
        assert!(segments > 20, "{segments} segments");
        // The lock, META, the directory, the segment being written, those ahead and just behind it.
        assert!(
            open_files() < 12,
            "{} files of {segments} segments",
            open_files()
        );
        drop(store);
        assert_eq!(open_files(), 0);
        let store = options.open(directory.path()).expect("reopens");
        assert!(
            open_files() < 12,
            "{} files of {segments} segments",
            open_files()
        );
        completed(store.claim(&key("0"), request()).expect("a claim"));
        completed(store.claim(&key("399"), request()).expect("a claim"));
    }
}
