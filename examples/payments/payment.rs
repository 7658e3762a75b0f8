//! What a payment is: its request, its fingerprint, its identity in the store and in URLs.
//!
//! The fingerprint is taken from the validated fields, so the same payment written with other
//! spaces is still the same. The payment's id is its idempotency key in hexadecimal: whoever holds
//! the id can look the payment up in the store, and only under the account that made it. That keeps
//! this example free of a second table; a service with one would give out random ids.

use axum::http::{HeaderValue, StatusCode};
use bytes::Bytes;
use oncekey::{Fingerprint, Key};
use serde::Deserialize;
use serde_json::json;

use crate::answer::Answer;
use crate::messages::Charge;
use crate::problem::{PROBLEM_JSON, Problem};

/// The operation part of the store's keys.
const OPERATION: &str = "POST /v1/payments";
const AMOUNT_MAX: u64 = 99_999_999;
const CARD_BYTES_MAX: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Payment {
    /// In the smallest unit of the currency.
    pub amount: u64,
    pub currency: String,
    /// A token that stands for a card.
    pub card: String,
}

impl Payment {
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let payment: Self = serde_json::from_slice(body)
            .map_err(|error| Problem::invalid_payment(format!("The body is not one: {error}.")))?;
        let Self {
            amount,
            currency,
            card,
        } = &payment;
        if !(1..=AMOUNT_MAX).contains(amount) {
            let detail = format!("`amount` must be from 1 to {AMOUNT_MAX}.");
            return Err(Problem::invalid_payment(detail));
        }
        if currency.len() != 3 || !currency.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(Problem::invalid_payment(
                "`currency` must be three lower-case letters.",
            ));
        }
        let is_token = card
            .strip_prefix("tok_")
            .is_some_and(|name| !name.is_empty());
        if !is_token || card.len() > CARD_BYTES_MAX || !card.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Problem::invalid_payment(
                "`card` must be a token such as `tok_visa`.",
            ));
        }
        Ok(payment)
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::builder()
            .part(self.amount.to_le_bytes())
            .part(self.currency.as_bytes())
            .part(self.card.as_bytes())
            .finish()
    }

    /// The answer to a payment that was charged.
    pub fn succeeded(&self, id: &str, charge: &Charge) -> Answer {
        let body = json!({
            "id": id,
            "amount": self.amount,
            "currency": self.currency,
            "status": "succeeded",
            "charge": charge.id,
        });
        Answer {
            status: StatusCode::CREATED,
            content_type: HeaderValue::from_static("application/json"),
            location: HeaderValue::try_from(format!("/v1/payments/{id}")).ok(),
            body: Bytes::from(body.to_string()),
        }
    }

    /// The answer to a payment whose card was refused: as final as a success.
    pub fn refused() -> Answer {
        let problem = Problem::card_refused();
        Answer {
            status: problem.status(),
            content_type: HeaderValue::from_static(PROBLEM_JSON),
            location: None,
            body: Bytes::from(problem.body()),
        }
    }
}

/// The account is the scope: the same key from two accounts is two payments.
pub fn store_key(account: &str, idempotency_key: &[u8]) -> Result<Key, Problem> {
    Key::new(format!("account/{account}"), OPERATION, idempotency_key)
        .map_err(|error| Problem::invalid_key(error.to_string()))
}

pub fn payment_id(idempotency_key: &str) -> String {
    let mut id = String::from("pay_");
    for byte in idempotency_key.bytes() {
        id.push_str(&format!("{byte:02x}"));
    }
    id
}

/// The idempotency key in a payment's id; `None` if it is not one that was given out.
pub fn idempotency_key_of(payment_id: &str) -> Option<Vec<u8>> {
    let digits = payment_id.strip_prefix("pay_")?.as_bytes();
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    pairs
        .iter()
        .map(|pair| Some(hex_digit(pair[0])? << 4 | hex_digit(pair[1])?))
        .collect()
}

/// Lower case only: one payment has one id.
fn hex_digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_gives_its_key_back() {
        let id = payment_id("order-17/a b");
        assert_eq!(idempotency_key_of(&id).unwrap(), b"order-17/a b");
        for bad in [
            "",
            "pay",
            "pay_f",
            "pay_0g",
            "pay_0A",
            "PAY_00",
            "pay_\u{e9}",
        ] {
            assert_eq!(idempotency_key_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_fingerprint_is_of_the_fields_not_of_the_text() {
        let parse = |text: &str| Payment::parse(text.as_bytes());
        let one = parse(r#"{"amount":12,"currency":"eur","card":"tok_visa"}"#).unwrap();
        let same = parse(r#"{ "card": "tok_visa", "amount": 12, "currency": "eur" }"#).unwrap();
        let other = parse(r#"{"amount":13,"currency":"eur","card":"tok_visa"}"#).unwrap();
        assert!(one.fingerprint() == same.fingerprint());
        assert!(one.fingerprint() != other.fingerprint());
        for bad in [
            "",
            "[]",
            r#"{"amount":0,"currency":"eur","card":"tok_visa"}"#,
            r#"{"amount":-1,"currency":"eur","card":"tok_visa"}"#,
            r#"{"amount":12,"currency":"EUR","card":"tok_visa"}"#,
            r#"{"amount":12,"currency":"eur","card":"4111111111111111"}"#,
            r#"{"amount":12,"currency":"eur","card":"tok_visa","tip":1}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
