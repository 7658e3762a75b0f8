//! Work on many things at once, on as many threads as there are processors.

use crate::sync::os::thread;
use crate::sync::{AtomicUsize, Ordering};

/// What `work` makes of each number below `count`, in order.
pub(crate) fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(count);
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return done;
            }
            done.push((index, work(index)));
        }
    };
    let mut done = if threads <= 1 {
        take()
    } else {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            workers.into_iter().flat_map(join).collect()
        })
    };
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, made)| made).collect()
}

#[cfg(all(test, not(oncekey_loom)))]
mod tests {
    use super::each;

    #[test]
    fn everything_is_done_once_and_told_in_order() {
        for count in [0, 1, 2, 1_000] {
            let expected: Vec<_> = (0..count).map(|index| index * 3).collect();
            assert_eq!(each(count, |index| index * 3), expected);
        }
    }
}
