//! Visiting results, a few at a time, without holding anything between two calls.
//!
//! The order is that of the stripes and, within one, of the bits of the hash that a slot keeps. No
//! change of the store moves a key in it, so whoever begins at 0 and goes on from cursor to cursor
//! meets every key that was there all the while, and each of those once.

use crate::engine::Engine;
use crate::engine::lookup::{Located, check_open};
use crate::error::ClaimError;
use crate::index::slot::TAG_BITS;
use crate::log::record::{Kind, Record};

/// Stripes that one call looks at.
const STRIPES_AT_ONCE: usize = 4_096;

impl Engine {
    /// Visits some results from `cursor` on, 0 being the first: about `count`, more only where hashes
    /// are alike. Returns the cursor to go on from, 0 at the end.
    ///
    /// Expired ones are left out. Memory and work are in proportion to `count` and to the keys of one
    /// stripe.
    pub(crate) fn scan(
        &self,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(&Record<'_>),
    ) -> Result<u64, ClaimError> {
        self.check_process()?;
        let first = usize::try_from(cursor >> TAG_BITS).unwrap_or(usize::MAX);
        let mut from_tag = cursor & ((1 << TAG_BITS) - 1);
        let mut left = count.max(1);
        for (at, stripe) in self.index.stripes().enumerate().skip(first) {
            if left == 0 || at - first == STRIPES_AT_ONCE {
                return Ok((at as u64) << TAG_BITS);
            }
            let (located, next_tag) = {
                let stripe = stripe.lock();
                check_open(&stripe)?;
                let mut slots: Vec<_> = stripe
                    .completed()
                    .filter(|slot| slot.tag() >= from_tag)
                    .collect();
                let mut next_tag = None;
                if slots.len() > left {
                    let (_, last, _) =
                        slots.select_nth_unstable_by_key(left - 1, |slot| slot.tag());
                    let last = last.tag();
                    slots.retain(|slot| slot.tag() <= last);
                    next_tag = (last < (1 << TAG_BITS) - 1).then_some(last + 1);
                }
                let located: Vec<_> = slots.iter().map(|slot| self.locate_slot(*slot)).collect();
                (located, next_tag)
            };
            left = left.saturating_sub(located.len());
            self.visit(&located, &mut visit)?;
            if let Some(tag) = next_tag {
                return Ok((at as u64) << TAG_BITS | tag);
            }
            from_tag = 0;
        }
        Ok(0)
    }

    fn visit(
        &self,
        located: &[Located],
        visit: &mut impl FnMut(&Record<'_>),
    ) -> Result<(), ClaimError> {
        let now_ms = self.time.now_ms();
        for each in located {
            let (_, record, _) = each.record()?;
            if record.kind == Kind::Complete && record.is_live(now_ms) {
                visit(&record);
            }
        }
        Ok(())
    }
}
