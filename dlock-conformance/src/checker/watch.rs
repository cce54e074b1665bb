//! Compares what watchers saw with what the holders saw: a snapshot first, every change after it, and no
//! state that never existed.
//!
//! A stream may leave changes out only if that was declared ([`Coalescing`]), and must then send a snapshot
//! marked as skipping. Grants are identified by id, and times are compared by the bounds of a [`Span`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Found, Judgement, first, found, ms};
use crate::history::{Event, EventKind, ModeTag, Model, Op, OpOutcome, Span, Told, spans};
use crate::nanos::nanos;

/// What a stream may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coalescing {
    /// Nothing.
    None,
    /// Any changes, if a snapshot follows that says so.
    Marked,
}

/// Checks every stream. The history must be valid; `settle` is how late a change may be reported.
pub fn check(events: &[Event], model: &Model, coalescing: Coalescing, settle: Duration) -> Judgement {
    let names = spans(events, model);
    let none = Vec::new();
    let end = events.last().map_or(0, |e| e.t_mono_ns);
    let streams = streams(events, end);
    first(streams.iter().map(|stream| {
        let judge = Judge {
            spans: names.get(stream.name).unwrap_or(&none),
            may_be_unknown: has_unknown_grants(events, stream.name),
            coalescing,
            settle: nanos(settle),
            stream,
        };
        let found = judge.broken().map(|(explanation, mut operations)| {
            operations.push(stream.op_id);
            let explanation = format!("the watcher in lane {}: {explanation}", stream.lane);
            (explanation, operations)
        });
        (stream.name, found)
    }))
}

struct Stream<'a> {
    name: &'a str,
    op_id: u64,
    lane: u32,
    /// The invoke and the return of the subscription.
    subscribed: (u64, u64),
    told: Vec<(u64, &'a Told)>,
    /// The end of the stream, or of the history.
    until: u64,
}

fn streams(events: &[Event], end: u64) -> Vec<Stream<'_>> {
    let mut invoked: HashMap<u64, u64> = HashMap::new();
    let mut streams: BTreeMap<u64, Stream<'_>> = BTreeMap::new();
    for event in events {
        let at = event.t_mono_ns;
        match (event.kind, event.op) {
            (EventKind::Invoke, Some(Op::Watch)) => {
                invoked.insert(event.op_id, at);
            }
            (EventKind::Return, Some(Op::Watch)) if event.outcome == Some(OpOutcome::Ok) => {
                streams.insert(
                    event.op_id,
                    Stream {
                        name: &event.name,
                        op_id: event.op_id,
                        lane: event.lane,
                        subscribed: (invoked.get(&event.op_id).copied().unwrap_or(at), at),
                        told: Vec::new(),
                        until: end,
                    },
                );
            }
            (EventKind::Watch, _) => {
                if let (Some(stream), Some(told)) = (streams.get_mut(&event.op_id), &event.told) {
                    if *told == Told::Over {
                        stream.until = at;
                    }
                    stream.told.push((at, told));
                }
            }
            _ => {}
        }
    }
    streams.into_values().collect()
}

/// Whether there may be grants without a return.
fn has_unknown_grants(events: &[Event], name: &str) -> bool {
    let mut open = BTreeSet::new();
    for event in events.iter().filter(|e| e.name == name) {
        if !event.is_acquire() {
            continue;
        }
        if event.kind == EventKind::Invoke || event.outcome == Some(OpOutcome::Unknown) {
            open.insert(event.op_id);
        } else {
            open.remove(&event.op_id);
        }
    }
    !open.is_empty()
}

struct Judge<'a> {
    spans: &'a [Span],
    may_be_unknown: bool,
    coalescing: Coalescing,
    settle: u64,
    stream: &'a Stream<'a>,
}

/// What the watcher knows at a moment.
#[derive(Default)]
struct View<'a> {
    holders: BTreeSet<&'a str>,
    /// All grants that it ever saw.
    known: BTreeSet<&'a str>,
    /// The latest snapshot that may skip changes, if there was one.
    skipped_at: Option<u64>,
    largest: Option<u64>,
}

impl<'a> Judge<'a> {
    fn broken(&self) -> Found {
        let mut view = View::default();
        for (i, (at, told)) in self.stream.told.iter().enumerate() {
            let found = match told {
                Told::Snapshot { holders, skipped } => self.snapshot(&mut view, i, holders, *skipped),
                _ if i == 0 && **told != Told::Over => {
                    found!(Vec::new(), "its first item, at {}, was no snapshot", ms(*at))
                }
                Told::Granted(id, token) => self.granted(&mut view, *at, id, *token),
                Told::Ended(id) => self.ended(&mut view, *at, id),
                Told::Over => None,
            };
            if found.is_some() {
                return found;
            }
        }
        self.never_told(&view)
    }

    fn span(&self, id: &str) -> Option<&'a Span> {
        self.spans.iter().find(|s| s.grant_id.as_deref() == Some(id))
    }

    fn snapshot(&self, view: &mut View<'a>, i: usize, holders: &'a [String], skipped: bool) -> Found {
        let at = self.stream.told[i].0;
        let when = ms(at);
        if i > 0 && (!skipped || self.coalescing == Coalescing::None) {
            return found!(
                Vec::new(),
                "a second snapshot at {when} although no change may be left out"
            );
        }
        // The state at some moment since the subscription, or since the item before.
        let since = match i.checked_sub(1).and_then(|before| self.stream.told.get(before)) {
            Some((before, _)) => before.saturating_sub(self.settle),
            None => self.stream.subscribed.0,
        };
        for id in holders {
            if let Some(found) = self.phantom(at, id) {
                return Some(found);
            }
            if let Some(span) = self.span(id)
                && let Some(by) = span.end_by.filter(|by| *by < since)
            {
                let (op, by) = (span.op_id, ms(by));
                return found!(
                    vec![op],
                    "the snapshot at {when} shows operation {op} as a holder, whose hold was over by {by}"
                );
            }
        }
        let forgotten = self.spans.iter().find(|s| {
            let is_told = s.grant_id.as_ref().is_none_or(|id| holders.contains(id));
            !is_told && s.begin.1 < since && at < s.end_from
        });
        if let Some(span) = forgotten {
            let (op, since) = (span.op_id, ms(span.begin.1));
            return found!(
                vec![op],
                "the snapshot at {when} omits operation {op}, which held it since {since}"
            );
        }
        view.holders = holders.iter().map(String::as_str).collect();
        view.known.extend(&view.holders);
        if i > 0 {
            view.skipped_at = Some(at);
        }
        None
    }

    fn granted(&self, view: &mut View<'a>, at: u64, id: &'a str, token: Option<u64>) -> Found {
        if let Some(found) = self.phantom(at, id) {
            return Some(found);
        }
        if let Some(span) = self.span(id) {
            let (when, op) = (ms(at), span.op_id);
            if let Some(by) = span.end_by.filter(|by| *by < self.stream.subscribed.0) {
                let by = ms(by);
                return found!(
                    vec![op],
                    "it saw at {when} the grant of operation {op}, which was over by {by}, before it \
                        subscribed"
                );
            }
            let others = view.holders.iter().filter(|other| **other != id);
            let mut others = others.filter_map(|other| self.span(other));
            if let Some(other) = others.find(|other| !other.mode.shares_with(span.mode)) {
                let other = other.op_id;
                return found!(
                    vec![other, op],
                    "it saw at {when} the grant of operation {op} and never the end of operation {other} \
                        before it"
                );
            }
            if span.mode == ModeTag::Exclusive
                && let (Some(largest), Some(token)) = (view.largest, token)
                && token < largest
            {
                return found!(
                    vec![op],
                    "it saw at {when} token {token}, after token {largest}: not the order of the grants"
                );
            }
        }
        view.largest = view.largest.max(token);
        view.holders.insert(id);
        view.known.insert(id);
        None
    }

    fn ended(&self, view: &mut View<'a>, at: u64, id: &'a str) -> Found {
        let (span, when) = (self.span(id), ms(at));
        if !view.holders.remove(id) {
            return found!(
                span.map(|s| s.op_id).into_iter().collect(),
                "it saw at {when} the end of a hold ({id}) whose grant it did not see"
            );
        }
        let span = span.filter(|s| at < s.end_from)?;
        let (op, until) = (span.op_id, ms(span.end_from));
        found!(
            vec![op],
            "it saw at {when} the end of operation {op}, which held it for sure until {until}"
        )
    }

    /// A grant that was not requested, or not yet.
    fn phantom(&self, at: u64, id: &str) -> Found {
        let when = ms(at);
        match self.span(id) {
            None if !self.may_be_unknown => {
                found!(Vec::new(), "it saw at {when} a holder ({id}) that never existed")
            }
            Some(span) if at < span.begin.0 => {
                let (op, began) = (span.op_id, ms(span.begin.0));
                found!(
                    vec![op],
                    "it saw at {when} the grant of operation {op}, which began at {began}"
                )
            }
            _ => None,
        }
    }

    /// What it should have seen by the end of the stream.
    fn never_told(&self, view: &View<'_>) -> Found {
        let told_by = self.stream.until.saturating_sub(self.settle);
        for span in self.spans {
            let Some(id) = span.grant_id.as_deref() else {
                continue;
            };
            let (op, (from, by)) = (span.op_id, span.begin);
            let skipped = view.skipped_at.is_some_and(|at| from < at);
            let is_due = self.stream.subscribed.1 < from && by < told_by && !skipped;
            if is_due && !view.known.contains(id) {
                let by = ms(by);
                return found!(vec![op], "it never saw the grant of operation {op}, made by {by}");
            }
            if view.holders.contains(id)
                && let Some(by) = span.end_by.filter(|by| *by < told_by)
            {
                let by = ms(by);
                return found!(
                    vec![op],
                    "it never saw the end of operation {op}, which had come by {by}: the final state is \
                        missing"
                );
            }
        }
        None
    }
}
