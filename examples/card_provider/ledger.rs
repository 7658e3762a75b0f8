//! The card provider's books: every call received and what was decided, in one append-only file.
//!
//! A line is either a call that arrived or the decision on it; charges are not stored apart, they
//! are the calls decided as charged. Invariants:
//!
//! - A decision is on disk (`fdatasync`) before anybody is told. A call's own line is written when
//!   the call arrives and becomes durable with the next decision.
//! - Check and charge are one step under the ledger's lock, so with deduplication one key is
//!   charged at most once however many calls for it are in flight.
//! - After a crash the file may end in half a line; opening cuts it. Any other line that does not
//!   parse is an error: a ledger that lost its middle must not pass for a whole one.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::messages::{Call, Charge, ChargeRequest, Decision};

#[derive(Deserialize, Serialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Line {
    Received(Call),
    Decided { call: u64, decision: Decision },
}

/// A call that has been taken down and waits for its decision.
pub struct Receipt {
    pub number: u64,
    /// No call with this key was received before.
    pub first_of_its_key: bool,
}

pub struct Ledger {
    file: File,
    /// Length of the whole lines in the file: where a failed append is cut off again.
    length: u64,
    deduplicates: bool,
    calls: Vec<Call>,
    charges: Vec<Charge>,
    /// Key to its first charge.
    charge_of: HashMap<String, usize>,
    calls_of: HashMap<String, u32>,
}

impl Ledger {
    pub fn open(path: &Path, deduplicates: bool) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;

        // What follows the last newline is the half line of a crash.
        let whole = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |last| last + 1);
        text.truncate(whole);
        file.set_len(whole as u64)?;

        let mut ledger = Self {
            file,
            length: whole as u64,
            deduplicates,
            calls: Vec::new(),
            charges: Vec::new(),
            charge_of: HashMap::new(),
            calls_of: HashMap::new(),
        };
        for (index, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
            let line = serde_json::from_slice(line).map_err(|error| damaged(index, &error))?;
            match line {
                Line::Received(call) => drop(ledger.note_call(call)),
                Line::Decided { call, decision } => {
                    if !ledger.note_decision(call, decision) {
                        return Err(damaged(index, &"a decision on a call that never came"));
                    }
                }
            }
        }
        Ok(ledger)
    }

    /// Takes a call down before anything is done about it.
    pub fn receive(&mut self, request: ChargeRequest) -> io::Result<Receipt> {
        let number = self.calls.len() as u64 + 1;
        let call = Call {
            number,
            received_us: now_us(),
            request,
            decision: None,
        };
        self.append(&Line::Received(call.clone()))?;
        Ok(self.note_call(call))
    }

    /// Decides a call received before, durably, and returns the charge if the key has one.
    /// `too_late` says that the provider's maximum delay has passed.
    pub fn decide(
        &mut self,
        receipt: &Receipt,
        too_late: bool,
    ) -> io::Result<(Decision, Option<Charge>)> {
        let request = self
            .call(receipt.number)
            .map(|call| call.request.clone())
            .ok_or_else(|| io::Error::other("the call is not in this ledger"))?;
        let existing = self
            .charge_of(&request.key)
            .filter(|_| self.deduplicates)
            .cloned();
        let decision = if existing.is_some() {
            Decision::Deduplicated
        } else if too_late {
            Decision::TooLate
        } else if request.card == "tok_refused" {
            Decision::Refused
        } else {
            Decision::Charged
        };
        self.append(&Line::Decided {
            call: receipt.number,
            decision,
        })?;
        self.file.sync_data()?;
        self.note_decision(receipt.number, decision);
        let charge = match decision {
            Decision::Charged => self.charges.last().cloned(),
            Decision::Deduplicated => existing,
            Decision::Refused | Decision::TooLate => None,
        };
        Ok((decision, charge))
    }

    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub fn charges(&self) -> &[Charge] {
        &self.charges
    }

    fn call(&self, number: u64) -> Option<&Call> {
        self.calls
            .get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    fn charge_of(&self, key: &str) -> Option<&Charge> {
        self.charge_of
            .get(key)
            .and_then(|&index| self.charges.get(index))
    }

    fn note_call(&mut self, call: Call) -> Receipt {
        let earlier = self.calls_of.entry(call.request.key.clone()).or_insert(0);
        *earlier += 1;
        let receipt = Receipt {
            number: call.number,
            first_of_its_key: *earlier == 1,
        };
        self.calls.push(call);
        receipt
    }

    /// False if there is no such call.
    fn note_decision(&mut self, number: u64, decision: Decision) -> bool {
        let index = usize::try_from(number)
            .ok()
            .and_then(|number| number.checked_sub(1));
        let Some(call) = index.and_then(|index| self.calls.get_mut(index)) else {
            return false;
        };
        call.decision = Some(decision);
        if decision == Decision::Charged {
            let request = &call.request;
            self.charge_of
                .entry(request.key.clone())
                .or_insert(self.charges.len());
            self.charges.push(Charge {
                id: format!("ch_{number:08}"),
                key: request.key.clone(),
                payment: request.payment.clone(),
                amount: request.amount,
                currency: request.currency.clone(),
            });
        }
        true
    }

    fn append(&mut self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        if let Err(error) = self.file.write_all(&bytes) {
            // Half a line in the middle would make the file unreadable: cut it off again.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }
}

fn damaged(index: usize, cause: &dyn std::fmt::Display) -> io::Error {
    let message = format!("line {} of the ledger is damaged: {cause}", index + 1);
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn now_us() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &str, card: &str) -> ChargeRequest {
        ChargeRequest {
            key: key.to_owned(),
            amount: 100,
            currency: "eur".to_owned(),
            card: card.to_owned(),
            payment: "pay_1".to_owned(),
            attempt: 1,
            token: 7,
        }
    }

    fn charge(ledger: &mut Ledger, key: &str, card: &str) -> Decision {
        let receipt = ledger.receive(request(key, card)).unwrap();
        ledger.decide(&receipt, false).unwrap().0
    }

    #[test]
    fn charges_survive_a_restart_and_a_torn_last_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path, true).unwrap();
        assert_eq!(charge(&mut ledger, "a", "tok_visa"), Decision::Charged);
        assert_eq!(charge(&mut ledger, "b", "tok_refused"), Decision::Refused);
        drop(ledger);
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"line\":\"rec")
            .unwrap();

        let mut ledger = Ledger::open(&path, true).unwrap();
        assert_eq!(ledger.charges().len(), 1);
        assert_eq!(ledger.calls().len(), 2);
        assert_eq!(charge(&mut ledger, "a", "tok_visa"), Decision::Deduplicated);
        assert_eq!(ledger.charges().len(), 1);
        drop(ledger);
        assert_eq!(Ledger::open(&path, true).unwrap().calls().len(), 3);
    }

    #[test]
    fn without_deduplication_every_call_charges() {
        let directory = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&directory.path().join("ledger.jsonl"), false).unwrap();
        assert_eq!(charge(&mut ledger, "a", "tok_visa"), Decision::Charged);
        assert_eq!(charge(&mut ledger, "a", "tok_visa"), Decision::Charged);
        assert_eq!(ledger.charges().len(), 2);
    }

    #[test]
    fn a_damaged_line_is_an_error_not_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger.jsonl");
        std::fs::write(&path, "{}\n").unwrap();
        let error = Ledger::open(&path, true).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
