//! `oncekey shadow`: what services found while they compared two tables, added up.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use crate::output::{Exit, Failure, Output};

/// Kinds of pairs of verdicts; the first two agree.
const KINDS: [&str; 5] = [
    "both_started",
    "both_duplicate",
    "only_theirs",
    "only_ours",
    "different_response",
];

#[derive(Args, Debug)]
pub(crate) struct Shadow {
    /// Files of reports (`ShadowReport::to_json`), one of each service; of each the last line counts.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Differences that are listed at most.
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

pub(crate) fn shadow(arguments: &Shadow, output: &mut Output) -> Result<(), Failure> {
    let (mut counts, mut differences) = ([0_u64; KINDS.len()], Vec::new());
    for file in &arguments.files {
        let report = last_report(file)?;
        for (count, kind) in counts.iter_mut().zip(KINDS) {
            let found = report.get(kind).and_then(Value::as_u64);
            let found = found.ok_or_else(|| no_report(file, &format!("it has no {kind}")))?;
            *count = count.saturating_add(found);
        }
        let listed = report.get("differences").and_then(Value::as_array);
        differences.extend(listed.into_iter().flatten().cloned());
    }
    let differing: u64 = counts.iter().skip(2).sum();
    let is_cut = differences.len() > arguments.limit;
    differences.truncate(arguments.limit);
    if output.is_json() {
        let counted = KINDS.iter().zip(counts);
        let mut object: Map<String, Value> = counted
            .map(|(kind, count)| ((*kind).to_owned(), count.into()))
            .collect();
        object.insert("differing".to_owned(), differing.into());
        object.insert("differences".to_owned(), json!(differences));
        output.line(Value::Object(object))?;
    } else {
        for (kind, count) in KINDS.iter().zip(counts) {
            output.line(format_args!("{kind:<20}{count:>12}"))?;
        }
        for difference in &differences {
            let text = |field: &str| difference.get(field).and_then(Value::as_str);
            let (kind, key) = (text("kind").unwrap_or("?"), text("key").unwrap_or("?"));
            output.line(format_args!("{kind:<20}{key}"))?;
        }
        if is_cut {
            output.line("... more with --limit")?;
        }
    }
    output.flush()?;
    match differing {
        0 => Ok(()),
        _ => Err(Failure::new(
            Exit::Failed,
            format!("{differing} verdicts differ"),
        )),
    }
}

fn last_report(file: &Path) -> Result<Value, Failure> {
    let text = fs::read_to_string(file).map_err(|error| Failure::io(file.display(), &error))?;
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    let line = line.ok_or_else(|| no_report(file, "it is empty"))?;
    serde_json::from_str(line).map_err(|error| no_report(file, &error.to_string()))
}

fn no_report(file: &Path, why: &str) -> Failure {
    let message = format!("{}: no report of a shadow: {why}", file.display());
    Failure::new(Exit::Failed, message)
}
