//! From one server to a store and back. A Redis is any server that speaks like one; the real one where
//! it is installed.

use std::ops::ControlFlow;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oncekey::redis_migration::{Import, KeyMap, MigrationReport, export};
use oncekey::{Key, KeyState, Options, Store};
use redis::Connection;

use super::{Served, run};

/// A real Redis without files, killed when dropped.
pub(crate) struct RealRedis(Child);

impl RealRedis {
    pub(crate) fn start(directory: &std::path::Path) -> Option<(Self, Connection)> {
        let socket = directory.join("redis.sock");
        let started = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = started else {
            let message = "SKIPPED: apt-get install redis-server";
            assert!(
                std::env::var_os("ONCEKEY_REQUIRE_SERVERS").is_none(),
                "{message}"
            );
            eprintln!("{message}");
            return None;
        };
        let started = Self(process);
        let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
        for _ in 0..500 {
            if let Ok(connection) = client.get_connection() {
                return Some((started, connection));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not answer");
    }
}

impl Drop for RealRedis {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn open(directory: &std::path::Path) -> Store {
    Options::new().max_key_part(1_024).open(directory).unwrap()
}

fn there_and_back(redis: &mut Connection, directory: &std::path::Path, has_hashes: bool) {
    for number in 0..1_200 {
        run::<String>(redis, &format!("SET idem:pay:{number} v{number} EX 1000")).unwrap();
    }
    run::<String>(redis, "SET idem:pay:ever x").unwrap();
    run::<String>(redis, "SET other:1 x").unwrap();
    if has_hashes {
        run::<i64>(redis, "HSET idem:pay:hash body paid").unwrap();
        run::<i64>(redis, "SADD idem:pay:set a").unwrap();
    }
    let odd = if has_hashes { 2 } else { 0 };
    let store = open(&directory.join("mapped"));
    let map = KeyMap::pattern("acct", "idem:{operation}:{id}").unwrap();
    let job = Import::new("idem:*", map);
    let mut told = 0;
    let report = job
        .run(&store, redis, |_| {
            told += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(told > 1 && report.written >= 1_201);
    assert_eq!((report.failed, report.failures.len()), (odd, odd as usize));
    // Stopped after a batch, and gone on from there.
    let halves = open(&directory.join("halves"));
    let stopped = job.run(&halves, redis, |_| ControlFlow::Break(())).unwrap();
    assert!(stopped.cursor != 0 && stopped.written < report.written);
    let rest = job.clone().from_cursor(stopped.cursor);
    assert_eq!(rest.run(&halves, redis, go_on).unwrap().cursor, 0);
    let both = job.verify(&halves, redis, 1).unwrap();
    assert_eq!((both.missing, both.different), (0, 0));
    // Again, from the beginning or from anywhere: the same.
    job.clone()
        .from_cursor(0)
        .run(&store, redis, go_on)
        .unwrap();
    let verified = job.verify(&store, redis, 1).unwrap();
    assert!(verified.keys >= 1_201 && verified.sampled == verified.keys);
    assert_eq!((verified.missing, verified.different), (0, 0));
    let key = |id: &str| Key::new("acct", "pay", id).unwrap();
    let KeyState::Completed(saved) = store.get(&key("7")).unwrap() else {
        panic!("it was imported")
    };
    assert_eq!(saved.by_scope().unwrap().response().unwrap()[..], *b"v7");
    let left = saved.expires_at().duration_since(store.now()).unwrap();
    assert!(left > Duration::from_secs(900) && left <= Duration::from_secs(1_000));
    assert!(matches!(store.get(&key("none")).unwrap(), KeyState::Absent));
    if has_hashes {
        let whole = job
            .clone()
            .hash_field("body")
            .run(&store, redis, go_on)
            .unwrap();
        assert_eq!(whole.failed, 1);
        assert!(matches!(
            store.get(&key("hash")).unwrap(),
            KeyState::Completed(_)
        ));
        run::<i64>(redis, "DEL idem:pay:hash idem:pay:set").unwrap();
    }
    // A value that changed since is noticed.
    run::<String>(redis, "SET idem:pay:7 changed EX 1000").unwrap();
    assert_eq!(job.verify(&store, redis, 1).unwrap().different, 1);

    // As the server has them, and back under another prefix.
    let store = open(&directory.join("plain"));
    Import::new("idem:*", KeyMap::whole("redis"))
        .run(&store, redis, go_on)
        .unwrap();
    let report = export(&store, "redis", "back:", redis, go_on).unwrap();
    assert_eq!((report.written, report.failed), (1_201, 0));
    assert_eq!(
        run::<String>(redis, "GET back:idem:pay:7").unwrap(),
        "changed"
    );
    let left: i64 = run(redis, "TTL back:idem:pay:8").unwrap();
    assert!((900..=1_000).contains(&left), "{left}");
    assert_eq!(run::<i64>(redis, "TTL back:idem:pay:ever").unwrap(), -1);
}

fn go_on(_: &MigrationReport) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn keys_come_from_a_real_redis_and_go_back() {
    let directory = tempfile::tempdir().unwrap();
    if let Some((_redis, mut connection)) = RealRedis::start(directory.path()) {
        there_and_back(&mut connection, directory.path(), true);
    }
}

#[test]
fn keys_come_from_our_own_server_and_go_back() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::start(
        &directory.path().join("served"),
        &["--durability", "buffered"],
    );
    there_and_back(&mut served.client(), directory.path(), false);
}
