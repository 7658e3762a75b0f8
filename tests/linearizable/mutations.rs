//! The checker against real histories with one answer falsified: almost all must be rejected. Those
//! that are not are answers that could have been given as well, such as the other order of two calls
//! that overlapped.

use crate::checker::check;
use crate::from_threads::recorded;
use crate::history::{Answer, KeyHistory, Operation, Seen, What};
use crate::recorded::{Totals, first_seed};
use crate::support::Random;

/// A wrong answer in the place of a right one; `None` where the answer says nothing that could be
/// wrong for certain.
fn falsified(operation: &Operation, random: &mut Random) -> Option<Answer> {
    let answer = operation.answer?;
    Some(match (answer, random.below(3)) {
        (Answer::Started { attempt, token }, 0) => Answer::Interrupted {
            attempt,
            token,
            note: 0,
        },
        (Answer::Started { token, .. }, 1) => Answer::InProgress {
            attempt: 1 + (token % 2) as u32,
        },
        (Answer::Started { attempt, token }, _) => Answer::Started {
            attempt,
            token: token - 1,
        },
        (Answer::Interrupted { token, .. }, 0) => Answer::Started { attempt: 1, token },
        (
            Answer::Interrupted {
                attempt,
                token,
                note,
            },
            1,
        ) => Answer::Interrupted {
            attempt: attempt + 1,
            token,
            note,
        },
        (Answer::Interrupted { attempt, token, .. }, _) => Answer::Interrupted {
            attempt,
            token,
            note: 1,
        },
        (Answer::InProgress { attempt }, 0) => Answer::InProgress {
            attempt: attempt + 1,
        },
        (Answer::InProgress { .. }, 1) => Answer::Started {
            attempt: 1,
            token: u64::MAX / 2,
        },
        (Answer::InProgress { attempt }, _) => Answer::Mismatch {
            attempt,
            completed: true,
        },
        (Answer::Completed(seen), 0) => Answer::Completed(Seen {
            response: seen.response + 1,
            ..seen
        }),
        (Answer::Completed(seen), 1) => Answer::Completed(Seen {
            attempt: seen.attempt + 1,
            ..seen
        }),
        (Answer::Completed(seen), _) => Answer::Completed(Seen {
            expires_ms: seen.expires_ms + 100_000,
            ..seen
        }),
        (Answer::Mismatch { attempt, completed }, _) => Answer::Mismatch {
            attempt,
            completed: !completed,
        },
        (Answer::Absent, _) => Answer::Held {
            attempt: 1,
            token: u64::MAX / 2,
        },
        (Answer::Held { attempt, token } | Answer::Waiting { attempt, token }, 0) => Answer::Held {
            attempt: attempt + 1,
            token,
        },
        (Answer::Held { .. } | Answer::Waiting { .. }, _) => Answer::Absent,
        (Answer::Removed(removed), _) => Answer::Removed(!removed),
        (Answer::Pending { .. }, _) => Answer::Removed(true),
        (Answer::LeaseLost { .. }, _) if !matches!(operation.call.what, What::Resume { .. }) => {
            match operation.call.what {
                What::Complete {
                    token, response, ..
                } => Answer::Completed(Seen {
                    attempt: 1,
                    token,
                    response,
                    expires_ms: 0,
                }),
                _ => Answer::Done,
            }
        }
        (Answer::Done, _) => match operation.call.what {
            What::Release { .. } | What::Checkpoint { .. } | What::Renew { .. } => {
                Answer::LeaseLost { new_attempt: None }
            }
            _ => return None,
        },
        _ => return None,
    })
}

#[test]
fn a_falsified_answer_in_a_real_history_is_noticed() {
    let mut random = Random::new(first_seed());
    let (mut falsified_answers, mut noticed) = (0, 0);
    for seed in 0..3 {
        let mut totals = Totals::default();
        for mut history in recorded(false, first_seed() * 1_000 + seed, &mut totals) {
            let mut left = 120;
            while left > 0 {
                left -= 1;
                let at = random.below(history.operations.len());
                let right = history.operations[at];
                let Some(wrong) = falsified(&right, &mut random) else {
                    continue;
                };
                history.operations[at].answer = Some(wrong);
                falsified_answers += 1;
                noticed += usize::from(is_rejected(&history));
                history.operations[at] = right;
            }
        }
    }
    println!("{noticed} of {falsified_answers} falsified answers were noticed");
    assert!(falsified_answers >= 500, "{falsified_answers} answers");
    assert!(
        noticed * 10 >= falsified_answers * 9,
        "only {noticed} of {falsified_answers}"
    );
}

fn is_rejected(history: &KeyHistory) -> bool {
    check(history).is_err()
}
