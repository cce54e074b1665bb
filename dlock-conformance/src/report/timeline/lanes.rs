//! The lanes: what each client did, saw and believed, and their rows in text.

use std::collections::BTreeMap;

use super::axis::Axis;
use crate::history::{Event, EventKind, Op, OpOutcome, Told};

/// A row of a drawing.
pub(super) struct Canvas<'a> {
    axis: &'a Axis,
    cells: Vec<char>,
}

impl<'a> Canvas<'a> {
    pub(super) fn new(axis: &'a Axis) -> Self {
        Self {
            axis,
            cells: vec![' '; axis.columns()],
        }
    }

    /// A bar.
    pub(super) fn fill(&mut self, from: u64, until: u64, sign: char) {
        let (from, until) = (self.axis.column(from), self.axis.column(until));
        let bar = self.cells.iter_mut().take(until + 1).skip(from);
        bar.for_each(|cell| *cell = sign);
    }

    /// A sign.
    pub(super) fn mark(&mut self, at: u64, sign: char) {
        let column = self.axis.column(at);
        if let Some(cell) = self.cells.get_mut(column) {
            *cell = sign;
        }
    }

    /// Words inside of a bar, if there is room.
    pub(super) fn write(&mut self, from: u64, until: u64, words: &str) {
        let (mut from, until) = (self.axis.column(from), self.axis.column(until));
        let length = words.chars().count();
        // Behind a cut that would be drawn over it.
        for cut in self.axis.cuts() {
            if cut.start < from + length && from < cut.end {
                from = cut.end;
            }
        }
        if from + length <= until + 1 {
            for (cell, c) in self.cells[from..].iter_mut().zip(words.chars()) {
                *cell = c;
            }
        }
    }

    /// It goes on beyond the edge if it lasts for ever, as far as the history tells.
    pub(super) fn open(&mut self, until: u64) {
        if until == u64::MAX
            && let Some(last) = self.cells.last_mut()
        {
            *last = '>';
        }
    }

    pub(super) fn finish(mut self) -> String {
        for column in self.axis.cuts().flatten() {
            self.cells[column] = '/';
        }
        let text: String = self.cells.into_iter().collect();
        text.trim_end().to_owned()
    }
}

/// What is drawn of one operation, or one guard.
#[derive(Default)]
pub(super) struct Line {
    pub(super) unit: u64,
    /// Asked and answered.
    pub(super) asked: Option<(u64, u64, char)>,
    /// Held from then on.
    pub(super) held: Option<u64>,
    pub(super) token: Option<u64>,
    /// Believed until then.
    pub(super) believed: u64,
    /// Released from then until then, with the outcome.
    pub(super) let_go: Option<(u64, u64, char)>,
    pub(super) signs: Vec<(u64, char)>,
}

/// All lanes.
pub(super) struct Lanes {
    lanes: BTreeMap<u32, Vec<Line>>,
    marked: Vec<u32>,
}

/// A lane that is drawn.
pub(super) struct Shown<'a> {
    pub(super) lane: u32,
    pub(super) is_marked: bool,
    pub(super) lines: &'a [Line],
}

impl Lanes {
    pub(super) fn read(events: &[Event], marked: &[u64]) -> Self {
        let mut lines: BTreeMap<u64, (u32, Line)> = BTreeMap::new();
        let mut invoked: BTreeMap<u64, u64> = BTreeMap::new();
        for event in events {
            if event.is_fault() {
                continue;
            }
            // A guard that another lane renews or releases is drawn where it was acquired.
            let line = lines.entry(event.unit());
            let (_, line) = line.or_insert_with(|| (event.lane, Line::default()));
            line.unit = event.unit();
            line.event(event, &mut invoked);
        }
        let mut lanes: BTreeMap<u32, Vec<Line>> = BTreeMap::new();
        let mut is_marked = Vec::new();
        for (unit, (lane, line)) in lines {
            if marked.contains(&unit) {
                is_marked.push(lane);
            }
            lanes.entry(lane).or_default().push(line);
        }
        Self {
            lanes,
            marked: is_marked,
        }
    }

    /// As many as are allowed, the marked ones first, and the number of the others.
    pub(super) fn shown(&self, most: usize) -> (impl Iterator<Item = Shown<'_>>, usize) {
        let mut order: Vec<u32> = self.lanes.keys().copied().collect();
        order.sort_by_key(|lane| (!self.marked.contains(lane), *lane));
        let hidden = order.len().saturating_sub(most);
        order.truncate(most);
        order.sort_unstable();
        let shown = order.into_iter().map(|lane| Shown {
            lane,
            is_marked: self.marked.contains(&lane),
            lines: &self.lanes[&lane],
        });
        (shown, hidden)
    }
}

impl Shown<'_> {
    /// Its row in text.
    pub(super) fn row(&self, axis: &Axis) -> String {
        let mut row = Canvas::new(axis);
        for line in self.lines {
            line.draw(&mut row);
        }
        let mark = if self.is_marked { '>' } else { ' ' };
        let label = format!("lane {}", self.lane);
        format!("{mark} {label:<9} {}\n", row.finish())
    }
}

impl Line {
    fn event(&mut self, event: &Event, invoked: &mut BTreeMap<u64, u64>) {
        let at = event.t_mono_ns;
        match event.kind {
            EventKind::Invoke => {
                invoked.insert(event.op_id, at);
                match event.op {
                    Some(Op::Release) if !self.is_released() => self.let_go = Some((at, u64::MAX, '-')),
                    Some(Op::Release | Op::Renew) => {}
                    // Until its return is read it is asked for without an end.
                    _ => self.asked = Some((at, u64::MAX, '=')),
                }
            }
            EventKind::Return => self.answered(event, invoked.get(&event.op_id).copied().unwrap_or(at)),
            EventKind::GrantedBeliefUntil => {
                self.believed = self.believed.max(at.saturating_add(event.ttl_ns.unwrap_or(0)));
            }
            EventKind::Lost => self.signs.push((at, 'L')),
            EventKind::Dropped => {
                self.let_go.get_or_insert((at, at, 'x'));
            }
            EventKind::Queued => self.signs.push((at, 'q')),
            EventKind::Watch => {
                let sign = match &event.told {
                    Some(Told::Snapshot { .. }) => 's',
                    Some(Told::Granted(..)) => 'g',
                    Some(Told::Ended(_)) => 'e',
                    Some(Told::Over) | None => '|',
                };
                self.signs.push((at, sign));
            }
            EventKind::FaultBegin | EventKind::FaultEnd => {}
        }
    }

    fn is_released(&self) -> bool {
        matches!(self.let_go, Some((.., '<')))
    }

    fn answered(&mut self, event: &Event, from: u64) {
        let at = event.t_mono_ns;
        let outcome = event.outcome.unwrap_or(OpOutcome::Unknown);
        let sign = match (outcome, event.op) {
            (OpOutcome::Ok, Some(Op::Renew)) => 'r',
            (OpOutcome::Ok, Some(Op::Release)) => '<',
            (OpOutcome::Ok, Some(Op::Write)) => 'w',
            (OpOutcome::Held, Some(Op::Write)) => 'X',
            (OpOutcome::Ok, Some(Op::Read)) => 'o',
            (OpOutcome::Ok, _) => '=',
            (OpOutcome::Held, _) => 'h',
            (OpOutcome::TimedOut, _) => 't',
            (OpOutcome::Lost, _) => 'L',
            (OpOutcome::Failed, _) => 'f',
            (OpOutcome::Unknown, _) => '?',
        };
        match event.op {
            Some(Op::Renew) => {
                self.signs.push((at, sign));
                if outcome == OpOutcome::Ok {
                    self.believed = self.believed.max(from.saturating_add(event.ttl_ns.unwrap_or(0)));
                }
            }
            Some(Op::Release) if self.is_released() => self.signs.push((at, sign)),
            Some(Op::Release) => self.let_go = Some((from, at, sign)),
            _ => {
                self.asked = Some((from, at, sign));
                if outcome == OpOutcome::Ok && matches!(event.op, Some(Op::Acquire | Op::Try)) {
                    self.held = Some(at);
                    self.token = event.token;
                    // If no belief was recorded, the ttl is drawn.
                    self.believed = from.saturating_add(event.ttl_ns.unwrap_or(0));
                }
            }
        }
    }

    fn draw(&self, row: &mut Canvas<'_>) {
        if let Some((from, until, sign)) = self.asked {
            row.fill(from, until, '=');
            match until {
                u64::MAX => row.open(until),
                until => row.mark(until, sign),
            }
        }
        if let Some(from) = self.held {
            let until = self.let_go.map_or(u64::MAX, |(from, ..)| from);
            row.fill(from, until, '#');
            // If it released first there is nothing to fill. If both are in one column, the next sign covers
            // it.
            row.fill(self.believed, until, '.');
            row.open(until);
            if let Some(token) = self.token {
                // The column of the release is drawn over, so a token must not lose its last digit there.
                let end = if self.let_go.is_some() { "#" } else { "" };
                row.write(from, until, &format!("#t{token}{end}"));
            }
        }
        if let Some((from, until, sign)) = self.let_go {
            row.fill(from, until, '-');
            row.mark(until, sign);
        }
        for (at, sign) in &self.signs {
            row.mark(*at, *sign);
        }
    }
}
