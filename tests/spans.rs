//! What an open tells those who trace.

mod support;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use oncekey::Durability;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use support::*;

/// A span that was opened: its name, the one it is in, and its fields.
#[derive(Clone, Debug, Default)]
struct Span {
    name: &'static str,
    within: Option<&'static str>,
    fields: BTreeMap<&'static str, String>,
}

/// Keeps the spans of this thread.
#[derive(Clone, Default)]
struct Kept {
    next: Arc<AtomicU64>,
    spans: Arc<Mutex<BTreeMap<u64, Span>>>,
    entered: Arc<Mutex<Vec<u64>>>,
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("oncekey")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        assert_eq!(*attributes.metadata().level(), Level::INFO);
        let mut spans = self.spans.lock().unwrap();
        let within = self.entered.lock().unwrap().last().copied();
        let mut span = Span {
            name: attributes.metadata().name(),
            within: within.map(|outer| spans[&outer].name),
            ..Span::default()
        };
        attributes.record(&mut Fields(&mut span.fields));
        spans.insert(id, span);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut spans = self.spans.lock().unwrap();
        let span = spans.get_mut(&id.into_u64()).expect("a known span");
        values.record(&mut Fields(&mut span.fields));
    }

    fn record_follows_from(&self, _id: &Id, _follows: &Id) {}

    fn event(&self, _event: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.entered.lock().unwrap().push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.entered.lock().unwrap().pop(), Some(id.into_u64()));
    }
}

#[test]
fn an_open_and_its_recovery_are_spans_with_what_was_found() {
    let (directory, store) = buffered();
    finish(&store, &key("1"), b"paid");
    finish(&store, &key("2"), b"paid");
    drop(started(store.claim(&key("3"), request()).expect("a claim")));
    let copy = killed(&store);
    drop((store, directory));
    let kept = Kept::default();
    let store =
        tracing::subscriber::with_default(kept.clone(), || reopen(&copy, Durability::Buffered));
    let report = store.recovery_report().clone();
    let spans: Vec<_> = kept.spans.lock().unwrap().values().cloned().collect();
    let [open, recover] = &spans[..] else {
        panic!("{spans:?}");
    };
    assert_eq!((open.name, open.within), ("open", None));
    assert_eq!((recover.name, recover.within), ("recover", Some("open")));
    let check = |span: &Span, expected: &[(&str, String)]| {
        let found: Vec<_> = span.fields.iter().collect();
        assert_eq!(found.len(), expected.len(), "{span:?}");
        for (name, value) in expected {
            assert_eq!(span.fields.get(name), Some(value), "{name}");
        }
    };
    let epoch = open.fields["epoch"].clone();
    check(
        open,
        &[
            ("path", copy.path().display().to_string()),
            ("created", String::from("false")),
            ("clean", String::from("false")),
            ("epoch", epoch),
            ("completed", String::from("2")),
            ("interrupted", String::from("1")),
        ],
    );
    check(
        recover,
        &[
            ("salvage", String::from("false")),
            ("clean", String::from("false")),
            ("segments", report.segments.to_string()),
            ("records", String::from("5")),
            ("bytes_scanned", report.bytes_scanned.to_string()),
            ("holes", String::from("0")),
            ("torn_bytes", String::from("0")),
            ("losses", String::from("0")),
        ],
    );
}
