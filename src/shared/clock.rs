//! What a server's clock shows, as far as its clients know.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::clock::time;

/// The server's time as last heard, carried on by this machine's monotonic clock.
///
/// It is late by what the last answer took on its way. Nothing about a key is decided by it.
#[derive(Debug)]
pub(super) struct ServerClock {
    begun: Instant,
    /// The server's time at `begun`, in ms; 0 while nothing was heard.
    at_begin_ms: AtomicU64,
}

impl ServerClock {
    pub(super) fn new() -> Self {
        Self {
            begun: Instant::now(),
            at_begin_ms: AtomicU64::new(0),
        }
    }

    /// The server has just said what time it is.
    pub(super) fn hear(&self, now_ms: u64) {
        let at_begin_ms = now_ms.saturating_sub(self.elapsed_ms());
        self.at_begin_ms.store(at_begin_ms, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> SystemTime {
        match self.at_begin_ms.load(Ordering::Relaxed) {
            0 => SystemTime::now(),
            at_begin_ms => time(at_begin_ms) + Duration::from_millis(self.elapsed_ms()),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_time_is_told_and_not_this_machines() {
        let clock = ServerClock::new();
        let own = SystemTime::now();
        assert!(clock.now() >= own);
        // A server that is a year behind, and one that was set back further.
        for now_ms in [1_700_000_000_000, 1_600_000_000_000] {
            clock.hear(now_ms);
            let since = clock.now().duration_since(time(now_ms)).unwrap();
            assert!(since < Duration::from_secs(60), "{since:?}");
        }
    }
}
