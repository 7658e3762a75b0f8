//! Workloads as data: short scripts over the whole public API, and long random ones.

use oncekey::Durability;

use crate::support::Random;

pub use Durability::{Buffered, Sync};

/// One call, or one thing that happens.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Claim {
        key: u8,
        level: Durability,
        lease_ms: Option<u64>,
        retention_s: u64,
    },
    Complete {
        key: u8,
        len: usize,
        /// None for that of the claim.
        level: Option<Durability>,
        principal: bool,
    },
    CompleteWithoutResponse {
        key: u8,
    },
    Checkpoint {
        key: u8,
        len: usize,
    },
    Release {
        key: u8,
    },
    Drop {
        key: u8,
    },
    Renew {
        key: u8,
    },
    Forget {
        key: u8,
        force: bool,
    },
    Interrupt {
        key: u8,
    },
    Ticket {
        key: u8,
    },
    Resume {
        key: u8,
    },
    Batch {
        from: u8,
        count: u8,
        level: Durability,
    },
    /// A claim future that is dropped before it is done.
    CancelClaim {
        key: u8,
    },
    /// A completion future that is.
    CancelComplete {
        key: u8,
        len: usize,
    },
    Look {
        key: u8,
    },
    Advance {
        ms: u64,
    },
    Flush,
    /// A pass of maintenance.
    Maintain,
    /// The kernel writes some pages back.
    WriteBack {
        seed: u64,
    },
    /// Closes the store and opens it again.
    Reopen,
    /// The process dies, and the next one opens what it left.
    Kill,
    /// The power goes, and the next process opens what is left.
    LosePower {
        seed: u64,
    },
}

use Step::*;

/// A workload.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: &'static str,
    /// The store's own level.
    pub level: Durability,
    pub prepared: usize,
    pub steps: Vec<Step>,
}

pub const fn claim(key: u8, level: Durability) -> Step {
    Claim {
        key,
        level,
        lease_ms: None,
        retention_s: 1_000,
    }
}

const fn leased(key: u8, lease_ms: u64) -> Step {
    Claim {
        key,
        level: Sync,
        lease_ms: Some(lease_ms),
        retention_s: 1_000,
    }
}

pub const fn short_lived(key: u8, retention_s: u64) -> Step {
    Claim {
        key,
        level: Sync,
        lease_ms: None,
        retention_s,
    }
}

pub const fn complete(key: u8, len: usize) -> Step {
    Complete {
        key,
        len,
        level: None,
        principal: false,
    }
}

pub const fn complete_at(key: u8, len: usize, level: Durability) -> Step {
    Complete {
        key,
        len,
        level: Some(level),
        principal: true,
    }
}

pub fn script(name: &'static str, level: Durability, steps: Vec<Step>) -> Script {
    Script {
        name,
        level,
        prepared: 1,
        steps,
    }
}

/// The short workloads.
pub fn short() -> Vec<Script> {
    vec![
        script(
            "one of each end",
            Sync,
            vec![
                claim(0, Sync),
                complete(0, 30),
                claim(1, Sync),
                Release { key: 1 },
                claim(2, Sync),
                Checkpoint { key: 2, len: 40 },
                Drop { key: 2 },
                claim(2, Sync),
                CompleteWithoutResponse { key: 2 },
                Forget {
                    key: 0,
                    force: false,
                },
                claim(0, Sync),
                claim(3, Sync),
            ],
        ),
        script(
            "large answers",
            Sync,
            vec![
                claim(0, Sync),
                complete(0, 9_000),
                claim(1, Buffered),
                complete_at(1, 15_000, Buffered),
                claim(2, Sync),
                complete_at(2, 5_000, Sync),
                claim(3, Sync),
                Checkpoint { key: 3, len: 4_000 },
            ],
        ),
        script(
            "buffered with a flush",
            Buffered,
            vec![
                claim(0, Buffered),
                complete(0, 100),
                claim(1, Buffered),
                Checkpoint { key: 1, len: 9 },
                Flush,
                Release { key: 1 },
                claim(2, Buffered),
                complete(2, 5_000),
                WriteBack { seed: 3 },
                claim(3, Buffered),
                Forget {
                    key: 0,
                    force: false,
                },
                claim(3, Sync),
                Look { key: 2 },
            ],
        ),
        script(
            "both levels on one key",
            Sync,
            vec![
                claim(0, Buffered),
                complete_at(0, 50, Sync),
                claim(1, Sync),
                complete_at(1, 50, Buffered),
                Look { key: 1 },
                claim(2, Buffered),
                CompleteWithoutResponse { key: 2 },
                claim(2, Sync),
                claim(3, Buffered),
                Drop { key: 3 },
                claim(3, Buffered),
                Release { key: 3 },
                claim(3, Sync),
            ],
        ),
        script(
            "takeovers and leases",
            Sync,
            vec![
                leased(0, 1_000),
                Advance { ms: 999 },
                claim(0, Sync),
                Renew { key: 0 },
                Advance { ms: 1_000 },
                leased(0, 500),
                Checkpoint { key: 0, len: 3 },
                Interrupt { key: 0 },
                claim(0, Sync),
                complete(0, 10),
                claim(1, Sync),
                Forget {
                    key: 1,
                    force: true,
                },
                claim(1, Sync),
            ],
        ),
        script(
            "tickets",
            Sync,
            vec![
                leased(0, 1_000),
                Checkpoint { key: 0, len: 5 },
                Ticket { key: 0 },
                Resume { key: 0 },
                Resume { key: 0 },
                Drop { key: 0 },
                Resume { key: 0 },
                complete(0, 20),
                leased(1, 1_000),
                Ticket { key: 1 },
                Kill,
                Resume { key: 1 },
                Resume { key: 1 },
                Advance { ms: 2_000 },
                claim(1, Sync),
                Resume { key: 1 },
            ],
        ),
        script(
            "expiry",
            Sync,
            vec![
                short_lived(0, 2),
                complete(0, 30),
                short_lived(1, 5),
                complete_at(1, 30, Buffered),
                Advance { ms: 2_000 },
                Look { key: 0 },
                claim(0, Sync),
                Advance { ms: 3_000 },
                Forget {
                    key: 1,
                    force: false,
                },
                complete(0, 8),
                claim(1, Buffered),
                Reopen,
                claim(1, Sync),
            ],
        ),
        script(
            "batches and cancelled calls",
            Sync,
            vec![
                Batch {
                    from: 0,
                    count: 3,
                    level: Sync,
                },
                complete(1, 10),
                Batch {
                    from: 1,
                    count: 4,
                    level: Buffered,
                },
                CancelClaim { key: 5 },
                claim(5, Sync),
                CancelComplete { key: 5, len: 70 },
                claim(5, Sync),
                CancelComplete { key: 2, len: 20 },
                Flush,
            ],
        ),
        script(
            "closed and killed and closed",
            Sync,
            vec![
                claim(0, Sync),
                complete(0, 30),
                claim(1, Buffered),
                Reopen,
                claim(1, Sync),
                Kill,
                claim(1, Buffered),
                claim(2, Buffered),
                complete(2, 3_000),
                Kill,
                complete(1, 1),
                claim(2, Sync),
                Reopen,
                Reopen,
                claim(3, Sync),
                LosePower { seed: 5 },
                claim(3, Sync),
                complete(3, 30),
            ],
        ),
        roll_over("roll-over", Sync, 1),
        roll_over("buffered roll-over", Buffered, 2),
    ]
}

/// Fills several segments, so that each call may meet the end of one.
fn roll_over(name: &'static str, level: Durability, prepared: usize) -> Script {
    let mut steps = Vec::new();
    for key in 0..5 {
        steps.extend([claim(key, level), complete(key, 15_000)]);
    }
    steps.extend([claim(5, level), Reopen, claim(5, level)]);
    for key in 6..9 {
        steps.extend([claim(key, Buffered), complete(key, 15_500)]);
    }
    steps.extend([Kill, complete(5, 5), claim(5, Sync)]);
    Script {
        prepared,
        ..script(name, level, steps)
    }
}

/// A long random workload over a few keys.
pub fn random(seed: u64, count: usize) -> Script {
    let mut random = Random::new(seed);
    let level = if random.below(3) == 0 { Buffered } else { Sync };
    let steps = (0..count).map(|_| random_step(&mut random)).collect();
    Script {
        prepared: 1 + random.below(2),
        ..script("random", level, steps)
    }
}

pub fn random_step(random: &mut Random) -> Step {
    let key = random.below(6) as u8;
    let level = if random.below(2) == 0 { Buffered } else { Sync };
    let len = match random.below(8) {
        0 => 4_096 + random.below(11_000),
        1 => 0,
        _ => random.below(900),
    };
    match random.below(60) {
        0..20 => Claim {
            key,
            level,
            lease_ms: (random.below(2) == 0).then(|| 1 + random.below(3_000) as u64),
            retention_s: 1 + random.below(20) as u64,
        },
        20..30 => Complete {
            key,
            len,
            level: (random.below(2) == 0).then_some(level),
            principal: random.below(3) == 0,
        },
        30 => CompleteWithoutResponse { key },
        31..34 => Checkpoint {
            key,
            len: len.min(4_000),
        },
        34..36 => Release { key },
        36..38 => Drop { key },
        38 => Renew { key },
        39..41 => Forget {
            key,
            force: random.below(2) == 0,
        },
        41 => Interrupt { key },
        42..44 => Ticket { key },
        44..46 => Resume { key },
        46 => Batch {
            from: key,
            count: 1 + random.below(3) as u8,
            level,
        },
        47 => CancelClaim { key },
        48 => CancelComplete { key, len },
        49 => Look { key },
        50..53 => Advance {
            ms: random.below(4_000) as u64,
        },
        53 => Flush,
        54..56 => WriteBack {
            seed: random.below(1 << 20) as u64,
        },
        56 => Reopen,
        57 => Kill,
        _ => LosePower {
            seed: random.below(1 << 20) as u64,
        },
    }
}
