//! Carrying out the judgement: from here on the directory is changed, in the order that the head of
//! [`recover`](crate::log::recover) gives.

use std::io;

use crate::fs::Storage;
use crate::log::header::PAGE_BYTES;
use crate::log::index_file::IndexFile;
use crate::log::members::{Members, Tally};
use crate::log::meta::META;
use crate::log::position;
use crate::log::recover::files::Files;
use crate::log::recover::judge::{Kept, Verdict};
use crate::log::recover::listing::{Listing, side_car_name};
use crate::log::recover::origin::Origin;
use crate::log::recover::side_car::SideCar;
use crate::log::recover::{Candidate, RecoverError, Recovered};
use crate::log::repair::{self, Mend};
use crate::log::scan::scan_file;
use crate::log::segment::{FIRST_RECORD, Segment};
use crate::log::spare::SPARE;
use crate::mem::Memory;
use crate::report::{BadSideCar, RecoveryReport, TornTail};
use crate::sync::Arc;

/// All that is known when the changes begin.
pub(super) struct Finish<'a> {
    pub(super) storage: &'a dyn Storage,
    pub(super) listing: Listing,
    pub(super) files: Files,
    pub(super) origin: Origin,
    pub(super) verdict: Verdict,
    /// As META has it; all zeros where it is lost.
    pub(super) members: Members,
    /// The compacted files that stay.
    pub(super) copies: Vec<Staying>,
}

/// One segment that stays.
#[derive(Debug)]
pub(super) struct Staying {
    candidate: Candidate,
    kept: Kept,
}

impl Finish<'_> {
    /// Changes what has to change, and hands over the rest.
    pub(super) fn run(mut self, candidates: Vec<Candidate>) -> Result<Recovered, RecoverError> {
        let mut report = RecoveryReport {
            created: matches!(self.origin, Origin::New(_)),
            clean: self.is_clean(&candidates),
            bytes_scanned: self
                .with_copies(&candidates)
                .filter(|each| !each.is_vouched_for())
                .map(|each| each.scan.written_end * 8)
                .sum(),
            holes: self.verdict.holes,
            ..RecoveryReport::default()
        };
        if let Origin::Loaded(file) = &self.origin {
            report.meta_slot = file.bad_slot();
        }
        report.meta_rebuilt = matches!(self.origin, Origin::Rebuilt(_));
        let high_water_ms = self.high_water_ms(&candidates);
        let newest_epoch = self.newest_epoch(&candidates);
        report.torn_tail = self.torn_tail(&candidates);
        if !self.listing.leftovers.is_empty() || self.listing.becomes_spare.is_some() {
            // It may be META alone that gives them up.
            let made_durable = self.origin.make_durable();
            made_durable.map_err(RecoverError::io(META))?;
        }
        // First, since what follows may need the space.
        remove_leftovers(self.storage, &self.listing.leftovers)?;
        if let Some(name) = &self.listing.becomes_spare {
            let renamed = self.storage.rename(name, SPARE);
            renamed.map_err(RecoverError::io(name))?;
            let synced = self.storage.sync_directory();
            synced.map_err(RecoverError::io("."))?;
        }
        report.kept_copies = self.keep_copies(&candidates)?;
        let mut copies = std::mem::take(&mut self.copies);

        let (mut staying, leaving) = self.divide(candidates, report.clean);
        report_side_cars(copies.iter().chain(&staying), &mut report);
        self.remove_side_cars(&copies, &staying)?;
        let log_end = staying.last().map_or(0, Staying::end);
        let members = self.members_of(&staying, &copies);
        let meta = self
            .origin
            .settle(
                self.storage,
                report.clean,
                newest_epoch,
                self.verdict.watermark,
                log_end,
                members,
            )
            .map_err(RecoverError::io(META))?;
        if !report.clean {
            let names = leaving.iter().rev().map(String::as_str);
            repair::remove_in_order(self.storage, names).map_err(RecoverError::io("."))?;
            mend_all(self.storage, &mut staying, self.verdict.watermark)?;
            for each in &mut copies {
                // All of it was durable when it was counted.
                let mended = each.mend(self.storage, u64::MAX, false);
                mended.map_err(RecoverError::io(&each.candidate.file.name))?;
            }
            // A file that stays may have got its name right before the crash.
            self.storage
                .sync_directory()
                .map_err(RecoverError::io("."))?;
        } else if let Some(last) = staying.last_mut() {
            let cut = last.cut(self.storage);
            cut.map_err(RecoverError::io(&last.candidate.file.name))?;
        }

        report.segments = (copies.len() + staying.len()) as u64;
        let all = copies.iter().chain(&staying);
        report.records = all.map(|each| each.kept.records).sum();
        report.losses = std::mem::take(&mut self.files.losses);
        report.losses.append(&mut self.verdict.losses);
        let previous = staying
            .last()
            .map_or((0, 0), |last| (last.candidate.file.base, last.end()));
        copies.append(&mut staying);
        let (segments, side_cars) = number(copies)?;
        Ok(Recovered {
            meta,
            segments,
            side_cars,
            members,
            log_end,
            previous,
            high_water_ms,
            report,
        })
    }

    /// The compacted files, then the segments of the log.
    fn with_copies<'a>(
        &'a self,
        candidates: &'a [Candidate],
    ) -> impl Iterator<Item = &'a Candidate> {
        let copies = self.copies.iter().map(|each| &each.candidate);
        copies.chain(candidates)
    }

    /// Which files count from now on.
    fn members_of(&self, staying: &[Staying], copies: &[Staying]) -> Members {
        let first = staying.first().map_or(0, |first| first.candidate.file.base);
        let end = |each: &Staying| each.candidate.file.base + each.kept.tail;
        Members {
            log_start: if self.members.log_start == 0 {
                0
            } else {
                first
            },
            compacted: Tally::of(copies.iter().map(|each| each.candidate.file.base)),
            compacted_end: copies
                .iter()
                .map(end)
                .fold(self.members.compacted_end, u64::max),
            removing: self.members.removing,
        }
    }

    /// Whether everything is as a proper close left it. The log then ends where META says, so that
    /// whatever is wrong before that is among the losses.
    fn is_clean(&self, candidates: &[Candidate]) -> bool {
        let Origin::Loaded(file) = &self.origin else {
            return false;
        };
        let last = candidates.last();
        let end = last.map_or(0, |last| last.file.base + last.scan.end);
        file.meta().clean
            && file.bad_slot().is_none()
            && file.meta().watermark == end
            && last.is_none_or(|last| last.scan.written_end == last.scan.end)
            && self.files.losses.is_empty()
            && self.verdict.losses.is_empty()
    }

    fn high_water_ms(&self, candidates: &[Candidate]) -> u64 {
        let of = |candidate: &Candidate| {
            candidate
                .scan
                .high_water_ms
                .max(candidate.file.header.created_ms)
        };
        self.with_copies(candidates)
            .map(of)
            .fold(self.origin.meta().high_water_ms, u64::max)
    }

    /// The newest epoch in which a segment was made.
    fn newest_epoch(&self, candidates: &[Candidate]) -> u64 {
        // A name alone proves nothing: the header, or a record, does.
        let proven = |candidate: &&Candidate| {
            candidate.scan.records > 0 || candidate.file.header.created_ms > 0
        };
        let epoch = |candidate: &Candidate| position::epoch_of(candidate.file.base);
        self.with_copies(candidates)
            .filter(proven)
            .map(epoch)
            .max()
            .unwrap_or(0)
    }

    /// What will be thrown away at the end of the log.
    fn torn_tail(&self, candidates: &[Candidate]) -> Option<TornTail> {
        let at = self.verdict.kept.len().checked_sub(1)?;
        let last = candidates.get(at)?;
        let tail = self.verdict.kept.get(at)?.tail;
        let later = candidates
            .get(at + 1..)?
            .iter()
            .map(|each| each.scan.written_end - FIRST_RECORD.min(each.scan.written_end));
        let segments = later.clone().filter(|words| *words > 0).count() as u64;
        let words = last.scan.written_end.saturating_sub(tail) + later.sum::<u64>();
        (words > 0).then(|| TornTail {
            file: last.file.name.clone(),
            offset: tail * 8,
            bytes: words * 8,
            segments,
        })
    }

    /// Keeps copies of all that salvage is about to change or drop, and sets aside what does not
    /// belong. Their names.
    fn keep_copies(&self, candidates: &[Candidate]) -> Result<Vec<String>, RecoverError> {
        let mut names = Vec::new();
        if matches!(self.origin, Origin::Rebuilt(_)) && self.listing.meta {
            names.push(repair::keep_copy(self.storage, META).map_err(RecoverError::io(META))?);
        }
        let changed = |(index, candidate): &(usize, &Candidate)| {
            candidate.file.new_header
                || self.verdict.kept.get(*index).is_some_and(|kept| kept.lossy)
        };
        let copies = self.copies.iter();
        let copies = copies
            .filter(|each| each.candidate.file.new_header || each.kept.lossy)
            .map(|each| &each.candidate);
        let segments = candidates.iter().enumerate().filter(changed);
        for candidate in copies.chain(segments.map(|(_, candidate)| candidate)) {
            let name = &candidate.file.name;
            names.push(repair::keep_copy(self.storage, name).map_err(RecoverError::io(name))?);
        }
        for name in &self.files.aside {
            names.push(repair::set_aside(self.storage, name).map_err(RecoverError::io(name))?);
        }
        Ok(names)
    }

    /// Removes all side-cars but those that stay good.
    fn remove_side_cars(
        &self,
        copies: &[Staying],
        staying: &[Staying],
    ) -> Result<(), RecoverError> {
        let stays = |base: &u64| {
            let of = |each: &&Staying| each.candidate.file.base == *base;
            let good = |each: &Staying| each.candidate.is_vouched_for() && !each.kept.lossy;
            copies.iter().chain(staying).find(of).is_some_and(good)
        };
        let names: Vec<_> = self
            .listing
            .side_cars
            .iter()
            .filter(|(base, _)| !stays(base))
            .map(|(_, name)| name.clone())
            .collect();
        remove_leftovers(self.storage, &names)
    }

    /// What stays, and the names of what goes: all behind the end of the log, and segments at its
    /// end that hold no record.
    fn divide(&mut self, candidates: Vec<Candidate>, clean: bool) -> (Vec<Staying>, Vec<String>) {
        let mut candidates = candidates.into_iter();
        let kept = std::mem::take(&mut self.verdict.kept);
        let pair = |(candidate, kept)| Staying { candidate, kept };
        let mut staying: Vec<_> = candidates
            .by_ref()
            .take(kept.len())
            .zip(kept)
            .map(pair)
            .collect();
        let mut leaving = Vec::new();
        while !clean && staying.last().is_some_and(|last| last.kept.records == 0) {
            leaving.extend(staying.pop().map(|last| last.candidate.file.name));
        }
        leaving.reverse();
        leaving.extend(candidates.map(|candidate| candidate.file.name));
        (staying, leaving)
    }
}

/// Which side-cars vouched for their segment, and which did not.
fn report_side_cars<'a>(staying: impl Iterator<Item = &'a Staying>, report: &mut RecoveryReport) {
    for Staying { candidate, .. } in staying {
        match &candidate.side_car {
            SideCar::Good(_) => report.side_cars += 1,
            SideCar::Missing => report.side_cars_missing += 1,
            SideCar::Bad(damage) => report.side_cars_bad.push(BadSideCar {
                file: side_car_name(&candidate.file.name),
                damage: *damage,
            }),
        }
    }
}

/// Makes all that stays durable, and whole.
fn mend_all(
    storage: &dyn Storage,
    staying: &mut [Staying],
    watermark: u64,
) -> Result<(), RecoverError> {
    let mut previous = (0, 0);
    let count = staying.len();
    for (index, each) in staying.iter_mut().enumerate() {
        let file = &mut each.candidate.file;
        if file.new_header {
            (file.header.previous_base, file.header.previous_end) = previous;
        }
        let last = index + 1 == count;
        let mended = each.mend(storage, watermark, last);
        mended.map_err(RecoverError::io(&each.candidate.file.name))?;
        previous = (each.candidate.file.base, each.end());
    }
    Ok(())
}

fn remove_leftovers(storage: &dyn Storage, names: &[String]) -> Result<(), RecoverError> {
    for name in names {
        repair::remove_if_there(storage, name).map_err(RecoverError::io(name))?;
    }
    if !names.is_empty() {
        storage.sync_directory().map_err(RecoverError::io("."))?;
    }
    Ok(())
}

impl Staying {
    /// A compacted file.
    pub(super) fn of_copies(mut candidate: Candidate, kept: Kept) -> Self {
        if candidate.file.new_header {
            candidate.file.header.copies_end = kept.tail;
        }
        Self { candidate, kept }
    }

    /// Position behind its last range.
    fn end(&self) -> u64 {
        self.candidate.file.base + self.kept.tail
    }

    /// Cuts off the zeros behind the last range, which a process that closes has mapped.
    fn cut(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let end = page_end(self.kept.tail);
        let file = &self.candidate.file;
        if file.len > end {
            self.candidate.memory = Memory::heap(0);
            let open = storage.open(&file.name)?;
            open.set_len(end)?;
            open.sync_data()?;
            self.candidate.memory = open.map(false)?;
        }
        Ok(())
    }

    /// Writes again what may not be durable, and reads it once more.
    fn mend(&mut self, storage: &dyn Storage, watermark: u64, last: bool) -> io::Result<()> {
        let Self { candidate, kept } = self;
        if candidate.is_vouched_for() {
            return Ok(());
        }
        let file = &candidate.file;
        let page_end = page_end(kept.tail);
        let durable = watermark
            .saturating_sub(file.base)
            .clamp(FIRST_RECORD, kept.tail);
        let odd = !file.len.is_multiple_of(8);
        let cut = odd || last && (file.len != page_end || candidate.scan.written_end > kept.tail);
        if durable == kept.tail && kept.fills.is_empty() && !cut && !file.new_header {
            // What an earlier recovery repaired and, being killed, did not sync is whole to look at.
            return storage.open(&file.name)?.sync_data();
        }
        // The file may get another length.
        candidate.memory = Memory::heap(0);
        if kept.lossy || file.new_header {
            repair::unshare(storage, &file.name)?;
        }
        let open = storage.open(&file.name)?;
        Mend {
            file: open.as_ref(),
            base: file.base,
            seed: file.header.seed(),
            header: file.new_header.then_some(&file.header),
            from: durable,
            tail: kept.tail,
            fills: &kept.fills,
            cut: last || odd,
        }
        .run()?;
        candidate.memory = open.map(false)?;
        let limit = if last { u64::MAX } else { kept.tail };
        let found = scan_file(&candidate.memory, &file.header, limit);
        let same = found.spots.is_empty()
            && found.end == kept.tail
            && found.written_end == kept.tail
            && found.records == kept.records;
        if same {
            return Ok(());
        }
        // The cache dropped what an earlier sync had failed to write. What is read now is durable.
        Err(io::Error::other(
            "the file changed while it was recovered; open the store again",
        ))
    }
}

/// The end of the page in which the word before `tail` stands, in bytes.
pub(super) fn page_end(tail: u64) -> u64 {
    (tail * 8).next_multiple_of(PAGE_BYTES as u64)
}

/// Turns what stays into segments, numbered from 0, with the side-cars that vouch for them.
#[expect(clippy::type_complexity, reason = "two lists that belong together")]
fn number(
    staying: Vec<Staying>,
) -> Result<(Vec<Arc<Segment>>, Vec<Option<IndexFile>>), RecoverError> {
    let mut segments = Vec::with_capacity(staying.len());
    let mut side_cars = Vec::with_capacity(staying.len());
    for (index, Staying { candidate, kept }) in staying.into_iter().enumerate() {
        let file = candidate.file;
        let number = u16::try_from(index).map_err(|_| RecoverError::Io {
            file: file.name.clone(),
            source: io::Error::new(io::ErrorKind::QuotaExceeded, "more than 65536 segments"),
        })?;
        let seed = file.header.seed();
        let segment = Segment::new(
            number,
            file.base,
            seed,
            file.name,
            None,
            candidate.memory,
            kept.tail,
        )
        .recovered(file.header.created_ms);
        let segment = if file.header.is_compacted() {
            segment.compacted()
        } else {
            segment
        };
        side_cars.push(match candidate.side_car {
            SideCar::Good(index) => {
                segment.set_indexed();
                Some(index)
            }
            SideCar::Missing | SideCar::Bad(_) => None,
        });
        segments.push(Arc::new(segment));
    }
    Ok((segments, side_cars))
}
