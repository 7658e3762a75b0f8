//! Who a webhook is from: HMAC-SHA256 over its bytes, in the two forms that most senders use.
//!
//! * **Stripe's**: `Stripe-Signature: t=1700000000,v1=…,v1=…` over `{t}.{body}`. The time is signed,
//!   so that a recorded request is worth nothing after the tolerance. While a secret is rotated the
//!   sender signs with both: one that fits is enough.
//! * **GitHub's**: `X-Hub-Signature-256: sha256=…` over the body.
//!
//! The receiver may know several secrets too, for the time of a rotation. Digests are compared in
//! constant time (`Mac::verify_slice`): how long a refusal takes tells nothing about the right one.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Signatures of one header that are looked at.
const SIGNATURES_MAX: usize = 8;

/// Why a webhook is not believed. Its sender learns nothing more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsigned {
    Malformed,
    /// Signed too long ago, or in the future.
    OutOfTime,
    /// By somebody else, or over other bytes.
    Wrong,
}

impl fmt::Display for Unsigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the signature is missing or malformed",
            Self::OutOfTime => "the signature is too old, or a clock is wrong",
            Self::Wrong => "the signature does not fit",
        })
    }
}

/// `now_s` is in seconds since the Unix epoch.
pub fn verify_stripe(
    secrets: &[String],
    header: &str,
    body: &[u8],
    now_s: u64,
    tolerance: Duration,
) -> Result<(), Unsigned> {
    let (mut time, mut signatures) = (None, Vec::new());
    for part in header.split(',') {
        let (name, value) = part.trim().split_once('=').ok_or(Unsigned::Malformed)?;
        match name {
            "t" => time = Some(value),
            "v1" if signatures.len() < SIGNATURES_MAX => signatures.push(digest(value)?),
            // Schemes that are newer, or given up.
            _ => {}
        }
    }
    let time = time.ok_or(Unsigned::Malformed)?;
    let signed_s: u64 = time.parse().map_err(|_| Unsigned::Malformed)?;
    let message = [time.as_bytes(), b".", body];
    if !is_any(secrets, &signatures, &message) {
        return Err(Unsigned::Wrong);
    }
    if now_s.abs_diff(signed_s) > tolerance.as_secs() {
        return Err(Unsigned::OutOfTime);
    }
    Ok(())
}

pub fn verify_github(secrets: &[String], header: &str, body: &[u8]) -> Result<(), Unsigned> {
    let signature = header.strip_prefix("sha256=").ok_or(Unsigned::Malformed)?;
    match is_any(secrets, &[digest(signature)?], &[body]) {
        true => Ok(()),
        false => Err(Unsigned::Wrong),
    }
}

/// What a sender puts into `Stripe-Signature`, with one signature for each secret.
pub fn sign_stripe(secrets: &[String], body: &[u8], now_s: u64) -> String {
    let time = now_s.to_string();
    let mut header = format!("t={time}");
    for secret in secrets {
        let signature = mac(secret, &[time.as_bytes(), b".", body]).finalize();
        header.push_str(&format!(",v1={}", hex(&signature.into_bytes())));
    }
    header
}

/// What a sender puts into `X-Hub-Signature-256`.
pub fn sign_github(secret: &str, body: &[u8]) -> String {
    let signature = mac(secret, &[body]).finalize();
    format!("sha256={}", hex(&signature.into_bytes()))
}

fn is_any(secrets: &[String], signatures: &[[u8; 32]], message: &[&[u8]]) -> bool {
    let fits = |secret: &String, signature: &[u8; 32]| {
        mac(secret, message).verify_slice(signature).is_ok()
    };
    secrets
        .iter()
        .any(|secret| signatures.iter().any(|signature| fits(secret, signature)))
}

fn mac(secret: &str, message: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes any key");
    for part in message {
        mac.update(part);
    }
    mac
}

/// 64 hexadecimal digits.
fn digest(text: &str) -> Result<[u8; 32], Unsigned> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return Err(Unsigned::Malformed);
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|&[high, low]| u8::try_from(digit(high)? << 4 | digit(low)?).ok())
        .collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(Unsigned::Malformed)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"id":"evt_1"}"#;
    const SIGNED_S: u64 = 1_700_000_000;
    const TOLERANCE: Duration = Duration::from_secs(300);
    /// By another implementation: `hmac` of Python.
    const OLD: &str = "ef1b1b7e4b312671a75ef2a03e10529f7834a6528a49db77ad6568c8c8017843";

    fn stripe(header: &str, now_s: u64) -> Result<(), Unsigned> {
        let secrets = ["whsec_new", "whsec_old"].map(str::to_owned);
        verify_stripe(&secrets, header, BODY, now_s, TOLERANCE)
    }

    #[test]
    fn stripes_signatures_are_told_from_others() {
        let other = "0".repeat(64);
        let good: &[String] = &[
            format!("t={SIGNED_S},v1={OLD}"),
            format!("t={SIGNED_S}, v1={other}, v1={OLD}, v0={other}"),
            format!("v1={},t={SIGNED_S}", OLD.to_uppercase()),
            sign_stripe(&["whsec_new".to_owned()], BODY, SIGNED_S),
            sign_stripe(&["other", "whsec_old"].map(str::to_owned), BODY, SIGNED_S),
        ];
        for header in good {
            assert_eq!(stripe(header, SIGNED_S), Ok(()), "{header}");
        }
        let bad: &[(String, Unsigned)] = &[
            (String::new(), Unsigned::Malformed),
            (format!("v1={OLD}"), Unsigned::Malformed),
            (format!("t=now,v1={OLD}"), Unsigned::Malformed),
            (
                format!("t={SIGNED_S},v1={}", &OLD[1..]),
                Unsigned::Malformed,
            ),
            (
                format!("t={SIGNED_S},v1={}x", &OLD[1..]),
                Unsigned::Malformed,
            ),
            (format!("t={SIGNED_S};v1={OLD}"), Unsigned::Malformed),
            (format!("t={SIGNED_S}"), Unsigned::Wrong),
            (format!("t={SIGNED_S},v0={OLD}"), Unsigned::Wrong),
            (format!("t={SIGNED_S},v1={other}"), Unsigned::Wrong),
            // The time is signed.
            (format!("t={},v1={OLD}", SIGNED_S + 1), Unsigned::Wrong),
            (
                sign_stripe(&["other".to_owned()], BODY, SIGNED_S),
                Unsigned::Wrong,
            ),
            (
                sign_stripe(&["whsec_old".to_owned()], b"{}", SIGNED_S),
                Unsigned::Wrong,
            ),
            // One that fits behind too many that don't is not looked for.
            (
                format!(
                    "t={SIGNED_S}{},v1={OLD}",
                    format!(",v1={other}").repeat(SIGNATURES_MAX)
                ),
                Unsigned::Wrong,
            ),
        ];
        for (header, why) in bad {
            assert_eq!(stripe(header, SIGNED_S), Err(*why), "{header}");
        }
    }

    #[test]
    fn a_signature_holds_for_as_long_as_it_is_tolerated() {
        let header = format!("t={SIGNED_S},v1={OLD}");
        for (now_s, result) in [
            (SIGNED_S + 300, Ok(())),
            (SIGNED_S + 301, Err(Unsigned::OutOfTime)),
            (SIGNED_S - 300, Ok(())),
            (SIGNED_S - 301, Err(Unsigned::OutOfTime)),
        ] {
            assert_eq!(stripe(&header, now_s), result, "{now_s}");
        }
    }

    #[test]
    fn githubs_signatures_are_told_from_others() {
        // The example of GitHub's documentation.
        let secrets = ["It's a Secret to Everybody".to_owned()];
        let signature = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let verify = |header: &str, body: &[u8]| verify_github(&secrets, header, body);
        let header = format!("sha256={signature}");
        assert_eq!(sign_github(&secrets[0], b"Hello, World!"), header);
        assert_eq!(verify(&header, b"Hello, World!"), Ok(()));
        assert_eq!(verify(&header, b"Hello, World."), Err(Unsigned::Wrong));
        assert_eq!(
            verify_github(&[], &header, b"Hello, World!"),
            Err(Unsigned::Wrong)
        );
        for header in ["", signature, "sha1=00", "sha256=", "sha256=75"] {
            assert_eq!(
                verify(header, b"Hello, World!"),
                Err(Unsigned::Malformed),
                "{header}"
            );
        }
    }
}
