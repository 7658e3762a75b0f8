//! What is exported as metrics is what `docs/metrics.md` lists, no less and no more, and says what
//! `stats` says.

#![cfg(feature = "metrics")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key as Series, KeyName, Metadata, Recorder,
    SharedString, Unit, with_local_recorder,
};
use oncekey::{ClaimError, Durability, describe_metrics};

use support::*;

/// By name, labels of the series and type.
type Values = Arc<Mutex<BTreeMap<(String, String, &'static str), f64>>>;

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Kept {
    values: Values,
    described: Mutex<BTreeMap<String, (&'static str, Unit, String)>>,
}

struct Handle {
    values: Values,
    series: (String, String, &'static str),
}

impl Handle {
    fn set(&self, value: f64) {
        let mut values = self.values.lock().expect("no panic");
        values.insert(self.series.clone(), value);
    }
}

impl CounterFn for Handle {
    fn increment(&self, _value: u64) {
        panic!("counts are exported as they are");
    }

    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl GaugeFn for Handle {
    fn increment(&self, _value: f64) {
        panic!("gauges are exported as they are");
    }

    fn decrement(&self, _value: f64) {
        panic!("gauges are exported as they are");
    }

    fn set(&self, value: f64) {
        Handle::set(self, value);
    }
}

impl Kept {
    fn handle(&self, series: &Series, kind: &'static str) -> Arc<Handle> {
        let labels: Vec<_> = series
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        Arc::new(Handle {
            values: Arc::clone(&self.values),
            series: (series.name().to_owned(), labels.join(","), kind),
        })
    }

    fn describe(&self, name: KeyName, kind: &'static str, unit: Option<Unit>, help: SharedString) {
        let known = self.described.lock().expect("no panic").insert(
            name.as_str().to_owned(),
            (kind, unit.expect("a unit"), help.into_owned()),
        );
        assert_eq!(known, None, "described twice");
    }

    fn value(&self, name: &str, labels: &str) -> u64 {
        let values = self.values.lock().expect("no panic");
        let mut found = values
            .iter()
            .filter(|((each, of, _), _)| (each.as_str(), of.as_str()) == (name, labels));
        let (_, value) = found.next().unwrap_or_else(|| panic!("{name}{{{labels}}}"));
        *value as u64
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(name, "counter", unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.describe(name, "gauge", unit, help);
    }

    fn describe_histogram(&self, name: KeyName, _unit: Option<Unit>, _help: SharedString) {
        panic!("{name:?} is a histogram");
    }

    fn register_counter(&self, series: &Series, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.handle(series, "counter"))
    }

    fn register_gauge(&self, series: &Series, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle(series, "gauge"))
    }

    fn register_histogram(&self, series: &Series, _metadata: &Metadata<'_>) -> Histogram {
        panic!("{series} is a histogram");
    }
}

/// Name, labels and type of every series that the page lists for a store or a layer, `of=name`.
fn documented(of: &str, name: &str) -> BTreeSet<(String, String, &'static str)> {
    let of_all = format!("{of}={name}");
    let page = include_str!("../docs/metrics.md");
    let mut series = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `oncekey_")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let words = |cell: usize| {
            cells[cell]
                .split_whitespace()
                .map(|word| word.trim_matches('`'))
        };
        let name = words(1).next().expect("a name");
        if name.starts_with("oncekey_http_") != (of == "layer") {
            continue;
        }
        let kind = match cells[2] {
            "counter" => "counter",
            "gauge" => "gauge",
            other => panic!("{name} is a {other}"),
        };
        let mut add = |labels: String| series.insert((name.to_owned(), labels, kind));
        match words(3).next() {
            None => assert!(add(of_all.clone())),
            Some(label) => {
                for value in words(4) {
                    assert!(add(format!("{of_all},{label}={value}")), "{row}");
                }
            }
        }
    }
    series
}

#[test]
fn every_documented_series_is_exported_and_no_other() {
    let (_directory, store) = buffered();
    let kept = Kept::default();
    with_local_recorder(&kept, || {
        describe_metrics();
        store.export_metrics("payments");
    });
    check_documented(&kept, documented("store", "payments"));
}

/// The series that were exported are these, each described as its kind and under the conventions.
fn check_documented(kept: &Kept, documented: BTreeSet<(String, String, &'static str)>) {
    let exported: BTreeSet<_> = kept.values.lock().unwrap().keys().cloned().collect();
    assert_eq!(exported, documented);
    let described = kept.described.lock().unwrap();
    let mut names = BTreeSet::new();
    for (name, _, kind) in exported {
        let (described_as, unit, help) = &described[&name];
        assert_eq!(*described_as, kind, "{name}");
        // The conventions: counters say so, and a unit is in the name.
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        assert_eq!(name.ends_with("_bytes"), *unit == Unit::Bytes, "{name}");
        assert!(!help.is_empty(), "{name}");
        names.insert(name);
    }
    assert!(described.keys().eq(&names), "{described:?}");
}

#[test]
fn the_values_are_those_of_the_moment_they_are_exported() {
    let directory = directory();
    let store = small(Durability::Sync)
        .max_keys(4)
        .open(directory.path())
        .expect("a store");
    let store = prepared(store);
    for id in ["1", "2"] {
        finish(&store, &key(id), b"paid");
    }
    completed(store.claim(&key("1"), request()).expect("an answer"));
    mismatch(store.claim(&key("1"), other_request()).expect("an answer"));
    let held = started(store.claim(&key("3"), request()).expect("a claim"));
    drop(started(store.claim(&key("4"), request()).expect("a claim")));
    let refused = store.claim(&key("5"), request());
    assert!(matches!(refused, Err(ClaimError::LimitReached(_))));
    let kept = Kept::default();
    let export = || with_local_recorder(&kept, || store.export_metrics("a"));
    let check = |name: &str, label: &str, expected: u64| {
        let separator = if label.is_empty() { "" } else { "," };
        let labels = format!("store=a{separator}{label}");
        assert_eq!(kept.value(name, &labels), expected, "{name} {label}");
    };
    export();
    for (name, label, expected) in [
        ("oncekey_keys", "state=completed", 2),
        ("oncekey_keys", "state=pending", 1),
        ("oncekey_keys", "state=interrupted", 1),
        ("oncekey_keys", "state=abandoned", 0),
        ("oncekey_claims_total", "outcome=started", 4),
        ("oncekey_claims_total", "outcome=completed", 1),
        ("oncekey_claims_total", "outcome=mismatch", 1),
        ("oncekey_refused_total", "reason=max_keys", 1),
        ("oncekey_refused_total", "reason=max_disk_bytes", 0),
        ("oncekey_operations_ended_total", "end=completed", 2),
        ("oncekey_operations_ended_total", "end=interrupted", 1),
        ("oncekey_segments", "state=prepared", 1),
        ("oncekey_segments", "state=unsynced", 1),
        ("oncekey_segments", "state=durable", 0),
        ("oncekey_segment_bytes", "", 2 * (64 << 10)),
        ("oncekey_unsynced_bytes", "", 0),
        ("oncekey_synced_records_total", "", 6),
        ("oncekey_poisoned", "", 0),
    ] {
        check(name, label, expected);
    }
    held.complete(b"paid").expect("a completion");
    export();
    check("oncekey_keys", "state=completed", 3);
    check("oncekey_keys", "state=pending", 0);
    check("oncekey_synced_records_total", "", 7);
    // Without a recorder nothing happens.
    store.export_metrics("a");
}

#[cfg(feature = "http")]
#[tokio::test]
async fn a_layer_exports_what_it_counts_and_the_page_lists() {
    use http::Request;
    use http_body_util::{BodyExt, Full};
    use oncekey::http::{IdempotencyLayer, OnInterrupted, RequestBody, Scope};
    use tower::{Layer, ServiceExt, service_fn};

    let (_directory, store) = buffered();
    let layer = IdempotencyLayer::new(store)
        .scope(Scope::global())
        .on_interrupted(OnInterrupted::fail())
        .build()
        .expect("all is decided");
    let handler = |_: Request<RequestBody<Full<bytes::Bytes>>>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::from("paid")))
    };
    for body in ["12", "12", "13"] {
        let request = Request::post("/payments")
            .header("Idempotency-Key", "k-1")
            .body(Full::from(body))
            .expect("a request");
        let answer = layer.layer(service_fn(handler)).oneshot(request).await;
        let answer = answer.expect("an answer");
        answer.into_body().collect().await.expect("a body");
    }
    let kept = Kept::default();
    with_local_recorder(&kept, || {
        oncekey::http::describe_metrics();
        layer.export_metrics("payments");
    });
    check_documented(&kept, documented("layer", "payments"));
    for (name, label, expected) in [
        ("oncekey_http_requests_total", ",outcome=started", 1),
        ("oncekey_http_requests_total", ",outcome=replayed", 1),
        ("oncekey_http_requests_total", ",outcome=mismatch", 1),
        ("oncekey_http_requests_total", ",outcome=unprotected", 0),
        ("oncekey_http_answers_total", ",end=stored", 1),
        ("oncekey_http_handlers", "", 0),
    ] {
        let labels = format!("layer=payments{label}");
        assert_eq!(kept.value(name, &labels), expected, "{name} {label}");
    }
}
