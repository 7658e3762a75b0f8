//! What the clients will do, all of it decided by the seed before the first request is sent.
//!
//! An operation is one payment under one key. It is sent by several clients: most copies at about
//! the same time, some much later, as a client does that comes back after a timeout.

use std::fmt;

/// Copies of one operation.
const SENDERS_MAX: u64 = 4;
/// How many deliveries later a late copy can come.
const LATE_MAX: u64 = 400;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Card {
    Visa,
    /// Takes the provider 300 ms.
    Slow,
    /// Is never charged.
    Refused,
    /// Is charged, but the answer to the first call is lost.
    Lost,
}

impl Card {
    pub fn token(self) -> &'static str {
        match self {
            Self::Visa => "tok_visa",
            Self::Slow => "tok_slow",
            Self::Refused => "tok_refused",
            Self::Lost => "tok_lost",
        }
    }

    /// How many charges the provider must have for it in the end.
    pub fn charges(self) -> usize {
        usize::from(self != Self::Refused)
    }

    /// The status every client must get in the end.
    pub fn status(self) -> u16 {
        if self == Self::Refused { 402 } else { 201 }
    }
}

#[derive(Clone, Debug)]
pub struct Operation {
    pub key: String,
    pub account: String,
    pub amount: u64,
    pub card: Card,
    /// How many clients send it.
    pub senders: usize,
}

impl Operation {
    pub const CURRENCY: &str = "eur";

    pub fn body(&self) -> String {
        self.body_with_amount(self.amount)
    }

    /// The same key for another payment.
    pub fn other_body(&self) -> String {
        self.body_with_amount(self.amount + 1)
    }

    fn body_with_amount(&self, amount: u64) -> String {
        let body = serde_json::json!({
            "amount": amount,
            "currency": Self::CURRENCY,
            "card": self.card.token(),
        });
        body.to_string()
    }

    /// The id `payments` gives it: the key in hexadecimal.
    pub fn payment_id(&self) -> String {
        self.key
            .bytes()
            .fold(String::from("pay_"), |id, byte| format!("{id}{byte:02x}"))
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.key, self.card.token())
    }
}

pub struct Plan {
    pub operations: Vec<Operation>,
    /// Indices of operations in the order in which the clients take them up.
    pub deliveries: Vec<usize>,
}

impl Plan {
    /// A plan of about `deliveries` deliveries.
    pub fn new(seed: u64, deliveries: usize) -> Self {
        let mut random = Random::new(seed);
        let mut operations = Vec::new();
        let mut positions = Vec::new();
        while positions.len() < deliveries {
            let index = operations.len();
            let senders = 1 + random.below(SENDERS_MAX);
            let position = positions.len() as u64;
            for sender in 0..senders {
                let is_late = sender > 0 && random.one_in(4);
                let delay = if is_late { random.below(LATE_MAX) } else { 0 };
                positions.push((position + delay, index));
            }
            operations.push(Operation {
                key: format!("order-{seed:x}-{index}"),
                account: format!("acct_{}", random.below(20)),
                amount: 1 + random.below(100_000),
                card: match random.below(100) {
                    0..2 => Card::Slow,
                    2..7 => Card::Refused,
                    7..9 => Card::Lost,
                    _ => Card::Visa,
                },
                senders: usize::try_from(senders).unwrap_or(usize::MAX),
            });
        }
        positions.sort();
        let deliveries = positions.into_iter().map(|(_, index)| index).collect();
        Self {
            operations,
            deliveries,
        }
    }
}

/// A small generator (SplitMix64): the same numbers for the same seed, everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `bound` - 1; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
