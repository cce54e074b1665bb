//! Re-entrant locks: the levels of one owner are one hold. It ends with its last level.
//!
//! Levels are put together where it is known that the owner held all the while (`fold`); then the holds are
//! judged like any others. Levels of one hold carry one token, and are no more than the declared depth.

use std::collections::BTreeMap;

use super::{Found, Judgement, first, found, interval, ms, wgl, who};
use crate::history::{Model, Span};

/// Checks every name.
///
/// # Errors
/// If the two checkers of exclusion contradict each other.
pub fn check(
    names: &BTreeMap<String, Vec<Span>>,
    model: &Model,
    depth: u32,
    budget: u64,
) -> Result<Judgement, String> {
    let mut folded = BTreeMap::new();
    for (name, spans) in names {
        let holds = fold(spans);
        let found = too_deep(spans, depth).or_else(|| tokens_differ(spans, &holds).filter(|_| model.fenced));
        if found.is_some() {
            return Ok(first([(name.as_str(), found)]));
        }
        folded.insert(name.clone(), holds.into_iter().map(|h| h.span).collect());
    }
    let quick = interval::check(&folded, model);
    let full = wgl::check(&folded, model, budget);
    super::agree(quick, full)
}

/// The levels of one owner, put together.
struct Hold {
    /// From the first level's begin to the last level's end.
    span: Span,
    /// Places of its levels.
    levels: Vec<usize>,
}

/// A level joins a hold of its owner if that was held for sure while it was acquired. Where it may have ended
/// meanwhile, the level begins a hold of its own: that allows more, so nothing legal is refused.
fn fold(spans: &[Span]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    for (i, span) in spans.iter().enumerate() {
        let joined = holds.iter_mut().rev().find(|hold| {
            span.owner.is_some()
                && hold.span.owner == span.owner
                && hold.span.mode == span.mode
                && hold.span.begin.1 <= span.begin.0
                && span.begin.1 <= hold.span.end_from
        });
        match joined {
            Some(hold) => {
                hold.span.renewed.extend(&span.renewed);
                // The last level to end is the end; if one of them may last for ever, so may the hold.
                let last = (hold.span.end_from, hold.span.ended_by).max((span.end_from, span.ended_by));
                (hold.span.end_from, hold.span.ended_by) = last;
                hold.span.end_by = match (hold.span.end_by, span.end_by) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
                hold.levels.push(i);
            }
            None => holds.push(Hold {
                span: span.clone(),
                levels: vec![i],
            }),
        }
    }
    holds
}

fn too_deep(spans: &[Span], depth: u32) -> Found {
    for span in spans.iter().filter(|s| s.owner.is_some()) {
        // Those that were held for sure when this one returned, itself among them.
        let at = span.begin.1;
        let is_level = |s: &&Span| s.owner == span.owner && s.begin.1 <= at && at < s.end_from;
        let levels: Vec<u64> = spans.iter().filter(is_level).map(|s| s.op_id).collect();
        if levels.len() > depth as usize {
            let (who, count, at) = (who(span.op_id, span.lane), levels.len(), ms(at));
            return found!(
                levels,
                "{who} made {count} levels of one owner at {at} where {depth} are allowed"
            );
        }
    }
    None
}

fn tokens_differ(spans: &[Span], holds: &[Hold]) -> Found {
    holds.iter().find_map(|hold| {
        let first = &spans[*hold.levels.first()?];
        let mut levels = hold.levels.iter().map(|i| &spans[*i]);
        let other = levels.find(|s| s.token != first.token)?;
        let shown = |token: Option<u64>| token.map_or_else(|| "none".to_owned(), |t| t.to_string());
        let (a, b) = (first.op_id, other.op_id);
        let (of_a, of_b) = (shown(first.token), shown(other.token));
        found!(
            vec![a, b],
            "operations {a} and {b} are levels of one hold, and their tokens differ: {of_a} and {of_b}"
        )
    })
}
