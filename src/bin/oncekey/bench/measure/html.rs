//! The report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use std::fmt::{self, Write as _};
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::growth::Growth;
use super::lap::Work;
use super::machine::rate;
use super::own::NAME as OWN;
use super::plots::{Bars, Line, Lines, css_colour};
use super::report::{RATIO, Report, Series};
use super::text::{each, millis, times};
use super::{Class, Fault};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:1440px;margin:2em auto;padding:0 1em;\
    color:#222;background:#fff}table{border-collapse:collapse;margin:1em 0}\
    th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}\
    td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
    .plots{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;border:1px solid #ddd}\
    svg{display:block}figcaption{padding:.3em 1em .6em;max-width:430px;font-size:13px}\
    i{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 .8em}";

/// A file that will be a page. Nothing is left of it unless it is ended.
pub(crate) struct Page {
    file: NamedTempFile,
    path: PathBuf,
}

impl Page {
    /// What cannot be written is told before anything is measured.
    pub(crate) fn begin(path: &Path) -> Result<Self, Fault> {
        let failed =
            |error: &dyn fmt::Display| -> Fault { format!("{}: {error}", path.display()).into() };
        if path.exists() && !path.is_file() {
            return Err(failed(&"is there, and not a file"));
        }
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".oncekey-bench-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .map_err(|error| failed(&error))?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    pub(crate) fn end(mut self, report: &Report) -> Result<(), Fault> {
        self.file.write_all(page(report)?.as_bytes())?;
        self.file.persist(&self.path)?;
        Ok(())
    }
}

/// Text that is only text in a page.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}

/// A report, and the colours of its contestants.
struct Shown<'a> {
    report: &'a Report,
    names: Vec<&'a str>,
}

fn page(report: &Report) -> Result<String, Fault> {
    let mut names: Vec<&str> = Vec::new();
    for one in &report.settings {
        if !names.contains(&one.name.as_str()) {
            names.push(&one.name);
        }
    }
    let shown = Shown { report, names };
    let mut page = String::new();
    shown.head(&mut page)?;
    for class in [Class::Volatile, Class::Buffered, Class::Sync] {
        shown.class(&mut page, class)?;
    }
    shown.growth(&mut page)?;
    shown.tables(&mut page)?;
    // A closing tag within a string would end the element.
    let json = report.json().to_string().replace('<', "\\u003c");
    write!(
        page,
        "<script type=\"application/json\" id=\"report\">{json}</script></body></html>"
    )?;
    Ok(page)
}

impl Shown<'_> {
    fn colour(&self, name: &str) -> usize {
        self.names.iter().position(|one| *one == name).unwrap_or(0)
    }

    fn swatch(&self, name: &str) -> String {
        let colour = css_colour(self.colour(name));
        format!("<i style=\"background:{colour}\"></i>{}", escaped(name))
    }

    fn head(&self, page: &mut String) -> fmt::Result {
        let report = self.report;
        let [key, response] = report.sizes;
        write!(
            page,
            "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>oncekey bench</title><style>{STYLE}</style></head><body>\
             <h1>oncekey bench</h1><p>{}<br>Load average: {} before, {} after.<br>\
             Keys of {key} bytes, responses of {response}; medians of {} rounds, in which all take \
             turns.</p><table id=\"contestants\"><tr><th></th><th>durability</th>\
             <th>set up as</th></tr>",
            escaped(&report.machine),
            escaped(&report.load[0]),
            escaped(&report.load[1]),
            report.rounds,
        )?;
        for one in &report.settings {
            let name = self.swatch(&one.name);
            let (class, settings) = (one.class.name(), escaped(&one.settings));
            write!(
                page,
                "<tr><td>{name}</td><td>{class}</td><td>{settings}</td></tr>"
            )?;
        }
        write!(page, "</table><p>{}</p>", escaped(RATIO))
    }

    fn figure(
        &self,
        page: &mut String,
        id: &str,
        svg: Result<String, Fault>,
        names: &[&str],
    ) -> Result<(), Fault> {
        write!(page, "<figure id=\"{id}\">{}<figcaption>", svg?)?;
        for name in names {
            page.push_str(&self.swatch(name));
        }
        page.push_str("</figcaption></figure>");
        Ok(())
    }

    /// All of a class that did this work; a volatile one is set against our weakest promise.
    fn series(&self, class: Class, work: Work) -> Vec<&Series> {
        let all = self.report.series.iter().filter(|one| one.work == work);
        let is_shown = |one: &&Series| {
            let is_reference = one.name == OWN && one.class == class.max(Class::Buffered);
            one.class == class || is_reference
        };
        all.filter(is_shown).collect()
    }

    fn class(&self, page: &mut String, class: Class) -> Result<(), Fault> {
        let level = class.name();
        let all = &self.report.series;
        if !all.iter().any(|one| one.class == class) {
            return Ok(());
        }
        let (works, threads) = self.report.axes();
        write!(page, "<h2>{level}</h2><div class=\"plots\">")?;
        for (number, work) in works.iter().enumerate() {
            let series = self.series(class, *work);
            let names = self.among(&series, |one| &one.name);
            let lines = |of: &dyn Fn(&Series) -> Vec<(usize, f64)>| {
                let points = |name: &&str| Line {
                    colour: self.colour(name),
                    points: series
                        .iter()
                        .filter(|one| one.name == *name)
                        .flat_map(|one| of(one))
                        .collect(),
                };
                names.iter().map(points).collect::<Vec<_>>()
            };
            let plot = Lines {
                caption: format!("{}, {level}: throughput", work.name()),
                x: "threads",
                places: threads.iter().map(usize::to_string).collect(),
                y: "operations a second",
                lines: lines(&|one| {
                    let place = threads.iter().position(|count| *count == one.threads);
                    place.map(|place| (place, one.rate())).into_iter().collect()
                }),
            };
            self.figure(
                page,
                &format!("throughput-{level}-{number}"),
                plot.svg(),
                &names,
            )?;
            let mut ends = vec![threads[0], threads[threads.len() - 1]];
            ends.dedup();
            for count in ends {
                let plot = Lines {
                    caption: format!("{}, {level}, threads: {count}: latency", work.name()),
                    x: "share of operations that take at most so long",
                    places: ["50 %", "99 %", "99.9 %", "all"]
                        .map(str::to_owned)
                        .to_vec(),
                    y: "µs",
                    lines: lines(&|one| match one.threads == count {
                        true => one.percentiles().into_iter().enumerate().collect(),
                        false => Vec::new(),
                    }),
                };
                self.figure(
                    page,
                    &format!("latency-{level}-{number}-{count}"),
                    plot.svg(),
                    &names,
                )?;
            }
        }
        page.push_str("</div>");
        Ok(())
    }

    /// The names of some, each once.
    fn among<'b, T>(&self, some: &'b [T], name: impl Fn(&'b T) -> &'b str) -> Vec<&'b str> {
        let mut names = Vec::new();
        for one in some {
            names.extend(Some(name(one)).filter(|name| !names.contains(name)));
        }
        names
    }

    fn growth(&self, page: &mut String) -> Result<(), Fault> {
        let growth = &self.report.growth;
        let Some(most) = growth.iter().map(|one| one.keys).max() else {
            return Ok(());
        };
        page.push_str("<h2>What keys take</h2><div class=\"plots\">");
        type Of = fn(&Growth) -> Option<u64>;
        let sizes: [(&str, &str, Of); 3] = [
            ("disk", "disk", |one| one.disk_bytes),
            ("memory", "memory, filled", |one| one.memory_bytes),
            ("opened-memory", "memory, opened", |one| {
                one.opened_memory_bytes
            }),
        ];
        for (id, what, of) in sizes {
            let largest = growth.iter().filter(|one| one.keys == most);
            let bar = |one: &Growth| {
                let bytes = of(one)? as f64 / one.keys as f64;
                Some((self.colour(&one.name), one.name.clone(), bytes))
            };
            let plot = Bars {
                caption: format!("{what}, at {most} keys"),
                x: "bytes a key",
                bars: largest.filter_map(bar).collect(),
            };
            if !plot.bars.is_empty() {
                self.figure(page, id, plot.svg(), &[])?;
            }
        }
        type Time = fn(&Growth) -> Option<f64>;
        let times: [(&str, Time); 2] = [
            ("cold", |one| one.cold_open_ms),
            ("warm", |one| one.warm_open_ms),
        ];
        let mut counts: Vec<usize> = growth.iter().map(|one| one.keys).collect();
        counts.dedup();
        for (what, of) in times {
            let opened: Vec<&Growth> = growth.iter().filter(|one| of(one).is_some()).collect();
            let names = self.among(&opened, |one| &one.name);
            let point = |one: &&Growth| {
                let place = counts.iter().position(|count| *count == one.keys)?;
                Some((place, of(one)?))
            };
            let line = |name: &&str| Line {
                colour: self.colour(name),
                points: opened
                    .iter()
                    .filter(|one| one.name == *name)
                    .filter_map(point)
                    .collect(),
            };
            let plot = Lines {
                caption: format!("{what} open, until the first replay"),
                x: "keys",
                places: counts.iter().map(usize::to_string).collect(),
                y: "ms",
                lines: names.iter().map(line).collect(),
            };
            if !names.is_empty() {
                self.figure(page, &format!("{what}-open"), plot.svg(), &names)?;
            }
        }
        page.push_str("</div>");
        Ok(())
    }

    fn tables(&self, page: &mut String) -> fmt::Result {
        page.push_str(
            "<h2>All figures</h2><table id=\"rates\"><tr><th>work</th><th></th><th>durability</th>\
             <th class=\"n\">threads</th><th class=\"n\">rate</th><th class=\"n\">ratio</th>\
             <th class=\"n\">50 % µs</th><th class=\"n\">99 %</th><th class=\"n\">99.9 %</th>\
             <th class=\"n\">all</th></tr>",
        );
        for one in &self.report.series {
            write!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td>",
                escaped(&one.work.name()),
                self.swatch(&one.name),
                one.class.name()
            )?;
            let ratio = self.report.ratio(one).map_or("–".to_owned(), times);
            numbers(page, &[one.threads.to_string(), rate(one.rate()), ratio])?;
            numbers(
                page,
                &one.percentiles().map(|micros| format!("{micros:.1}")),
            )?;
            page.push_str("</tr>");
        }
        page.push_str("</table>");
        if self.report.growth.is_empty() {
            return Ok(());
        }
        page.push_str(
            "<table id=\"growth\"><tr><th></th><th class=\"n\">keys</th>\
             <th class=\"n\">disk a key</th><th class=\"n\">memory a key, filled</th>\
             <th class=\"n\">opened</th><th class=\"n\">cold open</th>\
             <th class=\"n\">warm open</th></tr>",
        );
        for one in &self.report.growth {
            write!(page, "<tr><td>{}</td>", self.swatch(&one.name))?;
            let sizes = [one.disk_bytes, one.memory_bytes, one.opened_memory_bytes];
            numbers(page, &[one.keys.to_string()])?;
            numbers(page, &sizes.map(|bytes| each(bytes, one.keys)))?;
            numbers(page, &[one.cold_open_ms, one.warm_open_ms].map(millis))?;
            page.push_str("</tr>");
        }
        page.push_str("</table>");
        Ok(())
    }
}

fn numbers(page: &mut String, cells: &[String]) -> fmt::Result {
    cells
        .iter()
        .try_for_each(|cell| write!(page, "<td class=\"n\">{cell}</td>"))
}

#[cfg(test)]
mod tests {
    use super::super::report::Setting;
    use super::*;

    const HOSTILE: &str = "</script><script src=\"//elsewhere\">'&";

    fn hostile() -> Report {
        let series = Series {
            work: Work::Replay,
            name: HOSTILE.to_owned(),
            class: Class::Volatile,
            threads: 1,
            rates: vec![7.0, f64::NAN, 0.0],
            micros: vec![[0.0, 1.0, 2.0, f64::INFINITY]],
        };
        let growth = Growth {
            name: HOSTILE.to_owned(),
            keys: 1,
            disk_bytes: Some(0),
            cold_open_ms: Some(0.0),
            ..Growth::default()
        };
        Report {
            machine: HOSTILE.to_owned(),
            load: [HOSTILE, HOSTILE].map(str::to_owned),
            sizes: [56, 512],
            rounds: 1,
            settings: vec![Setting {
                name: HOSTILE.to_owned(),
                class: Class::Volatile,
                settings: HOSTILE.to_owned(),
            }],
            series: vec![series],
            growth: vec![growth],
        }
    }

    #[test]
    fn what_a_server_says_of_itself_stays_text() {
        let page = page(&hostile()).expect("drawn");
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("src=\"//elsewhere\""));
        let (_, data) = page.split_once("id=\"report\">").expect("data");
        let (data, rest) = data.split_once("</script>").expect("its end");
        assert_eq!(rest, "</body></html>");
        let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(data["machine"], HOSTILE);
    }

    #[test]
    fn a_report_of_nothing_is_a_page() {
        let mut empty = hostile();
        empty.settings.clear();
        empty.series.clear();
        empty.growth.clear();
        let page = page(&empty).expect("written");
        assert!(!page.contains("<svg"));
    }
}
