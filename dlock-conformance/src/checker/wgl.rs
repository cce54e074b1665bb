//! Lease-aware linearizability: does any order of the operations explain what the clients saw?
//!
//! The search of Wing and Gong (1993) with the memo of Lowe (2017), per name. The sequential lock has holders
//! and the largest tokens; its operations are *acquire* (admissible by mode, token in order), *renew* (still
//! held) and *end*, each somewhere between the bounds of its [`Span`]. An unconfirmed end is optional: it may
//! happen at any time after the earliest expiry of the lease.

use std::collections::{BTreeMap, HashSet};

use super::{Judgement, Violation, ms, who};
use crate::history::{ModeTag, Model, Span};

/// The number of steps that suffices for the histories of the rules.
pub const BUDGET: u64 = 2_000_000;

/// Checks every name.
pub fn check(names: &BTreeMap<String, Vec<Span>>, model: &Model, budget: u64) -> Judgement {
    let mut unknown = None;
    for (name, spans) in names {
        match search(name, spans, model, budget) {
            Judgement::Legal => {}
            illegal @ Judgement::Illegal(_) => return illegal,
            other => {
                unknown.get_or_insert(other);
            }
        }
    }
    unknown.unwrap_or(Judgement::Legal)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Acquire,
    Renew,
    End,
}

/// An operation of the sequential lock, and when it can have taken effect.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: u64,
    /// `u64::MAX`: it need not have happened at all.
    by: u64,
    what: What,
    span: usize,
}

/// The sequential lock.
#[derive(Clone, Debug, Default)]
struct State {
    holders: Vec<usize>,
    largest: u64,
    largest_exclusive: u64,
    /// How many exclusive grants there were: with tokens, their order is known.
    exclusive: usize,
}

/// Which steps were taken: all before `base`, and those in `beyond`. The state is a function of it.
type Taken = (usize, Vec<u32>);

struct Frame {
    taken: Taken,
    state: State,
    candidates: Vec<u32>,
}

struct Search<'a> {
    spans: &'a [Span],
    steps: Vec<Step>,
    /// Of each exclusive span: its place in the order of tokens. Empty if the order is not known.
    rank: Vec<usize>,
    fenced: bool,
    /// The latest `by` of the steps before each index.
    latest: Vec<u64>,
}

fn search(name: &str, spans: &[Span], model: &Model, budget: u64) -> Judgement {
    let unknown = || {
        let why = format!("`{name}`: no order was found and none was excluded within {budget} steps");
        Judgement::Unknown(why)
    };
    let search = Search::new(spans, model);
    let root = Frame {
        taken: (0, Vec::new()),
        state: State::default(),
        candidates: search.candidates(&(0, Vec::new()), &State::default()),
    };
    let mut deepest = (0, root.taken.clone(), root.state.clone());
    let mut stack = vec![root];
    let mut seen: HashSet<Taken> = HashSet::new();
    let mut steps = 0;
    while let Some(frame) = stack.last_mut() {
        if search.is_done(&frame.taken) {
            return Judgement::Legal;
        }
        let Some(next) = frame.candidates.pop() else {
            stack.pop();
            continue;
        };
        steps += 1;
        if steps > budget {
            return unknown();
        }
        let taken = search.take(&frame.taken, next);
        if !seen.insert(taken.clone()) {
            continue;
        }
        let state = search.apply(&frame.state, next);
        let depth = taken.0 + taken.1.len();
        if depth > deepest.0 {
            deepest = (depth, taken.clone(), state.clone());
        }
        if search.is_cut(&taken) {
            // Every order passes through this very set of steps, so there is nothing to come back to.
            stack.clear();
            seen.clear();
        }
        let candidates = search.candidates(&taken, &state);
        stack.push(Frame {
            taken,
            state,
            candidates,
        });
    }
    let illegal = search.explain(name, &deepest.1, &deepest.2);
    illegal.map_or_else(unknown, Judgement::Illegal)
}

impl<'a> Search<'a> {
    fn new(spans: &'a [Span], model: &Model) -> Self {
        let mut steps = Vec::new();
        for (i, span) in spans.iter().enumerate() {
            let step = |what, (from, by)| Step {
                from,
                by,
                what,
                span: i,
            };
            steps.push(step(What::Acquire, span.begin));
            steps.extend(span.renewed.iter().map(|renewal| step(What::Renew, *renewal)));
            if span.end_from < u64::MAX || span.end_by.is_some() {
                steps.push(step(What::End, (span.end_from, span.end_by.unwrap_or(u64::MAX))));
            }
        }
        steps.sort_by_key(|s| (s.from, s.what, s.by));
        let mut latest = vec![0];
        for step in &steps {
            latest.push(step.by.max(latest[latest.len() - 1]));
        }
        Self {
            spans,
            rank: if model.fenced { rank(spans) } else { Vec::new() },
            steps,
            fenced: model.fenced,
            latest,
        }
    }

    /// Whether every step that must have happened is taken.
    fn is_done(&self, taken: &Taken) -> bool {
        self.left(taken).all(|i| self.steps[i].by == u64::MAX)
    }

    fn left<'b>(&'b self, taken: &'b Taken) -> impl Iterator<Item = usize> + 'b {
        (taken.0..self.steps.len()).filter(|i| taken.1.binary_search(&(*i as u32)).is_err())
    }

    /// Whether all steps before `base`, and none beyond, are over before the next can begin.
    fn is_cut(&self, taken: &Taken) -> bool {
        let next = self.steps.get(taken.0);
        taken.1.is_empty() && next.is_none_or(|next| self.latest[taken.0] < next.from)
    }

    fn take(&self, taken: &Taken, step: u32) -> Taken {
        let (mut base, mut beyond) = taken.clone();
        if let Err(at) = beyond.binary_search(&step) {
            beyond.insert(at, step);
        }
        let joined = |(i, step): &(usize, &u32)| **step as usize == base + i;
        let run = beyond.iter().enumerate().take_while(joined).count();
        beyond.drain(..run);
        base += run;
        (base, beyond)
    }

    /// The steps that may come next, the most urgent last.
    fn candidates(&self, taken: &Taken, state: &State) -> Vec<u32> {
        // A step may come next unless another that is left was over before it began.
        let mut first_over = u64::MAX;
        let mut open = Vec::new();
        for i in self.left(taken) {
            let step = &self.steps[i];
            if step.from > first_over {
                break;
            }
            first_over = first_over.min(step.by);
            open.push(i as u32);
        }
        open.retain(|i| {
            let step = &self.steps[*i as usize];
            step.from <= first_over && self.is_possible(step, state)
        });
        // Optional steps last of all: they are taken where nothing else helps.
        open.sort_by_key(|i| std::cmp::Reverse((self.steps[*i as usize].by, *i)));
        open
    }

    fn is_possible(&self, step: &Step, state: &State) -> bool {
        let span = &self.spans[step.span];
        match step.what {
            What::Renew | What::End => state.holders.contains(&step.span),
            What::Acquire => {
                let shares = |h: &usize| self.spans[*h].mode.shares_with(span.mode);
                state.holders.len() < span.mode.limit()
                    && state.holders.iter().all(shares)
                    && self.token_fits(step.span, state)
            }
        }
    }

    fn token_fits(&self, index: usize, state: &State) -> bool {
        let span = &self.spans[index];
        let Some(token) = span.token.filter(|_| self.fenced) else {
            return true;
        };
        if span.mode != ModeTag::Exclusive {
            return token >= state.largest_exclusive;
        }
        // With the order of exclusive grants known, any other one is a dead end.
        token > state.largest && self.rank.get(index).is_none_or(|rank| *rank == state.exclusive)
    }

    fn apply(&self, state: &State, step: u32) -> State {
        let step = &self.steps[step as usize];
        let mut state = state.clone();
        match step.what {
            What::Renew => {}
            What::End => state.holders.retain(|h| *h != step.span),
            What::Acquire => {
                state.holders.push(step.span);
                let span = &self.spans[step.span];
                let token = span.token.unwrap_or(0);
                state.largest = state.largest.max(token);
                if span.mode == ModeTag::Exclusive {
                    state.largest_exclusive = state.largest_exclusive.max(token);
                    state.exclusive += 1;
                }
            }
        }
        state
    }

    fn explain(&self, name: &str, taken: &Taken, state: &State) -> Option<Violation> {
        let left = self.left(taken).map(|i| self.steps[i]);
        let blocked = left.min_by_key(|step| step.by)?;
        let span = &self.spans[blocked.span];
        let what = match blocked.what {
            What::Acquire => "the grant",
            What::Renew => "a renewal",
            What::End => "the end",
        };
        let held = || state.holders.iter().map(|h| &self.spans[*h]);
        let mut holders = held()
            .map(|s| who(s.op_id, s.lane))
            .collect::<Vec<_>>()
            .join(", ");
        if holders.is_empty() {
            holders.push_str("nobody");
        }
        let (longest, all) = (taken.0 + taken.1.len(), self.steps.len());
        let (largest, op, lane) = (state.largest, span.op_id, span.lane);
        let token = span.token.map_or_else(String::new, |t| format!(", token {t}"));
        let by = ms(blocked.by);
        let explanation = format!(
            "no order explains it: after the longest one ({longest} of {all} steps, held by {holders}, \
                largest token {largest}), {what} of operation {op} (lane {lane}{token}), which was over by \
                {by}, has no place"
        );
        let operations = held().map(|s| s.op_id).chain([op]).collect();
        Some(Violation::new(name, explanation, operations))
    }
}

/// The place of each exclusive span in the order of tokens; empty if one of them has no token.
fn rank(spans: &[Span]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..spans.len())
        .filter(|i| spans[*i].mode == ModeTag::Exclusive)
        .collect();
    if order.iter().any(|i| spans[*i].token.is_none()) {
        return Vec::new();
    }
    order.sort_by_key(|i| spans[*i].token);
    let mut rank = vec![0; spans.len()];
    for (place, i) in order.into_iter().enumerate() {
        rank[i] = place;
    }
    rank
}
