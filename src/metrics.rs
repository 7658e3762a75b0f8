//! What `Store::stats` shows, as metrics under Prometheus' conventions.
//!
//! Nothing runs by itself: the service calls [`describe_metrics`](crate::describe_metrics) once and
//! [`Store::export_metrics`](crate::Store::export_metrics) whenever it is scraped, and what is
//! exported goes to the recorder that the service installed. `docs/metrics.md` lists every series;
//! a test holds the two to each other.

use metrics::{Label, Unit};

use crate::stats::Stats;

/// A family of series of one name, which figures of the type `T` have the values of.
pub(crate) struct Family<T: 'static> {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    pub(crate) help: &'static str,
    /// The label that tells the series apart; empty where there is one.
    pub(crate) label: &'static str,
    pub(crate) series: &'static [Series<T>],
}

pub(crate) enum Kind {
    /// Counted from a beginning: of a store, its open.
    Counter,
    /// As it is now.
    Gauge,
}

/// The label's value, and the series' own.
pub(crate) type Series<T> = (&'static str, fn(&T) -> u64);

const FAMILIES: &[Family<Stats>] = &[
    Family {
        name: "oncekey_keys",
        kind: Kind::Gauge,
        unit: Unit::Count,
        help: "Keys that exist",
        label: "state",
        series: &[
            ("completed", |stats| stats.completed_keys),
            ("pending", |stats| {
                stats.pending_keys.saturating_sub(stats.interrupted_keys)
            }),
            ("interrupted", |stats| {
                stats.interrupted_keys.saturating_sub(stats.abandoned_keys)
            }),
            ("abandoned", |stats| stats.abandoned_keys),
        ],
    },
    Family {
        name: "oncekey_versions",
        kind: Kind::Gauge,
        unit: Unit::Count,
        help: "Entities with a version",
        label: "",
        series: &[("", |stats| stats.versions)],
    },
    Family {
        name: "oncekey_outbox_messages",
        kind: Kind::Gauge,
        unit: Unit::Count,
        help: "Messages of the outbox",
        label: "state",
        series: &[
            ("outstanding", |stats| stats.outbox_messages),
            ("dead_letter", |stats| stats.outbox_dead_letters),
        ],
    },
    Family {
        name: "oncekey_outbox_lag_milliseconds",
        kind: Kind::Gauge,
        unit: Unit::Milliseconds,
        help: "How long the oldest outstanding message has been waiting",
        label: "",
        series: &[("", |stats| stats.outbox_lag_ms)],
    },
    Family {
        name: "oncekey_claims_total",
        kind: Kind::Counter,
        unit: Unit::Count,
        help: "Claims that were answered",
        label: "outcome",
        series: &[
            ("started", |stats| stats.claims_started),
            ("interrupted", |stats| stats.claims_taken_over),
            ("in_progress", |stats| stats.claims_in_progress),
            ("completed", |stats| stats.claims_replayed),
            ("mismatch", |stats| stats.claims_mismatched),
            ("too_late", |stats| stats.claims_too_late),
            ("abandoned", |stats| stats.claims_abandoned),
        ],
    },
    Family {
        name: "oncekey_refused_total",
        kind: Kind::Counter,
        unit: Unit::Count,
        help: "Calls that were refused for want of room, or because of a limit",
        label: "reason",
        series: &[
            ("out_of_space", |stats| stats.out_of_space),
            ("max_pending", |stats| stats.limits_reached.pending),
            ("max_waiters", |stats| stats.limits_reached.waiters),
            ("max_keys", |stats| stats.limits_reached.keys),
            ("max_keys_per_scope", |stats| {
                stats.limits_reached.keys_per_scope
            }),
            ("max_disk_bytes", |stats| stats.limits_reached.disk_bytes),
        ],
    },
    Family {
        name: "oncekey_operations_ended_total",
        kind: Kind::Counter,
        unit: Unit::Count,
        help: "Guards that ended",
        label: "end",
        series: &[
            ("completed", |stats| stats.completed),
            ("released", |stats| stats.released),
            ("interrupted", |stats| stats.interruptions),
        ],
    },
    single(
        "oncekey_expired_total",
        Kind::Counter,
        Unit::Count,
        "Expired results that left the index",
        &[("", |stats| stats.expired)],
    ),
    single(
        "oncekey_waiters",
        Kind::Gauge,
        Unit::Count,
        "Callers that wait for a key",
        &[("", |stats| stats.waiters)],
    ),
    Family {
        name: "oncekey_segments",
        kind: Kind::Gauge,
        unit: Unit::Count,
        help: "Segments of the log",
        label: "state",
        series: &[
            ("prepared", |stats| stats.segments_prepared),
            ("unsynced", |stats| stats.segments_unsynced),
            ("compacted", |stats| stats.segments_compacted),
            ("durable", |stats| {
                let others =
                    stats.segments_prepared + stats.segments_unsynced + stats.segments_compacted;
                stats.segments.saturating_sub(others)
            }),
        ],
    },
    single(
        "oncekey_segment_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Bytes of all segment files",
        &[("", |stats| stats.segment_bytes)],
    ),
    Family {
        name: "oncekey_record_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Bytes of records, by whether they answer somebody",
        label: "state",
        series: &[
            ("live", |stats| stats.live_bytes),
            ("dead", |stats| stats.dead_bytes),
        ],
    },
    Family {
        name: "oncekey_maintenance_passes_total",
        kind: Kind::Counter,
        unit: Unit::Count,
        help: "Passes of maintenance that ended",
        label: "end",
        series: &[
            ("succeeded", |stats| stats.maintenance.passes),
            ("failed", |stats| stats.maintenance.passes_failed),
        ],
    },
    single(
        "oncekey_maintenance_failing",
        Kind::Gauge,
        Unit::Count,
        "1 while the newest pass of maintenance has failed, 0 otherwise",
        &[("", |stats| {
            u64::from(stats.maintenance.last_failure.is_some())
        })],
    ),
    single(
        "oncekey_segments_removed_total",
        Kind::Counter,
        Unit::Count,
        "Segments that maintenance gave up",
        &[("", |stats| stats.maintenance.done.segments_removed)],
    ),
    single(
        "oncekey_records_copied_total",
        Kind::Counter,
        Unit::Count,
        "Records that maintenance copied out of segments",
        &[("", |stats| stats.maintenance.done.records_copied)],
    ),
    single(
        "oncekey_available_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Bytes in existing segments that nobody was promised",
        &[("", |stats| stats.available_bytes)],
    ),
    single(
        "oncekey_unsynced_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Bytes appended and not yet known to be durable",
        &[("", |stats| stats.unsynced_bytes)],
    ),
    single(
        "oncekey_index_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "Bytes of memory that the index takes",
        &[("", |stats| stats.index_bytes)],
    ),
    single(
        "oncekey_syncs_total",
        Kind::Counter,
        Unit::Count,
        "Syncs of the log that succeeded",
        &[("", |stats| stats.syncs)],
    ),
    single(
        "oncekey_synced_records_total",
        Kind::Counter,
        Unit::Count,
        "Records that those syncs made durable",
        &[("", |stats| stats.synced_records)],
    ),
    single(
        "oncekey_largest_sync_records",
        Kind::Gauge,
        Unit::Count,
        "Most records that one sync made durable",
        &[("", |stats| stats.largest_sync_records)],
    ),
    single(
        "oncekey_poisoned",
        Kind::Gauge,
        Unit::Count,
        "1 once a sync has failed and until the store is reopened, 0 otherwise",
        &[("", |stats| stats.poisoned as u64)],
    ),
];

pub(crate) const fn single<T>(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    series: &'static [Series<T>],
) -> Family<T> {
    Family {
        name,
        kind,
        unit,
        help,
        label: "",
        series,
    }
}

/// Tells the installed recorder what the metrics of a store mean and count. Once is enough, for any
/// number of stores.
///
/// The names, with their labels, are listed in
/// [the guide to metrics](crate::documentation::metrics).
pub fn describe_metrics() {
    describe(FAMILIES);
}

pub(crate) fn describe<T>(families: &[Family<T>]) {
    for family in families {
        let (name, unit, help) = (family.name, family.unit, family.help);
        match family.kind {
            Kind::Counter => metrics::describe_counter!(name, unit, help),
            Kind::Gauge => metrics::describe_gauge!(name, unit, help),
        }
    }
}

/// Hands these figures of a store to the installed recorder.
pub(crate) fn export_store(stats: &Stats, name: &str) {
    export(FAMILIES, stats, ("store", name));
}

/// Hands figures to the installed recorder, labelled with what they are of.
pub(crate) fn export<T>(families: &[Family<T>], figures: &T, (of, name): (&'static str, &str)) {
    for family in families {
        for (value, read) in family.series {
            let mut labels = vec![Label::new(of, String::from(name))];
            if !family.label.is_empty() {
                labels.push(Label::from_static_parts(family.label, value));
            }
            match family.kind {
                Kind::Counter => metrics::counter!(family.name, labels).absolute(read(figures)),
                Kind::Gauge => metrics::gauge!(family.name, labels).set(read(figures) as f64),
            }
        }
    }
}
