//! Whose keys a record is about.

/// A space of keys. Keys of different domains never meet, whatever their bytes: the domain is part of
/// what makes two keys the same, and of their hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Domain {
    /// Operations: the keys that users claim.
    #[default]
    Operations = 0,
    /// Messages of the outbox. Scope and operation are the message's topic and key.
    Messages = 1,
    /// Versions of entities. The id is the entity.
    Versions = 2,
}

impl Domain {
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Operations),
            1 => Some(Self::Messages),
            2 => Some(Self::Versions),
            _ => None,
        }
    }
}
