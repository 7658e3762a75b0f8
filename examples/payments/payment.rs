//! What a payment is: its request, its answer, its identity in the store and in URLs.
//!
//! The payment's id is its idempotency key in hexadecimal: whoever holds the id can look the payment
//! up in the store, and only under the account that made it. That keeps this example free of a second
//! table; a service with one would give out random ids.

use axum::Json;
use axum::http::header::LOCATION;
use axum::http::{HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use oncekey::Key;
use oncekey::http::operation_name;
use oncekey::limits::KEY_PART_BYTES_DEFAULT;
use serde::Deserialize;
use serde_json::json;

use crate::messages::Charge;
use crate::problem::Problem;

/// Which attempt at the payment gave the answer: above 1 after an interruption.
pub const PAYMENT_ATTEMPT: HeaderName = HeaderName::from_static("payment-attempt");

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

    /// The answer to a payment that was charged.
    pub fn succeeded(&self, id: &str, charge: &Charge) -> Response {
        let body = json!({
            "id": id,
            "amount": self.amount,
            "currency": self.currency,
            "status": "succeeded",
            "charge": charge.id,
        });
        let location = [(LOCATION, format!("/v1/payments/{id}"))];
        (StatusCode::CREATED, location, Json(body)).into_response()
    }
}

/// A payment's key in the store, as the layer makes it: the account is the scope, so the same key
/// from two accounts is two payments.
pub fn store_key(account: &str, idempotency_key: &[u8]) -> Option<Key> {
    let operation = operation_name(&Method::POST, "/v1/payments", KEY_PART_BYTES_DEFAULT);
    Key::new(format!("account/{account}"), operation, idempotency_key).ok()
}

pub fn payment_id(idempotency_key: &[u8]) -> String {
    let mut id = String::from("pay_");
    for byte in idempotency_key {
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
        let id = payment_id(b"order-17/a b");
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
    fn what_is_no_payment_is_refused() {
        let parse = |text: &str| Payment::parse(text.as_bytes());
        assert!(parse(r#"{ "card": "tok_visa", "amount": 12, "currency": "eur" }"#).is_ok());
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
