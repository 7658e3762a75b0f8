//! The machine, and figures as people read them.

use std::path::Path;

/// Processor, cores, kernel and file system, as far as the system tells.
pub(crate) fn machine(directory: &Path) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'))
        .map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    // The kernel's version, without what a distribution or a provider adds to it.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    let mounts = read("/proc/self/mounts");
    let file_system = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(place, _)| directory.starts_with(place))
        .max_by_key(|(place, _)| place.len())
        .map_or("unknown", |(_, kind)| kind);
    format!(
        "{model}, {cores} cores, {} {kernel}, {file_system}",
        std::env::consts::OS
    )
}

/// The load average of the last minute.
pub(crate) fn load() -> String {
    let told = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    String::from(told.split(' ').next().unwrap_or("unknown"))
}

/// The value in the middle; NaN of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    (values[low] + values[high]) / 2.0
}

/// So many a second.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second >= 1e6 {
        format!("{:.2} M/s", per_second / 1e6)
    } else if per_second >= 1e5 {
        format!("{:.0} k/s", per_second / 1e3)
    } else if per_second >= 1e3 {
        format!("{:.1} k/s", per_second / 1e3)
    } else {
        format!("{per_second:.0} /s")
    }
}
