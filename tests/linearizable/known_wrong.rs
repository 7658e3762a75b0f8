//! The checker checked: histories that are known to be wrong, each with a right twin that differs in
//! the one thing that is wrong. The wrong one is rejected and the twin accepted.

use crate::checker::check;
use crate::history::{Answer, Call, End, Record, Seen, What, by_key, cut_by_power_loss};

/// A history of one key, written down by hand.
#[derive(Clone, Default)]
struct Story {
    records: Vec<(u64, Record)>,
    now_ms: u64,
    calls: u64,
    buffered: bool,
}

impl Story {
    fn new() -> Self {
        Self::default()
    }

    fn buffered() -> Self {
        Self {
            buffered: true,
            ..Self::default()
        }
    }

    fn place(&mut self, record: Record) {
        self.records.push((self.records.len() as u64, record));
    }

    /// A call begins; its number.
    fn begin(&mut self, what: What) -> u64 {
        self.calls += 1;
        let call = Call {
            key: 0,
            sync: !self.buffered,
            what,
        };
        let (id, at_ms) = (self.calls, self.now_ms);
        self.place(Record::Invoked { id, at_ms, call });
        id
    }

    fn end(mut self, id: u64, answer: Answer) -> Self {
        let at_ms = self.now_ms;
        self.place(Record::Answered { id, at_ms, answer });
        self
    }

    /// A call that nothing overlaps.
    fn call(mut self, what: What, answer: Answer) -> Self {
        let id = self.begin(what);
        self.end(id, answer)
    }

    fn after(mut self, ms: u64) -> Self {
        self.now_ms += ms;
        self
    }

    fn ended(mut self, end: End) -> Self {
        self.place(Record::Ended(end));
        self
    }

    fn killed(self) -> Self {
        self.ended(End::Process)
    }

    fn lost_power(self) -> Self {
        self.ended(End::Power)
    }

    fn started(self, token: u64) -> Self {
        self.call(CLAIM, Answer::Started { attempt: 1, token })
    }

    fn interrupted(self, attempt: u32, token: u64) -> Self {
        self.call(
            CLAIM,
            Answer::Interrupted {
                attempt,
                token,
                note: 0,
            },
        )
    }

    fn completed(self, attempt: u32, token: u64, response: u64) -> Self {
        let answer = replay(attempt, token, response);
        self.call(complete(token, response), answer)
    }

    fn replayed(self, attempt: u32, token: u64, response: u64) -> Self {
        self.call(CLAIM, replay(attempt, token, response))
    }

    fn is_right(&self) -> bool {
        let records: Vec<Record> = self.records.iter().map(|(_, record)| *record).collect();
        check(&by_key(&records, 1)[0]).is_ok()
    }
}

const CLAIM: What = What::Claim {
    request: 1,
    lease_ms: 0,
};
const OTHER: What = What::Claim {
    request: 2,
    lease_ms: 0,
};
const LEASED: What = What::Claim {
    request: 1,
    lease_ms: 100,
};

fn complete(token: u64, response: u64) -> What {
    What::Complete {
        token,
        response,
        retention_ms: 1_000,
    }
}

fn replay(attempt: u32, token: u64, response: u64) -> Answer {
    Answer::Completed(Seen {
        attempt,
        token,
        response,
        expires_ms: 0,
    })
}

const LOST: Answer = Answer::LeaseLost { new_attempt: None };
const BUSY: Answer = Answer::InProgress { attempt: 1 };

fn started(token: u64) -> Answer {
    Answer::Started { attempt: 1, token }
}

fn taken(attempt: u32, token: u64) -> Answer {
    Answer::Interrupted {
        attempt,
        token,
        note: 0,
    }
}

fn lost_to(attempt: u32) -> Answer {
    Answer::LeaseLost {
        new_attempt: Some(attempt),
    }
}

#[track_caller]
fn told_apart(wrong: &Story, right: &Story) {
    assert!(right.is_right(), "the twin is right");
    assert!(!wrong.is_right(), "the wrong one passed");
}

/// The same story with two ends.
#[track_caller]
fn ends(story: &Story, what: What, wrong: Answer, right: Answer) {
    told_apart(
        &story.clone().call(what, wrong),
        &story.clone().call(what, right),
    );
}

#[test]
fn two_owners_at_once() {
    let held = Story::new().started(10);
    ends(&held, CLAIM, started(20), BUSY);
    ends(&held, CLAIM, taken(2, 20), BUSY);
    // Also where the claims overlap: only one of them can be first.
    let both = |second: Answer| {
        let mut story = Story::new();
        let (one, two) = (story.begin(CLAIM), story.begin(CLAIM));
        story.end(one, started(10)).end(two, second)
    };
    told_apart(&both(started(20)), &both(BUSY));
}

#[test]
fn a_replay_before_any_completion() {
    let held = Story::new().started(10);
    ends(&held, CLAIM, replay(1, 10, 7), BUSY);
    // While the completion is under way both are right.
    let mut story = held;
    let id = story.begin(complete(10, 7));
    assert!(story.clone().call(CLAIM, BUSY).is_right());
    let replayed = story.clone().replayed(1, 10, 7);
    told_apart(
        &replayed.clone().call(CLAIM, BUSY).end(id, replay(1, 10, 7)),
        &replayed.replayed(1, 10, 7).end(id, replay(1, 10, 7)),
    );
    assert!(!story.replayed(1, 10, 7).end(id, LOST).is_right());
}

#[test]
fn an_acknowledged_completion_is_lost_by_a_kill() {
    let killed = Story::new().started(10).completed(1, 10, 7).killed();
    ends(&killed, CLAIM, taken(2, 20), replay(1, 10, 7));
    ends(&killed, CLAIM, started(20), replay(1, 10, 7));
}

#[test]
fn an_acknowledged_completion_is_lost_with_the_power() {
    let story = |story: Story| story.started(10).completed(1, 10, 7).lost_power();
    let (synced, buffered) = (story(Story::new()), story(Story::buffered()));
    ends(&synced, CLAIM, taken(2, 20), replay(1, 10, 7));
    ends(&synced, CLAIM, started(20), replay(1, 10, 7));
    // A buffered one may go, and the claim with it; but not the claim alone.
    for right in [started(20), taken(2, 20), replay(1, 10, 7)] {
        assert!(buffered.clone().call(CLAIM, right).is_right());
    }
    ends(&buffered, CLAIM, taken(3, 20), taken(2, 20));
    // Not when it was flushed before.
    let flushed = Story::buffered().started(10).completed(1, 10, 7);
    let mut flush = flushed;
    flush.buffered = false;
    let flushed = flush.call(What::Flush, Answer::Done).lost_power();
    ends(&flushed, CLAIM, taken(2, 20), replay(1, 10, 7));
}

#[test]
fn a_synced_replay_is_taken_back_by_a_loss_of_power() {
    let mut story = Story::buffered().started(10).completed(1, 10, 7);
    story.buffered = false;
    let replayed = story.replayed(1, 10, 7).lost_power();
    ends(&replayed, CLAIM, taken(2, 20), replay(1, 10, 7));
}

#[test]
fn a_released_key_comes_back() {
    let released = Story::new()
        .started(10)
        .call(What::Release { token: 10 }, Answer::Done);
    ends(&released, CLAIM, taken(2, 20), started(20));
    ends(&released.killed(), CLAIM, taken(2, 20), started(20));
}

#[test]
fn a_forgotten_result_comes_back() {
    let forgotten = Story::new()
        .started(10)
        .completed(1, 10, 7)
        .call(What::Forget { force: false }, Answer::Removed(true));
    ends(&forgotten, CLAIM, replay(1, 10, 7), started(20));
    ends(&forgotten.killed(), CLAIM, replay(1, 10, 7), started(20));
}

#[test]
fn a_look_tells_of_a_state_that_is_over() {
    let completed = Story::new().started(10).completed(1, 10, 7);
    let held = Answer::Held {
        attempt: 1,
        token: 10,
    };
    ends(&completed, What::Get, held, replay(1, 10, 7));
    ends(&completed, What::Get, Answer::Absent, replay(1, 10, 7));
    // An earlier look that is still under way may tell it; a later one may not go back.
    let mut story = Story::new().started(10);
    let early = story.begin(What::Get);
    let story = story.completed(1, 10, 7);
    assert!(story.clone().end(early, held).is_right());
    told_apart(
        &story
            .clone()
            .end(early, replay(1, 10, 7))
            .call(What::Get, held),
        &story.end(early, held).call(What::Get, replay(1, 10, 7)),
    );
}

#[test]
fn a_stale_owner_completes() {
    let late = Story::new().call(LEASED, started(10)).after(100);
    // Late alone is not stale.
    assert!(late.clone().completed(1, 10, 7).is_right());
    let overtaken = late.call(LEASED, taken(2, 20));
    ends(&overtaken, complete(10, 7), replay(1, 10, 7), lost_to(2));
    ends(
        &overtaken,
        What::Release { token: 10 },
        Answer::Done,
        lost_to(2),
    );
    let note = What::Checkpoint { token: 10, note: 5 };
    ends(&overtaken, note, Answer::Done, lost_to(2));
}

#[test]
fn an_owner_is_run_over_while_its_lease_lasts() {
    let held = Story::new().call(LEASED, started(10)).after(99);
    ends(&held, LEASED, taken(2, 20), BUSY);
    ends(&held.clone().after(1), LEASED, BUSY, taken(2, 20));
    let renew = What::Renew {
        token: 10,
        lease_ms: 100,
    };
    let renewed = held.call(renew, Answer::Done).after(99);
    ends(&renewed, LEASED, taken(2, 20), BUSY);
}

#[test]
fn an_attempt_number_goes_back() {
    let second = Story::new().started(10).killed().interrupted(2, 20);
    let killed = second.killed();
    ends(&killed, CLAIM, taken(2, 30), taken(3, 30));
    ends(&killed, CLAIM, taken(4, 30), taken(3, 30));
    ends(&killed, CLAIM, taken(1, 30), taken(3, 30));
}

#[test]
fn a_token_is_given_twice() {
    let killed = Story::new().started(10).killed();
    ends(&killed, CLAIM, taken(2, 10), taken(2, 11));
    ends(&killed, CLAIM, taken(2, 9), taken(2, 11));
    let released = Story::new()
        .started(10)
        .call(What::Release { token: 10 }, Answer::Done);
    ends(&released, CLAIM, started(10), started(11));
    // Not even after everything about it was lost.
    let lost = Story::buffered().started(10).lost_power();
    ends(&lost, CLAIM, started(10), started(11));
}

#[test]
fn two_replays_differ() {
    let replayed = Story::new()
        .started(10)
        .completed(1, 10, 7)
        .replayed(1, 10, 7);
    for wrong in [replay(1, 10, 8), replay(1, 11, 7), replay(2, 10, 7)] {
        ends(&replayed, CLAIM, wrong, replay(1, 10, 7));
    }
    // Also where nobody saw the completion's own answer.
    let mut story = Story::new().started(10);
    story.begin(complete(10, 7));
    let unseen = story.killed().replayed(1, 10, 7);
    ends(&unseen, CLAIM, taken(2, 20), replay(1, 10, 7));
}

#[test]
fn a_request_is_taken_for_another() {
    let mismatch = |completed| Answer::Mismatch {
        attempt: 1,
        completed,
    };
    let held = Story::new().started(10);
    ends(&held, CLAIM, mismatch(false), BUSY);
    ends(&held, OTHER, BUSY, mismatch(false));
    ends(&held, OTHER, mismatch(true), mismatch(false));
    let completed = held.completed(1, 10, 7);
    ends(&completed, OTHER, replay(1, 10, 7), mismatch(true));
    ends(&completed, OTHER, mismatch(false), mismatch(true));
    let killed = Story::new().started(10).killed();
    ends(&killed, OTHER, taken(2, 20), mismatch(false));
}

#[test]
fn a_key_is_interrupted_without_any_end() {
    let held = Story::new().started(10);
    let waiting = Answer::Waiting {
        attempt: 1,
        token: 10,
    };
    let is_held = Answer::Held {
        attempt: 1,
        token: 10,
    };
    ends(&held, What::Get, waiting, is_held);
    let dropped = held.call(What::Drop { token: 10 }, Answer::Done);
    ends(&dropped, What::Get, is_held, waiting);
    ends(&dropped, CLAIM, BUSY, taken(2, 20));
    ends(&dropped, CLAIM, started(20), taken(2, 20));
}

#[test]
fn an_owner_outlives_its_process() {
    let killed = Story::new().started(10).killed();
    ends(&killed, CLAIM, BUSY, taken(2, 20));
    ends(&killed, complete(10, 7), replay(1, 10, 7), LOST);
}

#[test]
fn an_expired_result_answers() {
    let expired = Story::new().started(10).completed(1, 10, 7).after(1_000);
    ends(&expired, CLAIM, replay(1, 10, 7), started(20));
    ends(&expired, What::Get, replay(1, 10, 7), Answer::Absent);
    let early = Story::new().started(10).completed(1, 10, 7).after(999);
    ends(&early, CLAIM, started(20), replay(1, 10, 7));
    // Once it was seen to be over it stays so, however wide the windows are.
    let mut story = Story::new().started(10);
    let wide = story.begin(complete(10, 7));
    let story = story.after(500).end(wide, replay(1, 10, 7)).after(700);
    assert!(story.clone().call(What::Get, Answer::Absent).is_right());
    let gone = story.call(What::Get, Answer::Absent);
    ends(&gone, CLAIM, replay(1, 10, 7), started(20));
}

#[test]
fn a_note_is_lost() {
    let noted = Story::new()
        .started(10)
        .call(What::Checkpoint { token: 10, note: 5 }, Answer::Done)
        .killed();
    let with = |note| Answer::Interrupted {
        attempt: 2,
        token: 20,
        note,
    };
    ends(&noted, CLAIM, with(0), with(5));
    ends(&noted, CLAIM, with(6), with(5));
    ends(&noted.interrupted_with(5), CLAIM, with(5), BUSY2);
}

const BUSY2: Answer = Answer::InProgress { attempt: 2 };

impl Story {
    fn interrupted_with(self, note: u64) -> Self {
        let answer = Answer::Interrupted {
            attempt: 2,
            token: 15,
            note,
        };
        self.call(CLAIM, answer)
    }
}

#[test]
fn a_ticket_gives_two_guards() {
    let resume = What::Resume {
        ticket: 10,
        request: 1,
        lease_ms: 100,
    };
    let resumed = Story::new()
        .call(LEASED, started(10))
        .call(What::Detach { token: 10 }, Answer::Done)
        .call(resume, started(20));
    ends(&resumed, resume, started(30), BUSY);
    ends(&resumed, complete(10, 7), replay(1, 10, 7), lost_to(1));
    ends(
        &resumed.clone().after(100),
        resume,
        started(30),
        taken(2, 30),
    );
    let killed = resumed.killed();
    ends(&killed, resume, started(30), taken(2, 30));
    let other = killed.interrupted(2, 40);
    ends(&other, resume, BUSY2, lost_to(2));
}

#[test]
fn a_guard_acts_after_it_was_fenced() {
    let interrupted = Story::new()
        .started(10)
        .call(What::Interrupt { token: 10 }, Answer::Done);
    ends(&interrupted, complete(10, 7), replay(1, 10, 7), LOST);
    let forgotten = Story::new()
        .started(10)
        .call(What::Forget { force: true }, Answer::Removed(true));
    ends(&forgotten, complete(10, 7), replay(1, 10, 7), LOST);
    let held = Story::new().started(10);
    let refused = Answer::Pending { attempt: 1 };
    ends(
        &held,
        What::Forget { force: false },
        Answer::Removed(true),
        refused,
    );
    ends(
        &held,
        What::Interrupt { token: 9 },
        Answer::Done,
        Answer::NotHeld,
    );
}

#[test]
fn a_claim_that_nobody_saw_stays() {
    let cut = Story::new().call(CLAIM, Answer::Cut);
    ends(&cut, CLAIM, BUSY, started(20));
    // While it is being cut, it may be seen.
    let mut story = Story::new();
    let id = story.begin(CLAIM);
    let seen = story.call(CLAIM, BUSY).end(id, Answer::Cut);
    ends(&seen, CLAIM, BUSY, started(20));
    // A completion that was cut is there or not; if it is not, its guard is gone.
    let cut = Story::new().started(10).call(complete(10, 7), Answer::Cut);
    assert!(cut.clone().call(CLAIM, taken(2, 20)).is_right());
    ends(&cut, CLAIM, BUSY, replay(1, 10, 7));
    let seen = cut.replayed(1, 10, 7);
    ends(&seen, CLAIM, taken(2, 20), replay(1, 10, 7));
}

#[test]
fn a_grant_that_was_lost_unseen_leaves_no_trace() {
    let fenced = |mut story: Story| {
        let id = story.begin(CLAIM);
        (story.call(What::Interrupt { token: 10 }, Answer::Done), id)
    };
    let (waits, id) = fenced(Story::new());
    // It asks anew, and is the next attempt.
    let asked_anew = waits.clone().end(id, taken(2, 20));
    told_apart(&waits.clone().end(id, started(20)), &asked_anew);
    // The store is closed before it can: the attempt was one all the same.
    let closed = waits.end(id, Answer::Refused);
    ends(&closed, CLAIM, started(20), taken(2, 20));
    // Who does not wait for the disk is refused before it is granted anything.
    let (at_once, id) = fenced(Story::buffered());
    told_apart(&at_once.end(id, Answer::Refused), &closed);
}

#[test]
fn a_call_in_flight_takes_effect_after_the_kill() {
    let mut story = Story::new();
    story.begin(CLAIM);
    let killed = story.killed();
    assert!(killed.clone().call(CLAIM, taken(2, 20)).is_right());
    let looked = killed.call(What::Get, Answer::Absent);
    ends(&looked, CLAIM, taken(2, 20), started(20));
    ends(&looked, CLAIM, BUSY, started(20));
}

#[test]
fn a_call_in_flight_is_taken_back_or_goes_on_before_the_kill() {
    // Given up before the end came, but not written down any more.
    let mut story = Story::new();
    story.begin(CLAIM);
    let seen = story.call(CLAIM, BUSY);
    ends(&seen, CLAIM, taken(3, 20), started(20));
    // Answered, and its guard dropped, neither of which was written down in time.
    let mut story = seen;
    story.begin(What::Drop { token: 20 });
    let dropped = story.call(CLAIM, taken(2, 30)).killed();
    ends(&dropped, CLAIM, taken(2, 40), taken(3, 40));
}

#[test]
fn what_came_after_an_image_was_taken_never_was() {
    let cut = |from, to| {
        let mut story = Story::new().started(10).completed(1, 10, 7);
        let mut records = std::mem::take(&mut story.records);
        cut_by_power_loss(&mut records, from, to);
        story.records = records;
        story
    };
    // Places: claim asked 0, answered 1, completion asked 2, answered 3.
    ends(&cut(4, 4), CLAIM, taken(2, 20), replay(1, 10, 7));
    assert!(cut(3, 3).call(CLAIM, taken(2, 20)).is_right());
    assert!(cut(3, 3).replayed(1, 10, 7).is_right());
    ends(&cut(2, 2), CLAIM, replay(1, 10, 7), taken(2, 20));
    ends(&cut(1, 1), CLAIM, taken(3, 20), started(20));
}
