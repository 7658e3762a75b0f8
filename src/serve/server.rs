//! Listening, and stopping.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::command::Guards;
use super::connection;
use super::options::{ServeError, ServeOptions};
use super::session::Shared;
use super::tls::{self, TlsFiles};
use crate::store::Store;
use crate::values::Values;

/// How long to wait after an accept failed: for want of descriptors, as a rule.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// Clients of a Unix socket that may wait to be accepted.
const BACKLOG: u32 = 1_024;

/// A server at work. Dropped, it stops at once.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    listeners: JoinSet<JoinSet<()>>,
    tcp: Vec<SocketAddr>,
    unix: Vec<PathBuf>,
}

/// What became of the clients when a server was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// Clients that got all their answers.
    pub finished: usize,
    /// Clients that were cut off at the deadline.
    pub cut_off: usize,
}

impl Server {
    /// Listens, and serves the store from now on. Has to be called in a tokio runtime with I/O and time.
    ///
    /// The store stays its owner's: close it after [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    ///
    /// [`ServeError`]; nothing is listened to then.
    pub async fn start(store: Store, options: ServeOptions) -> Result<Self, ServeError> {
        if options.scope.len() > store.settings().key_part_bytes_max {
            return Err(ServeError::Scope);
        }
        let plain = options.tcp.iter().map(|address| (address, None));
        let tls = options.tls.iter();
        let tls = tls.map(|(address, files)| (address, Some(files)));
        let wanted: Vec<_> = plain.chain(tls).collect();
        for (address, files) in &wanted {
            let is_protected = options.password.is_some()
                || options.allow_public
                || files.is_some_and(TlsFiles::knows_clients);
            if !address.ip().is_loopback() && !is_protected {
                return Err(ServeError::Unprotected { address: **address });
            }
        }
        let (mut tcp, mut unix) = (Vec::new(), Vec::new());
        for (address, files) in wanted {
            let acceptor = files.map(TlsFiles::acceptor).transpose()?;
            let bound = TcpListener::bind(address).await;
            let bound = bound.map_err(|source| listen(address.to_string(), source))?;
            tcp.push((bound, acceptor));
        }
        for path in &options.unix {
            let bound = bind_unix(path).await;
            unix.push(bound.map_err(|source| listen(path.display().to_string(), source))?);
        }
        let addresses = tcp.iter().map(|(listener, _)| listener.local_addr());
        let addresses: io::Result<Vec<_>> = addresses.collect();
        let addresses = addresses.map_err(|source| listen("TCP".to_owned(), source))?;
        let (stop, stopped) = watch::channel(false);
        let paths = options.unix.clone();
        let shared = Arc::new(Shared {
            values: Values::new(&store, &options.scope),
            store,
            guards: Guards::default(),
            handshakes: Semaphore::new(options.handshakes_max.min(Semaphore::MAX_PERMITS)),
            options,
            started: Instant::now(),
            clients: AtomicUsize::new(0),
            next_client: AtomicU64::new(1),
            guess: Mutex::new(()),
        });
        let mut listeners = JoinSet::new();
        for (listener, acceptor) in tcp {
            listeners.spawn(accept(
                Arc::clone(&shared),
                stopped.clone(),
                acceptor,
                async move || {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    Ok(stream)
                },
            ));
        }
        for listener in unix {
            listeners.spawn(accept(
                Arc::clone(&shared),
                stopped.clone(),
                None,
                async move || listener.accept().await.map(|(stream, _)| stream),
            ));
        }
        Ok(Self {
            stop,
            listeners,
            tcp: addresses,
            unix: paths,
        })
    }

    /// The addresses that are listened to, with the ports that the system chose: the plain ones, then
    /// those of TLS, in the order in which they were given.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.tcp
    }

    /// Stops: no new client, no new request; what was begun is finished, answered and made durable as
    /// ever. Clients that are not done at the deadline are cut off.
    pub async fn shutdown(mut self, deadline: Duration) -> Shutdown {
        self.stop.send_replace(true);
        let until = tokio::time::Instant::now() + deadline;
        let mut report = Shutdown {
            finished: 0,
            cut_off: 0,
        };
        while let Some(Ok(mut clients)) = self.listeners.join_next().await {
            while !clients.is_empty() {
                match tokio::time::timeout_at(until, clients.join_next()).await {
                    Ok(_) => report.finished += 1,
                    Err(_) => {
                        report.cut_off += clients.len();
                        clients.shutdown().await;
                    }
                }
            }
        }
        report
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for path in &self.unix {
            // It is gone already, or somebody else's.
            drop(std::fs::remove_file(path));
        }
    }
}

fn listen(at: String, source: io::Error) -> ServeError {
    ServeError::Listen { at, source }
}

/// Listens at a path, in the place of a socket that nobody listens to.
async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() || UnixStream::connect(path).await.is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let socket = UnixSocket::new_stream()?;
    // On Linux a path gets the mode of the socket that is bound to it, so it never has a wider one.
    // Elsewhere it has one for a moment, in which nobody can connect: nothing listens yet.
    #[cfg(target_os = "linux")]
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    socket.bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)
}

/// Accepts clients until the server stops; those who are still there.
async fn accept<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
    acceptor: Option<TlsAcceptor>,
    next: impl AsyncFn() -> io::Result<S>,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = next() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return clients,
        };
        while clients.try_join_next().is_some() {}
        match accepted {
            Ok(stream) => {
                let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
                clients.spawn(attend(stream, acceptor.clone(), shared, stopped));
            }
            Err(error) => {
                tracing::warn!(%error, "a client could not be accepted");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

async fn attend<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let counted = Counted(&shared);
    let is_one_too_many =
        shared.clients.fetch_add(1, Ordering::Relaxed) >= shared.options.clients_max;
    match acceptor {
        // One that speaks TLS would not understand.
        Some(_) if is_one_too_many => {}
        None if is_one_too_many => {
            let refusal = stream.write_all(b"-ERR max number of clients reached\r\n");
            drop(tokio::time::timeout(AFTER_FAILURE, refusal).await);
        }
        None => connection::serve(stream, &shared, stopped).await,
        Some(acceptor) => {
            let stream = tokio::select! {
                stream = tls::shake_hands(&acceptor, stream, &shared) => stream,
                _ = stopped.wait_for(|stopped| *stopped) => None,
            };
            if let Some(stream) = stream {
                connection::serve(stream, &shared, stopped).await;
            }
        }
    }
    drop(counted);
}

/// A client that is counted until it is gone.
struct Counted<'a>(&'a Shared);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
