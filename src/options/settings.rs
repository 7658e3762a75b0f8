//! Settings: options that were checked, and the checks.
//!
//! All ranges are those of [`limits`](crate::limits). What remains is how the sizes go together: a
//! record never spans segments, so a segment must hold several of the largest.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::limits::{
    CHECKPOINT_BYTES_MAX, KEY_PART_BYTES_MAX, KEYS_MAX, MAINTENANCE_RATE_MAX, MAINTENANCE_RATE_MIN,
    OUTBOX_MAX, PENDING_MAX, PREPARED_SEGMENTS_MAX, PRINCIPAL_BYTES_MAX,
    RESERVED_RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_DEFAULT, RESPONSE_BYTES_MAX, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN, SEGMENT_BYTES_STEP, STRIPES_MAX, WAITERS_MAX,
};
use crate::log::record::HEAD_BYTES;
use crate::log::segment::HEADER_BYTES;
use crate::options::claim::{abandon_after_ms, lease_ms, retention_ms, version_retention_ms};
use crate::options::{Durability, Options, OptionsError, Recovery};

/// Options that were checked, in the engine's units.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) durability: Durability,
    /// `WHILE_ALIVE` for none.
    pub(crate) lease_ms: u64,
    pub(crate) retention_ms: u64,
    pub(crate) version_retention_ms: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) stripes: usize,
    pub(crate) prepared_segments: usize,
    pub(crate) key_part_bytes_max: usize,
    pub(crate) response_bytes_max: usize,
    pub(crate) reserved_response_bytes: usize,
    pub(crate) pending_max: usize,
    pub(crate) outbox_max: usize,
    pub(crate) keys_max: Option<usize>,
    pub(crate) keys_per_scope_max: Option<u32>,
    pub(crate) disk_bytes_max: u64,
    /// `u64::MAX` for never.
    pub(crate) abandon_after_ms: u64,
    pub(crate) waiters_per_key_max: usize,
    pub(crate) waiters_max: usize,
    pub(crate) max_clock_jump_ms: u64,
    pub(crate) allow_clock_jump: bool,
    pub(crate) recovery: Recovery,
    pub(crate) allow_network_file_system: bool,
    pub(crate) lock_wait: Duration,
    pub(crate) restored: bool,
    pub(crate) maintenance: bool,
    pub(crate) maintenance_bytes_per_second: u64,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Options {
    /// Checks every option and works out those that depend on others.
    pub(crate) fn validate(&self) -> Result<Settings, OptionsError> {
        let segment_bytes = self.checked_segment_bytes()?;
        let key_part_bytes_max = in_range(
            "max_key_part",
            self.key_part_bytes_max,
            1,
            KEY_PART_BYTES_MAX,
        )?;
        let key_bytes_max = 3 * key_part_bytes_max;
        let response_bytes_max = self.checked_response_bytes(segment_bytes, key_bytes_max)?;
        let reserved_response_bytes =
            self.checked_reserved_bytes(segment_bytes, key_bytes_max, response_bytes_max)?;
        let stripes = in_range("stripes", self.stripes, 1, STRIPES_MAX)?;
        if !stripes.is_power_of_two() {
            return Err(OptionsError::NotPowerOfTwo {
                option: "stripes",
                value: stripes as u64,
            });
        }
        Ok(Settings {
            durability: self.durability,
            lease_ms: lease_ms(self.lease)?,
            retention_ms: retention_ms(self.retention)?,
            version_retention_ms: version_retention_ms(self.version_retention)?,
            segment_bytes,
            stripes,
            prepared_segments: in_range(
                "prepared_segments",
                self.prepared_segments,
                1,
                PREPARED_SEGMENTS_MAX,
            )?,
            key_part_bytes_max,
            response_bytes_max,
            reserved_response_bytes,
            pending_max: in_range("max_pending", self.pending_max, 1, PENDING_MAX)?,
            outbox_max: in_range("max_outbox", self.outbox_max, 0, OUTBOX_MAX)?,
            keys_max: self
                .keys_max
                .map(|keys| in_range("max_keys", keys, 1, KEYS_MAX))
                .transpose()?,
            keys_per_scope_max: self
                .keys_per_scope_max
                .map(|keys| in_range("max_keys_per_scope", keys, 1, KEYS_MAX))
                .transpose()?
                .map(|keys| u32::try_from(keys).unwrap_or(u32::MAX)),
            disk_bytes_max: self.checked_disk_bytes(segment_bytes)?,
            abandon_after_ms: self.abandon_after.map_or(Ok(u64::MAX), abandon_after_ms)?,
            waiters_per_key_max: in_range(
                "max_waiters_per_key",
                self.waiters_per_key_max,
                0,
                WAITERS_MAX,
            )?,
            waiters_max: in_range("max_waiters", self.waiters_max, 0, WAITERS_MAX)?,
            max_clock_jump_ms: u64::try_from(self.max_clock_jump.as_millis()).unwrap_or(u64::MAX),
            allow_clock_jump: self.allow_clock_jump,
            recovery: self.recovery,
            allow_network_file_system: self.allow_network_file_system,
            lock_wait: self.lock_wait,
            restored: self.restored,
            maintenance: self.maintenance,
            maintenance_bytes_per_second: self.checked_maintenance_rate()?,
            clock: match &self.clock {
                Some(clock) => Arc::clone(clock),
                None => Arc::new(SystemClock::new()),
            },
        })
    }

    fn checked_segment_bytes(&self) -> Result<u64, OptionsError> {
        let (option, value) = ("segment_size", self.segment_bytes);
        let (min, max) = (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        if !(min..=max).contains(&value) {
            return Err(OptionsError::OutOfRange {
                option,
                value,
                min,
                max,
            });
        }
        if !value.is_multiple_of(SEGMENT_BYTES_STEP) {
            let of = SEGMENT_BYTES_STEP;
            return Err(OptionsError::NotMultiple { option, value, of });
        }
        Ok(value)
    }

    fn checked_maintenance_rate(&self) -> Result<u64, OptionsError> {
        let value = self.maintenance_bytes_per_second;
        let (min, max) = (MAINTENANCE_RATE_MIN, MAINTENANCE_RATE_MAX);
        if !(min..=max).contains(&value) {
            return Err(OptionsError::OutOfRange {
                option: "maintenance_rate",
                value,
                min,
                max,
            });
        }
        Ok(value)
    }

    fn checked_disk_bytes(&self, segment_bytes: u64) -> Result<u64, OptionsError> {
        let (option, value) = ("max_disk_bytes", self.disk_bytes_max.unwrap_or(u64::MAX));
        let (min, max) = (2 * segment_bytes, u64::MAX);
        if value < min {
            return Err(OptionsError::OutOfRange {
                option,
                value,
                min,
                max,
            });
        }
        Ok(value)
    }

    fn checked_response_bytes(
        &self,
        segment_bytes: u64,
        key_bytes_max: usize,
    ) -> Result<usize, OptionsError> {
        let Some(set) = self.response_bytes_max else {
            let fits = LARGEST.response_bytes_that_fit(segment_bytes, key_bytes_max);
            return Ok(RESPONSE_BYTES_DEFAULT.min(fits));
        };
        in_range("max_response", set, 0, RESPONSE_BYTES_MAX)?;
        LARGEST.check("max_response", set, segment_bytes, key_bytes_max)?;
        Ok(set)
    }

    fn checked_reserved_bytes(
        &self,
        segment_bytes: u64,
        key_bytes_max: usize,
        response_bytes_max: usize,
    ) -> Result<usize, OptionsError> {
        let Some(set) = self.reserved_response_bytes else {
            let fits = RESERVED.response_bytes_that_fit(segment_bytes, key_bytes_max);
            return Ok(RESERVED_RESPONSE_BYTES_DEFAULT
                .min(response_bytes_max)
                .min(fits));
        };
        if set > response_bytes_max {
            return Err(OptionsError::ReservedAboveMax {
                reserved_response: set as u64,
                max_response: response_bytes_max as u64,
            });
        }
        RESERVED.check("reserved_response", set, segment_bytes, key_bytes_max)?;
        Ok(set)
    }
}

/// How many records of a kind a segment must hold, so that the end of it which is left unused,
/// since the next record does not fit, stays a small share.
struct Fit {
    records: u64,
    /// What a record, with its share of the segment's header, takes besides key and response.
    overhead_bytes: u64,
}

/// Records with the largest response.
const LARGEST: Fit = Fit {
    records: 2,
    overhead_bytes: 16 << 10,
};
/// Records that room is set aside for.
const RESERVED: Fit = Fit {
    records: 4,
    overhead_bytes: 8 << 10,
};

impl Fit {
    /// The smallest segment for records with a response of this size.
    const fn segment_bytes_needed(&self, response_bytes: u64, key_bytes_max: usize) -> u64 {
        let record_bytes = response_bytes + key_bytes_max as u64 + self.overhead_bytes;
        (self.records * record_bytes).next_multiple_of(SEGMENT_BYTES_STEP)
    }

    /// The largest response for segments of this size; 0 where none fits.
    fn response_bytes_that_fit(&self, segment_bytes: u64, key_bytes_max: usize) -> usize {
        let besides = key_bytes_max as u64 + self.overhead_bytes;
        let bytes = (segment_bytes / self.records).saturating_sub(besides);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn check(
        &self,
        option: &'static str,
        value: usize,
        segment_bytes: u64,
        key_bytes_max: usize,
    ) -> Result<(), OptionsError> {
        let needed_bytes = self.segment_bytes_needed(value as u64, key_bytes_max);
        if needed_bytes <= segment_bytes {
            return Ok(());
        }
        Err(OptionsError::SegmentTooSmall {
            option,
            value: value as u64,
            fits: self.response_bytes_that_fit(segment_bytes, key_bytes_max) as u64,
            segment_bytes,
            needed_bytes,
        })
    }
}

// The overheads cover what they stand for, and even the smallest segment holds the smallest
// records.
const _: () = {
    let header = HEADER_BYTES as u64;
    let besides = (HEAD_BYTES + PRINCIPAL_BYTES_MAX + CHECKPOINT_BYTES_MAX) as u64;
    let key_bytes_max = 3 * KEY_PART_BYTES_MAX;
    assert!(LARGEST.records * (LARGEST.overhead_bytes - besides) >= header);
    assert!(RESERVED.records * (RESERVED.overhead_bytes - besides) >= header);
    assert!(LARGEST.segment_bytes_needed(0, key_bytes_max) <= SEGMENT_BYTES_MIN);
    assert!(RESERVED.segment_bytes_needed(0, key_bytes_max) <= SEGMENT_BYTES_MIN);
    // The largest responses fit into the largest segments.
    let largest = RESPONSE_BYTES_MAX as u64;
    assert!(LARGEST.segment_bytes_needed(largest, key_bytes_max) <= SEGMENT_BYTES_MAX);
};

/// The value, if it is from `min` to `max`.
fn in_range(
    option: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<usize, OptionsError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(OptionsError::OutOfRange {
        option,
        value: value as u64,
        min: min as u64,
        max: max as u64,
    })
}

#[cfg(test)]
mod tests;
