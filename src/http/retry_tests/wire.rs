//! A server at an address, spoken to in HTTP/1.1 by hand: only so can a client be one that asks and
//! does not read, or that hangs up half-way.
//!
//! Each request has a connection of its own, on a thread that may block.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::target::{Answer, Boxed, GLANCE, HasHappened, Loss, Target, is_time};

/// Bytes of an answer, its head included.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone)]
pub(super) struct Site {
    /// As the `Host` header has it.
    authority: String,
    /// With a port.
    address: String,
    path: String,
    patience: Duration,
}

impl Site {
    pub(super) fn parse(url: &str, patience: Duration) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
        if uri.scheme_str() != Some("http") {
            return Err(format!("{url} does not begin with http://"));
        }
        let authority = uri
            .authority()
            .ok_or_else(|| format!("{url} has no host"))?;
        let address = match authority.port_u16() {
            Some(port) => format!("{}:{port}", authority.host()),
            None => format!("{}:80", authority.host()),
        };
        Ok(Self {
            authority: authority.as_str().to_owned(),
            address,
            path: uri.path().trim_end_matches('/').to_owned(),
            patience: patience.max(Duration::from_millis(1)),
        })
    }

    fn send(&self, request: &Request<Bytes>) -> io::Result<TcpStream> {
        let mut addresses = self.address.to_socket_addrs()?;
        let address = addresses
            .next()
            .ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut connection = TcpStream::connect_timeout(&address, self.patience)?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(self.patience))?;
        connection.set_write_timeout(Some(self.patience))?;
        connection.write_all(&self.message(request))?;
        Ok(connection)
    }

    fn message(&self, request: &Request<Bytes>) -> Vec<u8> {
        let uri = request.uri();
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let head = format!("{} {}{target} HTTP/1.1\r\n", request.method(), self.path);
        let mut message = head.into_bytes();
        let mut put = |name: &HeaderName, value: &[u8]| {
            message.extend_from_slice(name.as_str().as_bytes());
            message.extend_from_slice(b": ");
            message.extend_from_slice(value);
            message.extend_from_slice(b"\r\n");
        };
        put(&HOST, self.authority.as_bytes());
        put(&CONNECTION, b"close");
        put(&CONTENT_LENGTH, request.body().len().to_string().as_bytes());
        let own = [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING];
        for (name, value) in request.headers() {
            if !own.contains(name) {
                put(name, value.as_bytes());
            }
        }
        message.extend_from_slice(b"\r\n");
        message.extend_from_slice(request.body());
        message
    }

    fn ask_blocking(&self, request: &Request<Bytes>) -> io::Result<Answer> {
        let mut answer = Vec::new();
        let connection = self.send(request)?;
        connection.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        parsed(&answer).ok_or_else(|| {
            io::Error::other(match answer.len() {
                0 => "the server closed the connection without an answer",
                _ => "the server's answer broke off or is not HTTP",
            })
        })
    }

    fn lose_blocking(
        &self,
        request: &Request<Bytes>,
        loss: Loss,
        has_happened: &HasHappened,
    ) -> io::Result<()> {
        let connection = self.send(request)?;
        match loss {
            // A connection that is closed with bytes unread is reset, as one that broke.
            Loss::Unread => match connection.peek(&mut [0])? {
                0 => Err(io::Error::other("the server closed the connection")),
                _ => Ok(()),
            },
            Loss::HungUp => {
                let begun = Instant::now();
                while !is_time(begun, has_happened) {
                    thread::sleep(GLANCE);
                }
                Ok(())
            }
        }
    }

    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, String> {
        let site = self.clone();
        match spawn_blocking(move || work(site)).await {
            Ok(result) => result.map_err(|error| format!("{}: {error}", self.authority)),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Target for Site {
    fn ask(&self, request: Request<Bytes>) -> Boxed<'_, Result<Answer, String>> {
        Box::pin(self.on_thread(move |site| site.ask_blocking(&request)))
    }

    fn lose(
        &self,
        request: Request<Bytes>,
        loss: Loss,
        has_happened: HasHappened,
    ) -> Boxed<'_, Result<(), String>> {
        Box::pin(self.on_thread(move |site| site.lose_blocking(&request, loss, &has_happened)))
    }
}

/// A whole answer; `None` if it broke off or is none.
fn parsed(mut bytes: &[u8]) -> Option<Answer> {
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, rest) = (bytes.get(..end)?, bytes.get(end + 4..)?);
        let (status, headers) = head_of(head)?;
        if status.is_informational() {
            bytes = rest;
            continue;
        }
        let is_chunked = headers
            .get(TRANSFER_ENCODING)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"chunked"));
        let body = match headers.get(CONTENT_LENGTH) {
            _ if is_chunked => unchunked(rest)?,
            Some(length) => {
                let length: usize = length.to_str().ok()?.parse().ok()?;
                rest.get(..length)?.to_vec()
            }
            None => rest.to_vec(),
        };
        return Some(Answer {
            status,
            headers,
            body: body.into(),
        });
    }
}

fn head_of(head: &[u8]) -> Option<(StatusCode, HeaderMap)> {
    let mut lines = head
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next()?;
    let status = first.split(|&byte| byte == b' ').nth(1)?;
    let status = StatusCode::from_bytes(status).ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(line.get(..colon)?).ok()?;
        let value = HeaderValue::from_bytes(line.get(colon + 1..)?.trim_ascii()).ok()?;
        headers.append(name, value);
    }
    Some((status, headers))
}

/// The chunks' bytes; trailers are not looked at.
fn unchunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(bytes.get(..end)?).ok()?;
        let size = size.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let begin = end + 2;
        let end = begin.checked_add(size)?;
        body.extend_from_slice(bytes.get(begin..end)?);
        bytes = bytes.get(end..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let whole: &[(&[u8], u16, &[u8])] = &[
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
                200,
                b"ab",
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
            (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\n\
                  transfer-encoding: chunked\r\n\r\n2;x=1\r\nab\r\nA\r\n0123456789\r\n0\r\n\r\n",
                201,
                b"ab0123456789",
            ),
        ];
        for (bytes, status, body) in whole {
            let answer = parsed(bytes).expect("whole");
            assert_eq!((answer.status.as_u16(), &answer.body[..]), (*status, *body));
        }
        let broken: &[&[u8]] = &[
            b"",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na",
            b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\na",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\na",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nab\r\n",
            b"HTTP/1.1 2 OK\r\n\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        ];
        for bytes in broken {
            assert!(parsed(bytes).is_none(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_url_is_taken_apart() {
        let parse = |url| Site::parse(url, Duration::from_secs(1));
        let site = parse("http://localhost:3000/api/").expect("a URL");
        assert_eq!(
            (&site.authority[..], &site.address[..], &site.path[..]),
            ("localhost:3000", "localhost:3000", "/api")
        );
        assert_eq!(parse("http://[::1]").expect("a URL").address, "[::1]:80");
        for bad in [
            "",
            "localhost:3000",
            "https://localhost",
            "/path",
            "http://",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
