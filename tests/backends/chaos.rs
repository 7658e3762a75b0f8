//! Several worker processes on one server, killed at random: one effect a key.
//!
//! The workers are this test, started again. Where the effect is in the same transaction it needs no
//! more; elsewhere a worker that is told "interrupted" looks whether the effect is there.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use oncekey::backend::{Answer, Backend, Guard, Outcome};
use oncekey::sql::{OnConflict, TransactionClaim, sqlx};
use oncekey::{ClaimOptions, Fingerprint, Key};

use crate::servers::Server;
use crate::world::{LONG, block_on, postgres, redis};

const PORT: &str = "ONCEKEY_CHAOS_PORT";
const DIRECTORY: &str = "ONCEKEY_CHAOS_DIRECTORY";
const WORKERS: usize = 3;
const KEYS: usize = 150;
const KILLS: usize = 20;

/// Numbers that nobody chose, but that the same seed gives again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// The keys in an order of this worker's own.
    fn order(&mut self) -> Vec<usize> {
        let mut keys: Vec<usize> = (0..KEYS).collect();
        for index in (1..KEYS).rev() {
            keys.swap(index, self.below(index + 1));
        }
        keys
    }
}

fn key(number: usize) -> Key {
    Key::new("tenant", "job", number.to_string()).expect("a key")
}

fn worker(test: &str, server: &Server, directory: &Path) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(PORT, server.port().to_string())
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs")
}

/// Kills workers at random and starts others, then lets the last ones finish all keys.
fn run_workers(test: &str, server: &Server) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let seed = std::process::id().into();
    let mut random = Random(seed);
    let start = || worker(test, server, directory.path());
    let mut workers: Vec<Child> = (0..WORKERS).map(|_| start()).collect();
    let mut killed = 0;
    for _ in 0..KILLS {
        thread::sleep(Duration::from_millis(20 + random.below(150) as u64));
        let victim = &mut workers[random.below(WORKERS)];
        if victim.try_wait().expect("a child").is_none() {
            victim.kill().expect("killed");
            killed += 1;
        }
        victim.wait().expect("gone");
        *victim = start();
    }
    let begun = Instant::now();
    for worker in &mut workers {
        while worker.try_wait().expect("a child").is_none() {
            assert!(
                begun.elapsed() < LONG,
                "the workers stand still, seed {seed}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        let status = worker.wait().expect("gone");
        assert!(status.success(), "a worker failed: {status}, seed {seed}");
    }
    assert!(killed > 0, "nobody was killed");
    directory
}

fn told() -> Option<(u16, Random)> {
    let port = env::var(PORT).ok()?.parse().expect("a port");
    Some((port, Random(u64::from(std::process::id()) << 7 | 1)))
}

async fn effects_of_each_key(pool: &sqlx::PgPool) -> Vec<i64> {
    let sql = "SELECT COUNT(*) FROM effects GROUP BY id";
    let counts = sqlx::query_scalar(sql).fetch_all(pool);
    counts.await.expect("counted")
}

#[test]
fn effects_in_the_transaction_of_the_claim_happen_once() {
    if let Some((port, mut random)) = told() {
        block_on(async {
            let (pool, backend) = postgres(port).await;
            for number in random.order() {
                let mut transaction = pool.begin().await.expect("a transaction");
                let on_conflict = OnConflict::Wait;
                let (key, options) = (key(number), ClaimOptions::new());
                let claim = backend
                    .claim_in(
                        &mut transaction,
                        &key,
                        Fingerprint::none(),
                        options,
                        on_conflict,
                    )
                    .await;
                match claim.expect("a claim") {
                    TransactionClaim::Started(operation) => {
                        let insert = sqlx::query("INSERT INTO effects VALUES ($1)");
                        let insert = insert.bind(number as i64);
                        insert.execute(&mut *transaction).await.expect("written");
                        tokio::time::sleep(Duration::from_millis(random.below(8) as u64)).await;
                        let answer = Answer::response(b"done");
                        operation
                            .complete(&mut *transaction, answer)
                            .await
                            .expect("completed");
                        transaction.commit().await.expect("committed");
                    }
                    TransactionClaim::Completed(_) => {}
                    other => panic!("a worker got {other:?}"),
                }
            }
        });
        return;
    }
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async {
        let (pool, _) = postgres(server.port()).await;
        let make = sqlx::query("CREATE TABLE effects (id BIGINT)").execute(&pool);
        make.await.expect("a table");
        let test = "chaos::effects_in_the_transaction_of_the_claim_happen_once";
        drop(run_workers(test, &server));
        assert_eq!(effects_of_each_key(&pool).await, [1; KEYS]);
    });
}

/// What a worker does that claims first and has its effect elsewhere: in a file that all append to.
async fn work<B: Backend>(backend: &B, mut random: Random) {
    let directory = env::var_os(DIRECTORY).expect("set with the port");
    let journal = Path::new(&directory).join("journal");
    for number in random.order() {
        let line = format!("{number}\n");
        let options = ClaimOptions::new();
        let outcome = backend
            .wait(&key(number), Fingerprint::none(), options)
            .await;
        let (guard, is_unknown) = match outcome.expect("a claim") {
            Outcome::Started(guard) => (guard, false),
            Outcome::Interrupted(guard) => (guard, true),
            Outcome::Completed(_) => continue,
            other => panic!("a worker got {other:?}"),
        };
        let is_done = is_unknown
            && fs::read_to_string(&journal)
                .is_ok_and(|all| all.lines().any(|it| it == line.trim()));
        if !is_done {
            let opened = OpenOptions::new().create(true).append(true).open(&journal);
            opened
                .expect("a file")
                .write_all(line.as_bytes())
                .expect("written");
        }
        tokio::time::sleep(Duration::from_millis(random.below(8) as u64)).await;
        guard
            .complete(Answer::response(b"done"))
            .await
            .expect("completed");
    }
}

fn assert_one_effect_each(directory: &Path) {
    let all = fs::read_to_string(directory.join("journal")).expect("a journal");
    let mut effects: Vec<usize> = all.lines().map(|it| it.parse().expect("whole")).collect();
    effects.sort_unstable();
    assert_eq!(effects, (0..KEYS).collect::<Vec<_>>());
}

#[test]
fn effects_elsewhere_with_claims_in_postgres_happen_once() {
    if let Some((port, random)) = told() {
        return block_on(async { work(&postgres(port).await.1, random).await });
    }
    let Some(server) = Server::postgres() else {
        return;
    };
    block_on(async { drop(postgres(server.port()).await) });
    let test = "chaos::effects_elsewhere_with_claims_in_postgres_happen_once";
    assert_one_effect_each(run_workers(test, &server).path());
}

#[test]
fn effects_elsewhere_with_claims_in_redis_happen_once() {
    if let Some((port, random)) = told() {
        return block_on(async { work(&redis(port).await, random).await });
    }
    let Some(server) = Server::redis() else {
        return;
    };
    let test = "chaos::effects_elsewhere_with_claims_in_redis_happen_once";
    assert_one_effect_each(run_workers(test, &server).path());
}
