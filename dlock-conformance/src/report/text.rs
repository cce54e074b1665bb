//! The failure text: part of the kit, like the rules.

use std::fmt::Write as _;

use super::RuleReport;

/// Rule, why, what was seen, how to see it again, where to look.
pub(super) fn failure(rule: &RuleReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "rule {} {:?}: {}", rule.id, rule.level, rule.statement);
    let _ = writeln!(text, "  {}:", rule.outcome.kind());
    for line in rule.outcome.text().lines() {
        let _ = writeln!(text, "    {line}");
    }
    if !rule.intent.is_empty() {
        let _ = writeln!(text, "  why it matters: {}", rule.intent);
    }
    if !rule.check_first.is_empty() {
        let _ = writeln!(text, "  check this first: {}", rule.check_first);
    }
    for (n, attempt) in rule.attempts.iter().enumerate() {
        let _ = write!(
            text,
            "  attempt {}: {}, seed {:#x}, took {:?}",
            n + 1,
            attempt.outcome.kind(),
            attempt.seed,
            attempt.took
        );
        if !attempt.stall.is_zero() {
            let _ = write!(text, ", worst stall of the machine {:?}", attempt.stall);
        }
        let _ = writeln!(text);
        for (counter, count) in &attempt.evidence {
            let _ = writeln!(text, "    {counter}: {count}");
        }
        for note in &attempt.notes {
            let _ = writeln!(text, "    {note}");
        }
    }
    if !rule.replay.is_empty() {
        let _ = writeln!(text, "  replay: {}", rule.replay);
    }
    text
}
