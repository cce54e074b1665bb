//! What the server has counted, and middles of what we have.

use std::collections::BTreeMap;
use std::time::Duration;

use super::server::Server;

/// How often the server ran each command, by its own count. What scripts call is in it too.
#[derive(Clone, Debug, Default)]
pub struct Counted(BTreeMap<String, u64>);

/// What counts what it does.
pub trait Meter {
    /// So far.
    fn counted(&self) -> Counted;
}

impl FromIterator<(String, u64)> for Counted {
    fn from_iter<I: IntoIterator<Item = (String, u64)>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}

impl Counted {
    /// So far.
    pub fn now(server: &Server) -> Self {
        let text = server.ask(&["INFO", "commandstats"]);
        let lines = text.lines().filter_map(|line| {
            let (command, values) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let calls = values.split(',').find_map(|part| part.strip_prefix("calls="))?;
            Some((command.to_owned(), calls.parse().expect("a number")))
        });
        Self(lines.collect())
    }

    /// Since an earlier count.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let new = |(command, n): (&String, &u64)| {
            (
                command.clone(),
                n.saturating_sub(*before.0.get(command).unwrap_or(&0)),
            )
        };
        Self(self.0.iter().map(new).collect())
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        for (command, n) in &other.0 {
            *self.0.entry(command.clone()).or_default() += n;
        }
    }

    /// Of that command, with its subcommands.
    pub fn of(&self, command: &str) -> u64 {
        let named = |(name, _): &(&String, &u64)| name.split('|').next() == Some(command);
        self.0.iter().filter(named).map(|(_, n)| n).sum()
    }

    /// Scripts that it was sent by their digest.
    pub fn scripts(&self) -> u64 {
        self.of("evalsha")
    }

    /// Messages that it sent out.
    pub fn pushes(&self) -> u64 {
        self.of("publish")
    }
}

/// The value below which that share of them is.
pub fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    values
        .get((last as f64 * share) as usize)
        .copied()
        .unwrap_or_default()
}

/// The middle one.
pub fn middle(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

/// In microseconds.
pub fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
