//! Every numeric limit of the store in one place, with its unit.

use std::time::Duration;

/// Bytes of each key part that a store takes by default.
pub const KEY_PART_BYTES_DEFAULT: usize = 255;
/// Bytes of each key part that a store can be set to take.
pub const KEY_PART_BYTES_MAX: usize = 1_024;
/// Bytes of a response that a store keeps by default.
pub const RESPONSE_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes of a response that a store can be set to keep.
pub const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a response for which every claim reserves room, by default.
pub const RESERVED_RESPONSE_BYTES_DEFAULT: usize = 4_096;
/// Bytes of a checkpoint.
pub const CHECKPOINT_BYTES_MAX: usize = 4_096;
/// Bytes of a principal.
pub const PRINCIPAL_BYTES_MAX: usize = 255;
/// Bytes of a segment by default.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of the smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the largest segment: an index slot has 23 bits for an offset in words.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Segments kept ready by default.
pub const PREPARED_SEGMENTS_DEFAULT: usize = 1;
/// Segments that can be kept ready.
pub const PREPARED_SEGMENTS_MAX: usize = 64;
/// Shortest retention.
pub const RETENTION_MIN: Duration = Duration::from_secs(1);
/// Retention by default.
pub const RETENTION_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// Longest retention: ten years.
pub const RETENTION_MAX: Duration = Duration::from_secs(3_653 * 24 * 3_600);
/// Shortest lease.
pub const LEASE_MIN: Duration = Duration::from_millis(1);
/// Longest lease: ten years.
pub const LEASE_MAX: Duration = RETENTION_MAX;
/// Stripes of the index by default.
pub const STRIPES_DEFAULT: usize = 1_024;
/// Stripes that the index can have.
pub const STRIPES_MAX: usize = 65_536;
/// Keys that may be pending or interrupted by default.
pub const PENDING_DEFAULT: usize = 1_000_000;
/// Keys that can be allowed to be pending or interrupted.
pub const PENDING_MAX: usize = 100_000_000;
/// Callers that may wait for one key by default.
pub const WAITERS_PER_KEY_DEFAULT: usize = 1_024;
/// Callers that may wait in all by default.
pub const WAITERS_DEFAULT: usize = 65_536;
/// Callers that can be allowed to wait, for one key or in all.
pub const WAITERS_MAX: usize = 16_777_216;
/// How far the wall clock may be ahead of the store at open, by default.
pub const CLOCK_JUMP_DEFAULT: Duration = Duration::from_secs(30 * 24 * 3_600);
