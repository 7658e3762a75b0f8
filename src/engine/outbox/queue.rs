//! The messages that were not acknowledged: which is next, and which wait for what.
//!
//! A message is known by its position, which orders all messages. Those of one topic and key are a
//! *lane*: only the oldest of a lane can be taken, and the next one when it is done with. A message
//! takes about a hundred bytes here; what it says stays in the log.
//!
//! Two completions append at once and list their messages in either order. So that the later of one
//! lane is never taken first, a completion [registers](Queue::register) before it appends, with a
//! position below which it will not stand: nothing at or above the lowest of these is taken.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::task::Waker;

use crate::sync::{self, Mutex};

/// All messages of a store.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By position.
    waiting: BTreeMap<u64, Waiting>,
    /// Lane and position of each of them.
    lanes: BTreeSet<(u64, u64)>,
    /// When the oldest of each lane that is not busy can be taken, in monotonic ms, and its position.
    due: BTreeSet<(u64, u64)>,
    /// Lanes of which a message is out.
    busy: HashSet<u64>,
    /// Position and hash of each dead letter.
    dead: BTreeMap<u64, u64>,
    /// Position and hash of each that is acknowledged, and for whose removal there was no room yet.
    owed: BTreeMap<u64, u64>,
    /// Messages of completions that are being appended.
    places: usize,
    /// Of those completions: a number, and a position below which it will not stand.
    appending: BTreeMap<u64, u64>,
    next_number: u64,
    wakers: Vec<(u64, Waker)>,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    hash: u64,
    lane: u64,
    due_ms: u64,
    attempt: u32,
}

/// A message as the log says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) position: u64,
    /// Of its key.
    pub(crate) hash: u64,
    /// Of its topic and key alone.
    pub(crate) lane: u64,
    /// The number of its next delivery.
    pub(crate) attempt: u32,
    pub(crate) is_dead: bool,
}

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// This message is the caller's, who must give it back or remove it.
    Taken(Listed),
    /// Nothing before this time, in monotonic ms; `None` where a message has to come first.
    Wait(Option<u64>),
    /// The store is closed.
    Closed,
}

/// How much is outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) outstanding: usize,
    pub(crate) dead: usize,
    /// Position and hash of the oldest that is outstanding.
    pub(crate) oldest: Option<(u64, u64)>,
}

/// A completion with messages that is about to be appended. Dropped without
/// [`list`](Self::list) it was not.
#[must_use]
#[derive(Debug)]
pub(crate) struct Registered<'a> {
    queue: &'a Queue,
    number: u64,
    places: usize,
}

impl Queue {
    /// With room for so many messages, dead letters included. What is `listed` exists and counts, over
    /// the limit or not.
    pub(crate) fn new(limit: usize, listed: impl IntoIterator<Item = Listed>) -> Self {
        let mut state = State::default();
        listed.into_iter().for_each(|one| state.add(one, 0));
        Self {
            limit,
            state: Mutex::new(state),
        }
    }

    /// Sets room aside for the messages of a completion that will not stand below `position`.
    ///
    /// # Errors
    ///
    /// The limit, if it would be exceeded.
    pub(crate) fn register(&self, places: usize, position: u64) -> Result<Registered<'_>, usize> {
        let mut state = self.state.lock();
        if state.len() + places > self.limit {
            return Err(self.limit);
        }
        state.places += places;
        let number = state.next_number;
        state.next_number += 1;
        state.appending.insert(number, position);
        Ok(Registered {
            queue: self,
            number,
            places,
        })
    }

    /// Takes the next message that is due; `waker` is woken, once, when looking again may be of use.
    pub(crate) fn take(&self, now_ms: u64, id: u64, waker: &Waker) -> Next {
        // A waker that goes; declared before the lock, so dropped after it.
        let _replaced;
        let mut state = self.state.lock();
        if state.closed {
            return Next::Closed;
        }
        let next = state.take(now_ms);
        if let Next::Wait(_) = next {
            let known = state.wakers.iter_mut().find(|(known, _)| *known == id);
            _replaced = match known {
                Some((_, known)) => Some(std::mem::replace(known, waker.clone())),
                None => {
                    state.wakers.push((id, waker.clone()));
                    None
                }
            };
        }
        next
    }

    /// Takes a waker off the list.
    pub(crate) fn cancel(&self, id: u64) {
        let waker = {
            let mut state = self.state.lock();
            let at = state.wakers.iter().position(|(known, _)| *known == id);
            at.map(|at| state.wakers.swap_remove(at))
        };
        drop(waker);
    }

    /// Gives a message back that was taken, to be delivered from that time on.
    pub(crate) fn give_back(&self, position: u64, attempt: u32, due_ms: u64) {
        self.change(|state| {
            state.within_lane(position, |state, lane| {
                state.busy.remove(&lane);
                if let Some(waiting) = state.waiting.get_mut(&position) {
                    waiting.attempt = attempt;
                    waiting.due_ms = due_ms;
                }
            });
        });
    }

    /// Removes a message: one that was taken, or a dead letter.
    pub(crate) fn remove(&self, position: u64) {
        self.change(|state| {
            state.dead.remove(&position);
            state.owed.remove(&position);
            state.remove(position);
        });
    }

    /// Notes that a message that was taken is acknowledged, though not removed yet.
    pub(crate) fn owe(&self, position: u64) {
        self.change(|state| {
            if let Some(waiting) = state.remove(position) {
                state.owed.insert(position, waiting.hash);
            }
        });
    }

    /// Position and hash of the oldest that is acknowledged and not removed yet.
    pub(crate) fn oldest_owed(&self) -> Option<(u64, u64)> {
        let state = self.state.lock();
        let oldest = state.owed.first_key_value();
        oldest.map(|(position, hash)| (*position, *hash))
    }

    /// Makes a message that was taken a dead letter.
    pub(crate) fn bury(&self, position: u64) {
        self.change(|state| {
            if let Some(waiting) = state.remove(position) {
                state.dead.insert(position, waiting.hash);
            }
        });
    }

    /// Makes a dead letter a message again.
    pub(crate) fn revive(&self, listed: Listed, now_ms: u64) {
        self.change(|state| {
            state.dead.remove(&listed.position);
            state.add(listed, now_ms);
        });
    }

    /// Positions and hashes of the dead letters, oldest first.
    pub(crate) fn dead(&self) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        state.dead.iter().map(|(at, hash)| (*at, *hash)).collect()
    }

    /// The hash of a dead letter's key.
    pub(crate) fn dead_hash(&self, position: u64) -> Option<u64> {
        self.state.lock().dead.get(&position).copied()
    }

    pub(crate) fn backlog(&self) -> Backlog {
        let state = self.state.lock();
        let oldest = state.waiting.first_key_value();
        Backlog {
            outstanding: state.waiting.len(),
            dead: state.dead.len(),
            oldest: oldest.map(|(position, waiting)| (*position, waiting.hash)),
        }
    }

    /// Ends every wait, now and later.
    pub(crate) fn close(&self) {
        self.change(|state| state.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.state.lock();
            change(&mut state);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(|(_, waker)| sync::wake(waker));
    }
}

impl Registered<'_> {
    /// Lists the messages that were appended, from now on.
    pub(crate) fn list(self, listed: impl IntoIterator<Item = Listed>, now_ms: u64) {
        self.queue.change(|state| {
            for one in listed {
                state.add(one, now_ms);
            }
        });
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.queue.change(|state| {
            state.places -= self.places;
            state.appending.remove(&self.number);
        });
    }
}

impl State {
    /// How many there are, and may be soon.
    fn len(&self) -> usize {
        self.waiting.len() + self.dead.len() + self.owed.len() + self.places
    }

    fn add(&mut self, listed: Listed, due_ms: u64) {
        let Listed {
            position,
            hash,
            lane,
            attempt,
            is_dead,
        } = listed;
        if is_dead {
            self.dead.insert(position, hash);
            return;
        }
        self.unlist(lane);
        let waiting = Waiting {
            hash,
            lane,
            due_ms,
            attempt,
        };
        self.waiting.insert(position, waiting);
        self.lanes.insert((lane, position));
        self.relist(lane);
    }

    fn remove(&mut self, position: u64) -> Option<Waiting> {
        let mut removed = None;
        self.within_lane(position, |state, lane| {
            state.busy.remove(&lane);
            state.lanes.remove(&(lane, position));
            removed = state.waiting.remove(&position);
        });
        removed
    }

    fn take(&mut self, now_ms: u64) -> Next {
        let horizon = self.appending.values().min().copied().unwrap_or(u64::MAX);
        let mut later = None;
        let mut next = None;
        for (due_ms, position) in &self.due {
            if *due_ms > now_ms {
                later = Some(*due_ms);
                break;
            }
            if *position < horizon {
                next = Some(*position);
                break;
            }
        }
        let waiting = next.and_then(|position| Some((position, *self.waiting.get(&position)?)));
        let Some((position, waiting)) = waiting else {
            return Next::Wait(later);
        };
        self.unlist(waiting.lane);
        self.busy.insert(waiting.lane);
        Next::Taken(Listed {
            position,
            hash: waiting.hash,
            lane: waiting.lane,
            attempt: waiting.attempt,
            is_dead: false,
        })
    }

    /// Changes a message's lane.
    fn within_lane(&mut self, position: u64, change: impl FnOnce(&mut Self, u64)) {
        let Some(lane) = self.waiting.get(&position).map(|waiting| waiting.lane) else {
            return;
        };
        self.unlist(lane);
        change(self, lane);
        self.relist(lane);
    }

    /// The oldest of a lane: when it is due, and its position.
    fn oldest(&self, lane: u64) -> Option<(u64, u64)> {
        let mut lane = self.lanes.range((lane, 0)..=(lane, u64::MAX));
        let (_, position) = lane.next()?;
        Some((self.waiting.get(position)?.due_ms, *position))
    }

    fn unlist(&mut self, lane: u64) {
        if let Some(oldest) = self.oldest(lane) {
            self.due.remove(&oldest);
        }
    }

    fn relist(&mut self, lane: u64) {
        if !self.busy.contains(&lane)
            && let Some(oldest) = self.oldest(lane)
        {
            self.due.insert(oldest);
        }
    }
}

#[cfg(all(test, not(any(oncekey_loom, oncekey_shuttle))))]
mod tests {
    use super::*;

    fn listed(position: u64, lane: u64) -> Listed {
        Listed {
            position,
            hash: position * 10,
            lane,
            attempt: 1,
            is_dead: false,
        }
    }

    fn take(queue: &Queue, now_ms: u64) -> Option<u64> {
        match queue.take(now_ms, 0, Waker::noop()) {
            Next::Taken(listed) => Some(listed.position),
            Next::Wait(_) | Next::Closed => None,
        }
    }

    #[test]
    fn lanes_go_on_by_themselves_and_each_in_its_order() {
        let all = [listed(1, 7), listed(2, 8), listed(3, 7), listed(4, 8)];
        let queue = Queue::new(10, all);
        assert_eq!([take(&queue, 0), take(&queue, 0)], [Some(1), Some(2)]);
        assert_eq!(take(&queue, 0), None, "both lanes are busy");
        queue.remove(2);
        assert_eq!(take(&queue, 0), Some(4));
        queue.give_back(1, 2, 50);
        assert_eq!(take(&queue, 49), None, "nothing overtakes what waits");
        assert_eq!(queue.take(49, 0, Waker::noop()), Next::Wait(Some(50)));
        assert_eq!(take(&queue, 50), Some(1));
        queue.bury(1);
        assert_eq!(take(&queue, 50), Some(3), "a dead letter holds nobody up");
        assert_eq!(queue.dead(), [(1, 10)]);
        let backlog = queue.backlog();
        assert_eq!((backlog.outstanding, backlog.dead), (2, 1));
        assert_eq!(backlog.oldest, Some((3, 30)));
    }

    #[test]
    fn what_may_be_overtaken_by_an_append_waits_for_it() {
        let queue = Queue::new(10, []);
        let early = queue.register(1, 100).expect("room");
        let late = queue.register(1, 110).expect("room");
        late.list([listed(120, 7)], 0);
        assert_eq!(take(&queue, 0), None, "the other one may stand before it");
        early.list([listed(105, 7)], 0);
        assert_eq!(take(&queue, 0), Some(105));
        queue.remove(105);
        let third = queue.register(1, 121).expect("room");
        assert_eq!(take(&queue, 0), Some(120), "that will stand behind it");
        drop(third);
    }

    #[test]
    fn room_is_counted_to_the_last_place() {
        let dead = Listed {
            is_dead: true,
            ..listed(1, 7)
        };
        let queue = Queue::new(3, [dead, listed(2, 7)]);
        assert_eq!(queue.register(2, 5).err(), Some(3));
        let last = queue.register(1, 5).expect("one place is left");
        assert_eq!(queue.register(1, 5).err(), Some(3));
        drop(last);
        queue
            .register(1, 5)
            .expect("given back")
            .list([listed(6, 9)], 0);
        assert_eq!(queue.register(1, 7).err(), Some(3));
        queue.remove(1);
        assert!(queue.register(1, 7).is_ok());
    }

    #[test]
    fn a_dead_letter_that_comes_back_waits_for_what_is_out() {
        let dead = Listed {
            is_dead: true,
            ..listed(1, 7)
        };
        let queue = Queue::new(9, [dead, listed(2, 7), listed(3, 7)]);
        assert_eq!(take(&queue, 0), Some(2));
        queue.revive(listed(1, 7), 0);
        assert_eq!(take(&queue, 0), None, "one of a lane at a time");
        queue.remove(2);
        assert_eq!(take(&queue, 0), Some(1), "the oldest first");
    }
}
