//! The owner's work: whoever won the claim charges the card and answers.
//!
//! The order is what makes it safe:
//!
//! 1. After an interruption, find out what the earlier attempts did (see [`Reconcile`]).
//! 2. `checkpoint`: note that the provider is about to be called. Where there is no note, of this
//!    attempt or an earlier one, nobody called.
//! 3. Call the provider, once, with a key derived from ours that is the same in every attempt.
//! 4. Answer. The layer stores a final answer, 201 or 402, before the client gets it.
//!
//! Every early return answers 503, which makes the key interrupted: the client is told to retry, and
//! the next claimer starts over at 1. The exception is a first attempt whose call was certainly never
//! sent: it releases the key. A later attempt must not, or it would erase the trace of earlier
//! calls.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use clap::ValueEnum;
use oncekey::WriteError;
use oncekey::http::IdempotentOperation;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::api::App;
use crate::messages::{Charge, ChargeRequest};
use crate::payment::Payment;
use crate::problem::Problem;
use crate::provider_client::{ChargeOutcome, ProviderError};

/// How a call of an earlier attempt is treated whose outcome nobody knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Reconcile {
    /// Charge again under the same downstream key: right if the provider deduplicates by it.
    Rerun,
    /// Ask the provider whether the charge exists, and charge only if it never will: for providers
    /// that charge twice when asked twice.
    Lookup,
}

/// Time for a request that was already sent to arrive at the provider, on top of the provider's own
/// maximum delay.
const TRANSIT_MAX: Duration = Duration::from_millis(500);

/// Works on the payment until there is a final answer.
pub async fn pay(
    app: &App,
    operation: &IdempotentOperation,
    payment: &Payment,
    payment_id: String,
) -> Result<Response, Problem> {
    let claimed_at = Instant::now();
    let request = ChargeRequest {
        key: operation.downstream_key("charge"),
        amount: payment.amount,
        currency: payment.currency.clone(),
        card: payment.card.clone(),
        payment: payment_id,
        attempt: operation.attempt(),
        token: operation.token().as_u64(),
    };

    let charged = if may_have_called(operation) && app.reconcile == Reconcile::Lookup {
        look_up(app, operation, &request.key, claimed_at).await?
    } else {
        None
    };
    let outcome = match charged {
        Some(charge) => ChargeOutcome::Charged(charge),
        None => match charge(app, operation, &request).await? {
            Ok(outcome) => outcome,
            Err(ProviderError::NotSent(error)) if operation.attempt() == 1 => {
                warn!(%error, "nothing was sent: the key is released");
                operation.release();
                return Err(Problem::provider_unreachable());
            }
            Err(error) => return Err(outcome_unknown(&error)),
        },
    };

    Ok(match outcome {
        ChargeOutcome::Charged(charge) => payment.succeeded(&request.payment, &charge),
        ChargeOutcome::Refused => Problem::card_refused().into_response(),
    })
}

/// Whether an attempt before this one left its note. This one has left none yet.
pub fn may_have_called(operation: &IdempotentOperation) -> bool {
    let previous = operation.previous();
    previous.is_some_and(|previous| previous.checkpoint.is_some())
}

async fn charge(
    app: &App,
    operation: &IdempotentOperation,
    request: &ChargeRequest,
) -> Result<Result<ChargeOutcome, ProviderError>, Problem> {
    operation
        .checkpoint(b"calling the card provider")
        .await
        .map_err(|error| not_written(&error))?;
    while_holding(app.lease, operation, app.provider.charge(request)).await
}

/// The charge an earlier attempt made; `None` when it is certain that there is none and will be
/// none.
///
/// Interrupted does not mean stopped: the call of an attempt that died a moment ago may still be on
/// its way, so "no such charge" counts only after the provider's maximum delay. That time runs from
/// our claim, not from the start of the earlier attempt: until we owned the key, the earlier owner
/// could still send.
async fn look_up(
    app: &App,
    operation: &IdempotentOperation,
    key: &str,
    claimed_at: Instant,
) -> Result<Option<Charge>, Problem> {
    let settled_at = claimed_at + app.provider.delay_max() + TRANSIT_MAX;
    let search = async {
        let early = app.provider.find(key).await?;
        if early.is_some() {
            return Ok(early);
        }
        tokio::time::sleep_until(settled_at).await;
        app.provider.find(key).await
    };
    let found = while_holding(app.lease, operation, search).await?;
    let charge = found.map_err(|error| outcome_unknown(&error))?;
    info!(
        attempt = operation.attempt(),
        found = charge.is_some(),
        "looked the charge up"
    );
    Ok(charge)
}

/// Does the work and renews a limited lease meanwhile, the first time before the work begins: what
/// is sent is sent while the key is ours. Losing the lease drops the work.
async fn while_holding<T>(
    lease: Option<Duration>,
    operation: &IdempotentOperation,
    work: impl Future<Output = T>,
) -> Result<T, Problem> {
    let Some(lease) = lease else {
        return Ok(work.await);
    };
    let mut renewals = tokio::time::interval((lease / 3).max(Duration::from_millis(1)));
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            _ = renewals.tick() => operation.renew().await.map_err(|error| not_written(&error))?,
            done = &mut work => return Ok(done),
        }
    }
}

fn outcome_unknown(error: &ProviderError) -> Problem {
    warn!(%error, "the outcome is unknown: the key is left interrupted");
    Problem::outcome_unknown()
}

fn not_written(error: &WriteError) -> Problem {
    match error {
        WriteError::LeaseLost { .. } => {
            warn!(%error, "another attempt took over");
            Problem::in_progress(1)
        }
        _ => {
            warn!(%error, "the store refused: the key is left interrupted");
            Problem::store_unavailable()
        }
    }
}
