//! Lines and bars as pictures in SVG.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Fault;

const WIDTH: u32 = 460;
const LINES_HEIGHT: u32 = 300;
const BAR_HEIGHT: u32 = 22;
const AROUND_BARS: u32 = 84;
const NAMES_WIDTH: u32 = 110;
const FONT: &str = "sans-serif";
const CAPTION_SIZE: u32 = 15;
const TEXT_SIZE: u32 = 12;

/// Told apart by most eyes, also side by side.
const COLOURS: [RGBColor; 14] = [
    RGBColor(0xD6, 0x27, 0x28),
    RGBColor(0x1F, 0x77, 0xB4),
    RGBColor(0x2C, 0xA0, 0x2C),
    RGBColor(0xFF, 0x7F, 0x0E),
    RGBColor(0x94, 0x67, 0xBD),
    RGBColor(0x8C, 0x56, 0x4B),
    RGBColor(0x17, 0xBE, 0xCF),
    RGBColor(0xE3, 0x77, 0xC2),
    RGBColor(0xBC, 0xBD, 0x22),
    RGBColor(0x7F, 0x7F, 0x7F),
    RGBColor(0x00, 0x3F, 0x5C),
    RGBColor(0xFF, 0xA6, 0x00),
    RGBColor(0x66, 0x51, 0x91),
    RGBColor(0x2F, 0x4B, 0x26),
];

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// The colour with this number, as CSS has it.
pub(super) fn css_colour(number: usize) -> String {
    let RGBColor(red, green, blue) = colour(number);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Points of one contestant, by their places on the x axis.
pub(super) struct Line {
    pub(super) colour: usize,
    pub(super) points: Vec<(usize, f64)>,
}

/// Values over a few places; those on the y axis are logarithmic.
pub(super) struct Lines {
    pub(super) caption: String,
    pub(super) x: &'static str,
    pub(super) places: Vec<String>,
    pub(super) y: &'static str,
    pub(super) lines: Vec<Line>,
}

impl Lines {
    pub(super) fn svg(&self) -> Result<String, Fault> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, (WIDTH, LINES_HEIGHT)).into_drawing_area())?;
        Ok(svg)
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), Fault> {
        let values = self.lines.iter().flat_map(|line| &line.points);
        let (low, high) = decades(values.map(|(_, value)| *value));
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.caption, (FONT, CAPTION_SIZE))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(
                -0.5..self.places.len() as f64 - 0.5,
                (low..high).log_scale(),
            )?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .x_desc(self.x)
            .y_desc(self.y)
            .y_label_formatter(&|value| short(*value))
            .light_line_style(WHITE)
            .label_style((FONT, TEXT_SIZE))
            .draw()?;
        let label = style().pos(Pos::new(HPos::Center, VPos::Top));
        for (place, name) in self.places.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(place as f64, low));
            area.draw(&Text::new(name.as_str(), (x, y + 4), label.clone()))?;
        }
        for line in &self.lines {
            let points = line
                .points
                .iter()
                .map(|(place, value)| (*place as f64, *value));
            let colour = colour(line.colour);
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
        }
        area.present()?;
        Ok(())
    }
}

/// One value of each contestant.
pub(super) struct Bars {
    pub(super) caption: String,
    pub(super) x: &'static str,
    /// Colour, name, value.
    pub(super) bars: Vec<(usize, String, f64)>,
}

impl Bars {
    pub(super) fn svg(&self) -> Result<String, Fault> {
        let mut svg = String::new();
        let height = BAR_HEIGHT * self.bars.len() as u32 + AROUND_BARS;
        self.draw(&SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area())?;
        Ok(svg)
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), Fault> {
        let count = self.bars.len() as f64;
        let most = self.bars.iter().map(|bar| bar.2).fold(1.0, f64::max);
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.caption, (FONT, CAPTION_SIZE))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(NAMES_WIDTH)
            .build_cartesian_2d(0.0..most * 1.2, 0.0..count)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_labels(5)
            .x_desc(self.x)
            .x_label_formatter(&|value| short(*value))
            .light_line_style(WHITE)
            .label_style((FONT, TEXT_SIZE))
            .draw()?;
        let name_style = style().pos(Pos::new(HPos::Right, VPos::Center));
        let value_style = style().pos(Pos::new(HPos::Left, VPos::Center));
        for (row, (number, name, value)) in self.bars.iter().enumerate() {
            let middle = count - row as f64 - 0.5;
            let bar = [(0.0, middle - 0.35), (*value, middle + 0.35)];
            chart.draw_series([Rectangle::new(bar, colour(*number).filled())])?;
            let (left, y) = chart.backend_coord(&(0.0, middle));
            let (right, _) = chart.backend_coord(&(*value, middle));
            area.draw(&Text::new(name.as_str(), (left - 6, y), name_style.clone()))?;
            area.draw(&Text::new(
                short(*value),
                (right + 5, y),
                value_style.clone(),
            ))?;
        }
        area.present()?;
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn style() -> TextStyle<'static> {
    TextStyle::from((FONT, TEXT_SIZE)).color(&BLACK)
}

/// Powers of ten around all values.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let usable = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = usable.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if high == 0.0 {
        return (1.0, 10.0);
    }
    let low = 10_f64.powf(low.log10().floor());
    (low, 10_f64.powf(high.log10().ceil()).max(10.0 * low))
}

/// With a letter for thousands and millions.
fn short(value: f64) -> String {
    let (value, letter) = match value {
        value if value >= 1e6 => (value / 1e6, " M"),
        value if value >= 1e3 => (value / 1e3, " k"),
        value => (value, ""),
    };
    let digits =
        usize::from(value < 10.0 && value.fract() != 0.0) + usize::from(value < 0.1 && value > 0.0);
    format!("{value:.digits$}{letter}")
}
