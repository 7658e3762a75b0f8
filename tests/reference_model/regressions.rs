//! Cases that were found at random and were answered wrongly, by the store or by the model.

use oncekey::Durability;

use crate::claims::RETENTION_MS;
use crate::run;
use crate::steps::{Asked, Case, End, Ending, Step};
use crate::support::Style;

const PAGE: usize = 4_096;

/// Two first claims of one key are dropped half way, so that nobody knows their tokens, and the
/// power is lost: what is found may be either of them, and tells which by when it started.
#[test]
fn either_of_two_claims_that_nobody_saw_may_be_left() {
    let asked = |key, durability| Asked {
        key,
        request: 0,
        lease_ms: None,
        retention_s: None,
        durability: Some(durability),
        sent_ms_ago: None,
    };
    let dropped = Step::ClaimDropped {
        asked: asked(0, Durability::Sync),
        polled: true,
    };
    // The claim and its release are parted by the border of a page for some of these.
    for len in (0..PAGE).step_by(32) {
        for seed in 0..4 {
            let steps = [
                Step::Claim {
                    asked: asked(1, Durability::Buffered),
                    style: Style::Blocking,
                },
                Step::Complete {
                    key: 1,
                    ending: Ending::Plain { len },
                    style: Style::Blocking,
                },
                dropped.clone(),
                Step::Advance { ms: 110_000 },
                dropped.clone(),
                Step::Restart {
                    end: End::LosePower { seed },
                    fault: None,
                },
            ];
            run(Case {
                durabilities: [Durability::Buffered; 2],
                steps: steps.into_iter().map(|step| (0, step)).collect(),
            });
        }
    }
}

/// What a waiting claim waits for is completed and expires meanwhile: it is not run again, since the
/// claim was sent before all that.
#[test]
fn a_claim_that_waited_longer_than_results_are_kept_is_too_late() {
    let asked = |sent_ms_ago| Asked {
        key: 0,
        request: 0,
        lease_ms: None,
        retention_s: None,
        durability: None,
        sent_ms_ago,
    };
    let steps = [
        Step::Claim {
            asked: asked(None),
            style: Style::Blocking,
        },
        Step::WaitBegin {
            asked: asked(Some(0)),
        },
        Step::Complete {
            key: 0,
            ending: Ending::Plain { len: 0 },
            style: Style::Blocking,
        },
        Step::Advance { ms: RETENTION_MS },
        Step::WaitPoll { at: 0 },
    ];
    run(Case {
        durabilities: [Durability::Buffered; 2],
        steps: steps.into_iter().map(|step| (0, step)).collect(),
    });
}
