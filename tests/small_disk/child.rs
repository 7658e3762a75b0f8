//! What happens on a small disk, in a process of its own.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use oncekey::{
    ClaimError, ClaimOptions, Durability, ManualClock, OpenError, Operation, Options, Store,
    WriteError,
};

use crate::book::{Book, Filler, Known, RESERVED, numbered, response};
use crate::support::{Mode, START_MS, Style, lease, request, started};

const SEGMENT_BYTES: u64 = 1 << 20;
/// More than what is set aside for a response.
const LARGE: usize = 60_000;

/// Which of the scenarios, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    pub scenario: String,
    /// The root of the file system.
    pub root: PathBuf,
    /// The store's directory.
    pub directory: PathBuf,
    pub durability: Durability,
}

fn tell(what: &str) {
    println!("@{what}");
}

impl Plan {
    pub fn encode(&self) -> String {
        let parts = [
            self.scenario.clone(),
            self.root.display().to_string(),
            self.directory.display().to_string(),
            format!("{:?}", self.durability),
        ];
        parts.join("\n")
    }

    pub fn decode(text: &str) -> Self {
        let parts: Vec<_> = text.split('\n').collect();
        let [scenario, root, directory, durability] = parts[..] else {
            panic!("not a plan: {text:?}");
        };
        Self {
            scenario: scenario.to_owned(),
            root: root.into(),
            directory: directory.into(),
            durability: match durability {
                "Sync" => Durability::Sync,
                _ => Durability::Buffered,
            },
        }
    }

    pub fn run(&self) {
        match &self.scenario[..] {
            "fill" => self.fill(&Filler::new(&self.root)),
            // Nothing but the store's own may lie beside it.
            "root" => self.fill(&Filler::new(&self.root.join("lost+found"))),
            "tight" => self.tight(),
            "killed-full" => self.until_killed(false),
            "killed-after-completions" => self.until_killed(true),
            "recover" => self.recover(),
            "inodes" => self.inodes(),
            "several" => self.several(),
            "dead" => self.dead(&Filler::new(&self.root)),
            other => panic!("no scenario {other}"),
        }
    }

    fn mode(&self) -> Mode {
        Mode {
            durability: self.durability,
            style: Style::Blocking,
        }
    }

    fn options(&self) -> Options {
        Options::new()
            .durability(self.durability)
            .segment_size(SEGMENT_BYTES)
            .reserved_response(RESERVED)
            .stripes(64)
    }

    #[track_caller]
    fn open(&self) -> Store {
        let opened = self.options().open(&self.directory);
        opened.unwrap_or_else(|error| panic!("{}: {error}", self.directory.display()))
    }

    /// Everything that a full disk promises.
    fn fill(&self, filler: &Filler) {
        let mut book = Book::default();
        let store = self.open();
        let guards = claim_all(&store, &mut book, 0);
        let (claims, held) = (book.0.len(), guards.len());
        let eaten_kib = filler.eat();
        book.check(&store);
        book.check_full(&store, self.mode());
        let mut kept = end_all(guards, &mut book);
        book.check(&store);
        // Room was given back; it is used to the last word, too.
        let again = claim_all(&store, &mut book, claims);
        filler.eat();
        book.check_full(&store, self.mode());
        kept.extend(end_all(again, &mut book));
        book.check(&store);
        // Closing gives room back, which is eaten up before the next open.
        let mut store = store;
        for _ in 0..3 {
            store_is_fine(&store);
            store.close().expect("closes on a full disk");
            // The last handle holds the maps of segments that were removed.
            kept.clear();
            drop(store);
            book.orphan();
            filler.eat();
            store = self.open();
            assert!(store.recovery_report().clean);
            book.check(&store);
            book.check_full(&store, self.mode());
            filler.eat();
        }
        filler.remove();
        // The same store goes on as soon as there is room.
        let operation = started(store.claim(&numbered(1 << 30), request()).expect("room"));
        book.complete(operation, 1 << 30, 11_000);
        book.resolve(&store);
        book.check(&store);
        store.close().expect("closes");
        let store = self.open();
        book.check(&store);
        tell(&format!(
            "{claims} claims until full, {held} of them held, then {} KiB eaten, {} keys in the end",
            eaten_kib,
            book.0.len()
        ));
    }

    /// Most of what fills the disk expires; nobody removes anything.
    fn dead(&self, filler: &Filler) {
        let clock = ManualClock::new(START_MS);
        let options = self
            .options()
            .max_clock_jump(Duration::from_secs(86_400 * 365))
            .clock(Arc::new(clock.clone()))
            .maintenance(false);
        let open = || options.open(&self.directory).expect("opens");
        let (mut store, mut book) = (open(), Book::default());
        let (mut number, mut held, mut copied) = (0, Vec::new(), 0);
        for round in 0..4 {
            loop {
                let is_held = number % 300 == 7;
                let lives = is_held || number % 5 == 0;
                let retention = Duration::from_secs(if lives { 86_400 * 300 } else { 60 });
                let claim_options = ClaimOptions::new().retention(retention);
                let claim = store.claim_with(&numbered(number), request(), claim_options);
                let operation = match claim {
                    Ok(claim) => started(claim),
                    Err(ClaimError::OutOfSpace(_)) => break,
                    other => panic!("{other:?}"),
                };
                if is_held {
                    book.note(number, Known::Held);
                    held.push((number, operation));
                } else if lives {
                    book.complete(operation, number, RESERVED);
                } else {
                    operation
                        .complete(response(number, RESERVED))
                        .expect("room");
                }
                number += 1;
                // The thread does that by itself.
                if number == 1_000 {
                    store.maintain().expect("a pass");
                }
            }
            filler.eat();
            clock.advance(Duration::from_secs(120));
            book.check(&store);
            // Every other time by the next process.
            if round % 2 == 1 {
                for (number, operation) in held.drain(..) {
                    book.complete(operation, number, RESERVED);
                }
                store.close().expect("closes on a full disk");
                drop(store);
                filler.eat();
                store = open();
            }
            store.flush().expect("what is durable may be given up");
            let report = store.maintain().expect("a pass on a full disk");
            assert!(report.segments_removed > 0, "{report:?}");
            copied += report.records_copied;
            book.check(&store);
            for _ in 0..100 {
                let claim = store.claim(&numbered(number), request());
                book.complete(started(claim.expect("there is room")), number, 100);
                number += 1;
            }
            filler.remove();
        }
        assert!(copied > 0, "there was nothing to copy");
        book.check(&store);
        tell(&format!("{number} keys, {copied} copies on a full disk"));
    }

    /// New stores on every small amount of room.
    fn tight(&self) {
        let filler = Filler::new(&self.root);
        let block = 1 << 12;
        let segment = SEGMENT_BYTES;
        let around = |bytes: u64| (0..9).map(move |blocks| bytes - 4 * block + blocks * block);
        let amounts: Vec<u64> = (0..16)
            .map(|blocks| blocks * block)
            .chain(around(segment))
            .chain(around(segment + 24 * block))
            .chain(around(2 * segment))
            .chain(around(2 * segment + 24 * block))
            .collect();
        let (mut refused, mut opened, mut claimed) = (0, 0, 0);
        for left in &amounts {
            filler.eat();
            filler.shrink(*left);
            let plan = Self {
                directory: self.root.join(format!("tight-{left}")),
                ..self.clone()
            };
            let mut book = Book::default();
            match plan.options().open(&plan.directory) {
                Ok(store) => {
                    opened += 1;
                    let guards = claim_all(&store, &mut book, 0);
                    claimed += usize::from(!book.0.is_empty());
                    filler.eat();
                    book.check_full(&store, self.mode());
                    drop(end_all(guards, &mut book));
                    book.orphan();
                    store_is_fine(&store);
                    book.check(&store);
                    store.close().expect("closes");
                }
                Err(OpenError::Io { source, .. }) => {
                    refused += 1;
                    assert_eq!(source.kind(), io::ErrorKind::StorageFull, "{source}");
                }
                Err(other) => panic!("with {left} bytes: {other}"),
            }
            filler.remove();
            // Whatever the first try left behind, with room it is a store.
            let store = plan.open();
            book.check(&store);
            let operation = started(store.claim(&numbered(1 << 30), request()).expect("room"));
            book.complete(operation, 1 << 30, RESERVED);
            book.resolve(&store);
            store.close().expect("closes");
            fs::remove_dir_all(&plan.directory).expect("removed");
        }
        tell(&format!(
            "{} amounts of room: {refused} refused, {opened} opened, {claimed} took claims",
            amounts.len()
        ));
    }

    /// Fills the disk and waits for its end.
    fn until_killed(&self, with_completions: bool) {
        let filler = Filler::new(&self.root);
        // What is given back in the end: a segment, and what is set aside before one is made.
        filler.take(3 * SEGMENT_BYTES);
        let mut book = Book::default();
        let store = self.open();
        let guards = claim_all(&store, &mut book, 0);
        filler.eat();
        let _kept = if with_completions {
            end_all(guards, &mut book)
        } else {
            book.check_full(&store, self.mode());
            guards
        };
        filler.eat();
        store_is_fine(&store);
        // What the next process is to find, on a disk with room.
        let lines: Vec<_> = book
            .0
            .iter()
            .map(|(number, known)| line(*number, *known))
            .collect();
        fs::write(self.notes(), lines.join("\n")).expect("written");
        tell(&format!("waits with {} keys", book.0.len()));
        loop {
            std::thread::park();
        }
    }

    fn notes(&self) -> PathBuf {
        let parent = self.root.parent().expect("a mount point in a directory");
        parent.join("notes")
    }

    /// Opens what a killed process left, on a disk that is still full.
    fn recover(&self) {
        let filler = Filler::new(&self.root);
        let text = fs::read_to_string(self.notes()).expect("written before");
        let mut book = Book(text.lines().map(parse).collect());
        book.orphan();
        filler.eat();
        for round in 1..3 {
            let store = self.open();
            book.check(&store);
            // A segment that was ready and not used is given up by an open, and may be had anew.
            filler.eat();
            let guards = claim_all(&store, &mut book, round << 20);
            book.check_full(&store, self.mode());
            store_is_fine(&store);
            book.check(&store);
            store.close().expect("closes on a full disk");
            drop((store, guards));
            book.orphan();
            filler.eat();
        }
        let store = self.open();
        filler.remove();
        book.resolve(&store);
        book.check(&store);
        tell(&format!("{} keys recovered on a full disk", book.0.len()));
    }

    /// No inode is left for a segment, though there are blocks.
    fn inodes(&self) {
        let mut book = Book::default();
        let store = self.open();
        let mut guards = claim_all_up_to(&store, &mut book, 0, 30);
        let litter = self.root.join("litter");
        fs::create_dir(&litter).expect("one more");
        let mut files = 0;
        let mut take_inodes = || {
            loop {
                match File::create_new(litter.join(files.to_string())) {
                    Ok(_) => files += 1,
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => return files,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        assert!(take_inodes() > 0);
        guards.extend(claim_all(&store, &mut book, 30));
        book.check_full(&store, self.mode());
        drop(end_all(guards, &mut book));
        book.orphan();
        book.check(&store);
        store.close().expect("closes without inodes");
        // What the close freed is taken, too.
        let files = take_inodes();
        let store = self.open();
        book.check(&store);
        book.check_full(&store, self.mode());
        fs::remove_dir_all(&litter).expect("removed");
        book.resolve(&store);
        book.check(&store);
        tell(&format!("{} keys, {files} other files", book.0.len()));
    }

    /// One store fills the disk; another, and one that comes later, are told and keep what they have.
    fn several(&self) {
        let filler = Filler::new(&self.root);
        let plan = |name: &str| Self {
            directory: self.root.join(name),
            ..self.clone()
        };
        let (greedy, modest) = (plan("greedy"), plan("modest"));
        let (mut greedy_book, mut modest_book) = (Book::default(), Book::default());
        let modest_store = modest.open();
        let first = claim_all_up_to(&modest_store, &mut modest_book, 0, 20);
        let greedy_store = greedy.open();
        let greedy_guards = claim_all(&greedy_store, &mut greedy_book, 0);
        // What is ready for it the other still gets, then it is told.
        let mut modest_guards = claim_all(&modest_store, &mut modest_book, 20);
        modest_guards.extend(first);
        filler.eat();
        for (store, book) in [(&greedy_store, &greedy_book), (&modest_store, &modest_book)] {
            book.check_full(store, self.mode());
            book.check(store);
        }
        match plan("late").options().open(self.root.join("late")) {
            Err(OpenError::Io { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
            }
            other => panic!("{other:?}"),
        }
        let kept = (
            end_all(modest_guards, &mut modest_book),
            end_all(greedy_guards, &mut greedy_book),
        );
        modest_book.check(&modest_store);
        greedy_book.check(&greedy_store);
        greedy_store.close().expect("closes on a full disk");
        drop(kept.1);
        greedy_book.orphan();
        // What the greedy one gave back at its close is there for the other, without an open.
        filler.remove();
        let more = claim_all_up_to(&modest_store, &mut modest_book, 1 << 20, 40);
        assert!(!more.is_empty());
        drop((more, kept.0));
        modest_book.orphan();
        modest_book.resolve(&modest_store);
        modest_book.check(&modest_store);
        greedy_book.check(&greedy.open());
        tell(&format!(
            "{} keys in the one that filled the disk, {} in the other",
            greedy_book.0.len(),
            modest_book.0.len()
        ));
    }
}

fn line(number: usize, known: Known) -> String {
    match known {
        Known::Held => format!("{number} held 0"),
        Known::Completed(len, principal) => format!("{number} completed-{principal} {len}"),
        Known::Interrupted => format!("{number} interrupted 0"),
        Known::Absent => format!("{number} absent 0"),
    }
}

fn parse(line: &str) -> (usize, Known) {
    let parts: Vec<_> = line.split(' ').collect();
    let [number, word, len] = parts[..] else {
        panic!("not a note: {line}");
    };
    let len = len.parse().expect("a number");
    let known = match word {
        "held" => Known::Held,
        "interrupted" => Known::Interrupted,
        "absent" => Known::Absent,
        "completed-true" => Known::Completed(len, true),
        "completed-false" => Known::Completed(len, false),
        other => panic!("{other}"),
    };
    (number.parse().expect("a number"), known)
}

fn store_is_fine(store: &Store) {
    assert!(!store.stats().poisoned);
    store.flush().expect("what was written can be synced");
}

/// Claims until there is no room, completing every third claim at once.
fn claim_all(store: &Store, book: &mut Book, from: usize) -> Vec<(usize, Operation)> {
    claim_all_up_to(store, book, from, usize::MAX)
}

fn claim_all_up_to(
    store: &Store,
    book: &mut Book,
    from: usize,
    limit: usize,
) -> Vec<(usize, Operation)> {
    let mut guards = Vec::new();
    for number in (from..).take(limit) {
        // Most are not waited for: else filling a disk at `Sync` takes minutes.
        let mut options = lease(3_600_000);
        if !number.is_multiple_of(16) {
            options = options.durability(Durability::Buffered);
        }
        match store.claim_with(&numbered(number), request(), options) {
            Ok(claim) => {
                let operation = started(claim);
                if number.is_multiple_of(3) {
                    book.complete(operation, number, number * 37 % RESERVED);
                } else {
                    book.note(number, Known::Held);
                    guards.push((number, operation));
                }
            }
            Err(ClaimError::OutOfSpace(_)) => break,
            Err(other) => panic!("claim {number}: {other:?}"),
        }
    }
    guards
}

/// Ends guards in every way there is; those that go on holding their keys come back.
fn end_all(guards: Vec<(usize, Operation)>, book: &mut Book) -> Vec<(usize, Operation)> {
    let mut kept = Vec::new();
    for (number, mut operation) in guards {
        operation.renew().expect("nothing is written");
        match number % 7 {
            0 => {
                operation.release().expect("a release has room");
                book.note(number, Known::Absent);
            }
            1 => {
                drop(operation);
                book.note(number, Known::Interrupted);
            }
            2 => kept.push((number, operation)),
            3 => book.complete(operation, number, 0),
            // Too large for what was set aside: then there may be room or not, with the guard kept.
            4 => match operation.complete(response(number, LARGE)) {
                Ok(_) => book.note(number, Known::Completed(LARGE, false)),
                Err(error) => {
                    assert!(
                        matches!(error.error(), WriteError::OutOfSpace(_)),
                        "{error}"
                    );
                    let operation = error.into_operation().expect("still held");
                    book.complete(operation, number, RESERVED);
                }
            },
            _ => book.complete(operation, number, RESERVED),
        }
    }
    kept
}
