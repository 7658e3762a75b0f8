//! Measuring: who competes, what they do in turns, and what is told about it.
//!
//! Nothing here knows the tool around it.

mod files;
mod flags;
mod growth;
mod html;
mod keys;
mod lap;
mod machine;
mod own;
mod plots;
mod postgres;
mod redis;
mod report;
mod rounds;
mod text;

use std::error::Error;
use std::path::Path;

use clap::ValueEnum;

pub(crate) use self::flags::Flags;
pub(crate) use self::growth::run_step;
pub(crate) use self::html::Page;
pub(crate) use self::keys::{FINGERPRINT, Sample};
pub(crate) use self::own::entrants;
pub(crate) use self::postgres::Postgres;
pub(crate) use self::redis::Redis;
pub(crate) use self::rounds::Run;

/// Why a measurement ended.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Class {
    /// Nothing for sure: who kept it forgets it with its process, or does not say.
    Volatile,
    /// The death of the process.
    Buffered,
    /// Power loss.
    Sync,
}

impl Class {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Buffered => "buffered",
            Self::Sync => "sync",
        }
    }
}

/// What a claim found.
pub(crate) enum Claimed<G, R> {
    /// The key was free, and is the caller's now.
    Started(G),
    /// Somebody is at work.
    Running,
    /// This is what came of it.
    Done(R),
}

/// Claims and completes keys in one thread, on a connection of its own where there are connections.
pub(crate) trait Session {
    type Guard;
    type Response: AsRef<[u8]>;

    /// Claims a key in one atomic step; a result that has expired is none.
    fn claim(&mut self, key: &Sample) -> Result<Claimed<Self::Guard, Self::Response>, Fault>;

    /// Stores the response, to be kept for a day.
    fn complete(&mut self, guard: Self::Guard, response: &[u8]) -> Result<(), Fault>;
}

/// A store under test.
pub(crate) trait Contestant: Send + Sync {
    type Session: Session;

    /// Made in the thread that uses it.
    fn session(&self) -> Result<Self::Session, Fault>;

    /// One that fills it: each write may be less durable than its class asks.
    fn filling_session(&self) -> Result<Self::Session, Fault> {
        self.session()
    }

    /// What it takes of a server, where there is one that tells.
    fn used(&self) -> Result<Used, Fault> {
        Ok(Used::default())
    }

    /// Waits until what is prepared in the background is there.
    fn settle(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Ends it in order, with all on the disk.
    fn close(self) -> Result<(), Fault>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// How much a store is about to be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) keys: usize,
    pub(crate) key_bytes: usize,
    pub(crate) response_bytes: usize,
}

/// What keys take of a server, together with all others that it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) disk_bytes: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
}

/// Where a contestant has its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Files,
    Memory,
    Server,
}

type Opens = Box<dyn Fn(&Path, Room) -> Result<Box<dyn lap::Subject>, Fault> + Send + Sync>;

/// Who takes part, and how it is set up.
pub(crate) struct Entrant {
    pub(crate) name: String,
    pub(crate) settings: String,
    pub(crate) class: Class,
    place: Place,
    opens: Opens,
}

impl Entrant {
    pub(crate) fn new<C: Contestant + 'static>(
        name: &str,
        class: Class,
        place: Place,
        settings: &str,
        opens: impl Fn(&Path, Room) -> Result<C, Fault> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            settings: settings.to_owned(),
            class,
            place,
            opens: Box::new(move |directory, room| Ok(Box::new(opens(directory, room)?))),
        }
    }

    fn open(&self, directory: &Path, room: Room) -> Result<Box<dyn lap::Subject>, Fault> {
        (self.opens)(directory, room)
            .map_err(|fault| format!("{} cannot be opened: {fault}", self.name).into())
    }

    /// The same fault, with who it is about.
    fn blamed(&self, fault: Fault) -> Fault {
        format!("{}, {}: {fault}", self.name, self.class.name()).into()
    }
}
