//! A process that dies between the business write and the stored result, for each way of joining the
//! two: what the next caller sees.
//!
//! The child is this test, started again. It works up to the moment that it is told, and kills itself.

use std::env;
use std::process::{Command, Stdio};

use oncekey::backend::{Backend, Guard, Outcome};
use oncekey::redis::redis;
use oncekey::sql::{OnConflict, TransactionClaim, sqlx};
use oncekey::{Claim, ClaimOptions, Fingerprint, Key, KeyState, Store};

use crate::servers::Server;
use crate::world::{block_on, postgres, redis as redis_backend, redis_connection};

const WHERE: &str = "ONCEKEY_BACKEND_CHILD";

/// Runs the test of this name as a child that dies, with word of where the server or directory is.
fn die(test: &str, place: &str) {
    let child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(WHERE, place)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(
        said.contains("about to die"),
        "the child did not get there: {said}"
    );
    assert!(!child.status.success(), "the child lives");
}

/// As by SIGKILL: nothing is dropped, flushed or said.
fn now() -> ! {
    eprintln!("about to die");
    std::process::abort()
}

fn port() -> Option<u16> {
    Some(env::var(WHERE).ok()?.parse().expect("a port"))
}

fn key() -> Key {
    Key::new("tenant", "POST /v1/orders", "o-1").expect("a key")
}

fn request() -> Fingerprint {
    Fingerprint::of(b"two apples")
}

async fn effects(pool: &sqlx::PgPool) -> i64 {
    let count = sqlx::query_scalar("SELECT COUNT(*) FROM effects");
    count.fetch_one(pool).await.expect("counted")
}

async fn make_effects(pool: &sqlx::PgPool) {
    let make = sqlx::query("CREATE TABLE effects (id INT)").execute(pool);
    make.await.expect("a table");
}

#[test]
fn inside_one_transaction_nothing_happened() {
    if let Some(port) = port() {
        block_on(async {
            let (pool, backend) = postgres(port).await;
            let mut transaction = pool.begin().await.expect("a transaction");
            let options = ClaimOptions::new();
            let claim = backend
                .claim_in(
                    &mut transaction,
                    &key(),
                    request(),
                    options,
                    OnConflict::Wait,
                )
                .await;
            assert!(
                matches!(claim, Ok(TransactionClaim::Started(_))),
                "{claim:?}"
            );
            let insert = sqlx::query("INSERT INTO effects VALUES (1)");
            insert.execute(&mut *transaction).await.expect("written");
            now()
        });
    }
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, backend) = postgres(server.port()).await;
        make_effects(&pool).await;
        let test = "crashes::inside_one_transaction_nothing_happened";
        die(test, &server.port().to_string());
        let mut transaction = pool.begin().await.expect("a transaction");
        let options = ClaimOptions::new();
        let claim = backend
            .claim_in(
                &mut transaction,
                &key(),
                request(),
                options,
                OnConflict::Wait,
            )
            .await;
        // Not interrupted: the write went with the claim.
        assert!(
            matches!(claim, Ok(TransactionClaim::Started(_))),
            "{claim:?}"
        );
        assert_eq!(effects(&pool).await, 0);
    });
}

#[test]
fn with_a_claim_of_its_own_the_next_caller_is_told() {
    if let Some(port) = port() {
        block_on(async {
            let (pool, backend) = postgres(port).await;
            let outcome = backend.claim(&key(), request(), ClaimOptions::new()).await;
            let mut guard = outcome.expect("a claim").into_guard().expect("a guard");
            guard.checkpoint(b"inserting order 1").await.expect("noted");
            let insert = sqlx::query("INSERT INTO effects VALUES (1)");
            insert.execute(&pool).await.expect("written");
            now()
        });
    }
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, backend) = postgres(server.port()).await;
        make_effects(&pool).await;
        let test = "crashes::with_a_claim_of_its_own_the_next_caller_is_told";
        die(test, &server.port().to_string());
        // Held until its lease is over; then whoever waited is told what the dead one noted.
        let outcome = backend.wait(&key(), request(), ClaimOptions::new()).await;
        let outcome = outcome.expect("a claim");
        let Outcome::Interrupted(guard) = outcome else {
            panic!("expected Interrupted, got {outcome:?}")
        };
        assert_eq!(
            guard.last_checkpoint().as_deref(),
            Some(&b"inserting order 1"[..])
        );
        assert_eq!(effects(&pool).await, 1);
    });
}

#[test]
fn with_redis_the_next_caller_is_told() {
    if let Some(port) = port() {
        block_on(async {
            let backend = redis_backend(port).await;
            let outcome = backend.claim(&key(), request(), ClaimOptions::new()).await;
            let mut guard = outcome.expect("a claim").into_guard().expect("a guard");
            guard.checkpoint(b"counting").await.expect("noted");
            let mut connection = redis_connection(port).await;
            let increment = redis::cmd("INCR").arg("effects").to_owned();
            let done: Result<i64, _> = increment.query_async(&mut connection).await;
            done.expect("written");
            now()
        });
    }
    let Some(server) = Server::redis() else {
        return;
    };
    block_on(async {
        let backend = redis_backend(server.port()).await;
        die(
            "crashes::with_redis_the_next_caller_is_told",
            &server.port().to_string(),
        );
        let state = backend.look(&key()).await.expect("a look");
        assert!(
            !matches!(state, KeyState::Absent | KeyState::Completed(_)),
            "{state:?}"
        );
        let outcome = backend.wait(&key(), request(), ClaimOptions::new()).await;
        let outcome = outcome.expect("a claim");
        let Outcome::Interrupted(guard) = outcome else {
            panic!("expected Interrupted, got {outcome:?}")
        };
        assert_eq!(guard.last_checkpoint().as_deref(), Some(&b"counting"[..]));
    });
}

#[test]
fn with_an_embedded_store_the_next_caller_is_told_at_once() {
    if let Some(directory) = env::var_os(WHERE) {
        let store = Store::open(directory).expect("a store");
        let Claim::Started(mut operation) = store.claim(&key(), request()).expect("a claim") else {
            panic!("expected Started")
        };
        operation.checkpoint(b"calling").expect("noted");
        now()
    }
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_str().expect("text");
    die(
        "crashes::with_an_embedded_store_the_next_caller_is_told_at_once",
        place,
    );
    let store = Store::open(directory.path()).expect("a store");
    let claim = store.claim(&key(), request()).expect("a claim");
    let Claim::Interrupted(operation) = claim else {
        panic!("expected Interrupted, got {claim:?}")
    };
    assert_eq!(
        operation.last_checkpoint().map(|note| &note[..]),
        Some(&b"calling"[..])
    );
}
