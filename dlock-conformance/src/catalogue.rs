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
