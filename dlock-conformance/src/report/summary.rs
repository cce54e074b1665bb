//! The summary for people, and the entry of a run in the summary of all runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::text::first_line;
use super::{Report, RuleReport};
use crate::claims::{Engine, Need};
use crate::outcome::Kind;
use crate::rule::{Access, order};

pub(super) fn markdown(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# {} {} on {}: conformance\n",
        report.product, report.version, report.runtime
    );
    let _ = writeln!(text, "**Not proven by this run:**\n");
    for line in not_proven(report) {
        let _ = writeln!(text, "- {line}");
    }
    text.push('\n');
    let _ = writeln!(text, "## Counts\n");
    for kind in Kind::ALL {
        if report.count(kind) > 0 {
            let _ = writeln!(text, "- {kind}: {}", report.count(kind));
        }
    }
    let _ = writeln!(
        text,
        "\nSeed `{:#x}`, {:?} effort, took {:.1} s, canary p99.9 {:?}.\n",
        report.seed,
        report.effort,
        report.took.as_secs_f64(),
        report.canary_p999
    );
    profiles(&mut text, report);
    let _ = writeln!(text, "## Rules\n\n| rule | outcome | |\n|---|---|---|");
    for rule in &report.rules {
        let inherited = if rule.inherited {
            " (inherited from the engine of dlock-core)"
        } else {
            ""
        };
        let why = first_line(rule.outcome.text());
        let _ = writeln!(
            text,
            "| {} {} | {}{inherited} | {} |",
            rule.id,
            cell(rule.statement),
            rule.outcome.kind(),
            cell(&why)
        );
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// What a green tick does not prove, in lines.
pub(super) fn not_proven(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for (kind, says) in [
        (Kind::Error, "the kit itself failed on"),
        (Kind::Fail, "broken"),
        (Kind::Inconclusive, "not decided"),
        (Kind::NotRun, "not run"),
        (Kind::Waived, "waived"),
    ] {
        let ids: Vec<&str> = report
            .rules
            .iter()
            .filter(|r| r.outcome.kind() == kind)
            .map(|r| r.id.as_str())
            .collect();
        if !ids.is_empty() {
            lines.push(format!("{says} ({}): {}", ids.len(), ids.join(", ")));
        }
    }
    let no_network = |r: &RuleReport| r.outcome.kind() == Kind::NotRun && r.access.contains(&Access::P);
    if report.rules.iter().any(no_network) {
        let line = "what happens when the network fails, or a request is repeated or late: the harness names \
            no server for the proxy (`Harness::servers`)";
        lines.push(line.to_owned());
    }
    let no_hands = |r: &RuleReport| r.outcome.kind() == Kind::NotRun && r.access.contains(&Access::H);
    if report.rules.iter().any(no_hands) {
        let line = "what a restart, a clock step or foreign data does to the store, where the harness offers \
            no hook (`Harness::hooks`)";
        lines.push(line.to_owned());
    }
    for (need, what) in [
        (Need::Network, "a network that fails"),
        (Need::Processes, "other processes"),
    ] {
        if !report.claims.contains(&need) {
            lines.push(format!(
                "the effect of {what}, which the claims rule out ({need:?})"
            ));
        }
    }
    if !report.missing_basis.is_empty() {
        lines.push(format!(
            "any profile: {:?} is not claimed, which all of them need",
            report.missing_basis
        ));
    }
    let problems = report.problems.iter();
    lines.extend(problems.map(|problem| format!("anything but this problem: {problem}")));
    if !report.wide_bounds.is_empty() {
        lines.push(format!(
            "what tighter bounds would show; the claimed bounds are wide: {}",
            report.wide_bounds.join(", ")
        ));
    }
    if !report.complete {
        lines.push("the other rules: this run was filtered".to_owned());
    }
    if report.engine == Engine::Inherited {
        let inherited = report.rules.iter().filter(|r| r.inherited).count();
        lines.push(format!(
            "{inherited} rules are kept by the engine of dlock-core, not by the backend"
        ));
    }
    let line = "black-box tests refute, they do not prove; exclusion by leases holds only while clocks and \
        pauses stay within the claims";
    lines.push(line.to_owned());
    lines
}

/// The state of each profile.
fn profiles(text: &mut String, report: &Report) {
    let reached: Vec<String> = report.reached().iter().map(|a| format!("{a:?}")).collect();
    let _ = writeln!(
        text,
        "## Profiles (MUST rules; access {})\n\n| profile | | what it proves |\n|---|---|---|",
        reached.join(", ")
    );
    for profile in report.profiles() {
        let _ = writeln!(text, "| {} | {profile} | {} |", profile.name, profile.proves);
    }
    let _ = writeln!(text);
}

/// Adds this run to the summary of all runs: one entry per backend and runtime, and the last one counts.
pub(super) fn merge(report: &Report, path: &Path) -> io::Result<()> {
    let mut all = match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|_| json!({})),
        Err(error) if error.kind() == io::ErrorKind::NotFound => json!({}),
        Err(error) => return Err(error),
    };
    let ids = |kind: Kind| -> Vec<&str> {
        let mut ids: Vec<&str> = report
            .rules
            .iter()
            .filter(|r| r.outcome.kind() == kind)
            .map(|r| r.id.as_str())
            .collect();
        ids.sort_by_key(|id| order(id));
        ids
    };
    let counts: BTreeMap<String, usize> = Kind::ALL
        .iter()
        .map(|kind| (kind.to_string(), report.count(*kind)))
        .collect();
    let entry = json!({
        "product": report.product,
        "version": report.version,
        "backend": report.backend,
        "runtime": report.runtime,
        "complete": report.complete,
        "effort": report.effort,
        "seed": report.seed,
        "ended_unix_s": report.ended_unix_s,
        "took_s": report.took.as_secs_f64(),
        "total": report.total().map(|kind| kind.to_string()),
        "counts": counts,
        "failed": ids(Kind::Fail),
        "inconclusive": ids(Kind::Inconclusive),
        "error": ids(Kind::Error),
        "waived": ids(Kind::Waived),
        "not_run": ids(Kind::NotRun),
        "problems": report.problems,
    });
    if !all.is_object() {
        all = json!({});
    }
    all["schema"] = Value::from(super::SCHEMA);
    all["runs"][report.label()] = entry;
    // Renamed into place, so that a reader never sees half of it.
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    std::fs::write(&partial, serde_json::to_vec_pretty(&all)?)?;
    std::fs::rename(&partial, path)
}
