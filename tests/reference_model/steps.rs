//! What can be asked of a store, and how often.

use oncekey::Durability;
use oncekey::testing::OperationKind;
use proptest::prelude::*;

use crate::support::{DURABILITIES, Style};

pub const KEYS: u8 = 4;
/// Responses up to here have room set aside.
pub const RESERVED: usize = 4_096;
/// Responses over this are refused.
pub const RESPONSE_MAX: usize = 12_000;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// Two stores, and what happens to them.
#[derive(Clone, Debug)]
pub struct Case {
    pub durabilities: [Durability; 2],
    pub steps: Vec<(usize, Step)>,
}

/// A claim.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub key: u8,
    pub request: u8,
    pub lease_ms: Option<u64>,
    pub retention_s: Option<u64>,
    pub durability: Option<Durability>,
    /// First sent this long before the store's own time.
    pub sent_ms_ago: Option<u64>,
}

/// How an operation is completed.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Plain {
        len: usize,
    },
    With {
        len: usize,
        retention_s: Option<u64>,
        principal_len: Option<usize>,
        durability: Option<Durability>,
    },
    WithoutResponse,
}

/// How a store's life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Close,
    Drop,
    Kill,
    LosePower { seed: u64 },
    LoseAllUnsynced,
}

/// An operation that fails while the store is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenFault {
    pub kind: OperationKind,
    pub after: u64,
    pub no_space: bool,
}

/// What a copy is made of.
#[derive(Clone, Copy, Debug)]
pub enum CopyOf {
    Closed,
    Running,
    PowerLoss { seed: u64 },
}

/// What a guard that was overtaken tries.
#[derive(Clone, Copy, Debug)]
pub enum Late {
    Complete,
    Release,
    Checkpoint,
    Renew,
    IntoTicket,
    Drop,
}

#[derive(Clone, Debug)]
pub enum Step {
    Claim {
        asked: Asked,
        style: Style,
    },
    ClaimDropped {
        asked: Asked,
        polled: bool,
    },
    ClaimMany {
        keys: Vec<(u8, u8)>,
        asked: Asked,
        keep: bool,
        style: Style,
    },
    BadClaim {
        key: u8,
        fault: u8,
    },
    WaitNoTime {
        asked: Asked,
    },
    WaitBegin {
        asked: Asked,
    },
    WaitPoll {
        at: usize,
    },
    WaitDrop {
        at: usize,
    },
    Run {
        asked: Asked,
        len: usize,
        fails: bool,
        style: Style,
    },
    Complete {
        key: u8,
        ending: Ending,
        style: Style,
    },
    Release {
        key: u8,
        style: Style,
    },
    Checkpoint {
        key: u8,
        len: usize,
        style: Style,
    },
    Renew {
        key: u8,
    },
    Drop {
        key: u8,
    },
    Leak {
        key: u8,
    },
    IntoTicket {
        key: u8,
    },
    Resume {
        ticket: usize,
        style: Style,
    },
    Late {
        at: usize,
        late: Late,
    },
    Forget {
        key: u8,
        force: bool,
        style: Style,
    },
    Interrupt {
        key: u8,
        other_token: bool,
    },
    Get {
        key: u8,
        style: Style,
    },
    Flush {
        style: Style,
    },
    Maintain,
    Advance {
        ms: u64,
    },
    AdvanceMonotonic {
        ms: u64,
    },
    SetWall {
        by_ms: i64,
    },
    Fill {
        left: u64,
    },
    Empty,
    FailSyncs {
        after: u64,
        drops_pages: bool,
        sticky: bool,
    },
    Restart {
        end: End,
        fault: Option<OpenFault>,
    },
    /// The other store goes, and opens as a copy of this one.
    Copy {
        how: CopyOf,
    },
}

fn style() -> impl Strategy<Value = Style> {
    prop_oneof![2 => Just(Style::Blocking), 1 => Just(Style::Async)]
}

fn durability() -> impl Strategy<Value = Durability> {
    prop::sample::select(&DURABILITIES[..])
}

fn asked() -> impl Strategy<Value = Asked> {
    let lease_ms = prop_oneof![
        3 => Just(None),
        3 => prop_oneof![Just(1), Just(1_500), 1..100_000_u64].prop_map(Some),
    ];
    let request = prop_oneof![5 => Just(0_u8), 1 => 1..3_u8];
    let retention_s = prop::option::of(prop_oneof![3 => 1..200_u64, 1 => 1..3_000_000_u64]);
    let sent = prop::option::weighted(0.15, prop_oneof![0..400_000_u64, 0..DAY_MS * 40]);
    let durability = prop::option::weighted(0.4, durability());
    (0..KEYS, request, lease_ms, retention_s, durability, sent).prop_map(
        |(key, request, lease_ms, retention_s, durability, sent_ms_ago)| Asked {
            key,
            request,
            lease_ms,
            retention_s,
            durability,
            sent_ms_ago,
        },
    )
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0..64_usize,
        1 => Just(RESERVED),
        2 => RESERVED + 1..=RESPONSE_MAX,
        1 => RESPONSE_MAX + 1..RESPONSE_MAX + 9,
    ]
}

fn ending() -> impl Strategy<Value = Ending> {
    let principal = prop::option::of(prop_oneof![4 => 0..9_usize, 1 => Just(255), 1 => Just(256)]);
    let retention = prop::option::of(0..300_u64);
    prop_oneof![
        4 => len().prop_map(|len| Ending::Plain { len }),
        3 => (len(), retention, principal, prop::option::of(durability())).prop_map(
            |(len, retention_s, principal_len, durability)| Ending::With {
                len, retention_s, principal_len, durability
            }
        ),
        1 => Just(Ending::WithoutResponse),
    ]
}

fn call() -> BoxedStrategy<Step> {
    let key = || 0..KEYS;
    let at = || any::<prop::sample::Index>().prop_map(|index| index.index(64));
    let late = prop::sample::select(vec![
        Late::Complete,
        Late::Release,
        Late::Checkpoint,
        Late::Renew,
        Late::IntoTicket,
        Late::Drop,
    ]);
    let note = prop_oneof![4 => 0..40_usize, 1 => Just(4_096), 1 => Just(4_097)];
    let many = prop::collection::vec((key(), prop_oneof![4 => Just(0_u8), 1 => Just(1)]), 0..6);
    prop_oneof![
        14 => (asked(), style()).prop_map(|(asked, style)| Step::Claim { asked, style }),
        2 => (asked(), prop::bool::weighted(0.8))
            .prop_map(|(asked, polled)| Step::ClaimDropped { asked, polled }),
        2 => (many, asked(), any::<bool>(), style()).prop_map(
            |(keys, asked, keep, style)| Step::ClaimMany { keys, asked, keep, style }
        ),
        1 => (key(), 0..4_u8).prop_map(|(key, fault)| Step::BadClaim { key, fault }),
        1 => asked().prop_map(|asked| Step::WaitNoTime { asked }),
        3 => asked().prop_map(|asked| Step::WaitBegin { asked }),
        3 => at().prop_map(|at| Step::WaitPoll { at }),
        1 => at().prop_map(|at| Step::WaitDrop { at }),
        1 => (asked(), len(), any::<bool>(), style()).prop_map(
            |(asked, len, fails, style)| Step::Run { asked, len, fails, style }
        ),
        9 => (key(), ending(), style())
            .prop_map(|(key, ending, style)| Step::Complete { key, ending, style }),
        2 => (key(), style()).prop_map(|(key, style)| Step::Release { key, style }),
        3 => (key(), note, style())
            .prop_map(|(key, len, style)| Step::Checkpoint { key, len, style }),
        2 => key().prop_map(|key| Step::Renew { key }),
        2 => key().prop_map(|key| Step::Drop { key }),
        1 => key().prop_map(|key| Step::Leak { key }),
        3 => key().prop_map(|key| Step::IntoTicket { key }),
        3 => (at(), style()).prop_map(|(ticket, style)| Step::Resume { ticket, style }),
        2 => (at(), late).prop_map(|(at, late)| Step::Late { at, late }),
        2 => (key(), any::<bool>(), style())
            .prop_map(|(key, force, style)| Step::Forget { key, force, style }),
        1 => (key(), any::<bool>())
            .prop_map(|(key, other_token)| Step::Interrupt { key, other_token }),
        2 => (key(), style()).prop_map(|(key, style)| Step::Get { key, style }),
        1 => style().prop_map(|style| Step::Flush { style }),
        2 => Just(Step::Maintain),
    ]
    .boxed()
}

fn time() -> BoxedStrategy<Step> {
    let passed = || {
        prop_oneof![
            4 => 0..3_000_u64,
            4 => 0..300_000_u64,
            1 => 0..DAY_MS * 20,
            1 => DAY_MS * 365..DAY_MS * 4_000,
        ]
    };
    let by_ms = prop_oneof![-5_000..5_000_i64, -86_400_000..86_400_000_i64];
    let far = prop_oneof![Just(40), Just(400), Just(-40), Just(-400)];
    prop_oneof![
        6 => passed().prop_map(|ms| Step::Advance { ms }),
        1 => passed().prop_map(|ms| Step::AdvanceMonotonic { ms }),
        2 => by_ms.prop_map(|by_ms| Step::SetWall { by_ms }),
        1 => far.prop_map(|days: i64| Step::SetWall { by_ms: days * DAY_MS as i64 }),
    ]
    .boxed()
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => Just(End::Close),
        1 => Just(End::Drop),
        3 => Just(End::Kill),
        4 => any::<u64>().prop_map(|seed| End::LosePower { seed }),
        1 => Just(End::LoseAllUnsynced),
    ]
}

fn copy() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(CopyOf::Closed),
        Just(CopyOf::Running),
        any::<u64>().prop_map(|seed| CopyOf::PowerLoss { seed }),
    ]
    .prop_map(|how| Step::Copy { how })
}

fn open_fault() -> impl Strategy<Value = OpenFault> {
    use OperationKind as Kind;
    let kinds = vec![
        Kind::List,
        Kind::Open,
        Kind::Read,
        Kind::Map,
        Kind::Create,
        Kind::Write,
        Kind::Sync,
        Kind::SyncDirectory,
        Kind::Rename,
        Kind::Remove,
        Kind::SetLen,
    ];
    (prop::sample::select(kinds), 0..6_u64, any::<bool>()).prop_map(|(kind, after, no_space)| {
        OpenFault {
            kind,
            after,
            no_space,
        }
    })
}

fn case(step: BoxedStrategy<Step>) -> impl Strategy<Value = Case> {
    let store = prop_oneof![3 => Just(0_usize), 1 => Just(1)];
    let steps = prop::collection::vec((store, step), 1..80);
    ([durability(), durability()], steps).prop_map(|(durabilities, steps)| Case {
        durabilities,
        steps,
    })
}

/// Cases in which the disks do as they are told.
pub fn peace() -> impl Strategy<Value = Case> {
    let restart = end().prop_map(|end| Step::Restart { end, fault: None });
    case(prop_oneof![24 => call(), 4 => time(), 2 => restart, 1 => copy()].boxed())
}

/// Cases in which they do not.
pub fn faults() -> impl Strategy<Value = Case> {
    let restart = (end(), prop::option::of(open_fault()))
        .prop_map(|(end, fault)| Step::Restart { end, fault });
    let fill = prop_oneof![2 => Just(0), 2 => 0..100_000_u64, 1 => 0..1_000_000_u64];
    let disk = prop_oneof![
        3 => fill.prop_map(|left| Step::Fill { left }),
        2 => Just(Step::Empty),
        2 => (prop_oneof![3 => Just(0), 1 => 0..4_u64], any::<bool>(), any::<bool>()).prop_map(
            |(after, drops_pages, sticky)| Step::FailSyncs { after, drops_pages, sticky }
        ),
    ];
    case(prop_oneof![20 => call(), 3 => time(), 2 => restart, 1 => copy(), 2 => disk].boxed())
}
