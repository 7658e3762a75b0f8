//! Measuring: who competes, what they do in turns, and what is told about it.
//!
//! Nothing here knows the tool around it.

mod files;
mod flags;
mod growth;
mod keys;
mod lap;
mod machine;
mod own;
mod report;
mod rounds;

use std::error::Error;
use std::path::Path;

use clap::ValueEnum;

pub(crate) use self::flags::Flags;
pub(crate) use self::growth::run_step;
use self::keys::Sample;
pub(crate) use self::own::entrants;
pub(crate) use self::rounds::Run;

/// Why a measurement ended.
pub(crate) type Fault = Box<dyn Error + Send + Sync>;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Class {
    /// The death of the process.
    Buffered,
    /// Power loss.
    Sync,
}

impl Class {
    pub(crate) fn name(self) -> &'static str {
        match self {
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

type Opens = Box<dyn Fn(&Path, Room) -> Result<Box<dyn lap::Subject>, Fault> + Send + Sync>;

/// Who takes part, and how it is set up.
pub(crate) struct Entrant {
    pub(crate) name: String,
    pub(crate) settings: String,
    pub(crate) class: Class,
    opens: Opens,
}

impl Entrant {
    /// One whose files are in the directory that it is opened in.
    pub(crate) fn embedded<C: Contestant + 'static>(
        name: &str,
        class: Class,
        settings: &str,
        opens: impl Fn(&Path, Room) -> Result<C, Fault> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            settings: settings.to_owned(),
            class,
            opens: Box::new(move |directory, room| Ok(Box::new(opens(directory, room)?))),
        }
    }

    fn open(&self, directory: &Path, room: Room) -> Result<Box<dyn lap::Subject>, Fault> {
        (self.opens)(directory, room)
            .map_err(|fault| format!("{} cannot be opened: {fault}", self.name).into())
    }
}
