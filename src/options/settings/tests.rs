use super::*;
use crate::clock::ManualClock;
use crate::index::live::WHILE_ALIVE;
use crate::options::Lease;
use proptest::prelude::*;

const MIB: usize = 1 << 20;

#[test]
fn the_defaults_are_as_documented() {
    let settings = Options::new().validate().unwrap();
    assert_eq!(settings.durability, Durability::Sync);
    assert_eq!(settings.lease_ms, WHILE_ALIVE);
    assert_eq!(settings.retention_ms, 86_400_000);
    assert_eq!(settings.segment_bytes, 67_108_864);
    assert_eq!(settings.stripes, 1_024);
    assert_eq!(settings.prepared_segments, 1);
    assert_eq!(settings.key_part_bytes_max, 255);
    assert_eq!(settings.response_bytes_max, 1_048_576);
    assert_eq!(settings.reserved_response_bytes, 4_096);
    assert_eq!(settings.pending_max, 1_000_000);
    assert_eq!(settings.waiters_per_key_max, 1_024);
    assert_eq!(settings.waiters_max, 65_536);
    assert_eq!(settings.max_clock_jump_ms, 2_592_000_000);
    assert!(!settings.allow_clock_jump && !settings.allow_network_file_system);
    assert_eq!(settings.recovery, Recovery::Refuse);
    assert_eq!(settings.lock_wait, Duration::ZERO);
    assert!(!settings.restored);
}

#[test]
fn every_option_reaches_the_settings() {
    let clock = ManualClock::new(4_711);
    let settings = Options::new()
        .durability(Durability::Buffered)
        .lease(Lease::For(Duration::from_secs(3)))
        .retention(Duration::from_secs(4))
        .segment_size(1 << 20)
        .stripes(16)
        .prepared_segments(2)
        .max_key_part(300)
        .max_response(5_000)
        .reserved_response(600)
        .max_pending(7)
        .max_waiters_per_key(8)
        .max_waiters(9)
        .max_clock_jump(Duration::from_secs(10))
        .allow_clock_jump(true)
        .recovery(Recovery::Salvage)
        .allow_network_file_system(true)
        .lock_wait(Duration::from_secs(11))
        .restored(true)
        .clock(Arc::new(clock))
        .validate()
        .unwrap();
    assert_eq!(settings.durability, Durability::Buffered);
    assert_eq!((settings.lease_ms, settings.retention_ms), (3_000, 4_000));
    assert_eq!((settings.segment_bytes, settings.stripes), (1 << 20, 16));
    assert_eq!(settings.prepared_segments, 2);
    assert_eq!(settings.key_part_bytes_max, 300);
    assert_eq!(settings.response_bytes_max, 5_000);
    assert_eq!(settings.reserved_response_bytes, 600);
    assert_eq!(settings.pending_max, 7);
    assert_eq!(settings.waiters_per_key_max, 8);
    assert_eq!(settings.waiters_max, 9);
    assert_eq!(settings.max_clock_jump_ms, 10_000);
    assert!(settings.allow_clock_jump && settings.allow_network_file_system);
    assert_eq!(settings.recovery, Recovery::Salvage);
    assert_eq!(settings.lock_wait, Duration::from_secs(11));
    assert!(settings.restored);
    assert_eq!(settings.clock.wall_ms(), 4_711);
}

#[test]
fn both_ends_of_every_range_are_allowed() {
    for options in [
        Options::new().segment_size(64 << 10),
        Options::new().segment_size((64 << 10) + 4_096),
        Options::new().stripes(1),
        Options::new().stripes(65_536),
        Options::new().prepared_segments(64),
        Options::new().max_key_part(1),
        Options::new().max_key_part(1_024),
        Options::new().max_response(0),
        Options::new().max_response(16 * MIB),
        Options::new().max_response(16 * MIB).max_key_part(1_024),
        Options::new().reserved_response(0),
        Options::new().reserved_response(MIB),
        Options::new().max_pending(1),
        Options::new().max_pending(100_000_000),
        Options::new().max_waiters_per_key(0),
        Options::new().max_waiters_per_key(16_777_216),
        Options::new().max_waiters(0),
        Options::new().max_waiters(16_777_216),
        Options::new().lease(Lease::For(Duration::from_millis(1))),
        Options::new().lease(Lease::For(Duration::from_secs(3_653 * 86_400))),
        Options::new().retention(Duration::from_secs(1)),
        Options::new().retention(Duration::from_secs(3_653 * 86_400)),
        Options::new().max_clock_jump(Duration::ZERO),
        Options::new().max_clock_jump(Duration::MAX),
        Options::new().lock_wait(Duration::MAX),
    ] {
        assert!(options.validate().is_ok(), "{options:?}");
    }
}

#[test]
fn every_option_out_of_range_names_itself_and_what_to_choose() {
    let cases = [
        (Options::new().segment_size(0), "segment_size"),
        (
            Options::new().segment_size((64 << 10) - 4_096),
            "segment_size",
        ),
        (Options::new().segment_size((64 << 10) + 8), "segment_size"),
        (
            Options::new().segment_size((64 << 20) + 4_096),
            "segment_size",
        ),
        (Options::new().segment_size(u64::MAX), "segment_size"),
        (Options::new().stripes(0), "stripes"),
        (Options::new().stripes(3), "stripes"),
        (Options::new().stripes(131_072), "stripes"),
        (Options::new().prepared_segments(0), "prepared_segments"),
        (Options::new().prepared_segments(65), "prepared_segments"),
        (Options::new().max_key_part(0), "max_key_part"),
        (Options::new().max_key_part(1_025), "max_key_part"),
        (Options::new().max_key_part(usize::MAX), "max_key_part"),
        (Options::new().max_response(16 * MIB + 1), "max_response"),
        (Options::new().max_response(usize::MAX), "max_response"),
        (
            Options::new().reserved_response(MIB + 1),
            "reserved_response",
        ),
        (
            Options::new().reserved_response(usize::MAX),
            "reserved_response",
        ),
        (Options::new().max_pending(0), "max_pending"),
        (Options::new().max_pending(100_000_001), "max_pending"),
        (
            Options::new().max_waiters_per_key(16_777_217),
            "max_waiters_per_key",
        ),
        (Options::new().max_waiters(usize::MAX), "max_waiters"),
        (Options::new().lease(Lease::For(Duration::ZERO)), "lease"),
        (Options::new().lease(Lease::For(Duration::MAX)), "lease"),
        (Options::new().retention(Duration::ZERO), "retention"),
        (
            Options::new().retention(Duration::from_millis(1)),
            "retention",
        ),
        (Options::new().retention(Duration::MAX), "retention"),
    ];
    for (options, name) in cases {
        let message = options.validate().unwrap_err().to_string();
        assert!(
            message.contains(name) && message.contains("choose"),
            "{message}"
        );
    }
}

#[test]
fn errors_say_what_was_wrong_and_what_to_do() {
    let cases = [
        (
            Options::new().stripes(131_072),
            "Options::stripes is 131072; choose from 1 to 65536",
        ),
        (
            Options::new().stripes(1_000),
            "Options::stripes is 1000; choose a power of two",
        ),
        (
            Options::new().segment_size(100_000),
            "Options::segment_size is 100000; choose a multiple of 4096",
        ),
        (
            Options::new().segment_size(1 << 20).max_response(MIB),
            "Options::max_response is 1048576 bytes, too many for segments of 1048576; choose at \
             most 507139, or an Options::segment_size of at least 2134016",
        ),
        (
            Options::new()
                .max_response(16 * MIB)
                .reserved_response(16 * MIB),
            "Options::reserved_response is 16777216 bytes, too many for segments of 67108864; \
             choose at most 16768259",
        ),
        (
            Options::new().max_response(100).reserved_response(101),
            "Options::reserved_response is 101 bytes, but responses have at most 100; choose no \
             more than that, or raise Options::max_response",
        ),
        (
            Options::new().retention(Duration::from_millis(5)),
            "the retention is 5ms; choose from 1s to 3653 days",
        ),
    ];
    for (options, message) in cases {
        assert_eq!(options.validate().unwrap_err().to_string(), message);
    }
}

#[test]
fn small_segments_bound_the_responses_that_were_left_to_the_store() {
    let small = Options::new().segment_size(64 << 10).max_key_part(1_024);
    let settings = small.validate().unwrap();
    assert_eq!(settings.response_bytes_max, 32_768 - 3_072 - 16_384);
    assert_eq!(settings.reserved_response_bytes, 4_096);
    let settings = small.clone().max_response(100).validate().unwrap();
    assert_eq!(settings.reserved_response_bytes, 100);
    // Set explicitly, the same limit has to fit.
    assert!(small.clone().max_response(13_312).validate().is_ok());
    let error = small.max_response(13_313).validate().unwrap_err();
    let expected = OptionsError::SegmentTooSmall {
        option: "max_response",
        value: 13_313,
        fits: 13_312,
        segment_bytes: 65_536,
        needed_bytes: 69_632,
    };
    assert_eq!(error, expected);
}

proptest! {
    /// What the error says fits, fits, and not a byte more; so does the segment it asks for.
    #[test]
    fn the_advice_of_a_segment_that_is_too_small_is_right(
        pages in 16..16_384_u64,
        part in 1..=KEY_PART_BYTES_MAX,
        bytes in 0..=RESPONSE_BYTES_MAX,
    ) {
        let options = Options::new().segment_size(pages * 4_096).max_key_part(part);
        match options.clone().max_response(bytes).validate() {
            Ok(settings) => prop_assert_eq!(settings.response_bytes_max, bytes),
            Err(OptionsError::SegmentTooSmall { fits, needed_bytes, .. }) => {
                let fits = fits as usize;
                prop_assert!(bytes > fits);
                prop_assert!(options.clone().max_response(fits).validate().is_ok());
                prop_assert!(options.clone().max_response(fits + 1).validate().is_err());
                let enlarged = |size| options.clone().max_response(bytes).segment_size(size);
                prop_assert!(enlarged(needed_bytes).validate().is_ok());
                prop_assert!(enlarged(needed_bytes - 4_096).validate().is_err());
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn the_defaults_are_valid_for_every_segment_and_key_size(
        pages in 16..=16_384_u64,
        part in 1..=KEY_PART_BYTES_MAX,
    ) {
        let options = Options::new().segment_size(pages * 4_096).max_key_part(part);
        let settings = options.validate().unwrap();
        let record = |response: usize| {
            (HEAD_BYTES + 3 * part + PRINCIPAL_BYTES_MAX + CHECKPOINT_BYTES_MAX + response) as u64
        };
        let room = settings.segment_bytes - HEADER_BYTES as u64;
        prop_assert!(2 * record(settings.response_bytes_max) <= room);
        prop_assert!(4 * record(settings.reserved_response_bytes) <= room);
        prop_assert!(settings.reserved_response_bytes <= settings.response_bytes_max);
    }
}
