//! What is shown, and who is ahead.

use dlock_benches::figures::Shows;

/// Values by place, of one that is compared.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<(String, f64)>,
}

pub(crate) struct Plot {
    pub(crate) shows: Shows,
    pub(crate) title: String,
    pub(crate) series: Vec<Series>,
}

/// What is compared with us: a peer, but not what a store can do at most, nor a part of ours.
fn is_peer(name: &str) -> bool {
    name != "dlock" && name != "backend alone" && !name.starts_with("raw")
}

impl Plot {
    /// The value by which they are compared: the middle of a distribution, or the only one.
    fn of(&self, series: &Series) -> Option<f64> {
        let values = &series.values;
        match self.shows {
            Shows::Latency => values
                .iter()
                .find(|(place, _)| place == "p50")
                .map(|(_, value)| *value),
            Shows::Throughput => values.first().map(|(_, value)| *value),
            Shows::Requests | Shows::Held => None,
        }
    }

    /// The best peer, and how many times as good as ours it is; and the same of what the store can do.
    pub(crate) fn ahead(&self) -> [Option<(&str, f64)>; 2] {
        let good = |series: &Series| {
            let value = self.of(series)?;
            Some(if self.shows == Shows::Latency {
                1.0 / value
            } else {
                value
            })
        };
        let ours = self.series.iter().find(|s| s.name == "dlock").and_then(good);
        [is_peer, |name: &str| name.starts_with("raw")].map(|wanted| {
            let those = self.series.iter().filter(|s| wanted(&s.name));
            let compared = those.filter_map(|s| Some((s.name.as_str(), good(s)? / ours?)));
            compared.max_by(|a, b| a.1.total_cmp(&b.1))
        })
    }

    /// The smallest and the largest value. A log scale has no place for zero.
    pub(crate) fn range(&self) -> (f64, f64) {
        let values = || {
            self.series
                .iter()
                .flat_map(|s| &s.values)
                .map(|(_, v)| v.max(0.01))
        };
        (values().fold(f64::MAX, f64::min), values().fold(0.01, f64::max))
    }

    /// What is to be said of it.
    pub(crate) fn verdict(&self) -> String {
        let [peer, raw] = self.ahead();
        let mut said = Vec::new();
        if let Some((name, times)) = peer {
            said.push(match times > 1.0 {
                true => format!("{name} is ahead: {times:.2} times as good as dlock"),
                false => format!(
                    "dlock is ahead: {:.2} times as good as {name}, the best peer",
                    1.0 / times
                ),
            });
        }
        if let Some((name, times)) = raw {
            said.push(format!("dlock is at {:.2} of {name}", 1.0 / times));
        }
        said.join("; ")
    }
}

/// The plots of those lines. Where a peer is ahead it comes first.
pub(crate) fn all<const N: usize>(lines: [String; N]) -> Vec<Plot> {
    let mut plots: Vec<Plot> = Vec::new();
    for line in lines.iter().flat_map(|text| text.lines()) {
        let [shows, title, name, place, value] = line.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        let known = Shows::ALL.into_iter().find(|s| format!("{s:?}") == shows);
        let (Some(shows), Ok(value)) = (known, value.parse::<f64>()) else {
            continue;
        };
        let is_it = |p: &Plot| p.shows == shows && p.title == title;
        let at = plots.iter().position(is_it).unwrap_or_else(|| {
            plots.push(Plot {
                shows,
                title: title.to_owned(),
                series: Vec::new(),
            });
            plots.len() - 1
        });
        let series = &mut plots[at].series;
        let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
            series.push(Series {
                name: name.to_owned(),
                values: Vec::new(),
            });
            series.len() - 1
        });
        series[at].values.push((place.to_owned(), value));
    }
    plots.sort_by_key(|plot| {
        let behind = matches!(plot.ahead()[0], Some((_, times)) if times > 1.0);
        (!behind, Shows::ALL.into_iter().position(|s| s == plot.shows))
    });
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_peer_is_ahead_comes_first() {
        let lines = [
            "Throughput\tours\traw: x\t\t100",
            "Throughput\tours\tpeer\t\t40",
            "Throughput\tours\tdlock\t\t80",
            "Latency\ttheirs\tpeer\tp50\t10",
            "Latency\ttheirs\tdlock\tp50\t20",
            "Latency\ttheirs\tdlock\tp90\t1",
            "Held\theld\tdlock\t100\t7",
            "no line",
        ];
        let plots = all([lines.join("\n")]);
        let titles: Vec<_> = plots.iter().map(|p| p.title.as_str()).collect();
        assert_eq!(titles, ["theirs", "ours", "held"]);
        assert_eq!(plots[0].verdict(), "peer is ahead: 2.00 times as good as dlock");
        assert_eq!(
            plots[1].verdict(),
            "dlock is ahead: 2.00 times as good as peer, the best peer; dlock is at 0.80 of raw: x"
        );
        assert_eq!(plots[2].verdict(), "");
        assert_eq!(plots[0].series[1].values.len(), 2);
    }
}
