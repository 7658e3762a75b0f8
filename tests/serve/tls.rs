//! The server over TLS: who gets in, who does not, and who is kept waiting by whom.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use oncekey::Store;
use oncekey::serve::{ServeOptions, Server, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring,
};

use super::Served;

/// An authority, with a certificate for the server and one for a client, as files.
struct Authority(PathBuf);

impl Authority {
    fn new(directory: &Path, name: &str) -> Self {
        let directory = directory.join(name);
        std::fs::create_dir(&directory).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // A name other than the servers', by which OpenSSL would take them for one another.
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        std::fs::write(directory.join("ca.pem"), root.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for subject in ["server", "client"] {
            let params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]);
            let key = KeyPair::generate().unwrap();
            let certificate = params.unwrap().signed_by(&key, &issuer).unwrap();
            let path = |ending: &str| directory.join(format!("{subject}.{ending}"));
            std::fs::write(path("pem"), certificate.pem()).unwrap();
            std::fs::write(path("key"), key.serialize_pem()).unwrap();
        }
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn files(&self) -> TlsFiles {
        TlsFiles::new(self.path("server.pem"), self.path("server.key"))
    }

    /// A client that believes this authority; with its certificate or without.
    fn client(&self, has_certificate: bool) -> ClientConfig {
        let certificates = |name: &str| -> Vec<_> {
            let found = CertificateDer::pem_file_iter(self.path(name)).unwrap();
            found.map(Result::unwrap).collect()
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("ca.pem") {
            roots.add(certificate).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match has_certificate {
            false => builder.with_no_client_auth(),
            true => {
                let key = PrivateKeyDer::from_pem_file(self.path("client.key")).unwrap();
                builder
                    .with_client_auth_cert(certificates("client.pem"), key)
                    .unwrap()
            }
        }
    }
}

fn socket(address: &str) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    socket
}

/// What comes back to one `PING` over TLS.
fn ping(address: &str, config: ClientConfig) -> std::io::Result<String> {
    let name = "localhost".try_into().unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, socket(address));
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A server in this process, on one address of TLS.
struct Here {
    address: String,
    server: Option<Server>,
    store: Store,
    runtime: tokio::runtime::Runtime,
}

impl Here {
    fn start(
        directory: &Path,
        files: TlsFiles,
        more: impl FnOnce(ServeOptions) -> ServeOptions,
    ) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = Store::open(directory.join("store")).unwrap();
        let options = more(ServeOptions::new().tls("127.0.0.1:0".parse().unwrap(), files));
        let server = runtime.block_on(Server::start(store.clone(), options));
        let server = server.unwrap();
        Self {
            address: server.addresses()[0].to_string(),
            server: Some(server),
            store,
            runtime,
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let server = self.server.take().unwrap();
        self.runtime.block_on(server.shutdown(Duration::ZERO));
        self.store.close().unwrap();
    }
}

#[test]
fn plain_and_tls_are_served_side_by_side() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ours");
    let path = |name: &str| authority.path(name).to_str().unwrap().to_owned();
    let store = directory.path().join("store");
    let mut served = Served::start(
        &store,
        &[
            "--tls",
            "127.0.0.1:0",
            "--tls-cert",
            &path("server.pem"),
            "--tls-key",
            &path("server.key"),
        ],
    );
    let address = served.next_address();
    assert_eq!(served.answers_to(b"PING\r\n"), "+PONG\r\n");
    assert_eq!(
        ping(&address, authority.client(false)).unwrap(),
        "+PONG\r\n"
    );
    let port = address.rsplit(':').next().unwrap();
    let cli = Command::new("redis-cli")
        .args(["--tls", "--cacert", &path("ca.pem"), "-h", "127.0.0.1"])
        .args(["-p", port, "SET", "k", "v", "NX"])
        .output();
    match cli {
        Ok(output) => assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "OK\n",
            "{output:?}"
        ),
        Err(_) => {
            let message = "SKIPPED redis-cli: apt-get install redis-tools";
            assert!(
                std::env::var_os("ONCEKEY_REQUIRE_SERVERS").is_none(),
                "{message}"
            );
            eprintln!("{message}");
        }
    }
}

#[test]
fn who_believes_another_authority_does_not_come_in() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| Authority::new(directory.path(), name));
    let here = Here::start(directory.path(), ours.files(), |options| options);
    let error = ping(&here.address, theirs.client(false)).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_eq!(
        ping(&here.address, ours.client(false)).unwrap(),
        "+PONG\r\n"
    );
}

#[test]
fn without_a_certificate_of_the_authority_no_client_comes_in() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| Authority::new(directory.path(), name));
    let files = ours.files().client_authorities(ours.path("ca.pem"));
    let here = Here::start(directory.path(), files, |options| options);
    assert_eq!(ping(&here.address, ours.client(true)).unwrap(), "+PONG\r\n");
    assert!(ping(&here.address, ours.client(false)).is_err());
    // It believes the server, and shows what another authority gave it.
    std::fs::copy(ours.path("ca.pem"), theirs.path("ca.pem")).unwrap();
    assert!(ping(&here.address, theirs.client(true)).is_err());
}

#[test]
fn a_plain_client_at_the_port_of_tls_is_hung_up_on() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ours");
    let here = Here::start(directory.path(), authority.files(), |options| options);
    let mut plain = socket(&here.address);
    plain.write_all(b"PING\r\n").unwrap();
    let mut answer = Vec::new();
    // An alert of TLS, or nothing; and the end.
    drop(plain.read_to_end(&mut answer));
    assert!(!answer.starts_with(b"+"), "{}", answer.escape_ascii());
}

#[test]
fn slow_handshakes_end_and_keep_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ours");
    let here = Here::start(directory.path(), authority.files(), |options| {
        options
            .handshake_timeout(Duration::from_secs(3))
            .max_handshakes(20)
    });
    // Nothing is said at all, or a handshake begins and stops.
    let mut slow: Vec<_> = (0..10).map(|_| socket(&here.address)).collect();
    slow.iter().step_by(2).for_each(|mut slow| {
        slow.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    });
    assert_eq!(
        ping(&here.address, authority.client(false)).unwrap(),
        "+PONG\r\n"
    );
    for slow in &mut slow {
        // The server ends it; a time-out here would be ours.
        let ended = slow.read(&mut [0; 64]);
        let is_ours =
            matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_ours, "still there");
    }
}

#[test]
fn more_handshakes_than_may_be_under_way_are_hung_up_on() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ours");
    let here = Here::start(directory.path(), authority.files(), |options| {
        options.max_handshakes(2)
    });
    let is_refused = || ping(&here.address, authority.client(false)).is_err();
    let mut held = Vec::new();
    // The order in which they are let in is anybody's guess.
    loop {
        held.push(socket(&here.address));
        if is_refused() {
            break;
        }
    }
    drop(held);
    while is_refused() {}
}

#[test]
fn files_that_do_not_serve_are_told_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| Authority::new(directory.path(), name));
    let garbage = directory.path().join("garbage");
    std::fs::write(&garbage, "no PEM at all").unwrap();
    let missing = directory.path().join("missing");
    let (certificate, key) = (ours.path("server.pem"), ours.path("server.key"));
    for (certificate, key, authorities, says) in [
        (&missing, &key, None, "missing: "),
        (&garbage, &key, None, "garbage: no certificate"),
        (&certificate, &garbage, None, "garbage: no private key"),
        (
            &certificate,
            &theirs.path("server.key"),
            None,
            "server.key: ",
        ),
        (
            &certificate,
            &certificate,
            None,
            "server.pem: no private key",
        ),
        (
            &certificate,
            &key,
            Some(&garbage),
            "garbage: no certificate",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command
            .arg("serve")
            .arg(directory.path().join("store"))
            .args(["--tls", "127.0.0.1:0", "--tls-cert"])
            .arg(certificate)
            .arg("--tls-key")
            .arg(key);
        if let Some(authorities) = authorities {
            command.arg("--tls-client-ca").arg(authorities);
        }
        let output = command.stdout(Stdio::null()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(says), "{says}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let half = Command::new(env!("CARGO_BIN_EXE_oncekey"))
        .args(["serve", "store", "--tls", "127.0.0.1:0"])
        .output()
        .unwrap();
    assert_eq!(half.status.code(), Some(2));
}

#[test]
fn a_public_address_is_protected_by_certificates_of_clients_and_not_by_tls_alone() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "ours");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let start = |files: TlsFiles| {
        let options = ServeOptions::new().tls("0.0.0.0:0".parse().unwrap(), files);
        runtime.block_on(Server::start(store.clone(), options))
    };
    let error = start(authority.files()).unwrap_err();
    assert!(error.to_string().contains("no password"), "{error}");
    let known = authority
        .files()
        .client_authorities(authority.path("ca.pem"));
    let server = start(known).unwrap();
    runtime.block_on(server.shutdown(Duration::ZERO));
}

#[test]
fn keys_come_over_and_go_back_through_tls() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "authority");
    let other = Authority::new(directory.path(), "other");
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (certificate, key) = (authority.path("server.pem"), authority.path("server.key"));
    let mut served = Served::start(
        &directory.path().join("source"),
        &[
            &["--tls", "127.0.0.1:0", "--durability", "buffered"][..],
            &["--tls-cert", &text(certificate), "--tls-key", &text(key)],
        ]
        .concat(),
    );
    let url = format!("rediss://{}", served.next_address());
    let mut client = served.client();
    for number in 0..700 {
        super::run::<String>(&mut client, &format!("SET k{number} v{number}")).unwrap();
    }
    let store = text(directory.path().join("store"));
    let run = |words: &[&str], authority: Option<PathBuf>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oncekey"));
        command.args(words).args(["--store", &store]);
        if let Some(authority) = authority {
            command.arg("--tls-ca").arg(authority);
        }
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), out, err)
    };
    let import = ["import", "redis", &url];
    for stranger in [None, Some(other.path("ca.pem"))] {
        let (code, _, err) = run(&import, stranger);
        assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
        assert!(err.contains("certificate"), "{err}");
    }
    let (code, _, err) = run(&import, Some(directory.path().join("none.pem")));
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    let (code, out, err) = run(&import, Some(authority.path("ca.pem")));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("700 compared: 0 missing"), "{out}");
    let export = ["export", "redis", &url, "--prefix", "back:"];
    let (code, out, err) = run(&export, Some(authority.path("ca.pem")));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let value: String = super::run(&mut client, "GET back:k7").unwrap();
    assert_eq!(value, "v7");
    let plain = format!("redis://{}", served.address);
    let (code, _, err) = run(&["import", "redis", &plain], Some(authority.path("ca.pem")));
    assert_eq!(code, Some(2), "{err}");
}
