//! What a server may do, for whom, and how much of it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::tls::TlsFiles;

/// Options of a [`Server`](super::Server). Nothing is listened to unless said.
#[derive(Clone)]
#[must_use = "options do nothing until a server is started with them"]
pub struct ServeOptions {
    pub(super) tcp: Vec<SocketAddr>,
    pub(super) tls: Vec<(SocketAddr, TlsFiles)>,
    pub(super) unix: Vec<PathBuf>,
    pub(super) scope: Vec<u8>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) allow_public: bool,
    pub(super) clients_max: usize,
    pub(super) arguments_max: usize,
    pub(super) request_bytes_max: usize,
    pub(super) output_bytes_max: usize,
    pub(super) idle: Duration,
    pub(super) stall: Duration,
    pub(super) handshake: Duration,
    pub(super) handshakes_max: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            tcp: Vec::new(),
            tls: Vec::new(),
            unix: Vec::new(),
            scope: b"redis".to_vec(),
            user: "default".to_owned(),
            password: None,
            allow_public: false,
            clients_max: 10_000,
            arguments_max: 65_536,
            request_bytes_max: 8 << 20,
            output_bytes_max: 8 << 20,
            idle: Duration::from_secs(60 * 60),
            stall: Duration::from_secs(60),
            handshake: Duration::from_secs(10),
            handshakes_max: 1_000,
        }
    }
}

impl ServeOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens at this address. One that is not of this machine alone needs a password.
    pub fn tcp(mut self, address: SocketAddr) -> Self {
        self.tcp.push(address);
        self
    }

    /// Listens at this address for clients that speak TLS. One that is not of this machine alone needs a
    /// password or certificates of clients. Plain addresses may be listened to beside it.
    pub fn tls(mut self, address: SocketAddr, files: TlsFiles) -> Self {
        self.tls.push((address, files));
        self
    }

    /// Listens at this path, which only this user may open. A socket that nobody listens to is replaced.
    pub fn unix(mut self, path: impl Into<PathBuf>) -> Self {
        self.unix.push(path.into());
        self
    }

    /// The scope whose results are the values: `redis` by default, at most 255 bytes.
    pub fn scope(mut self, scope: impl Into<Vec<u8>>) -> Self {
        self.scope = scope.into();
        self
    }

    /// Nobody may do anything before `AUTH`, as `default` unless [`user`](Self::user) says otherwise.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The only user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Allows an address that others can reach without a password: whoever can, may do anything.
    pub fn allow_public_without_password(mut self) -> Self {
        self.allow_public = true;
        self
    }

    /// Clients at once: 10,000 by default. One more is told so and hung up on.
    pub fn max_clients(mut self, clients: usize) -> Self {
        self.clients_max = clients;
        self
    }

    /// Bytes of one request, 8 MiB by default. One value is limited by the store's
    /// [`max_response`](crate::Options::max_response).
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.request_bytes_max = bytes;
        self
    }

    /// Bytes of answers that a client may leave unread before no more is read from it: 8 MiB by default.
    pub fn max_output_bytes(mut self, bytes: usize) -> Self {
        self.output_bytes_max = bytes;
        self
    }

    /// How long a client may be silent between two requests: an hour by default.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle = timeout;
        self
    }

    /// How long one request may take to arrive, and answers may stand unread: a minute by default.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall = timeout;
        self
    }

    /// How long a TLS handshake may take: ten seconds by default.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake = timeout;
        self
    }

    /// TLS handshakes at once: 1,000 by default. One more is hung up on.
    pub fn max_handshakes(mut self, handshakes: usize) -> Self {
        self.handshakes_max = handshakes;
        self
    }
}

/// Does not show the password.
impl fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServeOptions")
            .field("tcp", &self.tcp)
            .field("tls", &self.tls)
            .field("unix", &self.unix)
            .field("has_password", &self.password.is_some())
            .finish_non_exhaustive()
    }
}

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// The address can be reached by others and there is no password.
    Unprotected {
        /// The address.
        address: SocketAddr,
    },
    /// The scope is longer than the store takes.
    Scope,
    /// A file of TLS can't be read, or does not go with the others.
    Tls {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It can't be listened to.
    Listen {
        /// Address or path.
        at: String,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unprotected { address } => write!(
                f,
                "{address} can be reached by other machines and there is no password; set one, listen \
                 at a loopback address, or allow it explicitly"
            ),
            Self::Tls { file, source } => write!(f, "{}: {source}", file.display()),
            Self::Scope => {
                f.write_str("the scope is longer than a part of a key may be in this store")
            }
            Self::Listen { at, source } => write!(f, "listening at {at} failed: {source}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. } => Some(source),
            Self::Tls { source, .. } => Some(&**source),
            Self::Unprotected { .. } | Self::Scope => None,
        }
    }
}
