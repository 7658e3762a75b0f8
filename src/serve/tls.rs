//! TLS: the files that it takes, and shaking hands within a time and a number.
//!
//! A handshake costs memory and signatures before anybody has said who he is, so only so many are under
//! way at once, each for so long. One more is hung up on; clients that are in notice nothing of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::options::ServeError;
use super::session::Shared;

/// The files of a server's TLS, in PEM. They are read once, when the server starts.
#[derive(Clone, Debug)]
#[must_use = "nothing is encrypted until an address is listened to with them"]
pub struct TlsFiles {
    certificates: PathBuf,
    key: PathBuf,
    client_authorities: Option<PathBuf>,
}

impl TlsFiles {
    /// The server's certificate, followed by those that lead to its authority; and its private key.
    pub fn new(certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificates: certificates.into(),
            key: key.into(),
            client_authorities: None,
        }
    }

    /// Only clients with a certificate of one of these authorities get in. A password is asked for
    /// beside it where there is one.
    pub fn client_authorities(mut self, certificates: impl Into<PathBuf>) -> Self {
        self.client_authorities = Some(certificates.into());
        self
    }

    pub(super) fn knows_clients(&self) -> bool {
        self.client_authorities.is_some()
    }

    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, ServeError> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(&self.certificates, error))?;
        let builder = match &self.client_authorities {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    let added = roots.add(certificate);
                    added.map_err(|error| refused(path, error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| refused(path, error))?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| match error {
            pem::Error::NoItemsFound => refused(&self.key, "no private key is in it"),
            error => refused(&self.key, error),
        })?;
        let config = builder.with_single_cert(certificates(&self.certificates)?, key);
        let config = config.map_err(|error| refused(&self.key, error))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn refused(file: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ServeError {
    ServeError::Tls {
        file: file.to_owned(),
        source: source.into(),
    }
}

/// All certificates of a file, of which there is one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(|certificates| certificates.collect());
    let found = found.map_err(|error| refused(path, error))?;
    if found.is_empty() {
        return Err(refused(path, "no certificate is in it"));
    }
    Ok(found)
}

/// Shakes hands; nothing where the client does not manage to, or there are too many at once.
pub(super) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: &TlsAcceptor,
    stream: S,
    shared: &Shared,
) -> Option<TlsStream<S>> {
    let Ok(_one_of_so_many) = shared.handshakes.try_acquire() else {
        tracing::warn!("a client was hung up on: too many TLS handshakes at once");
        return None;
    };
    let limit: Duration = shared.options.handshake;
    match tokio::time::timeout(limit, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("a TLS handshake took too long");
            None
        }
    }
}
