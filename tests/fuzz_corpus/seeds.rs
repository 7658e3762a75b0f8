//! Inputs to begin with: for each target some that its decoder takes, and what they lead to.
//!
//! They are written by `ONCEKEY_WRITE_CORPUS=1 cargo test --features http,testing --test
//! fuzz_corpus`.

use oncekey::testing::internals;
use oncekey::{Claim, ClaimOptions, Fingerprint, Key, Lease};

use crate::operations::{BUFFERED, FAULTY, RESTLESS, SMALL_PAGES};
use crate::segments::{OF_KILLED, SEAL_PAGES, SEAL_RECORDS};
use crate::stores::{disk_of, options};
use crate::subjects::{CLOSED, KILLED};
use crate::support::{START_MS, ms};

pub type Seeds = Vec<(String, Vec<u8>)>;

fn of(mode: u8, bytes: &[u8]) -> Vec<u8> {
    [&[mode], bytes].concat()
}

pub fn records() -> Seeds {
    let mut seeds = Seeds::new();
    for (number, mut record) in internals::records().into_iter().enumerate() {
        let words = record.len() as u64 / 8;
        let word = internals::true_word(words, number as u64).to_le_bytes();
        record[..8].copy_from_slice(&word);
        // The position of the word is the mode; an odd one seals the record once more.
        seeds.push((format!("seed-record-{number}"), of(number as u8, &record)));
    }
    let unsealed = vec![7; 128];
    seeds.push(("seed-no-record".to_owned(), of(0, &unsealed)));
    seeds
}

pub fn side_cars() -> Seeds {
    let change = |at: u16, value: u32| {
        let [low, high] = at.to_le_bytes();
        let [a, b, c, d] = value.to_le_bytes();
        vec![low, high, a, b, c, d]
    };
    let mut seeds = Seeds::new();
    for which in 0..4 {
        seeds.push((format!("seed-whole-{which}"), vec![0, which]));
        seeds.push((format!("seed-cut-{which}"), vec![2 | 8 << 2, which]));
    }
    // Even places are those of fields, odd ones lie in the entries.
    for (name, at, value) in [
        ("store", 2 * 24, 9),
        ("base", 2 * 40, 1),
        ("end", 2 * 48, 9_000),
        ("entries", 2 * 64, 61),
        ("records", 2 * 72, 1),
        ("records-end", 2 * 80, 600),
        ("watermark", 2 * 88, 0),
        ("high-water", 2 * 96, 5),
        ("hash", 1, 0),
        ("last-hash", 59 * 16 + 1, u32::MAX),
        ("place", 480 * 2 + 1, 512 | 3 << 23),
        ("no-place", 480 * 2 + 1, u32::MAX),
    ] {
        for (sealed, mode) in [("sealed", 1), ("torn", 0)] {
            let bytes = [vec![mode, 3], change(at, value)].concat();
            seeds.push((format!("seed-{sealed}-{name}"), bytes));
        }
    }
    seeds.push(("seed-nothing".to_owned(), vec![0, 9]));
    seeds
}

pub fn tickets() -> Seeds {
    let disk = disk_of(&CLOSED.files);
    let clock = oncekey::ManualClock::new(START_MS + 60_000);
    let store = options(&clock).open_simulated(&disk).expect("a store");
    let long = || ClaimOptions::new().lease(Lease::For(ms(60_000)));
    let mut seeds = Seeds::new();
    let keys = [("", "", "i"), ("scope", "operation", "id")];
    for (number, (scope, operation, id)) in keys.into_iter().enumerate() {
        let key = Key::new(scope, operation, id).expect("a key");
        let fingerprint = Fingerprint::of([number as u8]);
        let claim = store.claim_with(&key, fingerprint, long());
        let Ok(Claim::Started(operation)) = claim else {
            panic!("{claim:?}");
        };
        let ticket = operation.into_ticket().expect("a ticket").encode();
        seeds.push((format!("seed-ticket-{number}"), of(0, &ticket)));
        let unsealed = &ticket[..ticket.len() - 4];
        seeds.push((format!("seed-unsealed-{number}"), of(1, unsealed)));
    }
    seeds.push(("seed-key".to_owned(), of(0, b"scope\0operation\0id")));
    seeds
}

/// What clients of the server send, and what others do.
#[cfg(feature = "serve")]
pub fn requests() -> Seeds {
    let values: [&[u8]; 26] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"PING\r\n",
        b"\r\n\n  \r\nPING a\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*0\r\n*-1\r\n*1\r\n$4\r\nQUIT\r\n",
        b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\nPING\r\n",
        b"*6\r\n$10\r\nIDEM.CLAIM\r\n$1\r\ns\r\n$1\r\no\r\n$2\r\n\r\n\r\n$5\r\nLEASE\r\n$4\r\n5000\r\n",
        b"*1\r\n$4\r\nPI",
        b"*17\r\n",
        b"*1000000000\r\n",
        b"*99999999999999999999\r\n",
        b"*+1\r\n",
        b"*01\r\n",
        b"*\r\n",
        b"*1\n$4\nPING\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n*1\r\n$1\r\na\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$257\r\n",
        b"*1\r\n$9223372036854775807\r\n",
        b"*1\r\n$1\r\nab\r\n",
        b"*1\r\n$4\r\nPING\n\r",
        b"SET \"a b\" c\r\n",
        b"a b c d e f g h i j k l m n o p q\r\n",
        b"*00000000000000000000000000000000000001",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
    ];
    let seed = |(number, value): (usize, &[u8])| {
        let piece = [255, 1, 3][number % 3];
        (format!("seed-request-{number}"), of(piece, value))
    };
    values.into_iter().enumerate().map(seed).collect()
}

#[cfg(feature = "http")]
pub fn key_headers() -> Seeds {
    let values: [&[u8]; 24] = [
        b"abc",
        b" abc\t",
        b"a b",
        b"../../etc",
        b"abc;v=1",
        b"abc\"",
        b"\"abc\"",
        b"\"abc\";v=1",
        b"\"abc\"; a=\"x;y\";b=?1;*c=:YQ==:",
        br#""a\"b\\c""#,
        b"\"a,b\"",
        b"\" a \"",
        b"",
        b"  ",
        b"\"\"",
        b"\"  \"",
        b"\"abc",
        b"\"abc\"d",
        b"\"abc\" ;v",
        b"\"abc\";V",
        br#""a\nb""#,
        b"a, b",
        b"a\x00b",
        b"schl\xfcssel",
    ];
    let seed = |(number, value): (usize, &[u8])| {
        let max = if number % 2 == 0 { 255 } else { 16 };
        (format!("seed-value-{number}"), of(max, value))
    };
    values.into_iter().enumerate().map(seed).collect()
}

#[cfg(feature = "http")]
pub fn responses() -> Seeds {
    let values: [(&str, &[u8]); 13] = [
        ("empty", b"\x01\xcc\x00\x00\x00"),
        ("body", b"\x01\xc8\x00\x00\x00body"),
        (
            "headers",
            b"\x01\xc9\x00\x03\x04etag\x011\x04link\x01a\x04link\x01b\x00{}",
        ),
        ("trailers", b"\x01\xc8\x00\x00\x01\x0bgrpc-status\x010"),
        ("latin", b"\x01\xc8\x00\x01\x01x\x02\xfc\xff\x00"),
        ("version", b"\x02\xc8\x00\x00\x00"),
        ("status", b"\x01\x63\x00\x00\x00"),
        ("long-count", b"\x01\xc8\x00\x80\x00\x00"),
        ("count", b"\x01\xc8\x00\x81\x08\x00"),
        ("length", b"\x01\xc8\x00\x01\xff\xff\xff\x7fa"),
        ("name", b"\x01\xc8\x00\x01\x01A\x011\x00"),
        (
            "torn-name",
            b"\x01\xc8\x00\x03\x01a\x011\x01b\x011\x01a\x011\x00",
        ),
        ("value", b"\x01\xc8\x00\x01\x01a\x01\n\x00"),
    ];
    let seed = |(name, bytes): (&str, &[u8])| (format!("seed-{name}"), bytes.to_vec());
    values.into_iter().map(seed).collect()
}

pub fn meta() -> Seeds {
    let edit = |what: u8, at: u8, value: u64| [&[what, at][..], &value.to_le_bytes()].concat();
    let newer = u8::from(serial(0) < serial(1));
    let mut seeds = vec![("seed-whole".to_owned(), of(0, &[]))];
    for (name, at, value) in [
        ("serial", 16, u64::MAX - 1),
        ("store", 24, 1),
        ("secret", 40, 1),
        ("epoch", 72, (1 << 28) - 1),
        ("high-water", 80, u64::MAX),
        ("watermark", 88, 0),
        ("restored", 96, START_MS),
        ("clean", 112, 0),
        ("version", 8, 2),
    ] {
        seeds.push((format!("seed-{name}"), of(3, &edit(newer, at, value))));
        seeds.push((format!("seed-torn-{name}"), of(0, &edit(newer, at, value))));
    }
    let both = [edit(0, 20, 9), edit(1, 20, 9)].concat();
    seeds.push(("seed-both-torn".to_owned(), of(0, &both)));
    seeds.push(("seed-same-slot".to_owned(), of(0, &edit(newer | 4, 0, 0))));
    seeds.push(("seed-empty".to_owned(), of(0, &edit(6, 0, 0))));
    seeds.push(("seed-short".to_owned(), of(0, &edit(6, 0, 64))));
    seeds
}

fn serial(slot: usize) -> u64 {
    crate::layout::u64_at(&CLOSED.files["META"], slot * crate::layout::PAGE + 16)
}

pub fn segments() -> Seeds {
    let mut seeds = Seeds::new();
    let modes = [
        ("closed", 0),
        ("killed", OF_KILLED),
        ("sealed", SEAL_RECORDS),
        ("forged", OF_KILLED | SEAL_RECORDS | SEAL_PAGES),
    ];
    for (name, mode) in modes {
        seeds.push((format!("seed-{name}-whole"), of(mode, &[])));
        for kind in 0..16 {
            let number = kind as u16 * 37 + 5;
            let [low, high] = number.to_le_bytes();
            let edit = [0x80 | kind, kind * 3, low, high, 24, 1 + kind, 2, 3];
            seeds.push((format!("seed-{name}-{kind}"), of(mode, &edit)));
        }
    }
    // Behind the end of all, where nothing lies.
    let last = KILLED.segment_names().len() as u8 - 1;
    let behind = of(OF_KILLED, &[0, last, 0, 0xF0, 40, 0, 0, 0]);
    seeds.push(("seed-killed-behind".to_owned(), behind));
    // Fields of a claim that are counted up or added to.
    for (name, within) in [("attempt", 96), ("times", 40), ("deadline", 64)] {
        let edit = [0x81, 0, 0, 0, 8, 0xFF, 0xFF, 0xFF];
        let mut bytes = of(SEAL_RECORDS, &edit);
        let places = CLOSED.layout.segments[0].places.len() as u16;
        let [low, high] = (within * places + 2).to_le_bytes();
        (bytes[3], bytes[4]) = (low, high);
        seeds.push((format!("seed-sealed-{name}"), bytes));
    }
    seeds
}

pub fn operations() -> Seeds {
    // Claim, complete, checkpoint, drop, ticket and resume, forget, look and so on, on few keys.
    let life = [
        [0, 0, 0, 8],
        [13, 0, 9, 0],
        [8, 0, 90, 0],
        [0, 1, 41, 8],
        [21, 1, 0, 0],
        [22, 1, 0, 0],
        [15, 1, 0, 0],
        [0, 2, 0, 9],
        [16, 2, 0, 0],
        [0, 2, 0, 4],
        [12, 2, 0, 0],
        [26, 0, 0, 0],
        [18, 0, 0, 0],
        [0, 3, 3, 4],
        [17, 3, 0, 0],
        [27, 0, 255, 0],
        [0, 3, 0, 4],
        [20, 3, 0, 0],
        [23, 2, 2, 1],
        [24, 4, 0, 0],
        [25, 3, 60, 0],
        [28, 0, 0, 0],
    ]
    .concat();
    let ends = [
        ("none", vec![]),
        ("reopened", vec![29, 0, 0, 0]),
        ("killed", vec![30, 0, 0, 0]),
        ("power", vec![31, 0, 7, 1]),
        (
            "twice",
            vec![28, 0, 1, 5, 31, 0, 3, 0, 0, 1, 0, 4, 30, 0, 0, 0],
        ),
    ];
    let mut seeds = Seeds::new();
    for (name, end) in ends {
        for (how, head) in [
            ("sync", [SMALL_PAGES, 0, 0, 0]),
            ("buffered", [BUFFERED | RESTLESS, 0, 0, 3]),
        ] {
            let bytes = [&head[..], &life, &end, &life].concat();
            seeds.push((format!("seed-{how}-{name}"), bytes));
        }
    }
    for way in 0..8 {
        for after in [4, 17, 40] {
            let head = [FAULTY | SMALL_PAGES, way, after, 0];
            let bytes = [&head[..], &life, &[29, 0, 0, 0], &life].concat();
            seeds.push((format!("seed-fault-{way}-{after}"), bytes));
        }
    }
    let large: Vec<u8> = (0..5)
        .flat_map(|key| [0, key, 0, 9, 8, key, 255, 0])
        .collect();
    let bytes = [&[0, 0, 0, 0][..], &large, &[31, 0, 1, 1], &large].concat();
    seeds.push(("seed-large".to_owned(), bytes));
    seeds.push(("seed-nothing".to_owned(), vec![0; 4]));
    seeds
}
