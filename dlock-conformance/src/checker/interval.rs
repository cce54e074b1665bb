//! Finds holds that certainly overlap.
//!
//! For each grant there is a time during which it was certainly held ([`Span::surely`]). If two of these
//! intersect in modes that do not share, that is a violation. Finding it needs no search (O(n log n)), and
//! one sentence explains it. A history that passes may still be illegal; the search of [`wgl`](super::wgl)
//! decides that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Found, Judgement, first, found, ms};
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
    let s = spans
        .iter()
        .find(|s| s.end_by.is_some_and(|by| by < s.end_from))?;
    let (who, by, cause, from) = (who(s), ms(s.end_by?), s.ended_by, ms(s.end_from));
    found!(
        vec![s.op_id],
        "{who} was told by {by} that its lock was lost, but {cause} cannot have ended it before {from}: \
            either another client ended it, or it was not lost"
    )
}

fn renewed_after_its_end(spans: &[Span]) -> Found {
    spans.iter().find_map(|s| {
        let by = s.end_by?;
        let renewal = s.renewed.iter().find(|r| r.0 > by)?;
        let (who, began, by) = (who(s), ms(renewal.0), ms(by));
        found!(
            vec![s.op_id],
            "{who} was renewed by a call that began at {began}, after its hold had ended by {by}"
        )
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
        let mut beside = held.iter().filter(|(mode, _)| !span.mode.shares_with(**mode));
        if let Some(other) = beside.find_map(|(_, others)| others.first()) {
            let other = &spans[*other];
            let (first, its, since) = (who(other), other.mode, ms(other.begin.1));
            let (second, mode, at) = (who(span), span.mode, ms(at));
            let until = shown(span.end_from.min(other.end_from));
            return found!(
                vec![other.op_id, span.op_id],
                "{first} held it ({its:?}) for sure from {since} on, and {second} ({mode:?}) from {at} on; \
                    both until {until}"
            );
        }
        let same = held.entry(span.mode).or_default();
        same.insert(i);
        if same.len() > span.mode.limit() {
            let (who, count, at, limit) = (who(span), same.len(), ms(at), span.mode.limit());
            return found!(
                same.iter().map(|i| spans[*i].op_id).collect(),
                "{who} made {count} holders at {at} where {limit} are allowed"
            );
        }
    }
    None
}

fn shown(until: u64) -> String {
    match until {
        u64::MAX => "the end of the history".to_owned(),
        until => ms(until),
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
        for at in 1..list.len() {
            let last = list[at - 1].1;
            if spans[last].end_from >= spans[list[at].1].end_from {
                list[at].1 = last;
            }
        }
    }
    for span in spans {
        for (_, list) in by_mode.iter().filter(|(mode, _)| !span.mode.shares_with(**mode)) {
            let before = list.partition_point(|(from, _)| *from < span.begin.0);
            let Some((_, holder)) = before.checked_sub(1).and_then(|at| list.get(at)) else {
                continue;
            };
            let holder = &spans[*holder];
            if span.begin.1 < holder.end_from {
                let (asker, from, by) = (who(span), ms(span.begin.0), ms(span.begin.1));
                let (other, since, until) = (who(holder), ms(holder.begin.1), shown(holder.end_from));
                return found!(
                    vec![holder.op_id, span.op_id],
                    "{asker} was granted between {from} and {by}, all the while {other} held it for sure \
                        (from {since} to {until})"
                );
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
            let (first, second) = (who(other), who(span));
            return found!(
                vec![other.op_id, span.op_id],
                "{first} and {second} have the same token{ONLY_TOKENS}"
            );
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
        let broken = match span.mode {
            ModeTag::Exclusive => largest.filter(|l| l.token >= span.token),
            _ => largest_exclusive.filter(|l| l.token > span.token),
        };
        if let Some(before) = broken {
            let (later, earlier) = (who(span), who(before));
            return found!(
                vec![before.op_id, span.op_id],
                "{later} was granted after {earlier} had returned, but its token is not larger{ONLY_TOKENS}"
            );
        }
    }
    None
}

fn with_larger_token<'a>(known: Option<&'a Span>, done: &'a Span) -> Option<&'a Span> {
    known.into_iter().chain([done]).max_by_key(|s| s.token)
}
