//! What a soak saw, as a line and as a picture.

use std::fmt;
use std::path::Path;

use plotters::prelude::*;

const MIB: f64 = (1 << 20) as f64;
const SIZE: (u32, u32) = (960, 640);
/// Disk that the store may take: so much times what is alive, and three segments.
const FACTOR: f64 = 1.5;

/// The store at one moment.
#[derive(Clone, Copy)]
pub struct Sample {
    pub seconds: f64,
    /// Completed keys whose retention is not over.
    pub keys: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    pub disk_bytes: u64,
    pub index_bytes: u64,
    /// Memory that no file stands behind, beyond what the process had without a store.
    pub memory_bytes: u64,
}

impl Sample {
    fn a_key(&self, bytes: u64) -> f64 {
        bytes as f64 / self.keys.max(1) as f64
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:5.0}  {:10}  {:9.1}  {:9.1}  {:9.2}  {:11.1}  {:12.1}",
            self.seconds,
            self.keys,
            self.live_bytes as f64 / MIB,
            self.disk_bytes as f64 / MIB,
            self.disk_bytes as f64 / self.live_bytes.max(1) as f64,
            self.a_key(self.index_bytes),
            self.a_key(self.memory_bytes),
        )
    }
}

/// The most disk a byte alive that the second half of the run saw, three segments aside.
pub fn worst(samples: &[Sample], segment_bytes: u64) -> f64 {
    let half = &samples[samples.len() / 2..];
    let share = |sample: &Sample| {
        let disk = sample.disk_bytes.saturating_sub(3 * segment_bytes) as f64;
        disk / sample.live_bytes.max(1) as f64
    };
    half.iter().map(share).fold(0.0, f64::max)
}

/// Draws disk above and memory below, over time.
pub fn draw(path: &Path, samples: &[Sample], segment_bytes: u64) {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).expect("drawn");
    let (above, below) = root.split_vertically(SIZE.1 / 2);
    let limit = |sample: &Sample| FACTOR * sample.live_bytes as f64 + (3 * segment_bytes) as f64;
    panel(
        &above,
        "Disk, MiB",
        samples,
        &[
            ("disk", BLUE, &|sample: &Sample| {
                sample.disk_bytes as f64 / MIB
            }),
            ("alive", GREEN, &|sample: &Sample| {
                sample.live_bytes as f64 / MIB
            }),
            ("1.5 x alive + 3 segments", RED, &|sample: &Sample| {
                limit(sample) / MIB
            }),
        ],
    );
    panel(
        &below,
        "Memory, MiB",
        samples,
        &[
            ("process", BLUE, &|sample: &Sample| {
                sample.memory_bytes as f64 / MIB
            }),
            ("index", GREEN, &|sample: &Sample| {
                sample.index_bytes as f64 / MIB
            }),
            ("24 bytes a key alive", RED, &|sample: &Sample| {
                sample.keys as f64 * 24.0 / MIB
            }),
        ],
    );
    root.present().expect("the picture can be written");
}

type Line<'a> = (&'a str, RGBColor, &'a dyn Fn(&Sample) -> f64);

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    caption: &str,
    samples: &[Sample],
    lines: &[Line<'_>],
) {
    let minutes = |sample: &Sample| sample.seconds / 60.0;
    let last = samples.last().map_or(1.0, minutes);
    let values = samples
        .iter()
        .flat_map(|sample| lines.iter().map(|(.., of)| of(sample)));
    let most = values.fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, 0.0..most * 1.1)
        .expect("drawn");
    chart
        .configure_mesh()
        .x_desc("minutes")
        .draw()
        .expect("drawn");
    for (name, colour, of) in lines {
        let points = samples.iter().map(|sample| (minutes(sample), of(sample)));
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points, colour))
            .expect("drawn")
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .expect("drawn");
}
