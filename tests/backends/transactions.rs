//! Claims inside the caller's own transaction: all or nothing, and one of many.

use std::time::Duration;

use oncekey::backend::{Answer, Backend, Guard, Outcome};
use oncekey::sql::{
    OnConflict, PostgresBackend, SqliteBackend, TransactionClaim, TransactionOperation, sqlx,
};
use oncekey::{ClaimOptions, Fingerprint, Key, KeyState};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::servers::Server;
use crate::world::{LONG, block_on, postgres, sqlite};

fn key(id: &str) -> Key {
    Key::new("tenant", "POST /v1/orders", id).expect("a key")
}

fn request() -> Fingerprint {
    Fingerprint::of(b"two apples")
}

fn started(claim: TransactionClaim) -> TransactionOperation {
    match claim {
        TransactionClaim::Started(operation) => operation,
        other => panic!("expected Started, got {other:?}"),
    }
}

/// The tests of one database: what differs is how a transaction begins.
macro_rules! transactions {
    ($module:ident, $database:ty, $backend:ty, $server:ty, $connect:expr, $open:expr, $begin:expr) => {
        mod $module {
            use super::*;

            type Pool = sqlx::Pool<$database>;
            type Transaction = sqlx::Transaction<'static, $database>;

            /// Holds the server as long as the test lasts.
            struct World($server);

            impl World {
                async fn open(&self) -> (Pool, $backend) {
                    let (pool, backend) = $open(&self.0).await;
                    let make = sqlx::query(EFFECTS).execute(&pool);
                    make.await.expect("a table of effects");
                    (pool, backend)
                }
            }

            async fn count(pool: &Pool, key: &Key) -> i64 {
                let sql = "SELECT COUNT(*) FROM effects WHERE id = $1";
                let count = sqlx::query_scalar(sql).bind(key.id().to_vec());
                count.fetch_one(pool).await.expect("counted")
            }

            async fn claim(
                backend: &$backend,
                transaction: &mut Transaction,
                key: &Key,
                on_conflict: OnConflict,
            ) -> TransactionClaim {
                let options = ClaimOptions::new();
                let claim = backend.claim_in(transaction, key, request(), options, on_conflict);
                claim.await.expect("a claim")
            }

            async fn write(transaction: &mut Transaction, key: &Key) {
                let insert = sqlx::query("INSERT INTO effects (id) VALUES ($1)");
                let insert = insert.bind(key.id().to_vec()).execute(&mut **transaction);
                insert.await.expect("written");
            }

            #[test]
            fn claim_work_and_completion_commit_or_roll_back_together() {
                let Some(world) = $connect else { return };
                block_on(async {
                    let (pool, backend) = world.open().await;
                    let key = key("together");
                    let mut first = $begin(&pool).await;
                    let operation =
                        started(claim(&backend, &mut first, &key, OnConflict::Wait).await);
                    let downstream_key = operation.downstream_key("charge");
                    write(&mut first, &key).await;
                    let answer = Answer::response(b"o-1").principal(b"alice");
                    operation
                        .complete(&mut *first, answer)
                        .await
                        .expect("completed");
                    first.rollback().await.expect("rolled back");
                    assert_eq!(count(&pool, &key).await, 0);
                    assert!(matches!(
                        backend.look(&key).await.expect("a look"),
                        KeyState::Absent
                    ));

                    let mut second = $begin(&pool).await;
                    let operation =
                        started(claim(&backend, &mut second, &key, OnConflict::Skip).await);
                    assert_eq!(operation.attempt(), 1);
                    assert_eq!(operation.downstream_key("charge"), downstream_key);
                    write(&mut second, &key).await;
                    operation
                        .complete(&mut *second, answer)
                        .await
                        .expect("completed");
                    second.commit().await.expect("committed");

                    assert_eq!(count(&pool, &key).await, 1);
                    let mut third = $begin(&pool).await;
                    let saved = match claim(&backend, &mut third, &key, OnConflict::Wait).await {
                        TransactionClaim::Completed(saved) => saved,
                        other => panic!("expected Completed, got {other:?}"),
                    };
                    let replay = saved.for_principal(b"alice").expect("hers");
                    assert_eq!(&replay.response().expect("stored")[..], b"o-1");
                    let other = Fingerprint::of(b"three apples");
                    let options = ClaimOptions::new();
                    let again =
                        backend.claim_in(&mut third, &key, other, options, OnConflict::Wait);
                    let again = again.await.expect("a claim");
                    assert!(matches!(again, TransactionClaim::Mismatch(_)), "{again:?}");
                });
            }

            #[test]
            fn a_commit_without_a_completion_leaves_the_key_interrupted() {
                let Some(world) = $connect else { return };
                block_on(async {
                    let (pool, backend) = world.open().await;
                    let key = key("incomplete");
                    let mut first = $begin(&pool).await;
                    let operation =
                        started(claim(&backend, &mut first, &key, OnConflict::Wait).await);
                    first.commit().await.expect("committed");
                    let mut second = $begin(&pool).await;
                    let again = match claim(&backend, &mut second, &key, OnConflict::Wait).await {
                        TransactionClaim::Interrupted(again) => again,
                        other => panic!("expected Interrupted, got {other:?}"),
                    };
                    assert_eq!(again.attempt(), 2);
                    assert_eq!(again.previous().map(|previous| previous.attempt), Some(1));
                    assert!(again.token() > operation.token());
                    // The first one is fenced by the second.
                    let late = operation
                        .complete(&mut *second, Answer::without_response())
                        .await;
                    late.expect_err("the key is another's");
                    again.release(&mut *second).await.expect("released");
                    second.commit().await.expect("committed");
                    assert!(matches!(
                        backend.look(&key).await.expect("a look"),
                        KeyState::Absent
                    ));
                });
            }

            #[test]
            fn a_stand_alone_owner_is_in_progress() {
                let Some(world) = $connect else { return };
                block_on(async {
                    let (pool, backend) = world.open().await;
                    let key = key("stand-alone");
                    let options = ClaimOptions::new();
                    let outcome = backend
                        .claim(&key, request(), options)
                        .await
                        .expect("a claim");
                    let Outcome::Started(guard) = outcome else {
                        panic!("expected Started, got {outcome:?}")
                    };
                    let mut transaction = $begin(&pool).await;
                    let met = claim(&backend, &mut transaction, &key, OnConflict::Wait).await;
                    assert!(matches!(met, TransactionClaim::InProgress(_)), "{met:?}");
                    transaction.rollback().await.expect("rolled back");
                    guard
                        .complete(Answer::response(b"alone"))
                        .await
                        .expect("completed");
                });
            }

            #[test]
            fn of_many_transactions_on_one_key_one_has_an_effect() {
                let Some(world) = $connect else { return };
                block_on(async {
                    let (pool, backend) = world.open().await;
                    for round in 0..5 {
                        let key = key(&format!("race-{round}"));
                        let mut callers = JoinSet::new();
                        for caller in 0..8 {
                            let (pool, backend, key) = (pool.clone(), backend.clone(), key.clone());
                            callers.spawn(async move {
                                let mut transaction = $begin(&pool).await;
                                let on_conflict = OnConflict::Wait;
                                match claim(&backend, &mut transaction, &key, on_conflict).await {
                                    TransactionClaim::Started(operation) => {
                                        write(&mut transaction, &key).await;
                                        let answer = Answer::response(b"done");
                                        operation
                                            .complete(&mut *transaction, answer)
                                            .await
                                            .expect("ok");
                                        // Some of the first change their mind.
                                        if caller % 3 == 0 {
                                            transaction.rollback().await.expect("rolled back");
                                        } else {
                                            transaction.commit().await.expect("committed");
                                        }
                                    }
                                    TransactionClaim::Completed(_) => {}
                                    other => panic!("a caller got {other:?}"),
                                }
                            });
                        }
                        callers.join_all().await;
                        assert_eq!(count(&pool, &key).await, 1, "round {round}");
                    }
                });
            }

            #[test]
            fn a_second_transaction_waits_or_is_told_at_once() {
                let Some(world) = $connect else { return };
                block_on(async {
                    let (pool, backend) = world.open().await;
                    let key = key("busy");
                    let mut first = $begin(&pool).await;
                    let operation =
                        started(claim(&backend, &mut first, &key, OnConflict::Wait).await);
                    let mut second = pool.begin().await.expect("a transaction");
                    let busy = claim(&backend, &mut second, &key, OnConflict::Skip).await;
                    assert!(matches!(busy, TransactionClaim::Busy), "{busy:?}");
                    // The transaction that was turned away goes on.
                    let one: i64 =
                        sqlx::query_scalar("SELECT COUNT(*) FROM effects WHERE id IS NULL")
                            .fetch_one(&mut *second)
                            .await
                            .expect("still usable");
                    assert_eq!(one, 0);
                    second.rollback().await.expect("rolled back");

                    let waiting = {
                        let (pool, backend, key) = (pool.clone(), backend.clone(), key.clone());
                        tokio::spawn(async move {
                            let mut third = $begin(&pool).await;
                            let met = claim(&backend, &mut third, &key, OnConflict::Wait).await;
                            matches!(met, TransactionClaim::Completed(_))
                        })
                    };
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    assert!(!waiting.is_finished(), "it did not wait");
                    operation
                        .complete(&mut *first, Answer::response(b"1"))
                        .await
                        .expect("ok");
                    first.commit().await.expect("committed");
                    let waited = tokio::time::timeout(LONG, waiting).await.expect("woken");
                    assert!(waited.expect("no panic"), "the result is not seen");
                });
            }

            #[test]
            fn expired_results_are_reaped_in_batches_and_nothing_else() {
                let Some(world) = $connect else { return };
                block_on(async {
                    let (_pool, backend) = world.open().await;
                    let second = Duration::from_secs(1);
                    for number in 0..10 {
                        let key = key(&format!("reaped-{number}"));
                        let options = ClaimOptions::new();
                        let outcome = backend.claim(&key, request(), options).await.expect("ok");
                        let guard = outcome.into_guard().expect("a guard");
                        let retention = if number < 7 { second } else { second * 3_600 };
                        let answer = Answer::response(b"x").retention(retention);
                        guard.complete(answer).await.expect("completed");
                    }
                    let open = backend
                        .claim(&key("open"), request(), ClaimOptions::new())
                        .await;
                    let open = open.expect("a claim").into_guard().expect("a guard");
                    tokio::time::sleep(second + Duration::from_millis(100)).await;
                    let mut reaped = Vec::new();
                    while reaped.last() != Some(&0) {
                        reaped.push(backend.reap(5).await.expect("reaped"));
                    }
                    assert_eq!(reaped, [5, 2, 0]);
                    let kept = backend.look(&key("reaped-8")).await.expect("a look");
                    assert!(matches!(kept, KeyState::Completed(_)), "{kept:?}");
                    open.complete(Answer::without_response())
                        .await
                        .expect("still held");
                });
            }
        }
    };
}

const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS effects (id BYTEA)";

transactions!(
    in_postgres,
    sqlx::Postgres,
    PostgresBackend,
    Server,
    Server::postgres().map(World),
    async |server: &Server| postgres(server.port()).await,
    async |pool: &Pool| pool.begin().await.expect("a transaction")
);
transactions!(
    in_sqlite,
    sqlx::Sqlite,
    SqliteBackend,
    TempDir,
    Some(World(tempfile::tempdir().expect("a directory"))),
    async |directory: &TempDir| sqlite(directory).await,
    async |pool: &Pool| pool
        .begin_with("BEGIN IMMEDIATE")
        .await
        .expect("a transaction")
);
