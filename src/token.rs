//! Fencing tokens: the numbers by which a later owner of a key is told from an earlier one.
//!
//! A token is the position of the record that granted the key, seen from outside the log. Inside
//! the crate it is a plain `u64`; [`Token`] is its public face and adds nothing but the type.

use std::fmt;

/// A fencing token: a number that grows with every grant of a key.
///
/// An owner that was paused for long (garbage collection, a stopped container, a lost network) can
/// lose its lease and wake up not knowing it. The store refuses its writes from then on; another
/// system that the operation writes to can't know, unless it is told which grant a write belongs
/// to. Send the token along. A system that remembers the greatest token it has seen, and refuses
/// smaller ones, is safe from owners that were overtaken. The term and the technique are from
/// Martin Kleppmann, [*How to do distributed locking*][source] (2016).
///
/// # Guarantees
///
/// Of two grants in one store, of the same key or of different ones, the later has the greater
/// token, across restarts, crashes and power loss; none is ever given out twice. A takeover of one
/// key makes no token of another key stale: remember the greatest token *per key*, or per thing
/// written to. Tokens of different stores can't be compared.
///
/// # Layout
///
/// A token is the position in the log of the record that granted the key: the store's epoch in the
/// high 28 bits, an offset in 8-byte words in the low 36. The epoch is advanced durably at every
/// open before the first grant, which is why nothing that a crash loses can bring a token back.
/// Treat the number as opaque but for its order. Two things about its size matter when it is stored
/// elsewhere:
///
/// * It fits a signed 64-bit column (`BIGINT`) until the epoch reaches 2²⁷, that is for 134 million
///   opens. Opening a [restored](crate::Options::restored) copy skips about a million epochs.
/// * It passes 2⁵³, beyond which JSON numbers lose digits in many readers, at epoch 131,072. Send
///   it as a string.
///
/// # Examples
///
/// The other system's side, here in memory:
///
/// ```
/// use oncekey::Token;
///
/// #[derive(Default)]
/// struct Account {
///     balance: i64,
///     greatest: Option<Token>,
/// }
///
/// impl Account {
///     fn set_balance(&mut self, balance: i64, token: Token) -> Result<(), &'static str> {
///         if self.greatest > Some(token) {
///             return Err("a later owner has written");
///         }
///         self.greatest = Some(token);
///         self.balance = balance;
///         Ok(())
///     }
/// }
///
/// let (early, late) = (Token::from_u64(68_719_476_800), Token::from_u64(137_438_953_600));
/// let mut account = Account::default();
/// assert!(account.set_balance(10, early).is_ok());
/// assert!(account.set_balance(20, late).is_ok());
/// assert!(account.set_balance(11, early).is_err());
/// assert_eq!(account.balance, 20);
/// ```
///
/// [source]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The token with this number, read back from where [`as_u64`](Self::as_u64) was kept.
    ///
    /// A number that the store did not give out is a token that no owner holds: calls that take it
    /// refuse it or find that it was overtaken, nothing worse.
    #[must_use]
    pub const fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The token as a number, to send along or to store. See [layout](Self#layout) about its size.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// The number in decimal.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::position::{EPOCH_WORDS, first_position};

    #[test]
    fn tokens_order_as_positions_do() {
        let positions = [
            0,
            1,
            EPOCH_WORDS - 1,
            first_position(1),
            first_position(1) + 8,
            first_position(2),
            u64::MAX,
        ];
        assert!(positions.is_sorted());
        for position in positions {
            assert_eq!(Token::from_u64(position).as_u64(), position);
        }
        assert!(positions.map(Token::from_u64).is_sorted());
    }

    #[test]
    fn the_sizes_in_the_documentation_are_true() {
        assert!(i64::try_from(first_position(1 << 27) - 1).is_ok());
        assert!(i64::try_from(first_position(1 << 27)).is_err());
        assert_eq!(first_position(131_072), 1 << 53);
    }

    #[test]
    fn a_token_is_shown_in_decimal() {
        let token = Token::from_u64(first_position(1) + 64);
        assert_eq!(token.to_string(), "68719476800");
        assert_eq!(format!("{token:>13}"), "  68719476800");
        assert_eq!(format!("{token:?}"), "Token(68719476800)");
    }
}
