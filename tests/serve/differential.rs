//! The same commands, drawn at random, to a real Redis and to ours: the same answers.

use redis::{Connection, Value};

use super::Served;
use super::migration::RealRedis;

const COMMANDS: u64 = 4_000;
/// Seconds by which times may differ that were asked for one after the other.
const TIME_SLACK: i64 = 120;

/// Numbers that repeat themselves for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// One command. Times to come are far from each other, so that the moment of a call decides nothing.
fn command(random: &mut Random, step: u64) -> Vec<String> {
    const ODD: &[&str] = &[
        "0",
        "-1",
        "abc",
        "",
        "007",
        "-0",
        "+5",
        " 5",
        "1.5",
        "9223372036854775808",
    ];
    let key = format!("k{}", random.below(4));
    let later = 1_000 * (step + 1);
    let time = |random: &mut Random, unit: &str| -> String {
        if random.below(6) == 0 {
            return random.of(ODD).to_owned();
        }
        match unit {
            "EX" | "expire" => later.to_string(),
            "PX" | "pexpire" => (later * 1_000).to_string(),
            "EXAT" | "expireat" if random.below(4) > 0 => (4_000_000_000 + later).to_string(),
            "PXAT" | "pexpireat" if random.below(4) > 0 => {
                ((4_000_000_000 + later) * 1_000).to_string()
            }
            _ => "1".to_owned(),
        }
    };
    let name = random.of(&[
        "set",
        "set",
        "set",
        "set",
        "get",
        "getdel",
        "getex",
        "getex",
        "setnx",
        "setex",
        "psetex",
        "mget",
        "exists",
        "del",
        "unlink",
        "expire",
        "pexpire",
        "expireat",
        "pexpireat",
        "persist",
        "ttl",
        "pttl",
        "expiretime",
        "pexpiretime",
        "strlen",
        "type",
        "echo",
        "ping",
        "select",
    ]);
    let mut words = vec![name.to_owned()];
    match name {
        "set" => {
            words.extend([key, format!("v{step}")]);
            for _ in 0..random.below(4) {
                let option = random.of(&[
                    "NX", "xx", "GET", "KEEPTTL", "EX", "px", "EXAT", "PXAT", "EX", "PX", "ODD",
                ]);
                words.push(option.to_owned());
                let unit = option.to_ascii_uppercase();
                if matches!(&*unit, "EX" | "PX" | "EXAT" | "PXAT") && random.below(12) > 0 {
                    words.push(time(random, &unit));
                }
            }
        }
        "getex" => {
            words.push(key);
            for _ in 0..random.below(3) {
                let option = random.of(&["PERSIST", "EX", "px", "EXAT", "PXAT", "NX"]);
                words.push(option.to_owned());
                let unit = option.to_ascii_uppercase();
                if unit != "PERSIST" && random.below(12) > 0 {
                    words.push(time(random, &unit));
                }
            }
        }
        "setnx" => words.extend([key, format!("v{step}")]),
        "setex" | "psetex" => {
            let unit = if name == "setex" { "EX" } else { "PX" };
            words.extend([key, time(random, unit), format!("v{step}")]);
        }
        "mget" | "exists" | "del" | "unlink" => {
            words.push(key);
            words.extend((0..random.below(3)).map(|_| format!("k{}", random.below(4))));
        }
        "expire" | "pexpire" | "expireat" | "pexpireat" => {
            words.extend([key, time(random, name)]);
            for _ in 0..random.below(3) {
                words.push(random.of(&["NX", "xx", "GT", "LT", "ODD"]).to_owned());
            }
        }
        "select" => words.push(random.of(&["0", "x"]).to_owned()),
        "ping" => words.extend((0..random.below(2)).map(|_| "hello".to_owned())),
        _ => words.push(key),
    }
    // Now and then an argument is missing, or one too many.
    match random.below(25) {
        0 if words.len() > 1 => drop(words.pop()),
        1 => words.push("ODD".to_owned()),
        _ => {}
    }
    words
}

fn answer(connection: &mut Connection, words: &[String]) -> Value {
    let mut command = redis::cmd(&words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(word);
    });
    command.query(connection).unwrap_or_else(|error| {
        let (code, detail) = (error.code(), error.detail());
        assert!(code.is_some(), "{words:?}: {error}");
        Value::SimpleString(format!("{code:?} {}", detail.unwrap_or_default()))
    })
}

/// Whether both say the same; of times that go by, about the same.
fn is_same(name: &str, theirs: &Value, ours: &Value) -> bool {
    let slack = match name {
        "ttl" | "expiretime" => TIME_SLACK,
        "pttl" | "pexpiretime" => TIME_SLACK * 1_000,
        _ => 0,
    };
    match (theirs, ours) {
        (Value::Int(theirs), Value::Int(ours)) if *theirs > 0 && *ours > 0 => {
            theirs.abs_diff(*ours) <= slack as u64
        }
        _ => theirs == ours,
    }
}

#[test]
fn a_real_redis_gives_the_same_answers() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_redis, mut theirs)) = RealRedis::start(directory.path()) else {
        return;
    };
    let served = Served::start(
        &directory.path().join("store"),
        &["--durability", "buffered"],
    );
    let mut ours = served.client();
    let mut differences = Vec::new();
    for seed in 1..=3 {
        let mut random = Random(seed);
        for step in 0..COMMANDS {
            let words = command(&mut random, step);
            let (one, other) = (answer(&mut theirs, &words), answer(&mut ours, &words));
            if !is_same(&words[0], &one, &other) {
                differences.push(format!("{words:?}: {one:?}, ours {other:?}"));
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{} differences, the first: {:#?}",
        differences.len(),
        &differences[..differences.len().min(30)]
    );
}
