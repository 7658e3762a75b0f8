//! The inbox: what a delivery leads to, how attempts are counted, what batches do, and what crashes,
//! full disks and lost power leave.

#[path = "../support/mod.rs"]
mod support;

mod attempts;
mod batches;
mod crashes;
mod deliveries;
mod storage;

use std::io;

use oncekey::Store;
use oncekey::inbox::{
    Acked, DeadLetter, DeadReason, Event, Failure, Inbox, InboxBuilder, Message, OnInterrupted,
    Outcome, RetryLater, RetryReason,
};

use crate::support::{Mode, Style, block_on, ms};

/// The attempts that these tests' inboxes allow.
const ATTEMPTS: u32 = 3;

fn builder(store: &Store, on_interrupted: OnInterrupted) -> InboxBuilder<OnInterrupted> {
    Inbox::builder(store.clone(), "mailer")
        .on_interrupted(on_interrupted)
        .max_attempts(ATTEMPTS)
        .backoff(ms(100), ms(350))
}

fn inbox(store: &Store, on_interrupted: OnInterrupted) -> Inbox {
    let inbox = builder(store, on_interrupted).build();
    inbox.expect("an inbox")
}

/// Both forms of each call.
trait Process {
    fn process<'a>(
        self,
        inbox: &Inbox,
        message: impl Into<Message<'a>>,
        handler: impl FnOnce(&mut Event) -> Result<(), Failure>,
    ) -> Outcome;

    fn process_batch<'a>(
        self,
        inbox: &Inbox,
        messages: impl IntoIterator<Item = impl Into<Message<'a>>>,
        handler: impl FnMut(usize, &mut Event) -> Result<(), Failure>,
    ) -> Vec<Outcome>;
}

impl Process for Mode {
    fn process<'a>(
        self,
        inbox: &Inbox,
        message: impl Into<Message<'a>>,
        handler: impl FnOnce(&mut Event) -> Result<(), Failure>,
    ) -> Outcome {
        match self.style {
            Style::Blocking => inbox.process(message, handler),
            Style::Async => {
                block_on(inbox.process_async(message, async |event: &mut Event| handler(event)))
            }
        }
    }

    fn process_batch<'a>(
        self,
        inbox: &Inbox,
        messages: impl IntoIterator<Item = impl Into<Message<'a>>>,
        mut handler: impl FnMut(usize, &mut Event) -> Result<(), Failure>,
    ) -> Vec<Outcome> {
        match self.style {
            Style::Blocking => inbox.process_batch(messages, handler),
            Style::Async => {
                let handler = async |index: usize, event: &mut Event| handler(index, event);
                block_on(inbox.process_batch_async(messages, handler))
            }
        }
    }
}

#[track_caller]
fn acked(outcome: Outcome) -> Acked {
    match outcome {
        Outcome::Ack(acked) => acked,
        other => panic!("expected Ack, got {other:?}"),
    }
}

#[track_caller]
fn retry(outcome: Outcome) -> RetryLater {
    match outcome {
        Outcome::RetryLater(retry) => retry,
        other => panic!("expected RetryLater, got {other:?}"),
    }
}

#[track_caller]
fn dead(outcome: Outcome) -> DeadLetter {
    match outcome {
        Outcome::DeadLetter(dead) => dead,
        other => panic!("expected DeadLetter, got {other:?}"),
    }
}

/// What a failing handler says.
fn error() -> io::Error {
    io::Error::other("the mail server is down")
}

fn nothing_happened() -> Result<(), Failure> {
    Err(Failure::nothing_happened(error()))
}

fn never(_: &mut Event) -> Result<(), Failure> {
    panic!("the handler must not run")
}
