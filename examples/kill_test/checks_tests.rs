//! A checker that cannot fail proves nothing: each kind of violation, made by hand.

use bytes::Bytes;

use super::*;
use crate::messages::{ChargeRequest, Decision};
use crate::plan::Card;

struct World {
    operations: Vec<Operation>,
    answers: Vec<Vec<Answer>>,
    charges: Vec<Charge>,
    calls: Vec<Call>,
}

impl World {
    /// Two clients, one payment, and a first attempt that was interrupted after its call.
    fn in_order() -> Self {
        let operation = Operation {
            key: "k".to_owned(),
            account: "acct".to_owned(),
            amount: 5,
            card: Card::Visa,
            senders: 2,
        };
        let call = |number, attempt| Call {
            number,
            received_us: 10 * number,
            request: ChargeRequest {
                key: "downstream".to_owned(),
                amount: 5,
                currency: "eur".to_owned(),
                card: "tok_visa".to_owned(),
                payment: operation.payment_id(),
                attempt,
                token: u64::from(attempt) * 100,
            },
            decision: Some(Decision::Charged),
        };
        let answer = |replayed| Answer {
            status: 201,
            body: Bytes::from_static(b"{\"charge\":\"ch_1\"}"),
            replayed,
            attempt: 2,
            received_us: 30,
        };
        Self {
            charges: vec![Charge {
                id: "ch_1".to_owned(),
                key: "downstream".to_owned(),
                payment: operation.payment_id(),
                amount: 5,
                currency: "eur".to_owned(),
            }],
            calls: vec![call(1, 1), call(2, 2)],
            answers: vec![vec![answer(false), answer(true)]],
            operations: vec![operation],
        }
    }

    fn check(&self) -> Findings {
        check(&Evidence {
            operations: &self.operations,
            answers: &self.answers,
            charges: &self.charges,
            calls: &self.calls,
        })
    }
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let findings = World::in_order().check();
    assert_eq!(findings.violations, [""; 0]);
    assert_eq!(findings.stragglers, 0);
}

#[test]
fn a_call_of_an_interrupted_attempt_may_arrive_last() {
    let mut world = World::in_order();
    world.calls.swap(0, 1);
    world.calls[1].received_us = 99;
    let findings = world.check();
    assert_eq!(findings.violations, [""; 0]);
    assert_eq!(findings.stragglers, 1);
}

#[test]
fn every_kind_of_violation_is_found() {
    type Spoil = fn(&mut World);
    let cases: &[(&str, Spoil)] = &[
        ("the provider has", |world| {
            world.charges.push(world.charges[0].clone())
        }),
        ("the provider has", |world| world.charges.clear()),
        ("the provider has", |world| {
            world.operations[0].card = Card::Refused
        }),
        ("expected status 402", |world| {
            world.operations[0].card = Card::Refused
        }),
        ("another one than asked for", |world| {
            world.charges[0].amount = 6
        }),
        ("never asked for", |world| {
            world.charges[0].payment = "pay_00".to_owned()
        }),
        ("does not exist", |world| {
            world.charges[0].id = "ch_2".to_owned()
        }),
        ("1 of 2 clients", |world| drop(world.answers[0].pop())),
        ("different answers", |world| {
            world.answers[0][0].body = Bytes::from_static(b"{}")
        }),
        ("2 answers claim to be the first", |world| {
            world.answers[0][1].replayed = false
        }),
        ("came from attempts 1 and 1", |world| {
            world.calls[1].request.attempt = 1
        }),
        ("under one token", |world| {
            world.calls[1].request.token = 100
        }),
        ("tokens 50 and 100", |world| {
            world.calls[1].request.token = 50
        }),
        ("different keys", |world| {
            world.calls[1].request.key = "other".to_owned()
        }),
        ("after the final answer", |world| {
            world.calls[1].received_us = 31
        }),
    ];
    for (expected, spoil) in cases {
        let mut world = World::in_order();
        spoil(&mut world);
        let violations = world.check().violations;
        let found = violations
            .iter()
            .any(|violation| violation.contains(expected));
        assert!(found, "{expected:?} is not among {violations:?}");
    }
}
