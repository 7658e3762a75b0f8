//! Every numeric limit of a store, with its unit in its name or type.
//!
//! Nothing in a store is unbounded: each length, count and time has a limit here. `…_DEFAULT` is
//! what a store has unless set otherwise, `…_MIN` and `…_MAX` are what it can be set to with
//! [`Options`](crate::Options) (or, for a single claim, [`ClaimOptions`](crate::ClaimOptions)). A
//! limit with neither is fixed. Reaching one is a typed error that names it; nothing is ever cut
//! short, evicted or dropped to stay within one.
//!
//! | what | smallest | default | largest | option |
//! |---|---|---|---|---|
//! | key part | 1 byte | 255 bytes | 1,024 bytes | [`max_key_part`] |
//! | response | 0 bytes | 1 MiB | 16 MiB | [`max_response`] |
//! | response with room set aside | 0 bytes | 4 KiB | nearly 16 MiB | [`reserved_response`] |
//! | checkpoint | 0 bytes | | 4 KiB | |
//! | principal | 0 bytes | | 255 bytes | |
//! | segment | 64 KiB | 64 MiB | 64 MiB | [`segment_size`] |
//! | segments prepared ahead | 1 | 1 | 64 | [`prepared_segments`] |
//! | stripes of the index | 1 | 1,024 | 65,536 | [`stripes`] |
//! | keys pending or interrupted | 1 | 1 million | 100 million | [`max_pending`] |
//! | waiters for one key | 0 | 1,024 | 16,777,216 | [`max_waiters_per_key`] |
//! | waiters in all | 0 | 65,536 | 16,777,216 | [`max_waiters`] |
//! | retention | 1 s | 24 h | 3,653 days | [`retention`] |
//! | retention of versions | 1 s | 365 days | 3,653 days | [`version_retention`] |
//! | messages in the outbox | 0 | 100,000 | 10 million | [`max_outbox`] |
//! | messages and versions in one completion | 0 | | 256 | |
//! | lease | 1 ms | none | 3,653 days | [`lease`] |
//! | bytes a second of maintenance | 64 KiB | 64 MiB | 16 GiB | [`maintenance_rate`] |
//! | clock jump at open | 0 | 30 days | | [`max_clock_jump`] |
//!
//! [`max_key_part`]: crate::Options::max_key_part
//! [`max_response`]: crate::Options::max_response
//! [`reserved_response`]: crate::Options::reserved_response
//! [`segment_size`]: crate::Options::segment_size
//! [`prepared_segments`]: crate::Options::prepared_segments
//! [`stripes`]: crate::Options::stripes
//! [`max_pending`]: crate::Options::max_pending
//! [`max_waiters_per_key`]: crate::Options::max_waiters_per_key
//! [`max_waiters`]: crate::Options::max_waiters
//! [`retention`]: crate::Options::retention
//! [`max_outbox`]: crate::Options::max_outbox
//! [`version_retention`]: crate::Options::version_retention
//! [`lease`]: crate::Options::lease
//! [`maintenance_rate`]: crate::Options::maintenance_rate
//! [`max_clock_jump`]: crate::Options::max_clock_jump

use std::time::Duration;

/// Bytes a second that the maintaining thread may write.
pub const MAINTENANCE_RATE_DEFAULT: u64 = 64 << 20;
/// The least that it can be held to.
pub const MAINTENANCE_RATE_MIN: u64 = 64 << 10;
/// The most.
pub const MAINTENANCE_RATE_MAX: u64 = 16 << 30;

/// Bytes of each part of a key (scope, operation, id) that a store takes by default: 255.
pub const KEY_PART_BYTES_DEFAULT: usize = 255;
/// Bytes of each part of a key that any store takes: 1,024. No [`Key`](crate::Key) has more.
pub const KEY_PART_BYTES_MAX: usize = 1_024;

/// Bytes of a response that a store keeps by default: 1 MiB, or less in small segments.
pub const RESPONSE_BYTES_DEFAULT: usize = 1 << 20;
/// Bytes of a response that a store can be set to keep: 16 MiB.
pub const RESPONSE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a response for which each claim sets room aside by default: 4,096.
pub const RESERVED_RESPONSE_BYTES_DEFAULT: usize = 4_096;

/// Bytes of a checkpoint: 4,096. It is a note to a later attempt, not the place for state.
pub const CHECKPOINT_BYTES_MAX: usize = 4_096;
/// Bytes of the principal that a result is stored for: 255.
pub const PRINCIPAL_BYTES_MAX: usize = 255;

/// Bytes of a segment of the log by default: 64 MiB.
pub const SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// Bytes of the smallest segment: 64 KiB.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the largest segment: 64 MiB, as far as an index slot's 23 bits of offset reach.
pub const SEGMENT_BYTES_MAX: u64 = 64 << 20;
/// Every segment size is a multiple of this many bytes, a page: 4,096.
pub const SEGMENT_BYTES_STEP: u64 = 4_096;
/// Segments kept ready ahead of the one being written by default: 1.
pub const PREPARED_SEGMENTS_DEFAULT: usize = 1;
/// Segments that can be kept ready ahead of the one being written: 64.
pub const PREPARED_SEGMENTS_MAX: usize = 64;

/// Shortest time that a completed result answers: 1 second.
pub const RETENTION_MIN: Duration = Duration::from_secs(1);
/// How long a completed result answers by default: 24 hours.
pub const RETENTION_DEFAULT: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time that a completed result answers: 3,653 days, ten years with their leap days.
pub const RETENTION_MAX: Duration = Duration::from_secs(3_653 * 24 * 60 * 60);

/// How long an entity's version is kept from when it was last set, by default: 365 days.
pub const VERSION_RETENTION_DEFAULT: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Messages that the outbox holds by default: 100,000.
pub const OUTBOX_DEFAULT: usize = 100_000;
/// Messages that the outbox can be set to hold: 10 million.
pub const OUTBOX_MAX: usize = 10_000_000;
/// Messages and versions in one completion: 256.
pub const ATTACHED_MAX: usize = 256;

/// Shortest lease: 1 millisecond.
pub const LEASE_MIN: Duration = Duration::from_millis(1);
/// Longest lease: 3,653 days, ten years with their leap days.
pub const LEASE_MAX: Duration = RETENTION_MAX;

/// Stripes of the index by default: 1,024.
pub const STRIPES_DEFAULT: usize = 1_024;
/// Stripes that the index can have: 65,536.
pub const STRIPES_MAX: usize = 65_536;

/// Keys that may be pending or interrupted at once by default: 1 million.
pub const PENDING_DEFAULT: usize = 1_000_000;
/// Keys that can be allowed to be pending or interrupted at once: 100 million.
pub const PENDING_MAX: usize = 100_000_000;

/// Keys that a store, or a scope in it, can be limited to at most: 4,294,967,295.
pub const KEYS_MAX: usize = u32::MAX as usize;

/// Callers that may wait for one key by default: 1,024.
pub const WAITERS_PER_KEY_DEFAULT: usize = 1_024;
/// Callers that may wait for any key by default: 65,536.
pub const WAITERS_DEFAULT: usize = 65_536;
/// Callers that can be allowed to wait, for one key or for any: 16,777,216.
pub const WAITERS_MAX: usize = 16_777_216;

/// How far ahead of the newest time in the store the wall clock may be when it is opened, by
/// default: 30 days.
pub const CLOCK_JUMP_DEFAULT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

// Each default is a value that could be set.
const _: () = {
    assert!(KEY_PART_BYTES_DEFAULT <= KEY_PART_BYTES_MAX);
    assert!(RESERVED_RESPONSE_BYTES_DEFAULT <= RESPONSE_BYTES_DEFAULT);
    assert!(RESPONSE_BYTES_DEFAULT <= RESPONSE_BYTES_MAX);
    assert!(SEGMENT_BYTES_MIN <= SEGMENT_BYTES_DEFAULT);
    assert!(SEGMENT_BYTES_DEFAULT <= SEGMENT_BYTES_MAX);
    assert!(SEGMENT_BYTES_MIN.is_multiple_of(SEGMENT_BYTES_STEP));
    assert!(SEGMENT_BYTES_DEFAULT.is_multiple_of(SEGMENT_BYTES_STEP));
    assert!(SEGMENT_BYTES_MAX.is_multiple_of(SEGMENT_BYTES_STEP));
    assert!(PREPARED_SEGMENTS_DEFAULT >= 1 && PREPARED_SEGMENTS_DEFAULT <= PREPARED_SEGMENTS_MAX);
    assert!(STRIPES_DEFAULT.is_power_of_two() && STRIPES_DEFAULT <= STRIPES_MAX);
    assert!(PENDING_DEFAULT <= PENDING_MAX);
    assert!(WAITERS_PER_KEY_DEFAULT <= WAITERS_DEFAULT && WAITERS_DEFAULT <= WAITERS_MAX);
    assert!(RETENTION_MIN.as_millis() <= RETENTION_DEFAULT.as_millis());
    assert!(RETENTION_DEFAULT.as_millis() <= RETENTION_MAX.as_millis());
    assert!(VERSION_RETENTION_DEFAULT.as_millis() <= RETENTION_MAX.as_millis());
    assert!(OUTBOX_DEFAULT <= OUTBOX_MAX);
    assert!(ATTACHED_MAX <= u16::MAX as usize);
};
