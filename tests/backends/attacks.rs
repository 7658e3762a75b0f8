//! What goes wrong around a claim: futures that are dropped, servers that hang or are full, keys that
//! nobody expects. What the connection, the guard and the next caller are left with.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use oncekey::backend::{Answer, Backend, Guard, Outcome};
use oncekey::shared::SharedGuard;
use oncekey::sql::sqlx::{SqlitePool, sqlite::SqliteConnectOptions};
use oncekey::sql::{self, OnConflict, Postgres, SqliteBackend, TransactionClaim, sqlx};
use oncekey::{ClaimError, ClaimOptions, Fingerprint, Forget, Key, KeyState};

use crate::servers::Server;
use crate::world::{LEASE, LONG, block_on, options, postgres, redis, sqlite};

fn key(id: impl AsRef<[u8]>) -> Key {
    Key::new("tenant", "POST /v1/orders", id).expect("a key")
}

fn request() -> Fingerprint {
    Fingerprint::of(b"two apples")
}

/// Polls a future so often, and drops it unless it is done.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[test]
fn a_skipping_claim_that_fails_leaves_the_transaction_of_postgres_as_it_was() {
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, backend) = postgres(server.port()).await;
        let foreign = "INSERT INTO oncekey (scope, operation, id, algorithm, digest, state, token, \
                       attempt, created_ms, started_ms, lease_until_ms) \
                       VALUES ($1, $2, $3, 1, 'short', 0, 1, 1, 1, 1, 1)";
        let key = key("foreign");
        let insert = sqlx::query(foreign)
            .bind(key.scope().to_vec())
            .bind(key.operation().to_vec())
            .bind(key.id().to_vec());
        insert.execute(&pool).await.expect("written");
        let mut transaction = pool.begin().await.expect("a transaction");
        let skip = OnConflict::Skip;
        let claim = backend
            .claim_in(&mut transaction, &key, request(), ClaimOptions::new(), skip)
            .await;
        assert!(matches!(claim, Err(ClaimError::Backend(_))), "{claim:?}");
        let timeout: String = sqlx::query_scalar("SHOW lock_timeout")
            .fetch_one(&mut *transaction)
            .await
            .expect("usable");
        assert_eq!(timeout, "0");
    });
}

#[test]
fn a_skipping_claim_that_is_dropped_leaves_the_connection_of_sqlite_as_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (pool, backend) = sqlite(&directory).await;
        let mut is_done = false;
        for times in 0..200 {
            let mut transaction = pool.begin().await.expect("a transaction");
            let key = key("dropped");
            let claim = backend.claim_in(
                &mut transaction,
                &key,
                request(),
                ClaimOptions::new(),
                OnConflict::Skip,
            );
            is_done |= polled(times, claim).await.is_some();
            let timeout: i64 = sqlx::query_scalar("PRAGMA busy_timeout")
                .fetch_one(&mut *transaction)
                .await
                .expect("usable");
            assert_eq!(timeout, LONG.as_millis() as i64, "after {times} polls");
            transaction.rollback().await.expect("rolled back");
        }
        assert!(is_done, "no claim came to its end");

        // And it does not wait, whatever the time-out is.
        let first = pool.begin_with("BEGIN IMMEDIATE").await.expect("the lock");
        let mut second = pool.begin().await.expect("a transaction");
        let begun = Instant::now();
        let (key, skip) = (key("busy"), OnConflict::Skip);
        let claim = backend
            .claim_in(&mut second, &key, request(), ClaimOptions::new(), skip)
            .await;
        assert!(matches!(claim, Ok(TransactionClaim::Busy)), "{claim:?}");
        assert!(begun.elapsed() < LONG / 2);
        drop(first);
    });
}

#[test]
fn a_full_disk_is_named_and_leaves_no_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        drop(sqlite(&directory).await);
        let file = SqliteConnectOptions::new()
            .filename(directory.path().join("keys.db"))
            .pragma("max_page_count", "40");
        let pool = SqlitePool::connect_with(file).await.expect("a file");
        let backend = SqliteBackend::new(pool, options()).expect("options");
        let mut failed = None;
        for number in 0..2_000 {
            let key = key(format!("{number:0>200}"));
            match backend.claim(&key, request(), ClaimOptions::new()).await {
                Ok(outcome) => std::mem::forget(outcome),
                Err(error) => {
                    failed = Some(error.to_string());
                    break;
                }
            }
        }
        let failed = failed.expect("full");
        assert!(failed.contains("full"), "{failed}");
        // Another connection can write.
        let (_, other) = sqlite(&directory).await;
        let first = key(format!("{:0>200}", 0));
        let forgotten = tokio::time::timeout(LONG, other.forget(&first, Forget::Force));
        assert!(forgotten.await.expect("no lock is left").expect("removed"));
    });
}

/// A write waits for a sync, and keeps all other writers away.
#[test]
fn answers_about_a_key_that_is_taken_write_nothing_to_sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (pool, backend) = sqlite(&directory).await;
        let claim = async |id: &str, request| {
            let key = key(id);
            let claim = backend.claim(&key, request, ClaimOptions::new());
            claim.await.expect("an answer")
        };
        let guard = claim("done", request()).await.into_guard().expect("new");
        let _pending = claim("pending", request()).await.into_guard().expect("new");
        let answer = Answer::response(b"thanks");
        guard.complete(answer).await.expect("completed");

        // This number changes with each commit of somebody else that changes something.
        let mut watcher = pool.acquire().await.expect("a connection");
        let mut version = async || -> i64 {
            let version = sqlx::query_scalar("PRAGMA data_version");
            version.fetch_one(&mut *watcher).await.expect("a number")
        };
        let before = version().await;
        let done = claim("done", request()).await;
        assert!(matches!(done, Outcome::Completed(_)), "{done:?}");
        let other = claim("done", Fingerprint::of(b"a pear")).await;
        assert!(matches!(other, Outcome::Mismatch(_)), "{other:?}");
        let pending = claim("pending", request()).await;
        assert!(matches!(pending, Outcome::InProgress(_)), "{pending:?}");
        assert_eq!(version().await, before);
        let _new = claim("new", request()).await.into_guard().expect("new");
        assert_ne!(version().await, before);
    });
}

#[test]
fn a_guard_whose_server_says_nothing_counts_as_lost_after_its_lease() {
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, backend) = postgres(server.port()).await;
        let outcome = backend
            .claim(&key("hung"), request(), ClaimOptions::new())
            .await;
        let guard: SharedGuard<Postgres> = outcome.expect("a claim").into_guard().expect("free");
        // Whoever has the row keeps every renewal waiting.
        let mut transaction = pool.begin().await.expect("a transaction");
        let held = sqlx::query("SELECT id FROM oncekey FOR UPDATE").fetch_one(&mut *transaction);
        held.await.expect("the row");
        let begun = Instant::now();
        while !guard.is_lost() {
            assert!(begun.elapsed() < LONG, "the guard hangs");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(begun.elapsed() >= LEASE / 2, "too early");
        transaction.rollback().await.expect("rolled back");
        // Nobody took it: it goes on.
        while guard.is_lost() {
            assert!(begun.elapsed() < LONG, "no renewal gets through");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        guard
            .complete(Answer::response(b"done"))
            .await
            .expect("completed");
    });
}

/// Keys that a careless statement, name or listing would trip over.
async fn keys_are_only_bytes<B: Backend>(backend: &B) {
    let all: Vec<u8> = (0..=255).collect();
    let keys = [
        Key::new(&all[..255], &all[1..], &all[128..]),
        Key::new("", "", "\0"),
        Key::new("\0", "", "\0\0"),
        Key::new([0xff], [0xff; 255], [0xff; 255]),
        Key::new("'; DROP TABLE oncekey; --", "\"", "$1 ? :x"),
        Key::new("{", "}", "{}:{a}%00"),
    ]
    .map(|key| key.expect("a key"));
    for key in &keys {
        let outcome = backend.claim(key, request(), ClaimOptions::new()).await;
        drop(outcome.expect("a claim").into_guard().expect("free"));
    }
    let begun = Instant::now();
    loop {
        let listed = backend.interrupted(100).await.expect("listed");
        let is_listed = |key: &Key| listed.iter().any(|pending| pending.key == *key);
        if keys.iter().all(is_listed) {
            assert_eq!(listed.len(), keys.len());
            break;
        }
        assert!(begun.elapsed() < LONG, "{listed:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (number, key) in keys.iter().enumerate() {
        let outcome = backend.claim(key, request(), ClaimOptions::new()).await;
        let guard = outcome.expect("a claim").into_guard().expect("taken over");
        let answer = number.to_string();
        let completed = guard.complete(Answer::response(answer.as_bytes())).await;
        completed.expect("completed");
    }
    for (number, key) in keys.iter().enumerate() {
        let claim = backend.claim(key, request(), ClaimOptions::new()).await;
        let Ok(Outcome::Completed(saved)) = claim else {
            panic!("expected Completed, got {claim:?}")
        };
        let replay = saved.by_scope().expect("anybody's");
        let response = replay.response().expect("stored");
        assert_eq!(response[..], *number.to_string().as_bytes());
    }
    let long = Key::new([b'x'; 256], "", "k").expect("a key");
    let refused = backend.look(&long).await;
    assert!(
        !matches!(refused, Ok(KeyState::Absent)) && refused.is_err(),
        "{refused:?}"
    );
}

#[test]
fn keys_are_only_bytes_to_sqlite() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        sql::migrate_sqlite(&sqlite(&directory).await.0)
            .await
            .expect("again");
        keys_are_only_bytes(&sqlite(&directory).await.1).await;
    });
}

#[test]
fn keys_are_only_bytes_to_postgres() {
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async { keys_are_only_bytes(&postgres(server.port()).await.1).await });
}

#[test]
fn keys_are_only_bytes_to_redis() {
    let Some(server) = Server::redis() else {
        return;
    };
    block_on(async { keys_are_only_bytes(&redis(server.port()).await).await });
}
