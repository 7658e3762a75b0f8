//! Crash images of a moment: which parts of what was not synced survive, and what the next open, the
//! one after a second crash, and further work make of it.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use oncekey::testing::{Difference, SimulatedDisk};
use oncekey::{Claim, Durability, MaintenanceReport, ManualClock, Recovery, Store};

use crate::calls;
use crate::model::{Body, Crash, Model, State, name};
use crate::script::{Script, Step};
use crate::support::Random;
use crate::world::{World, options};

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// With so many differences or fewer, every subset of them survives once.
    pub all_up_to: usize,
    /// Random subsets where there are more.
    pub randoms: usize,
    /// Every so many images the power goes again, at each operation of the recovery.
    pub again_every: u64,
    /// Every so many images the store goes on working, and crashes once more.
    pub work_every: u64,
    /// Whether to open with [`Recovery::Salvage`], which must change nothing where nothing is lost.
    pub salvage: bool,
    /// Whether pages are written back at any time, as this seed decides.
    pub restless: Option<u64>,
    /// Whether maintenance runs on each image, too, and the answers stay the same by it.
    pub maintain: bool,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub moments: u64,
    pub images: u64,
    pub during_recovery: u64,
    pub after_more_work: u64,
    pub segments_given_up: u64,
    pub records_copied: u64,
    pub keys_refreshed: u64,
}

impl Counts {
    fn maintained(&mut self, done: &MaintenanceReport) {
        self.segments_given_up += done.segments_removed;
        self.records_copied += done.records_copied;
        self.keys_refreshed += done.keys_refreshed;
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.moments += other.moments;
        self.images += other.images;
        self.during_recovery += other.during_recovery;
        self.after_more_work += other.after_more_work;
        self.segments_given_up += other.segments_given_up;
        self.records_copied += other.records_copied;
        self.keys_refreshed += other.keys_refreshed;
    }
}

/// One moment of a workload.
pub struct Moment<'a> {
    pub disk: &'a SimulatedDisk,
    pub model: &'a Model,
    pub now_ms: u64,
    pub level: Durability,
    pub context: &'a str,
}

pub struct Explorer {
    effort: Effort,
    random: Random,
    /// Images that were opened, with what was known of them.
    seen: HashSet<u64>,
    pub counts: Counts,
}

impl Explorer {
    pub fn new(effort: Effort, seed: u64) -> Self {
        Self {
            effort,
            random: Random::new(seed),
            seen: HashSet::new(),
            counts: Counts::default(),
        }
    }

    /// Runs a script once and crashes at every operation of it and after every step.
    pub fn run(&mut self, script: &Script, disk: SimulatedDisk) {
        self.run_and_crash_in(script, disk, |_| true);
    }

    /// The same, but crashes only in the steps that are chosen, and in the last close.
    pub fn run_and_crash_in(
        &mut self,
        script: &Script,
        disk: SimulatedDisk,
        is_chosen: impl Fn(&Step) -> bool,
    ) {
        let mut world = World::new(script, disk);
        world.watch();
        if let Some(seed) = self.effort.restless {
            world.restless(seed);
        }
        world.open(Crash::Kill);
        self.step_done(&world, script, "the first open");
        for (number, step) in script.steps.iter().enumerate() {
            world.step(step);
            if is_chosen(step) {
                self.step_done(&world, script, &format!("step {number}, {step:?}"));
            } else {
                drop(world.disk.take_states());
            }
        }
        world
            .maintained
            .iter()
            .for_each(|done| self.counts.maintained(done));
        world.close();
        self.step_done(&world, script, "the close");
    }

    /// Crashes at each operation since the last call, and now.
    fn step_done(&mut self, world: &World, script: &Script, what: &str) {
        let mut moments = Vec::new();
        for (number, state) in world.disk.take_states() {
            moments.push((
                state,
                &world.in_flight,
                format!("before operation {number}"),
            ));
        }
        let now = (
            world.disk.crash_none_lost(),
            &world.model,
            "at its end".to_owned(),
        );
        moments.push(now);
        for (disk, model, when) in moments {
            let context = format!("{}: {what}, {when}", script.name);
            self.moment(&Moment {
                disk: &disk,
                model,
                now_ms: world.now_ms(),
                level: script.level,
                context: &context,
            });
        }
    }

    /// Tries the images of one moment.
    pub fn moment(&mut self, moment: &Moment<'_>) {
        self.counts.moments += 1;
        self.image(moment, Crash::Kill, moment.disk.crash_none_lost(), "killed");
        for answers in self.subsets(moment.disk.differences().len()) {
            let mut question = 0;
            let image = moment.disk.crash(&mut |_| {
                question += 1;
                answers.get(question - 1).copied().unwrap_or(false)
            });
            let kept: String = answers
                .iter()
                .map(|kept| if *kept { '1' } else { '0' })
                .collect();
            self.image(moment, Crash::Power, image, &kept);
        }
    }

    /// Which of `count` differences survive: all subsets if there are few; else none, all, each one
    /// alone lost or kept, and random ones.
    fn subsets(&mut self, count: usize) -> Vec<Vec<bool>> {
        if count <= self.effort.all_up_to {
            let bits = |subset: u32| (0..count).map(|bit| subset >> bit & 1 == 1).collect();
            return (0..1_u32 << count).map(bits).collect();
        }
        let mut subsets = vec![vec![false; count], vec![true; count]];
        // Of very many a few: a file of zeros that is being made differs in every page.
        let stride = count.div_ceil(12);
        for one in (self.random.below(stride)..count).step_by(stride) {
            for alone in [false, true] {
                subsets.push((0..count).map(|at| (at == one) == alone).collect());
            }
        }
        for _ in 0..self.effort.randoms {
            let eighths = [1, 4, 7][self.random.below(3)];
            subsets.push((0..count).map(|_| self.random.below(8) < eighths).collect());
        }
        subsets
    }

    /// Opens one image and asks the oracle.
    fn image(&mut self, moment: &Moment<'_>, crash: Crash, image: SimulatedDisk, kept: &str) {
        if !self.seen.insert(fingerprint(&image, moment.model, crash)) {
            return;
        }
        self.counts.images += 1;
        let context = format!("{}, kept {kept}", moment.context);
        let before = image.crash_none_lost();
        let seen = self.open(moment, &image, crash, &context);
        if self.effort.maintain {
            self.maintain(moment, &before.crash_none_lost(), &seen, &context);
        }
        if self.counts.images.is_multiple_of(self.effort.again_every) {
            self.crash_again(moment, crash, &before, &seen, &context);
        }
        if self.counts.images.is_multiple_of(self.effort.work_every) {
            self.work_on(moment, crash, &before, &context);
        }
    }

    /// Opens it, and gives what it says.
    fn open(
        &self,
        moment: &Moment<'_>,
        image: &SimulatedDisk,
        crash: Crash,
        context: &str,
    ) -> BTreeMap<u8, State> {
        let store = self.store(moment, image, context);
        let report = store.recovery_report();
        assert!(report.losses.is_empty(), "{context}: {report}");
        let seen = moment.model.look(&store);
        let seen = seen.unwrap_or_else(|error| panic!("{context}: {error}"));
        if let Err(complaint) = moment.model.check(&seen, crash, moment.now_ms) {
            panic!("{context}: {complaint}\n{report}");
        }
        // Only a claim shows a checkpoint, and the image is not needed any more.
        for (key, state) in &seen {
            if !matches!(state, State::Pending { .. }) {
                continue;
            }
            let note = interrupted_note(&store, *key)
                .unwrap_or_else(|found| panic!("{context}: key {key}: {found}"));
            let (model, now_ms) = (moment.model, moment.now_ms);
            if let Err(complaint) = model.check_note(*key, state, crash, now_ms, &note) {
                panic!("{context}: {complaint}\n{report}");
            }
        }
        seen
    }

    /// Maintenance of what a crash left changes no answer, and neither does another open.
    fn maintain(
        &mut self,
        moment: &Moment<'_>,
        image: &SimulatedDisk,
        seen: &BTreeMap<u8, State>,
        context: &str,
    ) {
        for when in ["maintained", "maintained and opened again"] {
            let store = self.store(moment, image, context);
            let done = store.maintain();
            let done = done.unwrap_or_else(|error| panic!("{context}: {error}"));
            self.counts.maintained(&done);
            let found = moment.model.look(&store);
            assert_eq!(found.as_ref(), Ok(seen), "{context}, {when}");
        }
    }

    fn store(&self, moment: &Moment<'_>, image: &SimulatedDisk, context: &str) -> Store {
        let recovery = if self.effort.salvage {
            Recovery::Salvage
        } else {
            Recovery::Refuse
        };
        options(moment.level, 1, &ManualClock::new(moment.now_ms))
            .recovery(recovery)
            .open_simulated(image)
            .unwrap_or_else(|error| panic!("{context}: {error}"))
    }

    /// The power goes again at each operation of the recovery, and of the close after it.
    fn crash_again(
        &mut self,
        moment: &Moment<'_>,
        crash: Crash,
        image: &SimulatedDisk,
        seen: &BTreeMap<u8, State>,
        context: &str,
    ) {
        image.keep_states();
        let store = self.store(moment, image, context);
        if self.effort.maintain {
            store
                .maintain()
                .unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        drop(store);
        let mut states = image.take_states();
        states.push((image.operations(), image.crash_none_lost()));
        for (number, state) in states {
            let seed = self.random.below(1 << 30) as u64;
            let mut images = vec![
                (Crash::Power, state.crash_all_lost(), "all lost"),
                (crash, state.crash_none_lost(), "none lost"),
                (Crash::Power, state.crash_random(seed), "some lost"),
            ];
            // The names in doubt are few, and one may depend on the other.
            for alone in names_alone(&state.differences()) {
                let image = state.crash(&mut |difference| difference == &alone);
                images.push((Crash::Power, image, "one name kept"));
                let image = state.crash(&mut |difference| difference != &alone);
                images.push((Crash::Power, image, "one name lost"));
            }
            for (crash_now, image, kept) in images {
                let context = format!("{context}, again before {number}, {kept}");
                // What a kill left was not synced, so that the second crash may still take it.
                let settled = crash == Crash::Power;
                let found = self.open(moment, &image, crash_now, &context);
                assert!(
                    !settled || found == *seen,
                    "{context}: {found:?}, was {seen:?}"
                );
                self.counts.during_recovery += 1;
            }
        }
    }

    /// The store goes on after the crash; then the power goes once more.
    fn work_on(&mut self, moment: &Moment<'_>, crash: Crash, image: &SimulatedDisk, context: &str) {
        let script = Script {
            name: "after a crash",
            level: moment.level,
            prepared: 1,
            steps: more_work(moment.model),
        };
        let disk = image.crash_none_lost();
        let model = moment.model.clone();
        let mut world = World::later(&script, disk, model, moment.now_ms);
        world.open(crash);
        for step in &script.steps {
            world.step(step);
        }
        let seed = self.random.below(1 << 30) as u64;
        for (crash, image) in [
            (Crash::Power, world.disk.crash_all_lost()),
            (Crash::Power, world.disk.crash_random(seed)),
            (Crash::Kill, world.disk.crash_none_lost()),
        ] {
            let moment = Moment {
                disk: &image,
                model: &world.model,
                now_ms: world.now_ms(),
                ..*moment
            };
            self.open(&moment, &image, crash, &format!("{context}, more work"));
            self.counts.after_more_work += 1;
        }
    }
}

/// The checkpoint that the next owner of an interrupted key is shown.
fn interrupted_note(store: &Store, key: u8) -> Result<Option<Body>, String> {
    match store.claim(&name(key), calls::fingerprint(key)) {
        Ok(Claim::Interrupted(operation)) => {
            let previous = operation.previous().ok_or("no attempt before")?;
            Ok(previous.checkpoint.as_deref().map(Body::from))
        }
        other => Err(format!("{other:?} for an interrupted key")),
    }
}

/// Claims every key, as its callers would, and ends it in one way or the other.
fn more_work(model: &Model) -> Vec<Step> {
    let mut steps = Vec::new();
    for key in model.keys().chain([200]) {
        steps.push(Step::Claim {
            key,
            level: Durability::Sync,
            lease_ms: None,
            retention_s: 1_000,
        });
        steps.push(match key % 4 {
            0 => Step::Complete {
                key,
                len: 600,
                level: None,
                principal: false,
            },
            1 => Step::Release { key },
            2 => Step::Checkpoint { key, len: 20 },
            _ => Step::Drop { key },
        });
    }
    steps
}

/// The steps of the directory among the differences, where there is more than one.
fn names_alone(differences: &[Difference]) -> Vec<Difference> {
    let is_step =
        |each: &&Difference| !matches!(each, Difference::Page { .. } | Difference::Length { .. });
    let steps: Vec<_> = differences.iter().filter(is_step).cloned().collect();
    if steps.len() > 1 { steps } else { Vec::new() }
}

/// Tells images apart, and what is known of them.
fn fingerprint(image: &SimulatedDisk, model: &Model, crash: Crash) -> u64 {
    let mut hasher = DefaultHasher::new();
    for name in image.names() {
        crc32fast::hash(&image.contents(&name).unwrap_or_default()).hash(&mut hasher);
        name.hash(&mut hasher);
    }
    image.differences().len().hash(&mut hasher);
    model.hash(&mut hasher);
    crash.hash(&mut hasher);
    hasher.finish()
}
