//! The summary for people, and the entry of a run in the summary of all runs.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::text::first_line;
use super::{Report, RuleReport};
use crate::claims::{Engine, Need};
use crate::outcome::Kind;
use crate::rule::{Access, order};

pub(super) fn markdown(report: &Report) -> String {
    let (product, version, runtime) = (&report.product, &report.version, report.runtime);
    let mut text =
        format!("# {product} {version} on {runtime}: conformance\n\n**Not proven by this run:**\n\n");
    text.extend(not_proven(report).iter().map(|line| format!("- {line}\n")));
    text += "\n## Counts\n\n";
    let counts = report.counts.iter();
    text.extend(counts.map(|(kind, count)| format!("- {kind}: {count}\n")));
    let (seed, effort, took) = (report.seed, report.effort, report.took.as_secs_f64());
    let late = report.canary_p999;
    text += &format!("\nSeed `{seed:#x}`, {effort:?} effort, took {took:.1} s, canary p99.9 {late:?}.\n\n");
    let reached: Vec<String> = report.reached().iter().map(|a| format!("{a:?}")).collect();
    let reached = reached.join(", ");
    text += &format!("## Profiles (MUST rules; access {reached})\n\n");
    text += "| profile | | what it proves |\n|---|---|---|\n";
    for profile in report.profiles() {
        text += &format!("| {} | {profile} | {} |\n", profile.name, profile.proves);
    }
    text += "\n## Rules\n\n| rule | outcome | |\n|---|---|---|\n";
    for rule in &report.rules {
        let inherited = match rule.inherited {
            true => " (inherited from the engine of dlock-core)",
            false => "",
        };
        let (id, statement, kind) = (&rule.id, cell(rule.statement), rule.outcome.kind());
        let why = cell(&first_line(rule.outcome.text()));
        text += &format!("| {id} {statement} | {kind}{inherited} | {why} |\n");
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
        let ids = ids(report, kind);
        if !ids.is_empty() {
            lines.push(format!("{says} ({}): {}", ids.len(), ids.join(", ")));
        }
    }
    for (access, line) in [
        (
            Access::P,
            "what happens when the network fails, or a request is repeated or late: the harness names no \
                server for the proxy (`Harness::servers`)",
        ),
        (
            Access::H,
            "what a restart, a clock step or foreign data does to the store, where the harness offers no \
                hook (`Harness::hooks`)",
        ),
    ] {
        let lacks = |r: &RuleReport| r.outcome.kind() == Kind::NotRun && r.access.contains(&access);
        if report.rules.iter().any(lacks) {
            lines.push(line.to_owned());
        }
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

/// The numbers of the rules with that outcome.
fn ids(report: &Report, kind: Kind) -> Vec<&str> {
    let of_kind = report.rules.iter().filter(|r| r.outcome.kind() == kind);
    of_kind.map(|r| r.id.as_str()).collect()
}

/// Adds this run to the summary of all runs: one entry per backend and runtime, and the last one counts.
pub(super) fn merge(report: &Report, path: &Path) -> io::Result<()> {
    let mut all = match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|_| json!({})),
        Err(error) if error.kind() == io::ErrorKind::NotFound => json!({}),
        Err(error) => return Err(error),
    };
    let ids = |kind| {
        let mut ids = ids(report, kind);
        ids.sort_by_key(|id| order(id));
        ids
    };
    let counts = Kind::ALL.map(|kind| (kind.to_string(), report.count(kind)));
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
        "counts": BTreeMap::from(counts),
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
