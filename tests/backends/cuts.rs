//! Connections that are cut in the middle of a call, at every place: before the request arrives, and
//! before its answer does. Each call ends, with an error that says what is known; asking again is right.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use oncekey::backend::{Answer, Backend, Guard, Outcome};
use oncekey::{ClaimError, ClaimOptions, Fingerprint, Key, KeyState, WriteError};

use crate::servers::Server;
use crate::world::{LONG, block_on, postgres, redis};

/// Where the next connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The request after so many is not passed on.
    Request(usize),
    /// The answer after so many is not passed back.
    Answer(usize),
}

/// Passes bytes on to a server, and cuts one connection when it is told to.
struct Proxy {
    port: u16,
    cut: Arc<Mutex<Option<Cut>>>,
}

impl Proxy {
    fn new(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let cut = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&cut);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    continue;
                };
                for (from, to, is_answer) in [
                    (client.try_clone(), server.try_clone(), false),
                    (Ok(server), Ok(client), true),
                ] {
                    let (from, to) = (from.expect("a stream"), to.expect("a stream"));
                    let cut = Arc::clone(&shared);
                    thread::spawn(move || pass_on(from, to, is_answer, &cut));
                }
            }
        });
        Self { port, cut }
    }

    fn arm(&self, cut: Cut) {
        *self.cut.lock().expect("no panic") = Some(cut);
    }

    /// Whether it has cut a connection since it was told to.
    fn has_cut(&self) -> bool {
        self.cut.lock().expect("no panic").take().is_none()
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, is_answer: bool, cut: &Mutex<Option<Cut>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(len) = from.read(&mut bytes) {
        if len == 0 || is_cut_now(is_answer, cut) || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}

fn is_cut_now(is_answer: bool, cut: &Mutex<Option<Cut>>) -> bool {
    let mut cut = cut.lock().expect("no panic");
    let left = match &mut *cut {
        Some(Cut::Request(left)) if !is_answer => left,
        Some(Cut::Answer(left)) if is_answer => left,
        _ => return false,
    };
    if let Some(fewer) = left.checked_sub(1) {
        *left = fewer;
        return false;
    }
    *cut = None;
    true
}

fn request() -> Fingerprint {
    Fingerprint::of(b"two apples")
}

fn key(cut: Cut, call: &str) -> Key {
    Key::new("tenant", call, format!("{cut:?}")).expect("a key")
}

/// A claim, again until the way is open.
async fn claimed<B: Backend>(backend: &B, key: &Key) -> Outcome<B::Guard> {
    let begun = Instant::now();
    loop {
        match backend.claim(key, request(), ClaimOptions::new()).await {
            Ok(outcome) => return outcome,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn owned<B: Backend>(backend: &B, key: &Key) -> B::Guard {
    let outcome = claimed(backend, key).await;
    outcome.into_guard().expect("a guard")
}

fn told_claim(error: &ClaimError, cut: Cut) {
    let ClaimError::Backend(error) = error else {
        panic!("expected Backend, got {error:?}")
    };
    // What may have been done is never told as undone.
    let is_unknown = error.is_outcome_unknown();
    assert!(
        is_unknown || matches!(cut, Cut::Request(_)),
        "{cut:?}: {error}"
    );
    assert_eq!(is_unknown, error.to_string().contains("unknown"), "{error}");
}

fn told_write(error: &WriteError, cut: Cut) {
    let WriteError::Backend(error) = error else {
        panic!("expected Backend, got {error:?}")
    };
    let is_unknown = error.is_outcome_unknown();
    assert!(
        is_unknown || matches!(cut, Cut::Request(_)),
        "{cut:?}: {error}"
    );
}

/// Through `cut`; `plain` goes to the server as it is. How many calls were cut.
async fn every_call_survives<B: Backend>(cut: &B, plain: &B, proxy: &Proxy, at: Cut) -> usize {
    let mut cuts = 0;

    // A claim: whoever asks again finds it free, under way in nobody's name, or interrupted. Never two.
    let claimed_key = key(at, "claim");
    proxy.arm(at);
    let first = cut
        .claim(&claimed_key, request(), ClaimOptions::new())
        .await;
    let was_cut = proxy.has_cut();
    cuts += usize::from(was_cut);
    let again = claimed(plain, &claimed_key).await;
    match (&first, &again) {
        (Ok(Outcome::Started(_)), Outcome::InProgress(_)) => {}
        (Err(error), Outcome::InProgress(_) | Outcome::Started(_)) if was_cut => {
            told_claim(error, at);
            if let ClaimError::Backend(error) = error
                && !error.is_outcome_unknown()
            {
                assert!(matches!(again, Outcome::Started(_)), "{at:?}: {again:?}");
            }
        }
        _ => panic!("{at:?}: {first:?}, then {again:?}"),
    }
    drop((first, again));

    // A completion: asked again it is the same one.
    let completed_key = key(at, "complete");
    let guard = owned(cut, &completed_key).await;
    proxy.arm(at);
    let answer = Answer::response(b"done");
    let mut completed = guard.complete(answer).await;
    let was_cut = proxy.has_cut();
    cuts += usize::from(was_cut);
    let begun = Instant::now();
    while let Err(error) = completed {
        told_write(error.error(), at);
        assert!(was_cut && begun.elapsed() < LONG, "{at:?}: {error}");
        completed = error
            .into_operation()
            .expect("still held")
            .complete(answer)
            .await;
    }
    let Outcome::Completed(saved) = claimed(plain, &completed_key).await else {
        panic!("{at:?}: a completion is not found")
    };
    assert_eq!(saved.attempt(), 1);

    // A renewal and a checkpoint: repeated, they are as if they were made once.
    let noted_key = key(at, "checkpoint");
    let mut guard = owned(cut, &noted_key).await;
    for step in ["renew", "checkpoint"] {
        let begun = Instant::now();
        proxy.arm(at);
        loop {
            let written = match step {
                "renew" => guard.renew().await,
                _ => guard.checkpoint(b"note").await,
            };
            match written {
                Ok(()) => break,
                Err(error) => told_write(&error, at),
            }
            assert!(begun.elapsed() < LONG);
        }
        cuts += usize::from(proxy.has_cut());
    }
    assert!(matches!(
        claimed(plain, &noted_key).await,
        Outcome::InProgress(_)
    ));
    drop(guard);

    // A release: asked again it says yes, also where it was done before.
    let released_key = key(at, "release");
    let guard = owned(cut, &released_key).await;
    proxy.arm(at);
    let mut released = guard.release().await;
    cuts += usize::from(proxy.has_cut());
    while let Err(error) = released {
        told_write(error.error(), at);
        released = error.into_operation().expect("still held").release().await;
    }
    let state = plain.look(&released_key).await;
    assert!(matches!(state, Ok(KeyState::Absent)), "{at:?}: {state:?}");

    // A waiter and a look: nothing hangs.
    let waited_key = key(at, "wait");
    let guard = owned(plain, &waited_key).await;
    proxy.arm(at);
    let completing = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        guard
            .complete(Answer::response(b"done"))
            .await
            .expect("completed");
    };
    let waiting = tokio::time::timeout(LONG, cut.wait(&waited_key, request(), ClaimOptions::new()));
    let (waited, ()) = tokio::join!(waiting, completing);
    let was_cut = proxy.has_cut();
    match waited.expect("it ends") {
        Ok(Outcome::Completed(_)) => {}
        Err(error) if was_cut => told_claim(&error, at),
        waited => panic!("{at:?}: {waited:?}"),
    }
    cuts
}

/// Cuts after each request and each answer, until none of the calls gets that far.
async fn every_cut<B: Backend>(cut: &B, plain: &B, proxy: &Proxy) {
    for kind in [Cut::Request, Cut::Answer] {
        let mut all = 0;
        let far = (0..12).find(|at| {
            let cuts = tokio::task::block_in_place(|| {
                let runtime = tokio::runtime::Handle::current();
                runtime.block_on(every_call_survives(cut, plain, proxy, kind(*at)))
            });
            all += cuts;
            cuts == 0
        });
        assert!(
            far.is_some_and(|far| far > 0),
            "{all} calls were cut, up to {far:?}"
        );
        assert!(all >= 5, "{all} calls were cut");
    }
}

#[test]
fn a_connection_to_postgres_may_be_cut_anywhere() {
    let Some(server) = Server::postgres() else {
        return;
    };
    let proxy = Proxy::new(server.port());
    block_on(async {
        let (_, plain) = postgres(server.port()).await;
        let (_, cut) = postgres(proxy.port).await;
        every_cut(&cut, &plain, &proxy).await;
    });
}

#[test]
fn a_connection_to_redis_may_be_cut_anywhere() {
    let Some(server) = Server::redis() else {
        return;
    };
    let proxy = Proxy::new(server.port());
    block_on(async {
        let plain = redis(server.port()).await;
        let cut = redis(proxy.port).await;
        every_cut(&cut, &plain, &proxy).await;
    });
}
