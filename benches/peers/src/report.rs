//! The table.

use dlock_benches::figures::{Points, Shows};
use dlock_benches::redis::{Table, micros, quantile};

use crate::rounds::{CLIENTS, Crowded, Figures};

const HEADS: [&str; 14] = [
    "peer",
    "clients",
    "pair p50, µs",
    "÷ raw",
    "commands",
    "64 on 64, ÷ raw",
    "held, 2 ms",
    "commands a hand-off",
    "gap p50, µs",
    "turns, most / least",
    "hand-offs/s, no hold",
    "commands a hand-off",
    "gap p50, µs",
    "turns, most / least",
];

/// A row for each peer and number of clients. What was not measured, or does not depend on the clients, is
/// left empty.
pub(crate) fn table(measured: &[Figures]) -> Table {
    let mut table = Table::new(&HEADS);
    let p50 = |figures: &Figures| micros(quantile(&mut figures.pairs.clone(), 0.5));
    let Some(raw) = measured.first() else {
        return table;
    };
    for figures in measured {
        for (n, clients) in CLIENTS.into_iter().enumerate() {
            let crowds = [&figures.busy[n], &figures.handoff[n]];
            let first = n == 0;
            if !first && crowds.iter().all(|crowd| crowd.is_none()) {
                continue;
            }
            let mut cells = vec![figures.name.to_owned(), clients.to_string()];
            let pairs = (first && !figures.pairs.is_empty()).then_some(&figures.pairs);
            cells.extend([
                cell(pairs, |_| format!("{:.1}", p50(figures))),
                cell(pairs, |_| format!("{:.2}", p50(figures) / p50(raw))),
                cell(pairs, |pairs| {
                    let sent = figures.sent.among(&figures.counted);
                    format!("{:.2}", sent as f64 / pairs.len() as f64)
                }),
                cell((first && figures.rate > 0.0).then_some(&figures.rate), |rate| {
                    format!("{:.2}", rate / raw.rate)
                }),
            ]);
            let [busy, handoff] = crowds.map(Option::as_ref);
            cells.push(cell(busy, |crowd| format!("{:.1} %", 100.0 * crowd.all.busy())));
            cells.extend(crowd(figures, busy));
            cells.push(cell(handoff, |crowd| {
                format!("{:.0}", crowd.all.handoffs as f64 / crowd.all.took.as_secs_f64())
            }));
            let mut last = crowd(figures, handoff);
            if let (true, Some(floor)) = (first, figures.floor) {
                last[1] = format!("{:.1}", micros(floor));
            }
            cells.extend(last);
            table.row(cells);
        }
    }
    table
}

/// The same as points.
pub(crate) fn points(measured: &[Figures]) -> Points {
    let mut points = Points::default();
    for figures in measured {
        let series = match figures.name {
            raw if raw.starts_with("raw") => "raw: EVALSHA",
            other => other,
        };
        if !figures.pairs.is_empty() {
            points.spread(
                "Redis, beside other libraries",
                series,
                &mut figures.pairs.clone(),
            );
        }
        if figures.rate > 0.0 {
            let plot = "Redis, 64 tasks on 64 locks, beside other libraries";
            points.add(Shows::Throughput, plot, series, "", figures.rate);
        }
        for (clients, crowd) in CLIENTS.into_iter().zip(&figures.handoff) {
            let Some(Crowded { all, .. }) = crowd else {
                continue;
            };
            let each_second = all.handoffs as f64 / all.took.as_secs_f64();
            let plot = format!("Redis, hand-offs of 64 tasks at one lock over {clients} clients");
            points.add(Shows::Throughput, &plot, series, "", each_second);
        }
    }
    points
}

fn cell<T>(seen: Option<&T>, text: impl FnOnce(&T) -> String) -> String {
    seen.map(text).unwrap_or_default()
}

/// Commands, gap and turns.
fn crowd(figures: &Figures, seen: Option<&Crowded>) -> [String; 3] {
    let Some(Crowded { all, turns }) = seen else {
        return Default::default();
    };
    if all.handoffs == 0 {
        return [
            "none".to_owned(),
            String::new(),
            format!("{} / {}", turns.0, turns.1),
        ];
    }
    let commands = figures.sent.among(&all.counted) as f64 / all.handoffs as f64;
    [
        format!("{commands:.2}"),
        format!("{:.1}", micros(quantile(&mut all.gaps.clone(), 0.5))),
        format!("{} / {}", turns.0, turns.1),
    ]
}
