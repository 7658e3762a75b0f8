//! Answers, and how they look in either version of the protocol.

use bytes::{Bytes, BytesMut};
use redis_protocol::{resp2, resp3};

/// Version of the protocol that a client has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Simple(&'static str),
    /// Begins with a code in capitals.
    Error(String),
    Integer(i64),
    Bulk(Bytes),
    Null,
    Array(Vec<Reply>),
    /// Of names and what they have. In the older version an array of both in turn.
    Map(Vec<(&'static str, Reply)>),
}

/// A command was done.
pub(super) const OK: Reply = Reply::Simple("OK");

impl Reply {
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self::Error(message.into())
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Bulk(Bytes::from(text.into()))
    }

    pub(super) fn bulk_or_null(bytes: Option<Bytes>) -> Self {
        bytes.map_or(Self::Null, Self::Bulk)
    }

    /// Writes it behind what is in `output`.
    pub(super) fn encode(self, protocol: Protocol, output: &mut BytesMut) {
        let encoded = match protocol {
            Protocol::Resp2 => {
                resp2::encode::extend_encode(output, &self.into_resp2(), false).map(drop)
            }
            Protocol::Resp3 => {
                resp3::encode::complete::extend_encode(output, &self.into_resp3(), false).map(drop)
            }
        };
        // The library makes the room that it needs, and all of these kinds can be written.
        debug_assert!(encoded.is_ok());
    }

    fn into_resp2(self) -> resp2::types::BytesFrame {
        use resp2::types::BytesFrame;
        let list = |replies: Vec<Self>| replies.into_iter().map(Self::into_resp2).collect();
        match self {
            Self::Simple(text) => BytesFrame::SimpleString(Bytes::from_static(text.as_bytes())),
            Self::Error(message) => BytesFrame::Error(one_line(message).into()),
            Self::Integer(number) => BytesFrame::Integer(number),
            Self::Bulk(bytes) => BytesFrame::BulkString(bytes),
            Self::Null => BytesFrame::Null,
            Self::Array(replies) => BytesFrame::Array(list(replies)),
            Self::Map(pairs) => {
                let flat = pairs.into_iter();
                let flat = flat.flat_map(|(name, value)| [Self::text(name), value]);
                BytesFrame::Array(list(flat.collect()))
            }
        }
    }

    fn into_resp3(self) -> resp3::types::BytesFrame {
        use resp3::types::BytesFrame;
        let attributes = None;
        match self {
            Self::Simple(text) => BytesFrame::SimpleString {
                data: Bytes::from_static(text.as_bytes()),
                attributes,
            },
            Self::Error(message) => BytesFrame::SimpleError {
                data: one_line(message).into(),
                attributes,
            },
            Self::Integer(data) => BytesFrame::Number { data, attributes },
            Self::Bulk(data) => BytesFrame::BlobString { data, attributes },
            Self::Null => BytesFrame::Null,
            Self::Array(replies) => BytesFrame::Array {
                data: replies.into_iter().map(Self::into_resp3).collect(),
                attributes,
            },
            Self::Map(pairs) => {
                let pairs = pairs.into_iter();
                let data = pairs
                    .map(|(name, value)| (Self::text(name).into_resp3(), value.into_resp3()))
                    .collect();
                BytesFrame::Map { data, attributes }
            }
        }
    }
}

/// An error is a line, whatever is quoted in it.
fn one_line(message: String) -> String {
    message.replace(|letter: char| letter.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(reply: Reply, protocol: Protocol) -> Vec<u8> {
        let mut output = BytesMut::new();
        reply.encode(protocol, &mut output);
        output.to_vec()
    }

    #[test]
    fn each_kind_in_both_versions() {
        let map = Reply::Map(vec![("a", Reply::Integer(1))]);
        let list = Reply::Array(vec![Reply::Null, Reply::text("x")]);
        for (reply, two, three) in [
            (OK, &b"+OK\r\n"[..], &b"+OK\r\n"[..]),
            (
                Reply::error("ERR a\r\nb"),
                b"-ERR a  b\r\n",
                b"-ERR a  b\r\n",
            ),
            (Reply::Integer(-2), b":-2\r\n", b":-2\r\n"),
            (Reply::text(""), b"$0\r\n\r\n", b"$0\r\n\r\n"),
            (Reply::Null, b"$-1\r\n", b"_\r\n"),
            (map, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
            (list, b"*2\r\n$-1\r\n$1\r\nx\r\n", b"*2\r\n_\r\n$1\r\nx\r\n"),
        ] {
            assert_eq!(encoded(reply.clone(), Protocol::Resp2), two, "{reply:?}");
            assert_eq!(encoded(reply.clone(), Protocol::Resp3), three, "{reply:?}");
        }
    }
}
