//! Time to the right, on a real scale, with idle spans cut out and marked. A column is a letter or a pixel.

use std::collections::BTreeSet;
use std::ops::Range;

/// The maximum number of cuts. With more of them the durations are no longer visible.
const BREAKS: usize = 4;

/// Times of a history, and the columns that they get.
pub(super) struct Axis {
    pieces: Vec<Piece>,
    columns: usize,
    /// How wide the mark of a cut is.
    mark: usize,
}

/// A span of time without a cut.
struct Piece {
    from: u64,
    to: u64,
    /// Its first column and the one after its last.
    columns: (usize, usize),
}

impl Axis {
    /// An axis for these times; empty if there are none.
    pub(super) fn new(times: &BTreeSet<u64>, columns: usize, mark: usize) -> Self {
        let times: Vec<u64> = times.iter().copied().collect();
        let cuts = idle(&times);
        let mut bounds: Vec<(u64, u64)> = Vec::new();
        for (i, at) in times.iter().enumerate() {
            match bounds.last_mut() {
                Some(last) if !cuts.contains(&(i - 1)) => last.1 = *at,
                _ => bounds.push((*at, *at)),
            }
        }
        let drawn: u64 = bounds.iter().map(|(from, to)| to - from).sum();
        // Each piece gets a column, each cut its mark, and what is left is shared by length.
        let fixed = bounds.len() + bounds.len().saturating_sub(1) * mark;
        let shared = columns.saturating_sub(fixed) as u128;
        let mut pieces = Vec::new();
        let mut at = 0;
        for (i, (from, to)) in bounds.into_iter().enumerate() {
            if i > 0 {
                at += mark;
            }
            let wide = (shared * u128::from(to - from)).checked_div(u128::from(drawn));
            let columns = (at, at + 1 + wide.unwrap_or(0) as usize);
            pieces.push(Piece { from, to, columns });
            at = columns.1;
        }
        Self {
            pieces,
            columns: at,
            mark,
        }
    }

    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The column of a time; one that was cut out, or is beyond the ends, gets the nearest.
    pub(super) fn column(&self, at: u64) -> usize {
        let Some(piece) = self.pieces.iter().find(|p| at <= p.to).or(self.pieces.last()) else {
            return 0;
        };
        let into = u128::from(at.clamp(piece.from, piece.to) - piece.from);
        let wide = (piece.columns.1 - piece.columns.0 - 1) as u128;
        let share = (into * wide).checked_div(u128::from(piece.to - piece.from));
        piece.columns.0 + share.unwrap_or(0) as usize
    }

    /// The time at the left edge of a column, if it is in no cut.
    fn time(&self, column: usize) -> Option<u64> {
        let mut pieces = self.pieces.iter();
        let piece = pieces.find(|p| (p.columns.0..p.columns.1).contains(&column))?;
        let wide = (piece.columns.1 - piece.columns.0 - 1) as u128;
        let into = u128::from(piece.to - piece.from) * (column - piece.columns.0) as u128;
        Some(piece.from + into.checked_div(wide).unwrap_or(0) as u64)
    }

    /// The columns of the cuts.
    pub(super) fn cuts(&self) -> impl Iterator<Item = Range<usize>> {
        let rest = self.pieces.iter().skip(1);
        rest.map(|p| p.columns.0 - self.mark..p.columns.0)
    }

    /// How long each cut is.
    pub(super) fn left_out(&self) -> Vec<u64> {
        self.pieces.windows(2).map(|p| p[1].from - p[0].to).collect()
    }

    /// Times at the begin of each piece, every so many columns, and only where there is room for one, with a
    /// line or a sign before it, of letters that are so wide.
    pub(super) fn labels(&self, every: usize, letter: usize) -> Vec<(usize, String)> {
        let drawn = self.pieces.iter().map(|p| p.to - p.from).sum();
        let (mut labels, mut free) = (Vec::new(), 0);
        for column in 0..self.columns {
            let starts = self.pieces.iter().any(|p| p.columns.0 == column);
            let Some(at) = self.time(column).filter(|_| starts || column % every == 0) else {
                continue;
            };
            let label = digits(at, drawn);
            let end = column + (1 + label.len()) * letter;
            let is_clear = || self.cuts().all(|cut| end <= cut.start || cut.end <= column);
            if column >= free && end <= self.columns && is_clear() {
                labels.push((column, label));
                free = end + letter;
            }
        }
        labels
    }
}

/// Milliseconds, as exact as it takes to tell the columns of a drawing of that length apart.
fn digits(at: u64, drawn: u64) -> String {
    let decimals = match drawn {
        0..10_000_000 => 3,
        10_000_000..1_000_000_000 => 1,
        _ => 0,
    };
    format!("{:.decimals$}", at as f64 / 1e6)
}

/// The gaps, by the index of the time before each, that are so long beside all shorter ones together that
/// these could not be seen.
fn idle(times: &[u64]) -> BTreeSet<usize> {
    let mut gaps: Vec<(u64, usize)> = times.windows(2).map(|w| w[1] - w[0]).zip(0..).collect();
    gaps.sort_unstable();
    let mut cut = BTreeSet::new();
    loop {
        let mut sum = 0;
        let mut longer = None;
        for (i, (gap, _)) in gaps.iter().enumerate() {
            if i >= 2 && *gap > 2 * sum {
                longer = Some(i);
            }
            sum += gap;
        }
        match longer {
            Some(i) if cut.len() + gaps.len() - i <= BREAKS => {
                cut.extend(gaps.drain(i..).map(|(_, at)| at));
            }
            _ => return cut,
        }
    }
}
