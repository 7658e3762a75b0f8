//! Why a store's options don't go together.

use std::fmt;

use crate::limits::SEGMENT_BYTES_MAX;
use crate::options::ClaimOptionsError;

/// An option of a store that is out of range, or does not go together with another.
///
/// The store was not touched. Every message names the option, what it was set to, and what it can
/// be set to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The value is outside the range that is allowed.
    OutOfRange {
        /// The method of [`Options`](crate::Options) that set it.
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// The smallest value allowed.
        min: u64,
        /// The greatest value allowed.
        max: u64,
    },
    /// The value is not a multiple of what it must be.
    NotMultiple {
        /// The method of [`Options`](crate::Options) that set it.
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// What it must be a multiple of.
        of: u64,
    },
    /// The value is not a power of two.
    NotPowerOfTwo {
        /// The method of [`Options`](crate::Options) that set it.
        option: &'static str,
        /// What it was set to.
        value: u64,
    },
    /// A segment can't hold as many records with a response of this size as it must. Enlarge
    /// [`Options::segment_size`](crate::Options::segment_size), or lower the option.
    SegmentTooSmall {
        /// The method of [`Options`](crate::Options) that set the size of the response.
        option: &'static str,
        /// What it was set to, in bytes.
        value: u64,
        /// The most that it can be with segments of this size, in bytes.
        fits: u64,
        /// Bytes of a segment.
        segment_bytes: u64,
        /// Bytes that a segment would need.
        needed_bytes: u64,
    },
    /// Room is to be set aside for responses larger than the store keeps. Lower
    /// [`Options::reserved_response`](crate::Options::reserved_response), or raise
    /// [`Options::max_response`](crate::Options::max_response).
    ReservedAboveMax {
        /// Bytes of a response to set aside room for.
        reserved_response: u64,
        /// Bytes of the largest response.
        max_response: u64,
    },
    /// The lease or the retention is out of range.
    Claim(ClaimOptionsError),
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange {
                option,
                value,
                min,
                max,
            } => write!(
                f,
                "Options::{option} is {value}; choose from {min} to {max}"
            ),
            Self::NotMultiple { option, value, of } => {
                write!(f, "Options::{option} is {value}; choose a multiple of {of}")
            }
            Self::NotPowerOfTwo { option, value } => {
                write!(f, "Options::{option} is {value}; choose a power of two")
            }
            Self::SegmentTooSmall {
                option,
                value,
                fits,
                segment_bytes,
                needed_bytes,
            } => {
                write!(
                    f,
                    "Options::{option} is {value} bytes, too many for segments of {segment_bytes}; \
                     choose at most {fits}"
                )?;
                if *needed_bytes <= SEGMENT_BYTES_MAX {
                    write!(
                        f,
                        ", or an Options::segment_size of at least {needed_bytes}"
                    )?;
                }
                Ok(())
            }
            Self::ReservedAboveMax {
                reserved_response,
                max_response,
            } => write!(
                f,
                "Options::reserved_response is {reserved_response} bytes, but responses have at \
                 most {max_response}; choose no more than that, or raise Options::max_response"
            ),
            Self::Claim(error) => error.fmt(f),
        }
    }
}

// `Claim` is shown as the error inside it, so its source is that one's: none.
impl std::error::Error for OptionsError {}

impl From<ClaimOptionsError> for OptionsError {
    fn from(error: ClaimOptionsError) -> Self {
        Self::Claim(error)
    }
}
