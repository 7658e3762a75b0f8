//! What the events have done: one line for each, in an append-only file, and the state they make.
//!
//! It stands for the receiver's own database. A line is on disk before anybody is told; what follows
//! the last newline is the half line of a crash, and is cut when the book is opened. The book does
//! not refuse an event that it has: that every event is here once is what the store sees to, and
//! what the self-test counts.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What an event says, whoever sent it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Who: the endpoint that it came to.
    pub sender: String,
    pub id: String,
    /// What it is about, a subscription or an issue.
    pub object: String,
    /// Grows with each change of the object, and is compared as text.
    pub version: String,
    pub state: String,
}

pub struct Book {
    file: File,
    /// Length of the whole lines in the file: where a failed append is cut off again.
    length: u64,
    events: Vec<Event>,
    /// Sender and object, to the event that has the newest version.
    newest: HashMap<(String, String), usize>,
}

impl Book {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .open(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |last| last + 1);
        file.set_len(whole as u64)?;
        text.truncate(whole);
        let mut book = Self {
            file,
            length: whole as u64,
            events: Vec::new(),
            newest: HashMap::new(),
        };
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            book.note(serde_json::from_slice(line)?);
        }
        Ok(book)
    }

    /// Takes an event down, durably. Deliveries come in any order: one that is older than what is
    /// known of its object is taken down and changes nothing.
    pub fn apply(&mut self, event: Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(&event)?;
        line.push(b'\n');
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += line.len() as u64;
        self.note(event);
        Ok(())
    }

    pub fn has(&self, sender: &str, id: &str) -> bool {
        let is_it = |event: &Event| event.sender == sender && event.id == id;
        self.events.iter().any(is_it)
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The state of an object by its newest event.
    pub fn state(&self, sender: &str, object: &str) -> Option<&str> {
        let newest = self.newest.get(&(sender.to_owned(), object.to_owned()))?;
        Some(&self.events.get(*newest)?.state)
    }

    fn note(&mut self, event: Event) {
        let object = (event.sender.clone(), event.object.clone());
        let newest = self.newest.entry(object).or_insert(self.events.len());
        let is_newer = match self.events.get(*newest) {
            Some(known) => event.version > known.version,
            None => true,
        };
        if is_newer {
            *newest = self.events.len();
        }
        self.events.push(event);
    }
}
