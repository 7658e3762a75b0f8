//! Runs consumers against the broker, kills them, and audits what the provider was really told.
//!
//! 1. Everything is delivered, several times and out of order, until each message is acknowledged or
//!    put away. Meanwhile the consumers' process is killed, and one of the events kills it too.
//! 2. What was put away because its outcome is unknown is reconciled: the provider is asked, and the
//!    messages are put back into the queue. Again, until nothing is left but what can't be handled.
//! 3. The audit: each event took effect once; what makes no sense did not.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use oncekey::reconcile::{Interrupted, Verdict};
use tempfile::TempDir;

use crate::broker::{Broker, Random, State};
use crate::provider::Provider;
use crate::worker::{self, CHARGER, MAILER};

const CONSUMERS: [&str; 2] = [CHARGER, MAILER];
/// More than any phase takes.
const PHASE_MAX: Duration = Duration::from_secs(120);
/// How often what is unknown is reconciled: each round ends with fewer.
const ROUNDS_MAX: u32 = 30;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub events: usize,
    pub kills: usize,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Outcome {
    seed: u64,
    events: usize,
    deliveries: u64,
    calls: u64,
    kills: usize,
    deaths: usize,
    unknown: u64,
    completed: u64,
    released: u64,
    pub faults: Vec<String>,
}

impl Outcome {
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    fn expect(&mut self, is_so: bool, fault: impl FnOnce() -> String) {
        if !is_so {
            self.faults.push(fault());
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed                   {}", self.seed)?;
        writeln!(f, "events, each consumer  {}", self.events)?;
        writeln!(f, "deliveries             {}", self.deliveries)?;
        writeln!(f, "calls that were made   {}", self.calls)?;
        writeln!(f, "kills                  {}", self.kills)?;
        writeln!(f, "deaths by an event     {}", self.deaths)?;
        writeln!(f, "outcomes told unknown  {}", self.unknown)?;
        writeln!(f, "  had been carried out {}", self.completed)?;
        writeln!(f, "  had not              {}", self.released)?;
        for fault in &self.faults {
            writeln!(f, "FAULT: {fault}")?;
        }
        match self.faults.len() {
            0 => writeln!(f, "PASSED: every event took effect once"),
            faults => writeln!(f, "FAILED: {faults} faults"),
        }
    }
}

pub fn seed_from_clock() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64 % 1_000_000)
}

/// The consumers' process, started again whenever it dies.
struct Workers<'a> {
    start: &'a dyn Fn(&Path, SocketAddr, SocketAddr) -> Command,
    data: &'a Path,
    broker: SocketAddr,
    provider: SocketAddr,
    child: Child,
    deaths: usize,
}

impl Workers<'_> {
    fn spawn(&mut self) -> Result<(), Box<dyn Error>> {
        self.child = (self.start)(self.data, self.broker, self.provider).spawn()?;
        Ok(())
    }

    /// Starts it again where it has died by itself.
    fn revive(&mut self) -> Result<(), Box<dyn Error>> {
        if self.child.try_wait()?.is_some() {
            self.deaths += 1;
            self.spawn()?;
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Box<dyn Error>> {
        self.child.kill()?;
        self.child.wait()?;
        self.spawn()
    }
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn messages(events: usize) -> Vec<(String, String)> {
    let payload = |number| match number % 40 {
        7 => "nonsense",
        _ if number == events / 2 => "lethal",
        _ => "order",
    };
    (0..events)
        .map(|number| (format!("evt_{number}"), payload(number).to_owned()))
        .collect()
}

/// Runs the plan with consumers that `start` makes: on a directory, for a broker and a provider.
pub fn run(
    plan: Plan,
    start: &dyn Fn(&Path, SocketAddr, SocketAddr) -> Command,
) -> Result<Outcome, Box<dyn Error>> {
    let directory = TempDir::with_prefix("oncekey-consumer-")?;
    let messages = messages(plan.events);
    let mut random = Random::new(plan.seed);
    let (broker, broker_address) = Broker::start(&CONSUMERS, &messages, plan.seed)?;
    let (provider, provider_address) = Provider::start(plan.seed)?;
    let mut outcome = Outcome {
        seed: plan.seed,
        events: plan.events,
        ..Outcome::default()
    };
    let mut workers = Workers {
        start,
        data: directory.path(),
        broker: broker_address,
        provider: provider_address,
        child: start(directory.path(), broker_address, provider_address).spawn()?,
        deaths: 0,
    };

    let all = broker.left();
    for kill in 1..=plan.kills {
        let due = all - all * kill / (plan.kills + 1);
        wait(&mut workers, || broker.left() <= due)?;
        thread::sleep(Duration::from_micros(random.below(4_000) as u64));
        workers.kill()?;
        outcome.kills += 1;
    }
    for _ in 0..ROUNDS_MAX {
        wait(&mut workers, || broker.left() == 0)?;
        finish(&mut workers, &broker)?;
        provider.settle(provider_address)?;
        // Nothing runs, and nothing is on its way: the provider's "no" is one.
        let settled = reconcile(directory.path(), &messages, &provider, &mut outcome)?;
        if settled.is_empty() {
            break;
        }
        for (consumer, id) in settled {
            broker.put_back(&consumer, &id);
        }
        broker.set_over(false);
        workers.spawn()?;
    }
    outcome.deaths = workers.deaths;
    outcome.deliveries = broker.deliveries();
    outcome.calls = provider.calls();
    audit(&mut outcome, &messages, &broker, &provider);
    Ok(outcome)
}

fn wait(workers: &mut Workers<'_>, is_so: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    while !is_so() {
        workers.revive()?;
        if begun.elapsed() > PHASE_MAX {
            return Err("the consumers stand still".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Lets the consumers end by themselves. A late duplicate may still kill them; that is an end too.
fn finish(workers: &mut Workers<'_>, broker: &Broker) -> Result<(), Box<dyn Error>> {
    broker.set_over(true);
    let begun = Instant::now();
    while workers.child.try_wait()?.is_none() {
        if begun.elapsed() > PHASE_MAX {
            return Err("the consumers do not end".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Asks the provider about everything that is unknown. What can be delivered again now.
fn reconcile(
    data: &Path,
    messages: &[(String, String)],
    provider: &Provider,
    outcome: &mut Outcome,
) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let store = worker::open(data)?;
    let mut settled = Vec::new();
    let report = store.reconcile(|interrupted: &Interrupted| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let key = interrupted.key();
        let (consumer, id) = (text(key.operation()), text(key.id()));
        let is_order = |message: &&(String, String)| message.0 == id && message.1 == "order";
        if messages.iter().find(is_order).is_none() {
            return Verdict::Keep;
        }
        let effects = provider.effects(&consumer, &id);
        settled.push((consumer, id));
        match effects {
            0 => Verdict::Release,
            _ => Verdict::Done,
        }
    })?;
    outcome.unknown += report.completed + report.released;
    outcome.completed += report.completed;
    outcome.released += report.released;
    outcome.expect(report.failed == 0 && report.overtaken == 0, || {
        format!("a reconciliation that nobody disturbed: {report:?}")
    });
    store.close()?;
    Ok(settled)
}

fn audit(
    outcome: &mut Outcome,
    messages: &[(String, String)],
    broker: &Broker,
    provider: &Provider,
) {
    outcome.faults.extend(broker.faults());
    outcome.faults.extend(provider.faults());
    for consumer in CONSUMERS {
        for (id, payload) in messages {
            let effects = provider.effects(consumer, id);
            let state = broker.state(consumer, id);
            let is_as_it_must_be = match payload.as_str() {
                "order" => effects == 1 && state == Some(State::Acknowledged),
                "lethal" => {
                    let is_outcome_unknown = true;
                    effects == 0 && state == Some(State::Dead { is_outcome_unknown })
                }
                // Where a kill interrupted it before it was read, it may have been anything.
                _ => effects == 0 && matches!(state, Some(State::Dead { .. })),
            };
            outcome.expect(is_as_it_must_be, || {
                format!("{payload} {id} of {consumer}: {effects} effects, {state:?}")
            });
        }
    }
    let lethal = outcome.deaths;
    outcome.expect(lethal > 0, || "the lethal event killed nobody".to_owned());
    let most = worker::ATTEMPTS as usize + 1;
    outcome.expect(lethal <= most, || {
        format!("consumers died by themselves {lethal} times, and not {most} at most")
    });
}
