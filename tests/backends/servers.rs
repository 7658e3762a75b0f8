//! Servers that the tests start themselves, on a free port and in a directory of their own.

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// More than a server takes to start on any machine.
const LONG: Duration = Duration::from_secs(120);

/// A server of one test. It is gone when this is dropped.
pub struct Server {
    directory: TempDir,
    program: PathBuf,
    kind: Kind,
    port: u16,
    child: Option<Child>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Postgres,
    Redis,
    RedisCluster,
}

/// Where a server of this kind is installed, or `None` with a word about it. Fails instead where
/// `ONCEKEY_REQUIRE_SERVERS` is set.
fn find(names: &[&str], package: &str) -> Option<PathBuf> {
    let mut directories: Vec<PathBuf> = env::var_os("PATH")
        .map(|path| env::split_paths(&path).collect())
        .unwrap_or_default();
    directories.extend(["/usr/local/pgsql/bin", "/usr/local/bin", "/usr/sbin"].map(PathBuf::from));
    for base in ["/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt"] {
        let versions = fs::read_dir(base).into_iter().flatten().flatten();
        let mut versions: Vec<_> = versions.map(|entry| entry.path().join("bin")).collect();
        versions.sort();
        directories.extend(versions.into_iter().rev());
    }
    let mut candidates = names.iter().flat_map(|name| {
        directories
            .iter()
            .map(move |directory| directory.join(name))
    });
    let found = candidates.find(|path| path.is_file());
    if found.is_none() {
        let what = format!("{} is not installed: apt-get install {package}", names[0]);
        assert!(env::var_os("ONCEKEY_REQUIRE_SERVERS").is_none(), "{what}");
        eprintln!("SKIPPED: {what}");
    }
    found
}

impl Server {
    /// A new PostgreSQL, unless there is none on this machine.
    pub fn postgres() -> Option<Self> {
        let program = find(&["postgres"], "postgresql")?;
        let initdb = find(&["initdb"], "postgresql")?;
        let mut server = Self::new(program, Kind::Postgres);
        let mut command = Command::new(initdb);
        command
            .args([
                "--auth",
                "trust",
                "--username",
                "oncekey",
                "--no-sync",
                "--encoding",
                "UTF8",
            ])
            .arg("--pgdata")
            .arg(server.data());
        server.as_servant(&mut command);
        let made = command.output().expect("initdb runs");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        server.start();
        Some(server)
    }

    /// A new Redis or Valkey that writes every change to disk, unless there is none.
    pub fn redis() -> Option<Self> {
        Self::redis_of_kind(Kind::Redis)
    }

    /// A cluster of one, which refuses what would not work in a larger one.
    pub fn redis_cluster() -> Option<Self> {
        Self::redis_of_kind(Kind::RedisCluster)
    }

    fn redis_of_kind(kind: Kind) -> Option<Self> {
        let program = find(&["redis-server", "valkey-server"], "redis-server")?;
        let mut server = Self::new(program, kind);
        server.start();
        Some(server)
    }

    fn new(program: PathBuf, kind: Kind) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        let directory = tempfile::tempdir().expect("a directory");
        if let Some((user, group)) = servant() {
            chown(directory.path(), Some(user), Some(group)).expect("root may");
        }
        Self {
            directory,
            program,
            kind,
            port,
            child: None,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// PostgreSQL refuses to run as root.
    fn as_servant(&self, command: &mut Command) {
        command.current_dir(self.directory.path());
        command.stdin(Stdio::null());
        if let Some((user, group)) = servant() {
            command.uid(user).gid(group);
        }
    }

    fn start(&mut self) {
        let mut command = Command::new(&self.program);
        let port = self.port.to_string();
        let directory = self.directory.path().display().to_string();
        match self.kind {
            Kind::Postgres => {
                command
                    .arg("-D")
                    .arg(self.data())
                    .args(["-p", &port, "-k", &directory]);
                // What a killed process wrote is in the page cache: enough here.
                for setting in [
                    "listen_addresses=127.0.0.1",
                    "fsync=off",
                    "max_connections=200",
                ] {
                    command.args(["-c", setting]);
                }
            }
            Kind::Redis | Kind::RedisCluster => {
                command.args(["--port", &port, "--bind", "127.0.0.1", "--dir", &directory]);
                command.args([
                    "--save",
                    "",
                    "--appendonly",
                    "yes",
                    "--appendfsync",
                    "always",
                ]);
                if self.kind == Kind::RedisCluster {
                    command.args(["--cluster-enabled", "yes"]);
                }
            }
        }
        self.as_servant(&mut command);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("the server starts"));
        let begun = Instant::now();
        while !self.answers() {
            let child = self.child.as_mut().expect("just started");
            let ended = child.try_wait().expect("a child");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            assert!(begun.elapsed() < LONG, "the server does not answer");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it takes connections; that it takes commands, its clients find out by repeating.
    fn answers(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    /// Kills it, and starts it again on what it had written.
    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    fn stop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        match self.kind {
            // At once and without a checkpoint; killed, it would leave children behind.
            Kind::Postgres => {
                let pid = child.id().to_string();
                drop(Command::new("kill").args(["-QUIT", &pid]).status());
            }
            Kind::Redis | Kind::RedisCluster => drop(child.kill()),
        }
        drop(child.wait());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The user and group that a server runs as, where the tests run as root.
fn servant() -> Option<(u32, u32)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if uids.split_whitespace().nth(1)? != "0" {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let find = |name: &str| {
        let user = users
            .lines()
            .find(|line| line.starts_with(&format!("{name}:")))?;
        let mut fields = user.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    find("postgres").or_else(|| find("nobody"))
}
