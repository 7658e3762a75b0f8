//! One client: requests in, answers out, in order.
//!
//! All requests that have arrived are run, one after the other, and then there is one wait for the disk
//! for all of them. Those of `IDEM.` wait by themselves, so as many as follow each other are run at once,
//! those on one key in their order. While answers stand unread, more is read only up to a limit; so whoever sends a
//! million requests before it reads an answer is slowed down, and costs bounded memory.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::Instant;

use super::command;
use super::reply::{Protocol, Reply};
use super::request::Parser;
use super::session::{Session, Shared};

/// Requests that share a wait at most.
const BATCH_MAX: usize = 1_024;
/// Requests that are run at once at most.
const TOGETHER_MAX: usize = 256;
const READ_BYTES: usize = 16 << 10;
/// Pieces that are read and thrown away of a client that is hung up on.
const UNREAD_MAX: usize = 256;
/// Buffers that a peak has made larger than this are given back.
const KEPT_BYTES: usize = 64 << 10;

struct Connection<'a> {
    shared: &'a Shared,
    session: Session,
    parser: Parser,
    input: BytesMut,
    output: BytesMut,
    /// Answers that have no room in `output` yet. What they hand out stands in the log, not in memory.
    waiting: VecDeque<(Reply, u64, Protocol)>,
    /// Requests in `input` or answers may be waiting for room in `output`.
    has_more: bool,
}

pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    shared: &Shared,
    mut stopped: watch::Receiver<bool>,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut connection = Connection {
        shared,
        session: Session::new(shared),
        parser: Parser::default(),
        input: BytesMut::new(),
        output: BytesMut::new(),
        waiting: VecDeque::new(),
        has_more: false,
    };
    let (mut is_stopping, mut is_flushed) = (false, true);
    let mut begun = Instant::now();
    loop {
        connection.run().await;
        let Connection {
            session,
            parser,
            input,
            output,
            has_more,
            ..
        } = &mut connection;
        let is_over = session.is_over || is_stopping;
        if is_over && output.is_empty() && is_flushed && !*has_more {
            break;
        }
        let may_read = !is_over && output.len() < shared.options.output_bytes_max;
        let is_between = !parser.is_within() && input.is_empty() && output.is_empty();
        let limit = match is_between {
            true => shared.options.idle,
            false => shared.options.stall,
        };
        if may_read {
            input.reserve(READ_BYTES);
        }
        tokio::select! {
            read = reader.read_buf(input), if may_read => match read {
                Ok(0) | Err(_) => session.is_over = true,
                Ok(_) if is_between => begun = Instant::now(),
                Ok(_) => {}
            },
            given = give(&mut writer, output), if !output.is_empty() || !is_flushed => match given {
                Ok(flushed) => (is_flushed, begun) = (flushed, Instant::now()),
                Err(_) => break,
            },
            _ = stopped.wait_for(|stopped| *stopped), if !is_stopping => is_stopping = true,
            () = tokio::time::sleep_until(begun + limit) => break,
        }
    }
    // Bytes left unread would make the system take back what was just answered.
    let farewell = async {
        writer.shutdown().await?;
        let mut rest = vec![0; READ_BYTES];
        for _ in 0..UNREAD_MAX {
            if reader.read(&mut rest).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    // Who is gone already can't be told.
    drop(tokio::time::timeout(Duration::from_secs(1), farewell).await);
}

/// Writes some of what there is, or makes sure that all that was written is on its way: whether it is.
async fn give(
    writer: &mut (impl AsyncWrite + Unpin),
    output: &mut BytesMut,
) -> std::io::Result<bool> {
    if output.is_empty() {
        writer.flush().await?;
        return Ok(true);
    }
    match writer.write_buf(output).await? {
        0 => Err(std::io::ErrorKind::WriteZero.into()),
        _ => Ok(false),
    }
}

impl Connection<'_> {
    /// Runs what has arrived, as long as there is room for answers.
    async fn run(&mut self) {
        let before = self.output.len();
        let room = self.shared.options.output_bytes_max;
        loop {
            let start = self.output.len();
            let mut answers = Vec::new();
            self.has_more = false;
            loop {
                if answers.len() == BATCH_MAX || self.output.len() >= room {
                    self.has_more = true;
                    break;
                }
                if let Some((reply, end, protocol)) = self.waiting.pop_front() {
                    reply.encode(protocol, &mut self.output);
                    answers.push((end, self.output.len()));
                } else if self.session.is_over || !self.run_next().await {
                    break;
                }
            }
            self.confirm(start, &answers).await;
            if !self.has_more || self.output.len() >= room {
                break;
            }
            tokio::task::yield_now().await;
        }
        if self.session.is_over {
            self.input.clear();
            self.has_more = !self.waiting.is_empty();
        }
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = BytesMut::new();
        }
        if before == 0 && self.output.is_empty() && self.output.capacity() > KEPT_BYTES {
            self.output = BytesMut::new();
        }
    }

    /// Runs the next request, or as many of the next ones as may be run at once: whether there was one.
    async fn run_next(&mut self) -> bool {
        let mut together = Vec::new();
        let next = loop {
            let limits = self.shared.limits(&self.session);
            match self.parser.next(&mut self.input, &limits) {
                Ok(None) => break None,
                Ok(Some(request)) => match command::own_key(&self.session, &request) {
                    None => break Some(Ok(request)),
                    Some(key) => together.push((key, request)),
                },
                Err(error) => break Some(Err(error)),
            }
            if together.len() == TOGETHER_MAX {
                break None;
            }
        };
        if !together.is_empty() {
            let replies = command::run_together(&self.session, self.shared, together).await;
            let protocol = self.session.protocol;
            let replies = replies.into_iter().map(|reply| (reply, 0, protocol));
            self.waiting.extend(replies);
        }
        match next {
            None => return !self.waiting.is_empty(),
            Some(Ok(request)) => {
                let (reply, end) = command::run(&mut self.session, self.shared, &request).await;
                self.waiting.push_back((reply, end, self.session.protocol));
            }
            Some(Err(error)) => {
                let reply = Reply::error(error.to_string());
                self.waiting.push_back((reply, 0, self.session.protocol));
                self.session.is_over = true;
            }
        }
        true
    }

    /// Waits until all answers from `start` on may be given. Where the disk fails, those that it failed
    /// say so instead.
    async fn confirm(&mut self, start: usize, answers: &[(u64, usize)]) {
        let newest = answers.iter().map(|(end, _)| *end).max().unwrap_or(0);
        let values = &self.shared.values;
        let Err(error) = values.reach(newest).await else {
            return;
        };
        let mut given = self.output.split_off(start);
        let mut from = start;
        for (end, to) in answers {
            let answer = given.split_to(to - from);
            from = *to;
            if values.is_reached(*end) {
                self.output.unsplit(answer);
            } else {
                let unknown = format!("MISCONF it may or may not have been done: {error}");
                Reply::error(unknown).encode(self.session.protocol, &mut self.output);
            }
        }
        debug_assert!(!given.has_remaining());
    }
}
