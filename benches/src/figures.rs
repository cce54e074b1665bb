//! What the programs leave for the page that shows them all: see `scripts/bench`.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use crate::redis::{micros, quantile};

/// Names the folder that a program leaves its figures in; where it is not set, it only prints.
const FOLDER: &str = "DLOCK_BENCH_FOLDER";

/// The shares of a distribution that are shown.
const SHARES: [f64; 6] = [0.1, 0.5, 0.9, 0.99, 0.999, 1.0];

/// What a plot is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Microseconds, by the share of what was measured that took no longer.
    Latency,
    /// Pairs of acquire and release a second.
    Throughput,
    /// Requests for each hand-off, by how many wait.
    Requests,
    /// What a lock costs that is held, by how many are held.
    Held,
}

impl Shows {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 4] = [Self::Throughput, Self::Latency, Self::Requests, Self::Held];
}

/// The points of the plots, as lines of tab-separated text: what it shows, plot, series, place, value. The
/// series `dlock` is ours, and one that begins with `raw` is what a store can do at most.
#[derive(Debug, Default)]
pub struct Points(String);

impl Points {
    /// One more.
    pub fn add(&mut self, shows: Shows, plot: &str, series: &str, place: impl Display, value: f64) {
        let _ = writeln!(self.0, "{shows:?}\t{plot}\t{series}\t{place}\t{value}");
    }

    /// The distributions of those who took turns. Answers their medians, in microseconds.
    pub fn spreads<const N: usize>(
        &mut self,
        plot: &str,
        series: [&str; N],
        times: &mut [Vec<Duration>; N],
    ) -> [f64; N] {
        for (series, times) in series.into_iter().zip(&mut *times) {
            self.spread(plot, series, times);
        }
        times.each_mut().map(|times| micros(quantile(times, 0.5)))
    }

    /// A distribution.
    pub fn spread(&mut self, plot: &str, series: &str, times: &mut [Duration]) {
        for share in SHARES {
            let place = match share {
                1.0 => "most".to_owned(),
                _ => format!("p{}", share * 100.0),
            };
            let value = micros(quantile(times, share));
            self.add(Shows::Latency, plot, series, place, value);
        }
    }

    /// Leaves them in the folder of the figures, with the text that was printed.
    ///
    /// # Panics
    /// If that cannot be written.
    pub fn keep(&self, program: &str, text: &impl Display) {
        let Some(folder) = std::env::var_os(FOLDER).map(std::path::PathBuf::from) else {
            return;
        };
        let write = |ending: &str, text: &str| {
            std::fs::write(folder.join(format!("{program}.{ending}")), text)
                .expect("the folder can be written to");
        };
        write("md", &text.to_string());
        write("tsv", &self.0);
    }
}
