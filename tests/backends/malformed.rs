//! Rows and hashes that somebody else wrote: each is refused by name to whoever claims its key, is left
//! out of listings without spoiling them, is never reaped, and goes by force.

use std::time::{Duration, Instant};

use oncekey::backend::{Answer, Backend, Guard, MalformedRecord};
use oncekey::redis::RedisBackend;
use oncekey::redis::redis::{self, AsyncCommands};
use oncekey::shared::{Driver, SharedBackend};
use oncekey::sql::sqlx;
use oncekey::{AdminError, ClaimError, ClaimOptions, Fingerprint, Forget, Key, KeyState};

use crate::servers::Server;
use crate::world::{LONG, block_on, options, postgres, redis as redis_backend, sqlite};

fn request() -> Fingerprint {
    Fingerprint::of(b"two apples")
}

fn key(id: &str) -> Key {
    Key::new("tenant", "POST /v1/orders", id).expect("a key")
}

/// A key that is interrupted, and one that is completed.
async fn made<B: Backend>(backend: &B, id: &str, is_completed: bool) {
    let claim = backend
        .claim(&key(id), request(), ClaimOptions::new())
        .await;
    let guard = claim.expect("a claim").into_guard().expect("free");
    if is_completed {
        guard
            .complete(Answer::response(b"done"))
            .await
            .expect("completed");
        return;
    }
    drop(guard);
    let begun = Instant::now();
    while !matches!(
        backend.look(&key(id)).await,
        Ok(KeyState::Interrupted { .. })
    ) {
        assert!(begun.elapsed() < LONG, "it is not interrupted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn told(error: &ClaimError, field: &str, place: &str) -> MalformedRecord {
    let ClaimError::Backend(error) = error else {
        panic!("expected Backend, got {error:?}")
    };
    let malformed = error
        .malformed()
        .expect("it says what it can't read")
        .clone();
    assert!(!error.is_outcome_unknown(), "{error}");
    assert_eq!(malformed.field, field, "{malformed}");
    assert!(malformed.place.contains(place), "{malformed}");
    malformed
}

/// Each of `ids` can't be read for the field beside it. `good` is interrupted, `gone` is to be forgotten.
async fn is_refused_everywhere<D: Driver>(backend: &SharedBackend<D>, bad: &[(String, &str)]) {
    for (id, field) in bad {
        let key = key(id);
        let place = match backend.claim(&key, request(), ClaimOptions::new()).await {
            Err(error) => told(&error, field, "POST /v1/orders").place,
            Ok(outcome) => panic!("{id}: {outcome:?}"),
        };
        let looked = backend.look(&key).await.expect_err(id);
        told(&looked, field, &place);
        let waited = backend.wait(&key, request(), ClaimOptions::new()).await;
        told(&waited.expect_err(id), field, &place);
    }
    let listed = backend.interrupted(100).await.expect("a listing");
    let listed: Vec<_> = listed.iter().map(|pending| pending.key.clone()).collect();
    assert_eq!(listed, [key("good")], "only what can be read is listed");
    let listed = backend.interrupted(1).await.expect("a listing");
    assert_eq!(listed.len(), 1, "what can't be read takes nobody's place");
    let malformed = backend.malformed(1_000).await.expect("a listing");
    assert_eq!(malformed.len(), bad.len(), "{malformed:?}");
    assert_eq!(backend.malformed(1).await.expect("a listing").len(), 1);
}

async fn goes_by_force<D: Driver>(backend: &SharedBackend<D>, bad: &[(String, &str)]) {
    for (id, field) in bad {
        match backend.forget(&key(id), Forget::IfCompleted).await {
            Err(AdminError::Claim(error)) => {
                told(&error, field, "");
            }
            // Its state says that it is completed, and its time that it may have expired.
            Ok(_) => continue,
            forgotten => panic!("{id}: {forgotten:?}"),
        }
        let forgotten = backend.forget(&key(id), Forget::Force).await;
        assert!(forgotten.expect("forgotten"), "{id}");
        let state = backend.look(&key(id)).await;
        assert!(matches!(state, Ok(KeyState::Absent)), "{id}: {state:?}");
    }
    assert!(backend.malformed(10).await.expect("a listing").is_empty());
}

/// What is put into a column, whether into a completed row, and the column that the error names.
const VALUES: [(&str, bool, &str); 20] = [
    ("state = 7", false, "state"),
    ("state = -1", false, "state"),
    ("state = NULL", false, "state"),
    ("token = -1", false, "token"),
    ("token = 9223372036854775807", false, "token"),
    ("attempt = 0", false, "attempt"),
    ("attempt = 4294967296", false, "attempt"),
    ("created_ms = -5", false, "created_ms"),
    ("created_ms = 9223372036854775807", true, "created_ms"),
    ("started_ms = NULL", false, "started_ms"),
    ("lease_until_ms = NULL, state = 0", false, "lease_until_ms"),
    ("lease_until_ms = -1, state = 0", false, "lease_until_ms"),
    (
        "lease_until_ms = 9223372036854775807",
        false,
        "lease_until_ms",
    ),
    ("completed_ms = NULL", true, "completed_ms"),
    ("expires_ms = NULL", true, "expires_ms"),
    ("expires_ms = -1", true, "expires_ms"),
    ("algorithm = 300", false, "algorithm"),
    ("algorithm = NULL", true, "algorithm"),
    ("digest = 'short'", false, "digest"),
    ("digest = NULL, expires_ms = 5", true, "digest"),
];

macro_rules! rows {
    ($pool:expr, $backend:expr, $values:expr) => {{
        let (pool, backend) = ($pool, $backend);
        made(backend, "good", false).await;
        let mut bad = Vec::new();
        for (set, is_completed, column) in $values {
            made(backend, set, is_completed).await;
            let update = format!("UPDATE oncekey SET {set} WHERE id = $1");
            let update = sqlx::query(sqlx::AssertSqlSafe(update)).bind(set.as_bytes().to_vec());
            let updated = update.execute(pool).await.expect(set);
            assert_eq!(updated.rows_affected(), 1, "{set}");
            bad.push((set.to_owned(), column));
        }
        is_refused_everywhere(backend, &bad).await;
        assert_eq!(backend.reap(100).await.expect("reaped"), 0);
        assert_eq!(
            backend.malformed(100).await.expect("a listing").len(),
            bad.len()
        );
        goes_by_force(backend, &bad).await;
    }};
}

#[test]
fn a_malformed_row_of_postgres_is_named() {
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, backend) = postgres(server.port()).await;
        let mut alter = "ALTER TABLE oncekey DROP CONSTRAINT oncekey_state_check".to_owned();
        for column in [
            "algorithm",
            "digest",
            "state",
            "token",
            "attempt",
            "created_ms",
            "started_ms",
            "lease_until_ms",
        ] {
            alter += &format!(", ALTER {column} DROP NOT NULL");
        }
        let altered = sqlx::raw_sql(sqlx::AssertSqlSafe(alter))
            .execute(&pool)
            .await;
        altered.expect("altered");
        rows!(&pool, &backend, VALUES);

        // A completion never makes an answer of what it can't read, and changes nothing then.
        let owned = key("owned");
        let claim = backend.claim(&owned, request(), ClaimOptions::new()).await;
        let guard = claim.expect("a claim").into_guard().expect("free");
        let update =
            sqlx::query("UPDATE oncekey SET started_ms = 9223372036854775807 WHERE id = $1");
        update
            .bind(owned.id().to_vec())
            .execute(&pool)
            .await
            .expect("updated");
        let refused = guard
            .complete(Answer::response(b"done"))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("started_ms"), "{refused}");

        // A column of another type is a typed error of every call, and no panic.
        let alter = "ALTER TABLE oncekey ALTER response TYPE TEXT USING 'x'";
        sqlx::raw_sql(alter).execute(&pool).await.expect("altered");
        let looked = backend.look(&owned).await.expect_err("refused");
        assert!(matches!(looked, ClaimError::Backend(_)), "{looked:?}");
        drop(refused);
    });
}

#[test]
fn a_malformed_row_of_sqlite_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    block_on(async {
        let (pool, backend) = sqlite(&directory).await;
        let (nullable, open) = (" NOT NULL", "CHECK (state BETWEEN 0 AND 2)");
        let schema = oncekey::sql::SQLITE_SCHEMA
            .replace(nullable, "")
            .replace(open, "");
        let schema = format!("DROP TABLE oncekey; DROP TABLE oncekey_token; {schema}");
        let made = sqlx::raw_sql(sqlx::AssertSqlSafe(schema))
            .execute(&pool)
            .await;
        made.expect("a looser table");
        let of_any_type = [
            ("expires_ms = 1.5", true, "expires_ms"),
            ("expires_ms = 'soon'", true, "expires_ms"),
            ("lease_until_ms = x'00', state = 0", false, "lease_until_ms"),
            ("created_ms = 0.5", false, "created_ms"),
        ];
        rows!(&pool, &backend, VALUES.into_iter().chain(of_any_type));
    });
}

#[test]
fn a_malformed_hash_of_redis_is_named() {
    let Some(server) = Server::redis() else {
        return;
    };
    block_on(async {
        let backend = redis_backend(server.port()).await;
        let mut connection = crate::world::redis_connection(server.port()).await;
        made(&backend, "good", false).await;
        let name = |id: &str| format!("test:{{tenant:POST /v1/orders:{id}}}");
        let mut bad = Vec::new();
        for (number, (field, value, is_completed)) in [
            ("s", Some("7"), false),
            ("s", Some("done"), false),
            ("s", None, false),
            ("t", Some("-4"), false),
            ("t", Some("9007199254740993"), false),
            ("t", Some("007"), false),
            ("t", None, true),
            ("a", Some("99999999999"), false),
            ("a", None, false),
            ("c", Some("1e300"), true),
            ("b", Some("18446744073709551615"), false),
            ("l", None, false),
            ("l", Some("soon"), false),
            ("d", None, true),
            ("e", Some("never"), true),
            ("f", Some("v2"), false),
            ("f", None, true),
        ]
        .into_iter()
        .enumerate()
        {
            let id = format!("bad-{number}");
            made(&backend, &id, is_completed).await;
            let changed: redis::RedisResult<i64> = match value {
                Some(value) => connection.hset(name(&id), field, value).await,
                None => connection.hdel(name(&id), field).await,
            };
            changed.expect("changed");
            bad.push((id, field));
        }
        // Not even a hash, and a hash that is somebody else's.
        let set: redis::RedisResult<()> = connection.set(name("string"), "mine").await;
        set.expect("set");
        let set: redis::RedisResult<i64> = connection.hset(name("other"), "name", "mine").await;
        set.expect("set");
        bad.extend([("string".to_owned(), ""), ("other".to_owned(), "s")]);
        is_refused_everywhere(&backend, &bad).await;
        goes_by_force(&backend, &bad).await;

        let claim = backend
            .claim(&key("owned"), request(), ClaimOptions::new())
            .await;
        let guard = claim.expect("a claim").into_guard().expect("free");
        let changed: redis::RedisResult<i64> = connection.hset(name("owned"), "b", "x").await;
        changed.expect("changed");
        let refused = guard
            .complete(Answer::response(b"done"))
            .await
            .expect_err("refused");
        assert!(refused.to_string().contains("has in b"), "{refused}");
    });
}

#[test]
fn a_prefix_that_would_mean_something_else_is_refused() {
    let Some(server) = Server::redis() else {
        return;
    };
    block_on(async {
        let connection = crate::world::redis_connection(server.port()).await;
        let long = "x".repeat(256);
        for prefix in ["", "{a}", "a{", "a*", "a b", "ü", "a\0", "a\"", &long] {
            let connected = RedisBackend::connect(connection.clone(), prefix, options()).await;
            let refused = connected.expect_err(prefix);
            assert!(refused.to_string().contains("prefix"), "{refused}");
        }
        let longest = "x".repeat(255);
        for prefix in ["a", "a:b-c_d./e", &longest] {
            let backend = RedisBackend::connect(connection.clone(), prefix, options()).await;
            made(&backend.expect("connected"), "k", true).await;
        }
    });
}

#[test]
fn a_schema_of_postgres_may_have_any_name() {
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, _) = postgres(server.port()).await;
        let longest = "s".repeat(63);
        for schema in ["Orders \"of\" 'today'", "schlüssel {1}", ";--", &longest] {
            let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
            let made_schema = format!("CREATE SCHEMA {quoted}");
            let run = sqlx::raw_sql(sqlx::AssertSqlSafe(made_schema))
                .execute(&pool)
                .await;
            run.expect("a schema");
            let to_it = format!("SET search_path TO {quoted}");
            let within =
                sqlx::postgres::PgPoolOptions::new().after_connect(move |connection, _| {
                    let to_it = sqlx::AssertSqlSafe(to_it.clone());
                    Box::pin(async move {
                        sqlx::raw_sql(to_it).execute(connection).await?;
                        Ok(())
                    })
                });
            let options_of = pool.connect_options().as_ref().clone();
            let pool = within.connect_with(options_of).await.expect(schema);
            oncekey::sql::migrate_postgres(&pool).await.expect(schema);
            let backend = oncekey::sql::PostgresBackend::new(pool.clone(), options());
            made(&backend.expect("options"), "k", true).await;
            let count = "SELECT count(*) FROM pg_tables WHERE tablename = 'oncekey' \
                         AND schemaname = $1";
            let count: i64 = sqlx::query_scalar(count)
                .bind(schema)
                .fetch_one(&pool)
                .await
                .expect("counted");
            assert_eq!(count, 1, "{schema}");
        }
    });
}
