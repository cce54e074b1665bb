//! The catalogue as a file: every rule with its number. Numbers are never reused.

use serde_json::json;

use crate::rule::{Rule, order};
use crate::rules;

/// The contents of `RULES.json`: every rule, one a line, in order.
///
/// Made by `cargo run -p dlock-conformance --example rules > dlock-conformance/RULES.json`; a test fails when
/// the file is stale.
pub fn rules_json() -> String {
    let mut all: Vec<_> = rules::all().collect();
    all.sort_by_key(|rule| order(rule.id));
    let line = |rule: &&Rule| {
        let entry = json!({
            "id": rule.id,
            "test_name": rule.test_name(),
            "level": rule.level,
            "phase": rule.phase,
            "needs": rule.needs,
            "layer": rule.layer,
            "access": [rule.access],
            "test": rule.test,
            "statement": rule.statement,
            "intent": rule.intent,
            "check_first": rule.check_first,
            "evidence": rule.evidence,
            "budget_s": rule.budget.as_secs(),
            "bug": rule.bug.map(|(bug, detection)| json!({"name": bug, "detection": detection})),
        });
        format!("  {entry}")
    };
    let lines: Vec<String> = all.iter().map(line).collect();
    format!("{{\"schema\": 1, \"rules\": [\n{}\n]}}\n", lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_used_twice() {
        let mut numbers: Vec<_> = rules::all().map(|rule| order(rule.id)).collect();
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }

    #[test]
    fn rules_are_in_the_order_of_their_numbers() {
        let mut ids = ["10.01", "x.1", "3.10", "3.02", "4", "3"];
        ids.sort_by_key(|id| order(id));
        assert_eq!(ids, ["3", "3.02", "3.10", "4", "10.01", "x.1"]);
    }
}
