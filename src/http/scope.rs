//! Who the caller is, and what the request is for: the parts of a key that are not the client's to
//! choose.

use std::fmt;
use std::sync::Arc;

use http::Method;
use http::request::Parts;
use xxhash_rust::xxh3::xxh3_128;

type Extract = Arc<dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync>;

/// Who the caller is. Two scopes never see each other's keys.
///
/// Take it from what authentication found out (the layer sits inside it), never from what the
/// request claims: a tenant's or principal's id, or both. Where it finds nobody, the request is
/// refused with 403 and nothing is claimed; there is no shared "anonymous".
///
/// ```
/// use oncekey::http::Scope;
///
/// #[derive(Clone)]
/// struct Account { id: String }
///
/// // An extension that the authentication before the layer has inserted.
/// let scope = Scope::from_request(|request| {
///     request.extensions.get::<Account>().map(|account| account.id.clone())
/// });
/// ```
#[derive(Clone)]
pub struct Scope(Kind);

#[derive(Clone)]
enum Kind {
    Global,
    Extract(Extract),
}

impl Scope {
    /// From the request's head; `None` refuses the request, and so does an empty name. At most as
    /// many bytes as the store takes for a part of a key (255 unless set otherwise).
    pub fn from_request<T: Into<Vec<u8>>>(
        caller: impl Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    ) -> Self {
        Self(Kind::Extract(Arc::new(move |parts| {
            caller(parts).map(Into::into)
        })))
    }

    /// One scope for all callers: whoever sends a key that was used before, for the same request,
    /// gets the answer to it.
    ///
    /// Right for a service with one client, behind something that authenticates it, and for
    /// webhooks, whose event ids are the sender's. Wrong wherever one caller must not see what
    /// another did.
    pub fn global() -> Self {
        Self(Kind::Global)
    }

    pub(super) fn is_global(&self) -> bool {
        matches!(self.0, Kind::Global)
    }

    pub(super) fn of(&self, parts: &Parts) -> Option<Vec<u8>> {
        match &self.0 {
            Kind::Global => Some(Vec::new()),
            Kind::Extract(extract) => extract(parts),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Global => "Scope::global",
            Kind::Extract(_) => "Scope::from_request",
        })
    }
}

/// The operation part of a key, as the layer makes it: method and concrete path, `PUT /tickets/1`.
///
/// For code that looks a key up in the store beside the layer. One of more than `bytes_max` (the
/// store's limit for a part of a key, 255 unless set otherwise) is cut, and ends in a digest of the
/// whole. Somebody who tries can make two paths of the same digest, and confuses only himself: they
/// are both his.
///
/// ```
/// use oncekey::http::operation_name;
/// use http::Method;
///
/// assert_eq!(operation_name(&Method::PUT, "/tickets/1", 255), "PUT /tickets/1");
/// ```
pub fn operation_name(method: &Method, path: &str, bytes_max: usize) -> String {
    shortened(format!("{method} {path}"), bytes_max)
}

/// A name within the limit, which is 64 bytes at least.
pub(super) fn shortened(mut name: String, bytes_max: usize) -> String {
    if name.len() > bytes_max {
        let digest = format!("#{:032x}", xxh3_128(name.as_bytes()));
        name.truncate(name.floor_char_boundary(bytes_max.saturating_sub(digest.len())));
        name.push_str(&digest);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_are_told_apart_within_the_limit() {
        let long = |end| format!("/{}{end}", "ü".repeat(400));
        let name = |path: &str| operation_name(&Method::POST, path, 255);
        let names = [name(&long("a")), name(&long("b")), name(&long("a")[..701])];
        for name in &names {
            assert!(name.len() <= 255 && name.starts_with("POST /ü"), "{name}");
        }
        assert_ne!(names[0], names[1]);
        assert_ne!(names[0], names[2]);
        let exact = format!("/{}", "x".repeat(249));
        assert_eq!(name(&exact), format!("POST {exact}"));
    }
}
