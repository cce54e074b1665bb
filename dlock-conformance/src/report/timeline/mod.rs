//! A history as a drawing, in plain text and for the page: the first thing to look at when a rule fails.
//!
//! Time runs to the right on a real scale; idle spans are cut out where `//` stands. One row per lane shows
//! what the client saw and believed, the rows below what the store granted, with token numbers; faults
//! have a row of their own. A pure function of the history: the same events give the same drawing.

mod axis;
mod lanes;
pub mod svg;

use std::collections::BTreeSet;

use self::axis::Axis;
use self::lanes::{Canvas, Lanes};
use crate::checker::{Violation, ms, shrink};
use crate::history::{Event, EventKind, Model, Op, OpOutcome, Span, spans};

/// How wide a drawing is, its labels aside, and how wide the mark where time was cut out.
const COLUMNS: usize = 84;
const CUT: usize = 2;

/// How many lanes are drawn at most, and how many rows of grants.
const LANES: usize = 12;
const GRANTS: usize = 6;

/// The maximum number of operations that are listed below the drawing.
pub(super) const TOLD: usize = 8;

/// How many operations are drawn of a history whose violation is not known, and how many refused tries among
/// them.
const LATEST: usize = 12;
const REFUSED: usize = 4;

/// Draws a violation: the operations of the smallest illegal history, to their ends, with the named ones
/// marked.
pub fn of(violation: &Violation, events: &[Event], model: &Model) -> String {
    draw(&about(violation, events), &violation.operations, model)
}

/// The last operations on the name of the last event, or of a loss just before it.
pub fn latest(events: &[Event], model: &Model) -> String {
    draw(&ending(events), &[], model)
}

/// The calls that had not returned at that time, and how long they had taken by then.
pub(crate) fn hanging(events: &[Event], at: u64) -> String {
    let before = |kind| events.iter().filter(move |e| e.kind == kind && e.t_mono_ns < at);
    let returned: BTreeSet<u64> = before(EventKind::Return).map(|e| e.op_id).collect();
    let calls = before(EventKind::Invoke).filter(|e| !returned.contains(&e.op_id));
    let calls = calls.filter_map(|e| {
        let (call, name, lane, since) = (verb(e.op?), &e.name, e.lane, ms(at - e.t_mono_ns));
        Some(format!(
            "\n  {call} of `{name}` on lane {lane} has not returned for {since}"
        ))
    });
    calls.take(TOLD).collect()
}

fn about(violation: &Violation, events: &[Event]) -> Vec<Event> {
    let least = violation.minimal.iter().map(Event::unit);
    let units: BTreeSet<u64> = least.chain(violation.operations.iter().copied()).collect();
    only(events, &violation.name, &units)
}

fn ending(events: &[Event]) -> Vec<Event> {
    let last = || events.iter().rev().filter(|e| !e.is_fault()).take(LATEST);
    let lost = last().find(|e| e.kind == EventKind::Lost);
    let Some(name) = lost.or_else(|| last().next()).map(|e| &e.name) else {
        return Vec::new();
    };
    let (mut units, mut passed_over, mut refused) = (BTreeSet::new(), BTreeSet::new(), 0);
    for event in events.iter().rev().filter(|e| e.name == *name && !e.is_fault()) {
        if event.op == Some(Op::Try) && event.outcome == Some(OpOutcome::Held) {
            refused += 1;
            if refused > REFUSED {
                passed_over.insert(event.unit());
            }
        }
        if units.len() < LATEST && !passed_over.contains(&event.unit()) {
            units.insert(event.unit());
        }
    }
    only(events, name, &units)
}

fn only(events: &[Event], name: &str, units: &BTreeSet<u64>) -> Vec<Event> {
    shrink::only(events, |e| e.name == name && units.contains(&e.unit()))
}

/// The contents of a drawing, for both forms.
struct Scene {
    axis: Axis,
    lanes: Lanes,
    /// What the store granted, the marked ones first.
    grants: Vec<Span>,
    bands: Vec<Band>,
    /// The time in which the marked grants are held at once; the moments of their returns, if they never are.
    clash: Vec<(u64, u64)>,
}

impl Scene {
    fn new(events: &[Event], marked: &[u64], model: &Model, columns: usize, cut: usize) -> Self {
        let mut grants: Vec<Span> = spans(events, model).into_values().flatten().collect();
        grants.sort_by_key(|s| (!marked.contains(&s.op_id), s.begin));
        Self {
            axis: Axis::new(&times(events, &grants, marked), columns, cut),
            lanes: Lanes::read(events, marked),
            bands: bands(events),
            clash: clash(&grants, marked),
            grants,
        }
    }

    /// The row of each of these spans of time, of as many rows as are allowed: the first in which it meets no
    /// other.
    fn rows(&self, of: impl Iterator<Item = (u64, u64)>, most: usize) -> Vec<Option<usize>> {
        let mut rows: Vec<Vec<(usize, usize)>> = Vec::new();
        let place = |(from, until)| {
            let (left, right) = (self.axis.column(from), self.axis.column(until));
            let free = |taken: &Vec<(usize, usize)>| taken.iter().all(|(l, r)| right < *l || *r < left);
            let row = rows.iter().position(free).unwrap_or(rows.len());
            if row == rows.len() {
                rows.push(Vec::new());
            }
            rows[row].push((left, right));
            Some(row).filter(|row| *row < most)
        };
        of.map(place).collect()
    }
}

/// From when until when a grant may be held.
fn extent(span: &Span) -> (u64, u64) {
    let end = span.end_by.unwrap_or(span.end_from).max(span.end_from);
    (span.begin.0, end)
}

/// These events, with the operations `marked` among them; at most 40 lines. The history must be valid.
pub fn draw(events: &[Event], marked: &[u64], model: &Model) -> String {
    let scene = Scene::new(events, marked, model, COLUMNS, CUT);
    let axis = &scene.axis;
    if axis.columns() == 0 {
        return String::new();
    }
    let mut row = vec![' '; axis.columns()];
    for column in axis.cuts().flatten() {
        row[column] = '/';
    }
    for (column, label) in axis.labels(16, 1) {
        for (cell, c) in row[column..].iter_mut().zip(format!("|{label}").chars()) {
            *cell = c;
        }
    }
    let ruler: String = row.into_iter().collect();
    let mut text = format!("  {:<9} {}\n", "ms", ruler.trim_end());
    let (shown, hidden) = scene.lanes.shown(LANES);
    text.extend(shown.map(|lane| lane.row(axis)));
    text += &more(hidden, "lanes");
    text += &granted(&scene);
    text += &faults(&scene);
    if !scene.clash.is_empty() {
        let mut row = Canvas::new(axis);
        for (from, until) in &scene.clash {
            row.fill(*from, *until, '^');
        }
        text += &format!("> {:<9} {}\n", "here", row.finish());
    }
    text += &format!("  {}\n", legend(&text));
    let cuts: Vec<String> = axis.left_out().into_iter().map(ms).collect();
    if !cuts.is_empty() {
        text += &format!("  // leaves out {}\n", cuts.join(", "));
    }
    text.extend(marked.iter().take(TOLD).map(|op| told(events, *op)));
    text + &more(marked.len().saturating_sub(TOLD), "operations")
}

/// All times of the events, and the ends of marked leases if they are not far beyond.
fn times(events: &[Event], grants: &[Span], marked: &[u64]) -> BTreeSet<u64> {
    let mut times: BTreeSet<u64> = events.iter().map(|e| e.t_mono_ns).collect();
    let (Some(first), Some(last)) = (times.first().copied(), times.last().copied()) else {
        return times;
    };
    let ends = grants
        .iter()
        .filter(|s| marked.contains(&s.op_id))
        .map(|s| s.end_from);
    times.extend(ends.filter(|end| (first..=last + (last - first)).contains(end)));
    times
}

/// What the store granted: held for sure, and possibly held before and after.
fn granted(scene: &Scene) -> String {
    let mut rows: Vec<Canvas> = Vec::new();
    let mut hidden = 0;
    let places = scene.rows(scene.grants.iter().map(extent), GRANTS);
    for (span, place) in scene.grants.iter().zip(places) {
        let Some(place) = place else {
            hidden += 1;
            continue;
        };
        rows.resize_with(rows.len().max(place + 1), || Canvas::new(&scene.axis));
        let (row, (begin, end)) = (&mut rows[place], extent(span));
        row.fill(begin, end, '~');
        row.fill(span.begin.1, span.end_from.max(span.begin.1), '#');
        row.open(end);
        row.write(span.begin.1, span.end_from, &format!("[{}", token(span.token)));
    }
    let rows = rows
        .into_iter()
        .map(|row| format!("  {:<9} {}\n", "granted", row.finish()));
    rows.collect::<String>() + &more(hidden, "grants")
}

fn more(hidden: usize, what: &str) -> String {
    match hidden {
        0 => String::new(),
        hidden => format!("  and {hidden} more {what}\n"),
    }
}

fn token(token: Option<u64>) -> String {
    format!("t{}", token.map_or_else(|| "?".to_owned(), |t| t.to_string()))
}

/// A fault, from when until when, and what it is.
struct Band {
    span: (u64, u64),
    fault: String,
}

fn bands(events: &[Event]) -> Vec<Band> {
    let last = events.last().map_or(0, |e| e.t_mono_ns);
    let band = |(i, event): (usize, &Event)| {
        let mut later = events[i..].iter();
        let healed = later.find(|e| e.kind == EventKind::FaultEnd && e.lane == event.lane);
        let what = event.note.clone();
        Band {
            span: (event.t_mono_ns, healed.map_or(last, |e| e.t_mono_ns)),
            fault: what.unwrap_or_else(|| format!("lane {}", event.lane)),
        }
    };
    let all = events.iter().enumerate();
    all.filter(|(_, e)| e.kind == EventKind::FaultBegin)
        .map(band)
        .collect()
}

fn faults(scene: &Scene) -> String {
    if scene.bands.is_empty() {
        return String::new();
    }
    let mut row = Canvas::new(&scene.axis);
    for Band { span, fault } in &scene.bands {
        row.fill(span.0, span.1, 'F');
        row.write(span.0, span.1, &format!("F {fault} "));
    }
    format!("  {:<9} {}\n", "faults", row.finish())
}

fn clash(grants: &[Span], marked: &[u64]) -> Vec<(u64, u64)> {
    let pair: Vec<&Span> = grants.iter().filter(|s| marked.contains(&s.op_id)).collect();
    let from = pair.iter().map(|s| s.begin.1).max();
    let until = pair.iter().map(|s| s.end_from).min();
    match (from, until) {
        (Some(from), Some(until)) if pair.len() > 1 && from < until => vec![(from, until)],
        _ => pair.iter().map(|s| (s.begin.1, s.begin.1)).collect(),
    }
}

/// What the signs mean.
const SIGNS: [(char, &str); 21] = [
    ('=', "asks"),
    ('#', "holds"),
    ('.', "past its deadline"),
    ('~', "may hold"),
    ('-', "lets go"),
    ('<', "released"),
    ('r', "renewed"),
    ('h', "refused"),
    ('t', "timed out"),
    ('f', "failed"),
    ('?', "unknown"),
    ('x', "dropped"),
    ('L', "lost"),
    ('q', "seen queued"),
    ('w', "written"),
    ('X', "write refused"),
    ('o', "read"),
    ('s', "saw a snapshot"),
    ('g', "saw a grant"),
    ('e', "saw an end"),
    ('>', "goes on"),
];

/// What the signs mean that occur.
fn legend(drawing: &str) -> String {
    let rows: String = drawing
        .lines()
        .skip(1)
        // Only rows of signs: the labels beside them are words.
        .filter(|line| !line.starts_with("  and") && !line.starts_with("  faults"))
        .map(|line| line.chars().skip(11).collect::<String>())
        .collect();
    // Token numbers and words in bars are no signs. `t` before a digit is a token, and `t?` an unknown one.
    let rows = rows.replace("t?", "");
    let is_sign =
        |(i, c): &(usize, char)| *c != 't' || !rows[i + 1..].starts_with(|d: char| d.is_ascii_digit());
    let signs: BTreeSet<char> = rows.char_indices().filter(is_sign).map(|(_, c)| c).collect();
    let occur = SIGNS.iter().filter(|(sign, _)| signs.contains(sign));
    let list: Vec<String> = occur.map(|(sign, meaning)| format!("{sign} {meaning}")).collect();
    list.join("  ")
}

/// One operation and its outcome, in one line.
pub(super) fn told(events: &[Event], op: u64) -> String {
    let mut line = String::new();
    for event in events.iter().filter(|e| e.op_id == op || e.of == Some(op)) {
        let (at, lane, is_its_own) = (ms(event.t_mono_ns), event.lane, event.op_id == op);
        match (event.kind, event.op) {
            (EventKind::Invoke, Some(what)) if is_its_own => {
                line += &format!("  op {op}, lane {lane}: {}", verb(what));
                if let Some(mode) = event.mode {
                    line += &format!(" {mode:?}").to_lowercase();
                }
                if let Some(owner) = &event.owner {
                    line += &format!(" for owner {owner}");
                }
                line += &format!(" at {at}");
            }
            (EventKind::Return, Some(what)) => {
                let what = if is_its_own {
                    ""
                } else {
                    &format!("{} ", verb(what))
                };
                line += &format!("; {what}{} at {at}", event.outcome.map_or("", said));
                if let Some(token) = event.token.filter(|_| is_its_own) {
                    line += &format!(", token {token}");
                }
                let is_ok = event.outcome == Some(OpOutcome::Ok);
                if let Some(ttl) = event.ttl_ns.filter(|_| is_its_own && is_ok) {
                    line += &format!(", ttl {}", ms(ttl));
                }
            }
            (EventKind::Dropped, _) => line += &format!("; dropped at {at}"),
            (EventKind::Lost, _) => line += &format!("; loss signalled at {at}"),
            _ => {}
        }
    }
    if !line.is_empty() {
        line.push('\n');
    }
    line
}

fn verb(op: Op) -> &'static str {
    match op {
        Op::Acquire => "acquire",
        Op::Try => "try",
        Op::Renew => "renewal",
        Op::Release => "release",
        Op::Watch => "watch",
        Op::Write => "write",
        Op::Read => "read",
    }
}

fn said(outcome: OpOutcome) -> &'static str {
    match outcome {
        OpOutcome::Ok => "ok",
        OpOutcome::Held => "refused",
        OpOutcome::TimedOut => "timed out",
        OpOutcome::Lost => "lost",
        OpOutcome::Failed => "failed",
        OpOutcome::Unknown => "unknown",
    }
}
