//! Measuring, in miniature.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::world::{Place, Run, good, interrupt, run, tiny_bench, tool};

fn is_empty(place: &Place) -> bool {
    let mut entries = fs::read_dir(place.path("")).expect("a list");
    entries.next().is_none()
}

#[test]
fn all_works_are_measured_and_nothing_is_left() {
    let place = Place::new();
    let here = place.text("");
    let report = good(&[&tiny_bench("1")[..], &[&here, "--keys", "500"]].concat());
    let report = &report.json()[0];
    let rates = report["rates"].as_array().expect("a list");
    // Three works, two levels, two numbers of threads.
    assert_eq!(rates.len(), 12);
    assert!(
        rates
            .iter()
            .all(|one| one["per_second"].as_f64() > Some(0.0))
    );
    let growth = &report["growth"][0];
    assert_eq!(growth["keys"], 500);
    assert!(growth["disk_bytes"].as_u64() > Some(500 * 512));
    assert!(growth["cold_open_ms"].as_f64() > Some(0.0));
    assert!(is_empty(&place));
}

#[test]
fn what_cannot_be_is_told_in_one_line() {
    let place = Place::new();
    let missing = place.text("missing");
    run(&[&tiny_bench("1")[..], &[&missing]].concat()).fails(1, "missing");
    let here = place.text("");
    for wrong in [
        ["--duplicates", "1"],
        ["--threads", "0"],
        ["--key-bytes", "3"],
    ] {
        assert_eq!(
            run(&["bench", "--dir", &here, wrong[0], wrong[1]]).code,
            Some(2)
        );
    }
    assert!(is_empty(&place));
}

#[test]
fn a_signal_in_the_middle_leaves_nothing() {
    let place = Place::new();
    let child = tool()
        .args(["bench", "--dir", &place.text(""), "--lap-ms", "60000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    while is_empty(&place) {
        thread::sleep(Duration::from_millis(5));
    }
    interrupt(&child);
    let ended = Run::from(child.wait_with_output().expect("it ends"));
    ended.fails(130, "nothing is left behind");
    assert!(is_empty(&place));
}
