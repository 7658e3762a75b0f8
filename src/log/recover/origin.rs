//! Where META comes from: read, made for a new store, or made anew from the segments' headers.

use std::io;

use crate::corruption::Damage;
use crate::fs::Storage;
use crate::log::header::FORMAT_VERSION;
use crate::log::members::Members;
use crate::log::meta::{META, Meta, MetaError, MetaFile};
use crate::log::position;
use crate::log::recover::files::Files;
use crate::log::recover::listing::Listing;
use crate::log::recover::{Candidate, RecoverError};

/// How far the epoch jumps where the newest one may be unknown: META was rebuilt, or the slot that
/// cannot be read was the newer one. Further than any number of opens that went with it.
const EPOCH_JUMP: u64 = 1024;

/// What stands in the place of META.
#[derive(Debug)]
pub(super) enum Found {
    Whole(MetaFile),
    Damaged([Damage; 2]),
    /// Not there; with this many segments.
    Missing(usize),
}

impl Found {
    /// The files that count, as far as META tells.
    pub(super) fn members(&self) -> Option<Members> {
        match self {
            Self::Whole(file) => Some(file.meta().members),
            Self::Damaged(_) | Self::Missing(_) => None,
        }
    }

    /// Reads META.
    ///
    /// # Errors
    ///
    /// All that is wrong with it, but for what `salvage` may still put right.
    pub(super) fn read(
        storage: &dyn Storage,
        listing: &Listing,
        salvage: bool,
    ) -> Result<Self, RecoverError> {
        if !listing.meta {
            return match listing.segments.len() + listing.compacted.len() {
                segments if segments > 0 && !salvage => Err(RecoverError::MetaMissing { segments }),
                segments => Ok(Self::Missing(segments)),
            };
        }
        match MetaFile::load(storage) {
            Ok(file) => Ok(Self::Whole(file)),
            Err(MetaError::Damaged(slots)) if salvage => Ok(Self::Damaged(slots)),
            Err(MetaError::Damaged(slots)) => Err(RecoverError::MetaDamaged { slots }),
            Err(MetaError::Io(source)) => Err(RecoverError::Io {
                file: META.into(),
                source,
            }),
            Err(MetaError::Version(found)) => Err(RecoverError::Version {
                file: META.into(),
                found,
                supported: FORMAT_VERSION,
            }),
        }
    }
}

/// META, on the disk or still to be written.
#[derive(Debug)]
pub(super) enum Origin {
    Loaded(MetaFile),
    /// There was no store.
    New(Meta),
    /// There was one, whose META is lost.
    Rebuilt(Meta),
}

impl Origin {
    /// Makes up for a META that is missing or bad.
    ///
    /// # Errors
    ///
    /// When no header tells what the store's identity was, or there are no random bytes for a new
    /// one.
    pub(super) fn resolve(
        found: Found,
        files: &Files,
        compacted: &Files,
        now_ms: u64,
    ) -> Result<Self, RecoverError> {
        let from_headers = || files.meta().or_else(|| compacted.meta());
        let fresh = || Meta::fresh(now_ms).map_err(RecoverError::io(META));
        match found {
            Found::Whole(file) => Ok(Self::Loaded(file)),
            Found::Missing(0) => fresh().map(Self::New),
            Found::Missing(segments) => from_headers()
                .map(Self::Rebuilt)
                .ok_or(RecoverError::MetaMissing { segments }),
            // Nothing was ever written that it could be needed for.
            Found::Damaged(_) if files.is_empty() && compacted.is_empty() => {
                fresh().map(Self::Rebuilt)
            }
            Found::Damaged(slots) => from_headers()
                .map(Self::Rebuilt)
                .ok_or(RecoverError::MetaDamaged { slots }),
        }
    }

    /// Below which position everything is to be taken for durable, as far as META tells. Where it
    /// is lost, that is the end of the last record that can be read: rather list one loss too many
    /// than take durable records for a torn tail.
    pub(super) fn watermark(&self, candidates: &[Candidate]) -> u64 {
        match self {
            Self::Loaded(file) => file.meta().watermark,
            Self::New(_) => 0,
            Self::Rebuilt(_) => {
                let with_records = candidates.iter().filter(|each| each.scan.records > 0);
                with_records
                    .map(|each| each.file.base + each.scan.records_end)
                    .max()
                    .unwrap_or(0)
            }
        }
    }

    /// Makes durable what META says, on which files are about to go.
    pub(super) fn make_durable(&mut self) -> io::Result<()> {
        match self {
            Self::Loaded(file) => file.make_durable(),
            Self::New(_) | Self::Rebuilt(_) => Ok(()),
        }
    }

    /// Writes META where it is missing, claims more than the log holds or that the store was closed
    /// properly, or lacks a slot. Afterwards
    /// its epoch is not below `newest_epoch`, of which there are segments. `watermark` is the
    /// judgement's.
    pub(super) fn settle(
        self,
        storage: &dyn Storage,
        clean: bool,
        newest_epoch: u64,
        watermark: u64,
        log_end: u64,
        members: Members,
    ) -> io::Result<MetaFile> {
        let jumped = |epoch: u64| (epoch.max(newest_epoch) + EPOCH_JUMP).min(position::EPOCH_MAX);
        match self {
            Self::New(meta) => MetaFile::create(storage, meta),
            Self::Rebuilt(mut meta) => {
                meta.epoch = jumped(meta.epoch);
                meta.watermark = watermark.min(log_end);
                meta.members = members;
                MetaFile::create(storage, meta)
            }
            Self::Loaded(mut file) => {
                let known = file.meta();
                let doubtful = file.bad_slot().is_some() || newest_epoch > known.epoch;
                // The watermark may have reached into a segment that goes because it has no record. And
                // while repairs are made the store is not a closed one: should this process be
                // killed, the next one must not take what the cache shows for durable.
                if !clean && (doubtful || known.watermark > log_end || known.clean) {
                    file.update(|meta| {
                        meta.clean = false;
                        meta.watermark = meta.watermark.min(log_end);
                        meta.members = members;
                        if doubtful {
                            meta.epoch = jumped(meta.epoch);
                        }
                    })?;
                }
                Ok(file)
            }
        }
    }

    pub(super) fn meta(&self) -> &Meta {
        match self {
            Self::Loaded(file) => file.meta(),
            Self::New(meta) | Self::Rebuilt(meta) => meta,
        }
    }
}
