//! Reports of shadows, added up.

use std::fs;

use oncekey::shadow::{Shadow, Verdict};

use crate::world::{Place, good, key, run};

#[test]
fn reports_are_added_up_and_differences_are_an_exit_code() {
    let place = Place::new();
    let [first, second] = [Shadow::new(10), Shadow::new(10)];
    let (new, known) = (Verdict::Started, Verdict::Duplicate);
    first.compare(&key("k1"), &new, &new);
    let (one, other) = (place.path("one"), place.path("other"));
    // A service writes one line from time to time: the last one counts.
    let early = first.report().to_json();
    first.compare(&key("k1"), &known, &known);
    let agreed = format!("{early}\n{}\n", first.report().to_json());
    fs::write(&one, agreed).expect("written");
    let text = good(&["shadow", &place.text("one")]).text();
    assert!(
        text.starts_with("both_started                   1\nboth_duplicate                 1\n"),
        "{text}"
    );

    for number in 0..5 {
        second.compare(&key(format!("o{number}")), &new, &known);
    }
    second.compare(&key("t"), &known, &new);
    fs::write(&other, second.report().to_json()).expect("written");
    let both = [place.text("one"), place.text("other")];
    let found = run(&["--json", "shadow", &both[0], &both[1], "--limit", "3"]);
    found.fails(1, "6 verdicts differ");
    let report = &found.json()[0];
    for (kind, expected) in [
        ("both_started", 1),
        ("only_ours", 5),
        ("only_theirs", 1),
        ("different_response", 0),
        ("differing", 6),
    ] {
        assert_eq!(report[kind], expected, "{kind}");
    }
    assert_eq!(report["differences"].as_array().expect("a list").len(), 3);
    let found = run(&["shadow", &both[1]]);
    found.fails(1, "6 verdicts differ");
    assert_eq!(found.text().lines().count(), 11);
}

#[test]
fn what_is_no_report_is_told() {
    let place = Place::new();
    let file = place.text("file");
    run(&["shadow", &file]).fails(1, "file");
    for (bytes, says) in [
        ("", "empty"),
        ("nonsense", "no report"),
        ("{}", "both_started"),
    ] {
        fs::write(&file, bytes).expect("written");
        run(&["shadow", &file]).fails(1, says);
    }
    assert_eq!(run(&["shadow"]).code, Some(2));
}
