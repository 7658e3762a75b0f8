//! Many connections with duplicates among their requests: one run for each key, one answer.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
use tempfile::TempDir;

use crate::payments::{serve, store};
use crate::support::{Random, needs};

const CONNECTIONS: usize = 32;
const REQUESTS_OF_A_CONNECTION: usize = 120;
/// Together about three repeated requests of ten: the first with a shared key is none.
const OWN_AGAIN_PERCENT: usize = 20;
const SHARED_PERCENT: usize = 14;

/// How often the handler ran, by key.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<HashMap<String, usize>>>);

impl Runs {
    fn assert_once_each(&self) -> usize {
        let runs = self.0.lock().unwrap();
        for (key, &runs) in runs.iter() {
            assert_eq!(runs, 1, "{key} ran {runs} times");
        }
        runs.len()
    }
}

struct Counting {
    url: String,
    runs: Runs,
    layer: IdempotencyLayer,
    _directory: TempDir,
}

/// A handler that gives another answer at every run.
async fn counting() -> Counting {
    let directory = tempfile::tempdir().unwrap();
    let layer = IdempotencyLayer::new(store(&directory))
        .scope(Scope::global())
        .on_interrupted(OnInterrupted::rerun())
        .wait(Duration::from_secs(30))
        .build()
        .unwrap();
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = move |headers: HeaderMap, body: Bytes| {
        let counted = counted.clone();
        async move {
            let key = headers["idempotency-key"].to_str().unwrap().to_owned();
            let all = {
                let mut runs = counted.0.lock().unwrap();
                *runs.entry(key.clone()).or_insert(0) += 1;
                runs.len()
            };
            tokio::task::yield_now().await;
            (StatusCode::CREATED, format!("{key} {all} {}", body.len()))
        }
    };
    let routes = Router::new()
        .route("/orders", post(handler))
        .layer(layer.clone());
    let address = serve(routes).await;
    Counting {
        url: format!("http://{address}/orders"),
        runs,
        layer,
        _directory: directory,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_with_duplicates_runs_each_key_once() {
    let server = counting().await;
    let begun = Instant::now();
    let mut connections = tokio::task::JoinSet::new();
    for number in 0..CONNECTIONS {
        let url = server.url.clone();
        connections.spawn(async move {
            let client = reqwest::Client::builder()
                .no_proxy()
                .pool_max_idle_per_host(1)
                .build()
                .unwrap();
            let mut random = Random::new(number as u64 + 1);
            let mut answers = Vec::new();
            for request in 0..REQUESTS_OF_A_CONNECTION {
                // A key of its own, one of its own earlier ones, or one that a neighbour takes at
                // about the same time.
                let key = match random.below(100) {
                    draw if draw < OWN_AGAIN_PERCENT && request > 0 => {
                        format!("{number}-{}", random.below(request))
                    }
                    draw if draw < OWN_AGAIN_PERCENT + SHARED_PERCENT => {
                        format!("shared-{}", request / 8)
                    }
                    _ => format!("{number}-{request}"),
                };
                let answer = client
                    .post(&url)
                    .header("idempotency-key", &key)
                    .body(key.clone())
                    .send()
                    .await
                    .unwrap();
                assert_eq!(answer.status(), 201, "{key}");
                answers.push((key, answer.text().await.unwrap()));
            }
            answers
        });
    }
    let mut answer_of = HashMap::new();
    let mut count = 0;
    while let Some(answers) = connections.join_next().await {
        for (key, answer) in answers.unwrap() {
            count += 1;
            let first = answer_of.entry(key).or_insert_with(|| answer.clone());
            assert_eq!(*first, answer);
        }
    }
    let keys = server.runs.assert_once_each();
    assert_eq!(keys, answer_of.len());
    let stats = server.layer.stats();
    assert_eq!((stats.started, stats.stored), (keys as u64, keys as u64));
    assert_eq!(stats.replayed, (count - keys) as u64);
    println!(
        "{count} requests, {} of them repeated, over {CONNECTIONS} connections in {:?}; {} waited",
        count - keys,
        begun.elapsed(),
        stats.waited
    );
}

/// wrk's requests: of ten, three have a key that was used before.
const WRK_SCRIPT: &str = r#"
local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end
local sent = 0
request = function()
  sent = sent + 1
  local key = sent
  if sent > 10 and sent % 10 < 3 then key = sent - 7 end
  wrk.headers["Idempotency-Key"] = "wrk-" .. number .. "-" .. key
  return wrk.format("POST", nil, nil, "x")
end
local wrong = 0
response = function(status)
  if status ~= 201 and status ~= 409 then wrong = wrong + 1 end
end
"#;

/// Where the machine has the programs; nothing is wrong where it has not, since the test above does
/// the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_generators_find_each_key_run_once() {
    if needs::is_installed("wrk") {
        let server = counting().await;
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("duplicates.lua");
        std::fs::write(&script, WRK_SCRIPT).unwrap();
        let script = script.to_str().unwrap();
        let arguments = ["-t2", "-c32", "-d2s", "-s", script, &server.url];
        let told = call("wrk", &arguments, directory.path()).await;
        assert!(!told.contains("Socket errors"), "{told}");
        let keys = server.runs.assert_once_each();
        let stats = server.layer.stats();
        println!(
            "wrk: {keys} keys, {} replays, {} told to wait",
            stats.replayed, stats.in_progress
        );
        assert!(stats.replayed > 0 && keys > 0);
        assert_eq!(stats.refused + stats.mismatched + stats.interrupted, 0);
    } else {
        println!("wrk is not there (apt-get install wrk)");
    }
    if needs::is_installed("oha") {
        let server = counting().await;
        let arguments = [
            "--no-tui",
            "-n",
            "2000",
            "-c",
            "32",
            "-m",
            "POST",
            "-d",
            "x",
            "-H",
            "Idempotency-Key: the-only-one",
            &server.url,
        ];
        call("oha", &arguments, Path::new(".")).await;
        assert_eq!(server.runs.assert_once_each(), 1);
    } else {
        println!("oha is not there (cargo install oha)");
    }
}

async fn call(program: &'static str, arguments: &[&str], directory: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    println!("{told}");
    told
}
