//! `oncekey serve`: a store for Redis clients.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oncekey::Durability;
use oncekey::serve::{ServeOptions, Server, TlsFiles};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::change;
use crate::output::{Exit, Failure, Output};

/// How long clients have to get their answers when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// What survives before an answer is given.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Survives {
    /// Power loss.
    Sync,
    /// The death of the process.
    Buffered,
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// Directory of the store; made if it does not exist.
    directory: PathBuf,
    /// Address to listen at; may be given more than once. 127.0.0.1:6379 if there is no --tls or --unix
    /// either.
    #[arg(long)]
    tcp: Vec<SocketAddr>,
    /// Address to listen at for clients that speak TLS; may be given more than once.
    #[arg(long, requires = "tls_cert")]
    tls: Vec<SocketAddr>,
    /// File of the server's certificate in PEM, followed by those that lead to its authority. Read once:
    /// restart the server when it is renewed.
    #[arg(long, requires_all = ["tls", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// File of the certificate's private key, in PEM.
    #[arg(long, requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File of authorities in PEM: only clients with a certificate of one of them get in by TLS.
    #[arg(long, requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Path of a Unix socket to listen at; may be given more than once.
    #[arg(long)]
    unix: Vec<PathBuf>,
    /// Scope whose results are the values.
    #[arg(long, default_value = "redis")]
    scope: String,
    /// Name that clients give with the password.
    #[arg(long, default_value = "default")]
    user: String,
    /// File whose first line is the password that clients must give.
    #[arg(long)]
    password_file: Option<PathBuf>,
    /// Listen at a public address although there is no password.
    #[arg(long)]
    allow_public_without_password: bool,
    /// What an answered write survives.
    #[arg(long, value_enum, default_value = "sync")]
    durability: Survives,
    /// Clients at once.
    #[arg(long, default_value_t = 10_000)]
    max_clients: usize,
    /// Seconds that a client may be silent.
    #[arg(long, default_value_t = 3_600)]
    idle_seconds: u64,
}

pub(crate) fn serve(arguments: &Serve, output: &mut Output) -> Result<(), Failure> {
    let options = arguments.options()?;
    let durability = match arguments.durability {
        Survives::Sync => Durability::Sync,
        Survives::Buffered => Durability::Buffered,
    };
    let store = change::options()
        .maintenance(true)
        .durability(durability)
        .open(&arguments.directory)?;
    let failed = |error: &dyn Display| Failure::new(Exit::Failed, error);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(&error))?;
    let served = runtime.block_on(async {
        let (mut term, mut int) = signal(SignalKind::terminate())
            .and_then(|term| Ok((term, signal(SignalKind::interrupt())?)))
            .map_err(|error| failed(&error))?;
        let server = Server::start(store.clone(), options).await;
        let server = server.map_err(|error| failed(&error))?;
        for address in server.addresses() {
            let address = address.to_string();
            output.show(
                &json!({ "listening": address }),
                format!("listening at {address}"),
            )?;
        }
        output.flush()?;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let report = server.shutdown(GRACE).await;
        if report.cut_off > 0 {
            let said = format!("{} clients were cut off", report.cut_off);
            writeln!(io::stderr(), "oncekey: {said}").unwrap_or_default();
        }
        Ok(())
    });
    drop(runtime);
    change::close(&store)?;
    served
}

impl Serve {
    fn options(&self) -> Result<ServeOptions, Failure> {
        let mut options = ServeOptions::new()
            .scope(self.scope.as_bytes())
            .user(&self.user)
            .max_clients(self.max_clients)
            .idle_timeout(Duration::from_secs(self.idle_seconds));
        if self.tcp.is_empty() && self.tls.is_empty() && self.unix.is_empty() {
            options = options.tcp(SocketAddr::from(([127, 0, 0, 1], 6_379)));
        }
        for address in &self.tcp {
            options = options.tcp(*address);
        }
        if let (Some(certificates), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let mut files = TlsFiles::new(certificates, key);
            if let Some(authorities) = &self.tls_client_ca {
                files = files.client_authorities(authorities);
            }
            for address in &self.tls {
                options = options.tls(*address, files.clone());
            }
        }
        for path in &self.unix {
            options = options.unix(path);
        }
        if let Some(path) = &self.password_file {
            let file = std::fs::read_to_string(path);
            let file = file.map_err(|error| Failure::io(path.display(), &error))?;
            let password = file.lines().next().filter(|line| !line.is_empty());
            options = options.password(
                password.ok_or_else(|| Failure::new(Exit::Usage, "the password file is empty"))?,
            );
        }
        if self.allow_public_without_password {
            options = options.allow_public_without_password();
        }
        Ok(options)
    }
}
