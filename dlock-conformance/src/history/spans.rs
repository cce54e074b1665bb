//! Derives the bounds of each grant from the events: its earliest and latest begin and end.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::{Event, EventKind, Op, OpOutcome};
use crate::claims::Skew;
use crate::mode::ModeTag;
use crate::nanos::nanos;

/// What may end a hold other than its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    /// The expiry of its lease, from the earliest possible time on.
    Lease,
    /// The expiry of its lease, or any fault after its grant: for a session that depends on a connection.
    LeaseOrFault,
}

/// The model of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// What ends a hold.
    pub ends: Ends,
    /// How far the clocks may drift apart.
    pub skew: Skew,
    /// Whether tokens must increase.
    pub fenced: bool,
}

/// What is known of one grant. Times are inclusive bounds in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The operation that made it.
    pub op_id: u64,
    /// The lane of that operation.
    pub lane: u32,
    /// In which mode.
    pub mode: ModeTag,
    /// The fencing token.
    pub token: Option<u64>,
    /// The subject's own id of it.
    pub grant_id: Option<String>,
    /// For whom, if it is re-entrant.
    pub owner: Option<String>,
    /// When the acquire was invoked and when it returned: it began in between.
    pub begin: (u64, u64),
    /// Confirmed renewals. Each contains a moment at which the lock was held.
    pub renewed: Vec<(u64, u64)>,
    /// The earliest time at which it can have ended.
    pub end_from: u64,
    /// The time by which it has certainly ended, if that is known.
    pub end_by: Option<u64>,
    /// How the end is known, for explanations.
    pub ended_by: &'static str,
}

impl Span {
    /// From when until when it was held for sure; empty if the first is not before the second.
    pub fn surely(&self) -> (u64, u64) {
        (self.begin.1, self.end_from)
    }
}

/// The grants of each name, in the order of their invokes. The history must be valid.
pub fn spans(events: &[Event], model: &Model) -> BTreeMap<String, Vec<Span>> {
    let mut reader = Reader {
        model,
        invokes: HashMap::new(),
        grants: BTreeMap::new(),
    };
    events.iter().for_each(|event| reader.event(event));
    let faults = events.iter().filter(|e| e.kind == EventKind::FaultBegin);
    let faults: Vec<u64> = faults.map(|e| e.t_mono_ns).collect();
    let mut names: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for grant in reader.grants.into_values() {
        let name = grant.name.to_owned();
        names.entry(name).or_default().push(grant.finish(model, &faults));
    }
    for spans in names.values_mut() {
        spans.sort_by_key(|s| (s.begin, s.op_id));
    }
    names
}

struct Reader<'a> {
    model: &'a Model,
    invokes: HashMap<u64, &'a Event>,
    grants: BTreeMap<u64, Grant<'a>>,
}

struct Grant<'a> {
    name: &'a str,
    span: Span,
    /// The earliest time at which the lease can have run out.
    lapses_from: u64,
    /// The first attempt to end it with an unknown effect.
    let_go_from: Option<u64>,
    released: Option<(u64, u64)>,
    told_lost: Option<u64>,
}

impl<'a> Reader<'a> {
    fn event(&mut self, event: &'a Event) {
        match event.kind {
            EventKind::Invoke => {
                self.invokes.insert(event.op_id, event);
                // Until its return is read a release may have taken effect.
                if event.op == Some(Op::Release)
                    && let Some(grant) = self.grant_of(event)
                {
                    grant.let_go_from.get_or_insert(event.t_mono_ns);
                }
            }
            EventKind::Return => self.ret(event),
            EventKind::GrantedBeliefUntil => {
                // The subject promises that the lock is held until then, like a ttl.
                let until = event.t_mono_ns.saturating_add(event.ttl_ns.unwrap_or(0));
                let skew = skew_of(self.model, event.ttl_ns.unwrap_or(0));
                if event.ttl_ns != Some(0)
                    && let Some(grant) = self.grant_of(event)
                {
                    grant.lapses_from = grant.lapses_from.max(until.saturating_sub(skew));
                }
            }
            EventKind::Dropped => {
                if let Some(grant) = self.grant_of(event) {
                    grant.let_go_from.get_or_insert(event.t_mono_ns);
                }
            }
            _ => {}
        }
    }

    fn grant_of(&mut self, event: &Event) -> Option<&mut Grant<'a>> {
        self.grants.get_mut(&event.of?)
    }

    fn ret(&mut self, event: &'a Event) {
        let Some(invoke) = self.invokes.remove(&event.op_id) else {
            return;
        };
        let times = (invoke.t_mono_ns, event.t_mono_ns);
        let lapses_from = lapse(self.model, times.0, event.ttl_ns.unwrap_or(0));
        if event.is_acquire() {
            if event.outcome == Some(OpOutcome::Ok) {
                let span = Span {
                    op_id: event.op_id,
                    lane: event.lane,
                    mode: event.mode.or(invoke.mode).unwrap_or(ModeTag::Exclusive),
                    token: event.token,
                    grant_id: event.grant_id.clone(),
                    owner: invoke.owner.clone(),
                    begin: times,
                    renewed: Vec::new(),
                    end_from: 0,
                    end_by: None,
                    ended_by: "",
                };
                let grant = Grant {
                    name: &event.name,
                    span,
                    lapses_from,
                    let_go_from: None,
                    released: None,
                    told_lost: None,
                };
                self.grants.insert(event.op_id, grant);
            }
            return;
        }
        let Some(grant) = self.grant_of(event) else {
            return;
        };
        match (event.op, event.outcome) {
            (Some(Op::Renew), Some(OpOutcome::Ok)) => {
                grant.span.renewed.push(times);
                grant.lapses_from = grant.lapses_from.max(lapses_from);
            }
            (Some(Op::Renew), Some(OpOutcome::Lost)) => {
                grant.told_lost.get_or_insert(times.1);
            }
            (Some(Op::Release), Some(OpOutcome::Ok)) if grant.released.is_none() => {
                // From the first attempt on: an earlier one whose reply was lost may have been the one.
                grant.released = Some((grant.let_go_from.unwrap_or(times.0), times.1));
            }
            (Some(Op::Release), Some(OpOutcome::Lost)) => {
                grant.told_lost.get_or_insert(times.1);
                grant.forgive(times.0);
            }
            (Some(Op::Release), Some(OpOutcome::Failed)) => grant.forgive(times.0),
            _ => {}
        }
    }
}

impl Grant<'_> {
    /// That attempt has not ended it: a release that answers `Lost` found it ended, one that failed has had
    /// no effect.
    fn forgive(&mut self, invoked: u64) {
        if self.let_go_from == Some(invoked) {
            self.let_go_from = None;
        }
    }

    fn finish(self, model: &Model, faults: &[u64]) -> Span {
        let mut span = self.span;
        if let Some((from, by)) = self.released {
            (span.end_from, span.end_by, span.ended_by) = (from, Some(by), "its release");
            return span;
        }
        let let_go = self.let_go_from.unwrap_or(u64::MAX);
        let fault = match model.ends {
            Ends::Lease => None,
            Ends::LeaseOrFault => faults.iter().copied().find(|f| *f >= span.begin.0),
        };
        let from = self.lapses_from.min(fault.unwrap_or(u64::MAX)).min(let_go);
        (span.end_from, span.end_by, span.ended_by) = (from, self.told_lost, "the end of its lease");
        // It was held at some moment of each confirmed renewal.
        let held_at = span.renewed.iter().map(|r| r.0).max().unwrap_or(0);
        span.end_from = span.end_from.max(held_at);
        span
    }
}

fn lapse(model: &Model, invoked: u64, ttl: u64) -> u64 {
    invoked.saturating_add(ttl.saturating_sub(skew_of(model, ttl)))
}

fn skew_of(model: &Model, d: u64) -> u64 {
    nanos(model.skew.of(Duration::from_nanos(d)))
}
