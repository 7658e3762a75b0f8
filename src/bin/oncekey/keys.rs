//! Keys and times as text for people.

use std::fmt;
use std::time::Duration;

use oncekey::{KeyRecord, Recorded};

use crate::json;
use crate::output::Output;

/// A duration in its largest unit or two.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A line about the newest record of a key.
pub(crate) fn line(record: &KeyRecord, now: std::time::SystemTime, output: &Output) -> String {
    let age = now.duration_since(record.created_at).unwrap_or_default();
    let colour = match record.state {
        Recorded::Completed => 32,
        Recorded::Interrupted => 31,
        Recorded::Pending => 33,
        _ => 90,
    };
    let state = output.paint(colour, &format!("{:<11}", json::state(record.state)));
    let response = fmt::from_fn(|f| match &record.response {
        Some(response) => write!(f, ", {} bytes", response.len()),
        None => Ok(()),
    });
    let rest = fmt::from_fn(|f| match record.expires_at {
        Some(at) => match at.duration_since(now) {
            Ok(left) => write!(f, ", {} left", span(left)),
            Err(past) => write!(f, ", over since {}", span(past.duration())),
        },
        None => Ok(()),
    });
    format!(
        "{state} {} (attempt {}, {} old{response}{rest})",
        record.key.display_raw(),
        record.attempt,
        span(age),
    )
}
