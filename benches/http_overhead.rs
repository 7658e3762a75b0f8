//! What the HTTP layer costs: an axum handler that echoes its request, without the layer, with it at
//! `Buffered` and at `Sync`, and replayed; called in the process and over sockets.
//!
//! ```text
//! cargo bench --bench http_overhead
//! cargo bench --bench http_overhead -- --quick
//! ```
//!
//! Every round lets each contestant run once, beginning with another one each time, and a ratio is
//! the median of the rounds' ratios. Client and server share the process and its two workers, so
//! over a socket the processor time has the client's part too, which is the same for all. An echo is
//! the cheapest handler there is: with real work the layer's share is smaller. Nothing here passes or
//! fails by time. Without `--bench` (as `cargo test --benches` runs it) everything runs once, in
//! miniature.

mod contest;
mod floor;
#[allow(dead_code, reason = "each bench uses its part")]
mod report;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::serve::ListenerExt;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use oncekey::http::{IdempotencyLayer, OnInterrupted, Scope};
use oncekey::{Durability, Options, Store};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tower::ServiceExt;

use contest::crew::Lap;
use contest::place::directory;
use report::{Report, Series, Target};

/// Requests under way at once.
const CLIENTS: usize = 32;
const WORKERS: usize = 2;
/// A small payment.
const BODY: &[u8] = br#"{"amount":1200,"currency":"eur","card":"tok_visa","reference":"order 17"}"#;
/// Keys that replays take in turn.
const REPLAYED_KEYS: usize = 1_000;

const PLAIN: &str = "no layer";
const BUFFERED: &str = "`Buffered`";
const SYNC: &str = "`Sync`";
const REPLAYED: &str = "replayed";

struct Settings {
    rounds: usize,
    /// Divides the number of requests.
    divisor: usize,
}

impl Settings {
    fn from_arguments() -> Self {
        let (mut is_bench, mut is_quick) = (false, false);
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--bench" => is_bench = true,
                "--quick" => is_quick = true,
                _ => {
                    eprintln!("usage: http_overhead [--quick]");
                    std::process::exit(2);
                }
            }
        }
        let (rounds, divisor) = match (is_bench, is_quick) {
            (false, _) => (1, 200),
            (true, true) => (5, 4),
            (true, false) => (9, 1),
        };
        Self { rounds, divisor }
    }

    /// Requests of each client in a round.
    fn each(&self, full: usize) -> usize {
        (full / self.divisor / CLIENTS).max(2)
    }
}

fn main() {
    let settings = Settings::from_arguments();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("a runtime");
    let command = "--bench http_overhead";
    let mut report = Report::begin(directory().path(), settings.rounds, command);
    let places = [
        (
            "called in the process",
            false,
            60_000,
            3_000,
            Target::Reported,
        ),
        ("over a socket", true, 30_000, 3_000, Target::AtLeast(0.95)),
    ];
    for (place, is_socket, full, full_sync, aim) in places {
        eprintln!("{place} …");
        let mut entrants = Vec::new();
        for (name, full) in [
            (PLAIN, full),
            (BUFFERED, full),
            (SYNC, full_sync),
            (REPLAYED, full),
        ] {
            entrants.push(Entrant::start(
                &runtime,
                name,
                is_socket,
                settings.each(full),
            ));
        }
        for round in 0..settings.rounds {
            for turn in 0..entrants.len() {
                let at = (round + turn) % entrants.len();
                entrants[at].lap(&runtime);
            }
        }
        let series: Vec<_> = entrants.into_iter().map(|entrant| entrant.series).collect();
        let [plain, buffered, sync, replayed] = &series[..] else {
            unreachable!("four took part")
        };
        let replay_aim = match aim {
            Target::Reported => Target::Reported,
            Target::AtLeast(_) => Target::AtLeast(1.0),
        };
        let work = |name: &str| format!("echo {place}, {name}");
        report.ratio(&work(BUFFERED), aim, buffered, plain);
        report.ratio(&work(SYNC), Target::Reported, sync, plain);
        report.ratio(&work(REPLAYED), replay_aim, replayed, plain);
        report.rates(&format!("echo {place}, {CLIENTS} clients"), &series);
    }
    print!("{report}");
}

/// One contestant: its routes, and where its clients stand.
struct Entrant {
    series: Series,
    each: usize,
    next_key: usize,
    is_replay: bool,
    clients: Vec<Client>,
    // Dropped last.
    _store: Option<(Store, TempDir)>,
}

/// How a client reaches the routes.
enum Client {
    Called(Router),
    Connected(SendRequest<Full<Bytes>>, SocketAddr),
}

impl Entrant {
    fn start(runtime: &Runtime, name: &'static str, is_socket: bool, each: usize) -> Self {
        let routes = Router::new().route("/echo", post(async |body: Bytes| body));
        let (routes, store) = match name {
            PLAIN => (routes, None),
            _ => {
                let durability = match name {
                    SYNC => Durability::Sync,
                    _ => Durability::Buffered,
                };
                let directory = directory();
                let store = Options::new().durability(durability).open(directory.path());
                let store = store.expect("a store");
                (routes.layer(layer(&store)), Some((store, directory)))
            }
        };
        let clients = runtime.block_on(clients(routes, is_socket));
        let mut entrant = Self {
            series: Series::new(name, WORKERS, each * CLIENTS),
            each,
            next_key: 0,
            is_replay: name == REPLAYED,
            clients,
            _store: store,
        };
        // Connections are warm and, for replays, every key is done.
        entrant.run(runtime, REPLAYED_KEYS.div_ceil(CLIENTS));
        entrant
    }

    fn lap(&mut self, runtime: &Runtime) {
        let cpu = processor_time();
        let begun = Instant::now();
        self.run(runtime, self.each);
        let wall = begun.elapsed();
        let cpu = processor_time().saturating_sub(cpu);
        self.series.laps.push(Lap { wall, cpu });
    }

    fn run(&mut self, runtime: &Runtime, each: usize) {
        let (first, is_replay) = (self.next_key, self.is_replay);
        self.next_key += each * CLIENTS;
        let clients = std::mem::take(&mut self.clients);
        self.clients = runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for (number, mut client) in clients.into_iter().enumerate() {
                let first = first + number * each;
                tasks.spawn(async move {
                    for key in first..first + each {
                        let key = if is_replay { key % REPLAYED_KEYS } else { key };
                        client
                            .ask(&format!("8e03978e-40d5-43dd-bc93-{key:012}"))
                            .await;
                    }
                    client
                });
            }
            tasks.join_all().await
        });
    }
}

fn layer(store: &Store) -> IdempotencyLayer {
    IdempotencyLayer::new(store.clone())
        .scope(Scope::from_request(|request| {
            let account = request.headers.get("account")?;
            Some(account.as_bytes().to_vec())
        }))
        .on_interrupted(OnInterrupted::rerun())
        .build()
        .expect("a layer")
}

async fn clients(routes: Router, is_socket: bool) -> Vec<Client> {
    if !is_socket {
        return (0..CLIENTS)
            .map(|_| Client::Called(routes.clone()))
            .collect();
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let listener = listener.tap_io(|connection| connection.set_nodelay(true).expect("a socket"));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let connection = TcpStream::connect(address).await.expect("a connection");
        connection.set_nodelay(true).expect("a socket");
        let (sender, connection) = http1::handshake(TokioIo::new(connection))
            .await
            .expect("a connection");
        tokio::spawn(connection);
        clients.push(Client::Connected(sender, address));
    }
    clients
}

impl Client {
    async fn ask(&mut self, key: &str) {
        let request = Request::post("/echo")
            .header("account", "acct_1")
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        let (status, body) = match self {
            Self::Called(routes) => {
                let request = request.body(Body::from(BODY)).expect("a request");
                let Ok(answer) = routes.clone().oneshot(request).await;
                (
                    answer.status(),
                    answer.into_body().collect().await.expect("a body"),
                )
            }
            Self::Connected(sender, address) => {
                let request = request.header("host", address.to_string());
                let request = request.body(Full::from(BODY)).expect("a request");
                sender.ready().await.expect("a connection");
                let answer = sender.send_request(request).await.expect("an answer");
                (
                    answer.status(),
                    answer.into_body().collect().await.expect("a body"),
                )
            }
        };
        assert_eq!((status, &body.to_bytes()[..]), (StatusCode::OK, BODY));
    }
}

/// Of all threads of the process that live; zero where the system does not tell.
fn processor_time() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let nanos = threads.filter_map(|thread| {
        let told = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        told.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}
