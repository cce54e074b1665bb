//! The whole catalogue: what is tested, and what is *not*, so that reports can say so.
//!
//! A rule that has a test is described where it is declared; of the others the number, the sentence, and what
//! stands in the way are listed here. Numbers are never reused.

use serde_json::{Value, json};

use crate::report::order;
use crate::rule::{Access, Level};
use crate::rules;

/// A number of the catalogue that has no test.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number.
    pub id: &'static str,
    /// How binding it is.
    pub level: Level,
    /// In which phase it is to come.
    pub phase: u8,
    /// What the kit needs for it, besides the API.
    pub access: &'static [Access],
    /// The rule.
    pub statement: &'static str,
    /// What it waits for.
    pub waits_for: &'static str,
}

impl Entry {
    /// Why it has no test.
    pub fn reason(&self) -> String {
        format!("no test yet: {}", self.waits_for)
    }
}

static UNTESTED: &[Entry] = &[Entry {
    id: "16.04",
    level: Level::Must,
    phase: 2,
    access: &[Access::P, Access::H],
    statement: "Session expiry loses all its guards; a new session never adopts the old one's entry \
        (CURATOR-604).",
    waits_for: "no backend hangs its leases on a session yet; the first that does (ZooKeeper, advisory \
        locks) brings the hook that ends one",
}];

/// Every number that has no test.
pub fn untested() -> impl Iterator<Item = &'static Entry> {
    UNTESTED.iter()
}

/// The rules without a test that a profile is not whole without: MUST, and of the first phase.
pub fn open() -> impl Iterator<Item = &'static Entry> {
    untested().filter(|entry| entry.level == Level::Must && entry.phase == 1)
}

/// The contents of `RULES.json`: every number of the catalogue, one a line, in order.
///
/// Made by `cargo run -p dlock-conformance --example rules > dlock-conformance/RULES.json`; a test fails when
/// the file is stale.
pub fn rules_json() -> String {
    let mut entries: Vec<(&str, Value)> = rules::all()
        .map(|rule| {
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
            (rule.id, entry)
        })
        .collect();
    entries.extend(untested().map(|entry| {
        let untested = json!({
            "id": entry.id,
            "level": entry.level,
            "phase": entry.phase,
            "access": entry.access,
            "statement": entry.statement,
            "untested": entry.reason(),
        });
        (entry.id, untested)
    }));
    entries.sort_by_key(|(id, _)| order(id));
    let lines: Vec<String> = entries
        .into_iter()
        .map(|(_, entry)| format!("  {entry}"))
        .collect();
    format!("{{\"schema\": 1, \"rules\": [\n{}\n]}}\n", lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_used_twice() {
        let tested = rules::all().map(|rule| rule.id);
        let mut numbers: Vec<_> = tested
            .chain(untested().map(|entry| entry.id))
            .map(order)
            .collect();
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }
}
