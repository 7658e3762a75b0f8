//! What must hold in the end, checked against evidence from outside the process under test.
//!
//! The provider's charges say whether anybody was charged twice. A provider that deduplicates would
//! hide a double execution, so its log of calls is checked as well: under each key, attempts and
//! fencing tokens rise together from call to call and no token calls twice, and nobody calls after
//! the result was acknowledged. And all clients of a key must have got one and the same answer.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use crate::clients::Answer;
use crate::messages::{Call, Charge};
use crate::plan::Operation;

pub struct Evidence<'a> {
    pub operations: &'a [Operation],
    /// By operation.
    pub answers: &'a [Vec<Answer>],
    pub charges: &'a [Charge],
    pub calls: &'a [Call],
}

#[derive(Default)]
pub struct Findings {
    pub violations: Vec<String>,
    /// Calls of an interrupted attempt that arrived after those of a later one: no violation, a
    /// request that was sent cannot be called back.
    pub stragglers: usize,
}

pub fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    let ids: Vec<_> = evidence
        .operations
        .iter()
        .map(Operation::payment_id)
        .collect();
    let known: HashSet<_> = ids.iter().map(String::as_str).collect();
    let mut charges: HashMap<&str, Vec<&Charge>> = HashMap::new();
    for charge in evidence.charges {
        charges.entry(&charge.payment).or_default().push(charge);
    }
    // By arrival: the provider numbers the calls in that order.
    let mut calls: HashMap<&str, Vec<&Call>> = HashMap::new();
    for call in evidence.calls {
        calls.entry(&call.request.payment).or_default().push(call);
    }
    for payment in charges
        .keys()
        .chain(calls.keys())
        .filter(|id| !known.contains(*id))
    {
        findings.violations.push(format!(
            "{payment}: known to the provider, but never asked for"
        ));
    }

    for ((operation, id), answers) in evidence.operations.iter().zip(&ids).zip(evidence.answers) {
        let charges = charges.get(id.as_str()).map_or(&[][..], Vec::as_slice);
        let calls = calls.get(id.as_str()).map_or(&[][..], Vec::as_slice);
        let mut check = Check {
            operation,
            findings: &mut findings,
        };
        check.answers(answers);
        check.charges(charges, answers);
        check.calls(calls);
        check.calls_after_the_answer(calls, answers);
    }
    check_shared(evidence.calls, &mut findings);
    findings
}

/// Across operations: a token is granted once, and a key at the provider belongs to one payment.
fn check_shared(calls: &[Call], findings: &mut Findings) {
    let mut tokens = HashMap::new();
    let mut keys = HashMap::new();
    for call in calls {
        let request = &call.request;
        if let Some(earlier) = tokens.insert(request.token, call.number) {
            let (number, token) = (call.number, request.token);
            let text = format!("calls {earlier} and {number} were made under one token, {token}");
            findings.violations.push(text);
        }
        let payment = keys.entry(&request.key).or_insert(&request.payment);
        if *payment != &request.payment {
            let text = format!("call {}: its key belongs to {payment}", call.number);
            findings.violations.push(text);
        }
    }
}

struct Check<'a> {
    operation: &'a Operation,
    findings: &'a mut Findings,
}

impl Check<'_> {
    fn violation(&mut self, what: String) {
        self.findings
            .violations
            .push(format!("{}: {what}", self.operation));
    }

    fn answers(&mut self, answers: &[Answer]) {
        let (got, senders) = (answers.len(), self.operation.senders);
        if got != senders {
            self.violation(format!("{got} of {senders} clients got a final answer"));
        }
        let expected = self.operation.card.status();
        if let Some(answer) = answers.iter().find(|answer| answer.status != expected) {
            self.violation(format!(
                "expected status {expected}, a client got {answer:?}"
            ));
        }
        if let Some(pair) = answers
            .windows(2)
            .find(|pair| (pair[0].status, &pair[0].body) != (pair[1].status, &pair[1].body))
        {
            self.violation(format!("two clients got different answers: {pair:?}"));
        }
        let firsts = answers.iter().filter(|answer| !answer.replayed).count();
        if firsts > 1 {
            self.violation(format!("{firsts} answers claim to be the first"));
        }
    }

    fn charges(&mut self, charges: &[&Charge], answers: &[Answer]) {
        let expected = self.operation.card.charges();
        if charges.len() != expected {
            let ids: Vec<_> = charges.iter().map(|charge| charge.id.as_str()).collect();
            self.violation(format!(
                "expected {expected} charge(s), the provider has {ids:?}"
            ));
        }
        for charge in charges {
            let operation = self.operation;
            if (charge.amount, charge.currency.as_str()) != (operation.amount, Operation::CURRENCY)
            {
                self.violation(format!(
                    "the charge is another one than asked for: {charge:?}"
                ));
            }
        }
        #[derive(Deserialize)]
        struct Body {
            charge: String,
        }
        for answer in answers.iter().filter(|answer| answer.status == 201) {
            let told = serde_json::from_slice::<Body>(&answer.body).ok();
            if !charges
                .iter()
                .any(|charge| told.as_ref().is_some_and(|t| t.charge == charge.id))
            {
                self.violation(format!(
                    "the charge it was told of does not exist: {answer:?}"
                ));
            }
        }
    }

    /// A second call for a key only from a later attempt, under a later token.
    fn calls(&mut self, calls: &[&Call]) {
        let mut by_token = calls.to_vec();
        by_token.sort_by_key(|call| call.request.token);
        for pair in by_token.windows(2) {
            let (earlier, later) = (&pair[0].request, &pair[1].request);
            if earlier.token == later.token || earlier.attempt >= later.attempt {
                let numbers = (pair[0].number, pair[1].number);
                self.violation(format!(
                    "calls {numbers:?} came from attempts {} and {}, tokens {} and {}",
                    earlier.attempt, later.attempt, earlier.token, later.token
                ));
            }
            if earlier.key != later.key {
                self.violation("two attempts called under different keys".to_owned());
            }
        }
    }

    /// Provider and clients read the same clock: they are on one machine.
    fn calls_after_the_answer(&mut self, calls: &[&Call], answers: &[Answer]) {
        let Some(acknowledged_us) = answers.iter().map(|answer| answer.received_us).min() else {
            return;
        };
        let mut newest_token = 0;
        for call in calls {
            let is_straggler = call.request.token < newest_token;
            newest_token = newest_token.max(call.request.token);
            if is_straggler {
                self.findings.stragglers += 1;
            } else if call.received_us > acknowledged_us {
                let late_us = call.received_us - acknowledged_us;
                let number = call.number;
                self.violation(format!(
                    "call {number} came {late_us} us after the final answer"
                ));
            }
        }
    }
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
