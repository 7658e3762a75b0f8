//! Damaged files: every byte of small stores flipped, every length they can be cut to, segments
//! swapped, doubled, reordered, brought from elsewhere and put back from an older copy.
//!
//! What must hold is at the head of [`judge`]. The stores are made and opened through the public
//! interface, on a simulated disk for speed and partly on real files; what is expected of each case
//! comes from [`layout`], a reader of the format of its own.
//!
//! By default one kind of change is tried for every byte in use and for some of the others. With
//! `ONCEKEY_BYTES=all` it is every byte, and in headers, META and first records every bit.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod directories;
mod judge;
mod layout;
mod medium;
mod meters;
mod side_cars;
mod single;
mod splices;
mod stores;
mod table;

use meters::alone;
use stores::Subject;
use table::{Outcome, Table};

type Damage = fn(&Subject, &str, &mut Table);

/// Does all kinds of damage to one file of the store at a time.
fn every_file(subject: &Subject) -> [Table; 4] {
    let kinds: [(&str, Damage); 4] = [
        ("a byte changed", single::flips),
        ("a file cut", single::truncations),
        ("a file longer", single::extensions),
        ("a file removed", single::removals),
    ];
    kinds.map(|(damage, each)| {
        let mut table = Table::new(format!("{}, {damage}", subject.name));
        for name in subject.files.keys() {
            each(subject, name, &mut table);
        }
        table.finish();
        table
    })
}

/// All of it was known to be durable, so nothing may be taken for a torn tail.
#[track_caller]
fn nothing_is_torn(tables: &[Table]) {
    for table in tables {
        assert_eq!(table.of(Outcome::Torn), 0);
    }
}

#[test]
fn damage_to_a_closed_store() {
    let _alone = alone();
    nothing_is_torn(&every_file(&stores::closed()));
}

#[test]
fn damage_to_a_killed_store() {
    let _alone = alone();
    let tables = every_file(&stores::killed());
    // What was written at the speed of memory may be a torn tail.
    assert!(tables[0].of(Outcome::Torn) > 500);
}

#[test]
fn damage_to_a_store_that_was_just_recovered() {
    let _alone = alone();
    nothing_is_torn(&every_file(&stores::recovered()));
}

#[test]
fn damage_to_a_store_that_was_poisoned_and_closed() {
    let _alone = alone();
    every_file(&stores::poisoned());
}

#[test]
fn damage_to_a_restored_store() {
    let _alone = alone();
    nothing_is_torn(&every_file(&stores::restored()));
}

#[test]
fn damage_to_a_store_of_full_segments() {
    let _alone = alone();
    nothing_is_torn(&every_file(&stores::rolled_over()));
}

#[test]
fn damage_to_a_salvaged_store() {
    let _alone = alone();
    nothing_is_torn(&every_file(&stores::salvaged()));
}

#[test]
fn damage_to_side_cars() {
    let _alone = alone();
    for subject in [
        stores::closed_with_side_cars(),
        stores::rolled_over_with_side_cars(),
    ] {
        let mut table = Table::new(format!("{}, a side-car changed", subject.name));
        side_cars::changed_and_cut(&subject, &mut table);
        table.finish();
    }
}

#[test]
fn damage_to_segments_that_a_side_car_stands_for() {
    let _alone = alone();
    for subject in [
        stores::closed_with_side_cars(),
        stores::rolled_over_with_side_cars(),
    ] {
        let mut table = Table::new(format!("{}, a byte changed", subject.name));
        side_cars::segments_changed(&subject, &mut table);
        table.finish();
    }
}

#[test]
fn side_cars_of_other_segments_and_other_stores() {
    let _alone = alone();
    let mut table = Table::new("side-cars misplaced");
    for subject in [
        stores::closed_with_side_cars(),
        stores::rolled_over_with_side_cars(),
    ] {
        let others = [
            stores::closed_with_side_cars(),
            stores::rolled_over_with_side_cars(),
        ];
        side_cars::misplaced(&subject, &others, &mut table);
    }
    table.finish();
}

#[test]
fn side_cars_from_before_a_salvage() {
    let _alone = alone();
    side_cars::from_before_a_salvage();
}

#[test]
fn segments_in_each_others_place() {
    let _alone = alone();
    for subject in [stores::closed(), stores::killed(), stores::rolled_over()] {
        let mut table = Table::new(format!("{}, segments misplaced", subject.name));
        splices::misplaced(&subject, &mut table);
        table.finish();
    }
}

#[test]
fn segments_of_another_store() {
    let _alone = alone();
    let mut table = Table::new("files of another store");
    splices::foreign(&stores::closed(), &stores::closed(), &mut table);
    splices::foreign(&stores::killed(), &stores::rolled_over(), &mut table);
    table.finish();
}

#[test]
fn segments_of_another_life_of_the_store() {
    let _alone = alone();
    let mut table = Table::new("a segment of another life");
    splices::another_life(&mut table);
    table.finish();
}

#[test]
fn files_from_an_earlier_moment() {
    let _alone = alone();
    let mut table = Table::new("files of an earlier moment");
    splices::from_earlier(&mut table);
    table.finish();
}

#[test]
fn records_copied_within_a_segment() {
    let _alone = alone();
    for subject in [stores::closed(), stores::killed()] {
        let mut table = Table::new(format!("{}, records copied", subject.name));
        splices::copied_records(&subject, &mut table);
        table.finish();
    }
}

#[test]
fn responses_that_hold_true_records() {
    let _alone = alone();
    let mut table = Table::new("responses that hold records");
    splices::records_in_responses(&mut table);
    table.finish();
}
