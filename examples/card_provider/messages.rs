//! What the card provider and its callers tell each other, and what its ledger keeps.

use serde::{Deserialize, Serialize};

/// What a merchant asks for. `key` is the provider's own idempotency key; `attempt` and `token` are
/// the merchant's, taken down so that the calls can be audited afterwards.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ChargeRequest {
    pub key: String,
    pub amount: u64,
    pub currency: String,
    pub card: String,
    /// The merchant's reference: which payment this charge is for.
    pub payment: String,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub token: u64,
}

/// One call for a charge, in the order of arrival.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Call {
    /// 1 for the first call of this ledger, +1 for each further one.
    pub number: u64,
    /// Wall clock at arrival, in microseconds since the Unix epoch.
    pub received_us: u64,
    #[serde(flatten)]
    pub request: ChargeRequest,
    /// Absent while the provider is still at work, or if it died before it decided.
    pub decision: Option<Decision>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Money moved; the charge carries this call's number.
    Charged,
    /// The key was charged before; that charge was returned and nothing moved.
    Deduplicated,
    /// The card was refused; nothing moved.
    Refused,
    /// The call was older than the provider's maximum delay; nothing moved.
    TooLate,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Charge {
    pub id: String,
    pub key: String,
    pub payment: String,
    pub amount: u64,
    pub currency: String,
}
