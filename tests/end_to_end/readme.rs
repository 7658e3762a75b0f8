//! The README's session with curl, command by command, and the answers that it shows.

use std::process::Command;
use std::time::Duration;

use crate::payments::{Payments, Setup};
use crate::support::needs;

const README: &str = include_str!("../../README.md");
const ADDRESS: &str = "http://127.0.0.1:3000";

/// One command of the session and what the README shows of its answer.
#[derive(Debug)]
struct Step {
    command: String,
    shown: Vec<String>,
}

/// The commands of all console blocks, in order.
fn session() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let blocks = README.split("```console\n").skip(1);
    for block in blocks.filter_map(|rest| rest.split("```").next()) {
        let block = block.replace(" \\\n", " ");
        for line in block.lines() {
            if let Some(comment) = line.strip_prefix("$ # ") {
                let last = steps.last().map(|step| step.command.clone());
                let repeated = match comment.strip_prefix("the same key with ") {
                    Some(amount) => last.map(|last| {
                        assert!(last.contains("\"amount\":1200"));
                        last.replace("\"amount\":1200", amount)
                    }),
                    None if comment.starts_with("the same command again") => last,
                    None => None,
                };
                if let Some(command) = repeated {
                    let shown = Vec::new();
                    steps.push(Step { command, shown });
                }
            } else if let Some(command) = line.strip_prefix("$ ") {
                let command = command.to_owned();
                let shown = Vec::new();
                steps.push(Step { command, shown });
            } else if !line.is_empty() {
                let step = steps.last_mut().expect("a command before its answer");
                step.shown.push(line.to_owned());
            }
        }
    }
    steps
}

fn run(command: &str, address: &str) -> String {
    assert!(command.starts_with("curl -i ") && command.contains(ADDRESS));
    let command = command.replace(ADDRESS, address);
    let command = command.replacen("curl", "curl --silent --show-error --noproxy '*'", 1);
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_gets_what_the_readme_shows() {
    if !needs::is_installed("curl") {
        let needs = "curl (apt-get install curl)";
        return needs::skip("end_to_end: the README's session", needs, "there is none");
    }
    // The session loses an answer of the provider and asks again, so the provider deduplicates.
    let payments = Payments::start(Setup {
        provider_deduplicates: true,
        provider_timeout: Duration::from_secs(2),
        ..Setup::default()
    })
    .await;
    let address = format!("http://{}", payments.address);
    let steps = session();
    assert_eq!(steps.len(), 5, "{steps:#?}");
    for step in steps {
        let (command, address) = (step.command.clone(), address.clone());
        let answer = tokio::task::spawn_blocking(move || run(&command, &address));
        let answer = answer.await.unwrap();
        let lines: Vec<_> = answer.lines().map(str::trim_end).collect();
        assert_eq!(
            lines.first(),
            step.shown.first().map(String::as_str).as_ref(),
            "{answer}"
        );
        for shown in &step.shown {
            // What is cut short in the README ends in an ellipsis.
            let is_there = match shown.split_once('…') {
                Some((begin, _)) => lines.iter().any(|line| line.starts_with(begin.trim_end())),
                None => lines.contains(&shown.as_str()),
            };
            assert!(
                is_there,
                "`{}` does not answer `{shown}` but\n{answer}",
                step.command
            );
        }
        let is_shown = |line: &str| step.shown.iter().any(|shown| shown.starts_with(line));
        let is_replay = lines.contains(&"idempotent-replayed: true");
        assert_eq!(is_replay, is_shown("idempotent-replayed"), "{answer}");
    }
    assert_eq!(payments.books.charged("order-17"), 1);
    assert_eq!(payments.books.charged("order-18"), 1);
}
