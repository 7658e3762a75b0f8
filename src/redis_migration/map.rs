//! From the name of a key in Redis to a key of the store.

use std::fmt;

use crate::key::{Key, KeyError};

/// How a name is taken apart: `idem:{operation}:{id}`.
#[derive(Clone, Debug)]
pub struct KeyMap {
    scope: Vec<u8>,
    /// What stands before each place, and the place.
    places: Vec<(Vec<u8>, Place)>,
    tail: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Scope,
    Operation,
    Id,
}

/// A pattern that is none, or a name that does not fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapError {
    /// The pattern has an unknown place, one twice, two without anything between them, or no `{id}`.
    Pattern,
    /// The name does not fit the pattern.
    NoMatch,
    /// The parts make no key.
    Key(KeyError),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern => f.write_str(
                "the pattern needs {id}, may have {scope} and {operation}, each once and with something \
                 between them",
            ),
            Self::NoMatch => f.write_str("the name does not fit the pattern of --map"),
            Self::Key(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MapError {}

impl KeyMap {
    /// The whole name as the id, as the server has it: no operation.
    pub fn whole(scope: impl Into<Vec<u8>>) -> Self {
        Self {
            scope: scope.into(),
            places: vec![(Vec::new(), Place::Id)],
            tail: Vec::new(),
        }
    }

    /// By a pattern; `scope` where it has no `{scope}`. A place takes as little as it can, the last one what
    /// is left.
    ///
    /// # Errors
    ///
    /// [`MapError::Pattern`].
    pub fn pattern(scope: impl Into<Vec<u8>>, pattern: &str) -> Result<Self, MapError> {
        let (mut places, mut rest) = (Vec::<(Vec<u8>, Place)>::new(), pattern);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(MapError::Pattern)?;
            let place = match name {
                "scope" => Place::Scope,
                "operation" => Place::Operation,
                "id" => Place::Id,
                _ => return Err(MapError::Pattern),
            };
            let is_twice = places.iter().any(|(_, known)| *known == place);
            if is_twice || before.is_empty() && !places.is_empty() {
                return Err(MapError::Pattern);
            }
            places.push((before.into(), place));
            rest = after;
        }
        if !places.iter().any(|(_, place)| *place == Place::Id) {
            return Err(MapError::Pattern);
        }
        Ok(Self {
            scope: scope.into(),
            places,
            tail: rest.into(),
        })
    }

    /// The key of a name.
    ///
    /// # Errors
    ///
    /// [`MapError::NoMatch`], and [`MapError::Key`] for parts that are too long or an empty id.
    pub fn key(&self, name: &[u8]) -> Result<Key, MapError> {
        let mut rest = name.strip_suffix(&self.tail[..]).ok_or(MapError::NoMatch)?;
        let (mut scope, mut operation, mut id) = (&self.scope[..], &b""[..], &b""[..]);
        for (at, (before, place)) in self.places.iter().enumerate() {
            rest = rest.strip_prefix(&before[..]).ok_or(MapError::NoMatch)?;
            let end = match self.places.get(at + 1) {
                None => rest.len(),
                Some((next, _)) => rest
                    .windows(next.len())
                    .position(|window| window == &next[..])
                    .ok_or(MapError::NoMatch)?,
            };
            let (part, after) = rest.split_at(end);
            match place {
                Place::Scope => scope = part,
                Place::Operation => operation = part,
                Place::Id => id = part,
            }
            rest = after;
        }
        Key::new(scope, operation, id).map_err(MapError::Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        for (pattern, name, expected) in [
            ("{id}", "idem:1", Some(("s", "", "idem:1"))),
            ("idem:{id}", "idem:1:2", Some(("s", "", "1:2"))),
            (
                "idem:{operation}:{id}",
                "idem:pay:1:2",
                Some(("s", "pay", "1:2")),
            ),
            (
                "{scope}/{operation}:{id}.v1",
                "a/b:c.v1",
                Some(("a", "b", "c")),
            ),
            ("idem:{id}", "lock:1", None),
            ("idem:{operation}:{id}", "idem:pay", None),
        ] {
            let map = KeyMap::pattern("s", pattern).unwrap();
            let expected =
                expected.map(|(scope, operation, id)| Key::new(scope, operation, id).unwrap());
            assert_eq!(map.key(name.as_bytes()).ok(), expected, "{pattern} {name}");
        }
        for pattern in ["", "idem", "{ID}", "{id}{scope}", "{id}:{id}", "{id"] {
            assert_eq!(
                KeyMap::pattern("s", pattern).unwrap_err(),
                MapError::Pattern,
                "{pattern}"
            );
        }
    }
}
