//! What [`IdempotencyLayer::stats`](super::IdempotencyLayer::stats) shows, as metrics under
//! Prometheus' conventions. No key and no scope is in any label.

use metrics::Unit;

use crate::metrics::{Family, Kind, describe, export, single};

use super::metrics::HttpStats;

const FAMILIES: &[Family<HttpStats>] = &[
    Family {
        name: "oncekey_http_requests_total",
        kind: Kind::Counter,
        unit: Unit::Count,
        help: "Requests that were handled, by what was done with them",
        label: "outcome",
        series: &[
            ("passed", |stats| stats.passed),
            ("refused", |stats| stats.refused),
            ("started", |stats| stats.started),
            ("reconciled", |stats| stats.reconciled),
            ("outcome_unknown", |stats| stats.outcome_unknown),
            ("replayed", |stats| stats.replayed),
            ("not_replayable", |stats| stats.not_replayable),
            ("replay_refused", |stats| stats.replays_refused),
            ("in_progress", |stats| stats.in_progress),
            ("mismatch", |stats| stats.mismatched),
            ("too_late", |stats| stats.too_late),
            ("unprotected", |stats| stats.unprotected),
        ],
    },
    Family {
        name: "oncekey_http_answers_total",
        kind: Kind::Counter,
        unit: Unit::Count,
        help: "Answers of handlers, by what became of their keys",
        label: "end",
        series: &[
            ("stored", |stats| stats.stored),
            ("stored_without_body", |stats| stats.stored_without_body),
            ("released", |stats| stats.released),
            ("interrupted", |stats| stats.interrupted),
        ],
    },
    single(
        "oncekey_http_waited_total",
        Kind::Counter,
        Unit::Count,
        "Requests that waited for the first one with their key",
        &[("", |stats| stats.waited)],
    ),
    single(
        "oncekey_http_store_failures_total",
        Kind::Counter,
        Unit::Count,
        "Calls of the store that failed",
        &[("", |stats| stats.store_failures)],
    ),
    single(
        "oncekey_http_handlers",
        Kind::Gauge,
        Unit::Count,
        "Handlers at work, those whose clients are gone included",
        &[("", |stats| stats.running)],
    ),
];

/// Tells the installed recorder what the metrics of a layer mean and count. Once is enough, for any
/// number of layers.
///
/// The names, with their labels, are listed in
/// [the guide to metrics](crate::documentation::metrics).
pub fn describe_metrics() {
    describe(FAMILIES);
}

pub(super) fn export_layer(stats: &HttpStats, name: &str) {
    export(FAMILIES, stats, ("layer", name));
}
