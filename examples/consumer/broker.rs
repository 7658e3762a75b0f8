//! A broker as they are: it delivers at least once, in any order, and again where it is not sure.
//!
//! A message goes to whoever polls. It is out until it is acknowledged, asked for later or put away as a
//! dead letter; where the connection breaks it is delivered again. Now and then a message is delivered
//! to somebody else while it is out, or after it was acknowledged.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::wire::Line;

/// Numbers that are the same for the same seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// To be delivered, from then on.
    Ready(Instant),
    /// At the consumer of this connection.
    Out(u64),
    Acknowledged,
    /// Put away; whether its outcome is unknown.
    Dead {
        is_outcome_unknown: bool,
    },
}

#[derive(Debug)]
struct Message {
    payload: String,
    state: State,
    deliveries: u64,
}

/// Messages by consumer and id.
type Queues = BTreeMap<String, BTreeMap<String, Message>>;

#[derive(Clone)]
pub struct Broker {
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    queues: Queues,
    random: Random,
    /// Nothing is delivered any more.
    is_over: bool,
    faults: Vec<String>,
}

impl Broker {
    /// A broker with these messages for each consumer, that listens.
    pub fn start(
        consumers: &[&str],
        messages: &[(String, String)],
        seed: u64,
    ) -> io::Result<(Self, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let queue = || {
            let messages = messages.iter().map(|(id, payload)| {
                let message = Message {
                    payload: payload.clone(),
                    state: State::Ready(Instant::now()),
                    deliveries: 0,
                };
                (id.clone(), message)
            });
            messages.collect()
        };
        let queues = consumers.iter().map(|name| ((*name).to_owned(), queue()));
        let broker = Self {
            shared: Arc::new(Mutex::new(Shared {
                queues: queues.collect(),
                random: Random::new(seed),
                is_over: false,
                faults: Vec::new(),
            })),
        };
        let serving = broker.clone();
        thread::spawn(move || {
            for (connection, stream) in (1..).zip(listener.incoming()) {
                let broker = serving.clone();
                thread::spawn(move || {
                    if let Ok(line) = stream.and_then(Line::new) {
                        // It ends when the consumer does.
                        drop(broker.serve(line, connection));
                    }
                    broker.take_back(connection);
                });
            }
        });
        Ok((broker, address))
    }

    fn serve(&self, mut line: Line, connection: u64) -> io::Result<()> {
        loop {
            let words = line.receive()?;
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            match words[..] {
                ["poll", consumer, most] => {
                    let most = most.parse().map_err(io::Error::other)?;
                    self.poll(&mut line, connection, consumer, most)?;
                }
                ["ack", consumer, id] => self.set(consumer, id, State::Acknowledged),
                ["retry", consumer, id, after_ms] => {
                    let after_ms = after_ms.parse().map_err(io::Error::other)?;
                    let due = Instant::now() + Duration::from_millis(after_ms);
                    self.set(consumer, id, State::Ready(due));
                }
                ["dead", consumer, id, known] => {
                    let is_outcome_unknown = known == "unknown";
                    self.set(consumer, id, State::Dead { is_outcome_unknown });
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Delivers some that are due, or some that were delivered before.
    fn poll(
        &self,
        line: &mut Line,
        connection: u64,
        consumer: &str,
        most: usize,
    ) -> io::Result<()> {
        loop {
            let mut words = vec!["messages".to_owned()];
            {
                let mut shared = self.shared();
                if shared.is_over {
                    drop(shared);
                    return line.send(&["end"]);
                }
                for id in shared.choose(consumer, most) {
                    words.extend(shared.deliver(connection, consumer, id));
                }
            }
            if words.len() > 1 {
                let words: Vec<_> = words.iter().map(String::as_str).collect();
                return line.send(&words);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn set(&self, consumer: &str, id: &str, state: State) {
        let mut shared = self.shared();
        let Some(message) = shared.message(consumer, id) else {
            return;
        };
        let known = message.state;
        let is_retry = matches!(state, State::Ready(_));
        match known {
            // What was settled stays so: a second delivery may come late, or find the first at work.
            State::Acknowledged | State::Dead { .. } if is_retry => {}
            State::Acknowledged | State::Dead { .. } if known != state => {
                let fault = format!("{id} of {consumer} was {known:?} and then {state:?}");
                shared.faults.push(fault);
            }
            _ => message.state = state,
        }
    }

    /// Its consumer is gone: what it had is delivered again.
    fn take_back(&self, connection: u64) {
        let mut shared = self.shared();
        let messages = shared.queues.values_mut().flat_map(BTreeMap::values_mut);
        for message in messages.filter(|message| message.state == State::Out(connection)) {
            message.state = State::Ready(Instant::now());
        }
    }

    /// Delivers it again, as an operator does with what was a dead letter.
    pub fn put_back(&self, consumer: &str, id: &str) {
        if let Some(message) = self.shared().message(consumer, id) {
            message.state = State::Ready(Instant::now());
        }
    }

    /// From now on who polls is told that it is over, or not.
    pub fn set_over(&self, is_over: bool) {
        self.shared().is_over = is_over;
    }

    /// Messages that are neither acknowledged nor put away.
    pub fn left(&self) -> usize {
        let shared = self.shared();
        let messages = shared.queues.values().flat_map(BTreeMap::values);
        messages
            .filter(|message| matches!(message.state, State::Ready(_) | State::Out(_)))
            .count()
    }

    /// How often anything was delivered.
    pub fn deliveries(&self) -> u64 {
        let shared = self.shared();
        let messages = shared.queues.values().flat_map(BTreeMap::values);
        messages.map(|message| message.deliveries).sum()
    }

    pub fn state(&self, consumer: &str, id: &str) -> Option<State> {
        self.shared()
            .message(consumer, id)
            .map(|message| message.state)
    }

    pub fn faults(&self) -> Vec<String> {
        self.shared().faults.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn message(&mut self, consumer: &str, id: &str) -> Option<&mut Message> {
        self.queues.get_mut(consumer)?.get_mut(id)
    }

    /// Some ids to deliver, in any order.
    fn choose(&mut self, consumer: &str, most: usize) -> Vec<String> {
        let now = Instant::now();
        let Some(queue) = self.queues.get(consumer) else {
            return Vec::new();
        };
        let is_due = |message: &&(&String, &Message)| matches!(message.1.state, State::Ready(due) if due <= now);
        let mut ids: Vec<String> = Vec::new();
        let mut due: Vec<&String> = queue
            .iter()
            .filter(|it| is_due(&it))
            .map(|it| it.0)
            .collect();
        while ids.len() < most && !due.is_empty() {
            ids.push(due.swap_remove(self.random.below(due.len())).clone());
        }
        // Something that was delivered before, and may be out or done.
        let is_known = |message: &Message| message.deliveries > 0;
        let known: Vec<&String> = queue
            .iter()
            .filter(|it| is_known(it.1))
            .map(|it| it.0)
            .collect();
        if !known.is_empty() && !ids.is_empty() && self.random.below(4) == 0 {
            let again = known[self.random.below(known.len())].clone();
            let at = self.random.below(ids.len());
            ids.truncate(most.saturating_sub(1));
            ids.insert(at.min(ids.len()), again);
        }
        ids
    }

    fn deliver(&mut self, connection: u64, consumer: &str, id: String) -> Vec<String> {
        let Some(message) = self.message(consumer, &id) else {
            return Vec::new();
        };
        message.deliveries += 1;
        if matches!(message.state, State::Ready(_)) {
            message.state = State::Out(connection);
        }
        let payload = message.payload.clone();
        vec![id, payload]
    }
}
