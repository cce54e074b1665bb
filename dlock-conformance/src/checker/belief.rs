//! What the holders believed. Two clients that believe at the same time that they hold an exclusive lock are
//! the accident that a lock must prevent, whatever the store says.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{Found, Judgement, first, found, ms, who};
use crate::claims::Skew;
use crate::history::{Event, EventKind, ModeTag, Op, OpOutcome};
use crate::nanos::nanos;

struct Belief<'a> {
    name: &'a str,
    op_id: u64,
    lane: u32,
    mode: ModeTag,
    from: u64,
    until: u64,
    /// When it released, or learned of the loss.
    ended: u64,
}

/// A holder believes from the return of its acquire until its last known local deadline, its release or its
/// loss signal. In modes that do not share, beliefs must not overlap by more than the skew over that time. In
/// shared modes, no more of them may overlap than the mode allows.
pub fn check(events: &[Event], skew: Skew) -> Judgement {
    let mut names: BTreeMap<&str, Vec<Belief<'_>>> = BTreeMap::new();
    for belief in beliefs(events).into_values() {
        names.entry(belief.name).or_default().push(belief);
    }
    first(names.into_iter().map(|(name, mut beliefs)| {
        beliefs.sort_by_key(|b| b.from);
        (name, clash(&beliefs, skew))
    }))
}

/// Of beliefs in the order in which they began.
fn clash(beliefs: &[Belief<'_>], skew: Skew) -> Found {
    // Of each mode, the belief that lasts longest so far.
    let mut longest: BTreeMap<ModeTag, &Belief<'_>> = BTreeMap::new();
    // Of each mode, those that were still believed when the latest began, beyond the skew.
    let mut believed: BTreeMap<ModeTag, Vec<&Belief<'_>>> = BTreeMap::new();
    for belief in beliefs {
        let same = believed.entry(belief.mode).or_default();
        same.retain(|other| other.outlasts(belief.from, skew));
        if belief.mode != ModeTag::Exclusive && same.len() >= belief.mode.limit() {
            let (who, by) = (who(belief.op_id, belief.lane), ms(belief.from));
            let (others, limit) = (same.len(), belief.mode.limit());
            return found!(
                same.iter().map(|b| b.op_id).chain([belief.op_id]).collect(),
                "{who} was granted by {by}, when {others} others still believed that they held it and \
                    {limit} holders are allowed"
            );
        }
        same.push(belief);
        let mut others = longest
            .iter()
            .filter(|(mode, _)| !belief.mode.shares_with(**mode));
        if let Some((_, other)) = others.find(|(_, other)| other.outlasts(belief.from, skew)) {
            let (holder, who) = (who(other.op_id, other.lane), who(belief.op_id, belief.lane));
            let (until, by, earlier) = (other.end(), belief.from, other.end() - belief.from);
            let (until, by, earlier) = (ms(until), ms(by), ms(earlier));
            return found!(
                vec![other.op_id, belief.op_id],
                "{holder} believed that it held it until {until}, but {who} was granted by {by}: {earlier} \
                    earlier"
            );
        }
        let last = longest.entry(belief.mode).or_insert(belief);
        if last.end() < belief.end() {
            *last = belief;
        }
    }
    None
}

impl Belief<'_> {
    fn end(&self) -> u64 {
        self.until.min(self.ended)
    }

    /// Whether it goes on after that time for longer than clocks may drift apart while it lasts.
    fn outlasts(&self, at: u64, skew: Skew) -> bool {
        let d = Duration::from_nanos(self.end().saturating_sub(self.from));
        let allowed = nanos(skew.of(d));
        at.saturating_add(allowed) < self.end()
    }
}

fn beliefs(events: &[Event]) -> HashMap<u64, Belief<'_>> {
    let mut beliefs: HashMap<u64, Belief<'_>> = HashMap::new();
    for event in events {
        let at = event.t_mono_ns;
        match (event.kind, event.op, event.outcome) {
            (EventKind::Return, Some(Op::Acquire | Op::Try), Some(OpOutcome::Ok)) => {
                let belief = Belief {
                    name: &event.name,
                    op_id: event.op_id,
                    lane: event.lane,
                    mode: event.mode.unwrap_or(ModeTag::Exclusive),
                    from: at,
                    until: at,
                    ended: u64::MAX,
                };
                beliefs.insert(event.op_id, belief);
            }
            // It was over when it was returned.
            (EventKind::GrantedBeliefUntil, ..)
                if event.ttl_ns == Some(0)
                    && beliefs.get(&event.unit()).is_some_and(|b| b.until == b.from) =>
            {
                beliefs.remove(&event.unit());
            }
            (EventKind::GrantedBeliefUntil, ..) => {
                if let Some(belief) = beliefs.get_mut(&event.unit()) {
                    belief.until = belief.until.max(at.saturating_add(event.ttl_ns.unwrap_or(0)));
                }
            }
            (EventKind::Lost | EventKind::Dropped, ..) | (EventKind::Invoke, Some(Op::Release), _) => {
                if let Some(belief) = beliefs.get_mut(&event.unit()) {
                    belief.ended = belief.ended.min(at);
                }
            }
            _ => {}
        }
    }
    beliefs
}
