//! Measuring beside servers, and the page that shows it, in miniature.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::servers::Server;
use crate::world::{Place, Run, good, interrupt, run, tiny_bench, tool};

fn redis_url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

fn redis(server: &Server) -> redis::Connection {
    let client = redis::Client::open(redis_url(server)).expect("a URL");
    client.get_connection().expect("connected")
}

fn keys_of(connection: &mut redis::Connection) -> usize {
    redis::cmd("DBSIZE").query(connection).expect("a number")
}

fn postgres_url(server: &Server) -> String {
    format!("postgres://oncekey@127.0.0.1:{}/postgres", server.port())
}

/// The first column of what a statement gives, once the server takes statements.
fn ask(server: &Server, sql: &'static str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut connection = loop {
            match PgConnection::connect(&postgres_url(server)).await {
                Ok(connection) => break connection,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let rows = sqlx::query(sql).fetch_all(&mut connection).await;
        let rows = rows.expect("it runs");
        rows.iter().map(|row| row.get(0)).collect()
    })
}

const TABLES: &str = "SELECT relname::text FROM pg_class WHERE relname LIKE 'oncekey_bench_%'";

/// All of a list that have this name.
fn named<'a>(list: &'a Value, name: &str) -> Vec<&'a Value> {
    let list = list.as_array().expect("a list").iter();
    list.filter(|one| one["name"] == name).collect()
}

#[test]
fn servers_are_measured_in_the_same_rounds_and_keep_nothing() {
    let (Some(redis_server), Some(postgres_server)) = (Server::redis(), Server::postgres()) else {
        return;
    };
    ask(&postgres_server, "SELECT 'ready'");
    let mut connection = redis(&redis_server);
    redis::cmd("SET")
        .arg("oncekey-bench")
        .arg("not the bench's")
        .exec(&mut connection)
        .expect("set");
    let place = Place::new();
    let (here, page) = (place.text(""), place.text("report.html"));
    let (redis_url, postgres_url) = (redis_url(&redis_server), postgres_url(&postgres_server));
    let flags = [
        "--keys",
        "300",
        "--html",
        &page,
        "--redis",
        &redis_url,
        "--postgres",
        &postgres_url,
    ];
    let report = good(&[&tiny_bench("2")[..], &[&here], &flags].concat());
    let report = &report.json()[0];

    // The levels are those that the servers are set up with.
    let [redis_setting] = named(&report["settings"], "Redis")[..] else {
        panic!("{report}");
    };
    assert_eq!(redis_setting["durability"], "sync");
    let told = redis_setting["settings"].as_str().expect("text");
    assert!(
        told.contains("appendonly yes, appendfsync always"),
        "{told}"
    );
    let [postgres_setting] = named(&report["settings"], "PostgreSQL")[..] else {
        panic!("{report}");
    };
    assert_eq!(postgres_setting["durability"], "buffered");
    let told = postgres_setting["settings"].as_str().expect("text");
    assert!(told.contains("fsync off, synchronous_commit on"), "{told}");

    for name in ["Redis", "PostgreSQL"] {
        let rates = named(&report["rates"], name);
        // Three works, two numbers of threads.
        assert_eq!(rates.len(), 6);
        for one in rates {
            assert!(one["per_second"].as_f64() > Some(0.0), "{one}");
            assert!(one["ratio"].as_f64() > Some(0.0), "{one}");
            assert_eq!(
                one["per_second_of_rounds"].as_array().map(Vec::len),
                Some(2)
            );
        }
        let [growth] = named(&report["growth"], name)[..] else {
            panic!("{report}");
        };
        assert!(growth["disk_bytes"].as_u64() > Some(300 * 512), "{growth}");
        assert!(growth["cold_open_ms"].is_null());
    }
    let memory = &named(&report["growth"], "Redis")[0]["memory_bytes"];
    assert!(memory.as_u64() > Some(300 * 512), "{memory}");
    assert!(
        named(&report["rates"], "oncekey")
            .iter()
            .all(|one| one["ratio"].is_null())
    );

    assert_eq!(keys_of(&mut connection), 1);
    assert_eq!(ask(&postgres_server, TABLES), [""; 0]);
    let left: Vec<_> = fs::read_dir(&here).expect("a list").collect();
    assert_eq!(left.len(), 1, "only the page is left: {left:?}");
    shows(&fs::read_to_string(page).expect("a page"), report);
}

/// Passes everything on, and makes the server's version an older one.
fn as_version_6(server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let port = server.port();
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        thread::spawn(move || {
            let mut bytes = [0; 64 << 10];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                let mut passed = bytes[..count].to_vec();
                let version = passed.windows(15).position(|it| it == b"redis_version:7");
                if let Some(at) = version {
                    passed[at + 14] = b'6';
                }
                if to.write_all(&passed).is_err() {
                    break;
                }
            }
            // Whoever is at the other end has hung up already, or does now.
            drop(to.shutdown(Shutdown::Both));
        });
    };
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("it takes connections");
            let copies = (client.try_clone(), server.try_clone());
            let (Ok(client_too), Ok(server_too)) = copies else {
                break;
            };
            pass(client, server);
            pass(server_too, client_too);
        }
    });
    format!("redis://{address}")
}

#[test]
fn an_older_redis_is_asked_in_two_steps() {
    let Some(server) = Server::redis() else {
        return;
    };
    let place = Place::new();
    let (here, url) = (place.text(""), as_version_6(&server));
    let flags = ["--keys", "0", "--durability", "sync", "--redis", &url];
    let report = good(&[&tiny_bench("2")[..], &[&here], &flags].concat());
    let report = &report.json()[0];
    let [setting] = named(&report["settings"], "Redis")[..] else {
        panic!("{report}");
    };
    let told = setting["settings"].as_str().expect("text");
    assert!(told.starts_with("Redis 6."), "{told}");
    assert!(told.contains("SET NX PX and GET"), "{told}");
    assert_eq!(named(&report["rates"], "Redis").len(), 6);
    assert_eq!(keys_of(&mut redis(&server)), 0);
}

/// The page holds the pictures and the figures, and asks for nothing from elsewhere.
fn shows(page: &str, report: &Value) {
    for id in [
        "contestants",
        "throughput-buffered-0",
        "throughput-sync-2",
        "latency-sync-1-1",
        "latency-buffered-1-2",
        "disk",
        "memory",
        "opened-memory",
        "cold-open",
        "warm-open",
        "rates",
        "growth",
    ] {
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}");
    }
    let [figures, pictures] = ["<figure", "<svg"].map(|tag| page.matches(tag).count());
    // Two levels with three works each, whose latency is shown for two numbers of threads.
    assert_eq!((figures, pictures), (2 * 3 * 3 + 5, 2 * 3 * 3 + 5));
    for elsewhere in ["src=", "href=", "@import", "url(", "<link"] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    let (_, data) = page.split_once("id=\"report\">").expect("data");
    let (data, _) = data.split_once("</script>").expect("its end");
    let data: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(&data, report);
}

#[test]
fn a_server_that_cannot_be_used_is_told_in_one_line() {
    let place = Place::new();
    let here = place.text("");
    let bench = |flag: &str, url: &str| run(&[&tiny_bench("2")[..], &[&here, flag, url]].concat());
    bench("--redis", "redis://127.0.0.1:1").fails(1, "127.0.0.1:1");
    bench("--postgres", "postgres://127.0.0.1:1/").fails(1, "127.0.0.1:1");
    bench("--redis", "127.0.0.1:6379").fails(2, "redis://user:password@host:port");
    bench("--postgres", "mysql://127.0.0.1")
        .fails(2, "postgres://user:password@host:port/database");
    if let Some(server) = Server::redis() {
        let mut connection = redis(&server);
        let url = |user: &str| format!("redis://{user}@127.0.0.1:{}", server.port());
        let rights = [
            "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info", "+client",
        ];
        redis::cmd("ACL")
            .arg(&rights)
            .exec(&mut connection)
            .expect("a user");
        let wrong = bench("--redis", &url("reader:wrong-one"));
        wrong.fails(1, "authentication failed");
        assert!(!wrong.err.contains("wrong-one"), "{}", wrong.err);
        bench("--redis", &url("reader:secret")).fails(1, "permissions");
        let plain = redis_url(&server);
        let flags = [&here, "--durability", "buffered", "--redis", &plain];
        run(&[&tiny_bench("2")[..], &flags].concat())
            .fails(2, "leaves out Redis, which is set up as sync");
        assert_eq!(keys_of(&mut connection), 0);
    }
    if let Some(server) = Server::postgres() {
        let url = |rest: &str| {
            format!("postgres://{rest}").replace("HERE", &format!("127.0.0.1:{}", server.port()))
        };
        ask(&server, "CREATE ROLE guest LOGIN");
        ask(&server, "REVOKE CREATE ON SCHEMA public FROM public");
        bench("--postgres", &url("guest@HERE/postgres")).fails(1, "permission denied");
        bench("--postgres", &url("oncekey@HERE/nowhere")).fails(1, "\"nowhere\" does not exist");
        let hba = ask(&server, "SHOW hba_file");
        fs::write(
            &hba[0],
            "host all oncekey all trust\nhost all all all scram-sha-256\n",
        )
        .expect("written");
        ask(&server, "ALTER ROLE guest PASSWORD 'secret'");
        ask(&server, "SELECT pg_reload_conf()::text");
        let wrong = loop {
            let wrong = bench("--postgres", &url("guest:wrong-one@HERE/postgres"));
            // The server reads its file when it gets round to it.
            if !wrong.err.contains("permission denied") {
                break wrong;
            }
        };
        wrong.fails(1, "password authentication failed");
        assert!(!wrong.err.contains("wrong-one"), "{}", wrong.err);
        assert_eq!(ask(&server, TABLES), [""; 0]);
    }
    assert_eq!(fs::read_dir(&here).expect("a list").count(), 0);
}

#[test]
fn a_page_that_cannot_be_written_is_told_before_anything_is_measured() {
    let place = Place::new();
    let here = place.text("");
    let page = |path: &str| run(&["bench", "--dir", &here, "--html", path]);
    page(&place.text("missing/report.html")).fails(1, "missing/report.html");
    page(&here).fails(1, "not a file");
    page("/dev/null").fails(1, "not a file");
}

#[test]
fn a_signal_leaves_nothing_on_the_servers() {
    let (Some(redis_server), Some(postgres_server)) = (Server::redis(), Server::postgres()) else {
        return;
    };
    ask(&postgres_server, "SELECT 'ready'");
    let mut connection = redis(&redis_server);
    let place = Place::new();
    let (here, page) = (place.text(""), place.text("report.html"));
    let (redis_url, postgres_url) = (redis_url(&redis_server), postgres_url(&postgres_server));
    for is_redis in [true, false] {
        let server = match is_redis {
            true => ["--redis", &redis_url],
            false => ["--postgres", &postgres_url],
        };
        let child = tool()
            .args(["bench", "--dir", &here, "--rounds", "101", "--html", &page])
            .args(["--lap-ms", "300", "--threads", "2"])
            .args(server)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let is_there = |connection: &mut redis::Connection| match is_redis {
            true => keys_of(connection) > 10,
            false => !ask(&postgres_server, TABLES).is_empty(),
        };
        while !is_there(&mut connection) {
            thread::sleep(Duration::from_millis(5));
        }
        interrupt(&child);
        let ended = Run::from(child.wait_with_output().expect("it ends"));
        ended.fails(130, "nothing is left behind");
        assert!(!is_there(&mut connection));
    }
    assert_eq!(keys_of(&mut connection), 0);
    assert_eq!(fs::read_dir(&here).expect("a list").count(), 0);
}
