//! Finds holds that certainly overlap.
//!
//! For each grant there is a time during which it was certainly held ([`Span::surely`]). If two of these
//! intersect in modes that do not share, that is a violation. Finding it needs no search (O(n log n)), and
//! one sentence explains it. A history that passes may still be illegal; the search of [`wgl`](super::wgl)
//! decides that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Found, Judgement, first, ms};
use crate::history::{ModeTag, Model, Span};

/// Checks every name.
pub fn check(names: &BTreeMap<String, Vec<Span>>, model: &Model) -> Judgement {
    first(names.iter().map(|(name, spans)| {
        let found = ends_before_it_can(spans)
            .or_else(|| renewed_after_its_end(spans))
            .or_else(|| overlap(spans))
            .or_else(|| granted_inside_another(spans))
            .or_else(|| tokens_out_of_order(spans).filter(|_| model.fenced));
        (name.as_str(), found)
    }))
}

fn who(span: &Span) -> String {
    match span.token {
        Some(token) => format!("operation {} (lane {}, token {token})", span.op_id, span.lane),
        None => super::who(span.op_id, span.lane),
    }
}

fn ends_before_it_can(spans: &[Span]) -> Found {
    spans.iter().find_map(|s| {
        let by = s.end_by.filter(|by| *by < s.end_from)?;
        Some((
            format!(
                "{} was told by {} that its lock was lost, but {} cannot have ended it before {}: either \
                    another client ended it, or it was not lost",
                who(s),
                ms(by),
                s.ended_by,
                ms(s.end_from)
            ),
            vec![s.op_id],
        ))
    })
}

fn renewed_after_its_end(spans: &[Span]) -> Found {
    spans.iter().find_map(|s| {
        let by = s.end_by?;
        let renewal = s.renewed.iter().find(|r| r.0 > by)?;
        Some((
            format!(
                "{} was renewed by a call that began at {}, after its hold had ended by {}",
                who(s),
                ms(renewal.0),
                ms(by)
            ),
            vec![s.op_id],
        ))
    })
}

/// Sweeps over the begins and ends of sure holds.
fn overlap(spans: &[Span]) -> Found {
    // At one time an end comes before a begin: holds that touch do not intersect.
    let mut points: Vec<(u64, bool, usize)> = Vec::with_capacity(spans.len() * 2);
    for (i, span) in spans.iter().enumerate() {
        let (from, until) = span.surely();
        if from < until {
            points.push((from, true, i));
            points.push((until, false, i));
        }
    }
    points.sort_unstable();
    let mut held: BTreeMap<ModeTag, BTreeSet<usize>> = BTreeMap::new();
    for (at, begins, i) in points {
        let span = &spans[i];
        if !begins {
            if let Some(same) = held.get_mut(&span.mode) {
                same.remove(&i);
            }
            continue;
        }
        let other = held
            .iter()
            .filter(|(mode, _)| !span.mode.shares_with(**mode))
            .find_map(|(_, others)| others.first());
        if let Some(other) = other {
            let other = &spans[*other];
            let until = span.end_from.min(other.end_from);
            return Some((
                format!(
                    "{} held it ({:?}) for sure from {} on, and {} ({:?}) from {} on; both until {}",
                    who(other),
                    other.mode,
                    ms(other.begin.1),
                    who(span),
                    span.mode,
                    ms(at),
                    shown(until)
                ),
                vec![other.op_id, span.op_id],
            ));
        }
        let same = held.entry(span.mode).or_default();
        same.insert(i);
        if same.len() > span.mode.limit() {
            return Some((
                format!(
                    "{} made {} holders at {} where {} are allowed",
                    who(span),
                    same.len(),
                    ms(at),
                    span.mode.limit()
                ),
                same.iter().map(|i| spans[*i].op_id).collect(),
            ));
        }
    }
    None
}

fn shown(until: u64) -> String {
    if until == u64::MAX {
        "the end of the history".to_owned()
    } else {
        ms(until)
    }
}

/// An acquire that began and returned while another held it for sure had no moment at which it can have been
/// granted.
fn granted_inside_another(spans: &[Span]) -> Found {
    // For each mode: certain holds by their begin, each with the one that ends last among those up to it.
    let mut by_mode: BTreeMap<ModeTag, Vec<(u64, usize)>> = BTreeMap::new();
    for (i, span) in spans.iter().enumerate() {
        by_mode.entry(span.mode).or_default().push((span.begin.1, i));
    }
    for list in by_mode.values_mut() {
        list.sort_unstable();
        let mut last: Option<usize> = None;
        for entry in list.iter_mut() {
            if last.is_none_or(|l| spans[l].end_from < spans[entry.1].end_from) {
                last = Some(entry.1);
            }
            entry.1 = last.unwrap_or(entry.1);
        }
    }
    for span in spans {
        for (mode, list) in &by_mode {
            if span.mode.shares_with(*mode) {
                continue;
            }
            let before = list.partition_point(|(from, _)| *from < span.begin.0);
            let Some((_, holder)) = before.checked_sub(1).and_then(|at| list.get(at)) else {
                continue;
            };
            let holder = &spans[*holder];
            if span.begin.1 < holder.end_from {
                return Some((
                    format!(
                        "{} was granted between {} and {}, all the while {} held it for sure (from {} to {})",
                        who(span),
                        ms(span.begin.0),
                        ms(span.begin.1),
                        who(holder),
                        ms(holder.begin.1),
                        shown(holder.end_from)
                    ),
                    vec![holder.op_id, span.op_id],
                ));
            }
        }
    }
    None
}

/// What follows a sentence about tokens: what overlaps is reported first.
const ONLY_TOKENS: &str = ". No two holds overlap for sure: the tokens are wrong (rules 7.02 and 7.05)";

/// A grant that began after another had returned has a larger token; a shared one at least that of the last
/// exclusive one.
fn tokens_out_of_order(spans: &[Span]) -> Found {
    let mut exclusive = HashMap::new();
    for span in spans.iter().filter(|s| s.mode == ModeTag::Exclusive) {
        let Some(token) = span.token else { continue };
        if let Some(other) = exclusive.insert(token, span) {
            return Some((
                format!(
                    "{} and {} have the same token{ONLY_TOKENS}",
                    who(other),
                    who(span)
                ),
                vec![other.op_id, span.op_id],
            ));
        }
    }
    let mut returned: Vec<&Span> = spans.iter().filter(|s| s.token.is_some()).collect();
    returned.sort_unstable_by_key(|s| s.begin.1);
    let mut returned = returned.into_iter().peekable();
    let (mut largest, mut largest_exclusive): (Option<&Span>, Option<&Span>) = (None, None);
    // `spans` is in the order of invokes.
    for span in spans.iter().filter(|s| s.token.is_some()) {
        while let Some(done) = returned.next_if(|r| r.begin.1 < span.begin.0) {
            largest = with_larger_token(largest, done);
            if done.mode == ModeTag::Exclusive {
                largest_exclusive = with_larger_token(largest_exclusive, done);
            }
        }
        let broken = if span.mode == ModeTag::Exclusive {
            largest.filter(|l| l.token >= span.token)
        } else {
            largest_exclusive.filter(|l| l.token > span.token)
        };
        if let Some(before) = broken {
            return Some((
                format!(
                    "{} was granted after {} had returned, but its token is not larger{ONLY_TOKENS}",
                    who(span),
                    who(before)
                ),
                vec![before.op_id, span.op_id],
            ));
        }
    }
    None
}

fn with_larger_token<'a>(known: Option<&'a Span>, done: &'a Span) -> Option<&'a Span> {
    known.into_iter().chain([done]).max_by_key(|s| s.token)
}
