//! The forms of a report, of rules that were never run: the outcomes are put in.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::history::{Event, EventKind};
use dlock_conformance::report::SCHEMA;
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Access, Attempt, Claims, Conditions, Effort, Engine, Harness, Histories, Kind, Layer, Level, Need,
    Options, Outcome, Report, Rule, RuleReport, Test, run_once,
};
use dlock_core::Capabilities;
use futures::FutureExt;
use futures::future::ready;

use crate::fixture::Scratch;

/// A rule of which nothing is known but its number.
pub(crate) const fn declared(id: &'static str) -> Rule {
    Rule {
        id,
        level: Level::Must,
        phase: 1,
        needs: &[],
        layer: Layer::Both,
        access: Access::A,
        test: Test::D,
        title: "",
        statement: "One | two\nthree.",
        intent: "",
        check_first: "",
        evidence: &[],
        budget: Duration::from_secs(5),
        bug: None,
        run: |cx| ready(cx.check_history()).boxed(),
    }
}

pub(crate) fn rule(id: &'static str, kind: Kind) -> RuleReport {
    RuleReport::tested(&declared(id), outcome(kind), Vec::new(), false, String::new())
}

pub(crate) fn attempt(kind: Kind, millis: u64) -> Attempt {
    static TRIAL: Rule = declared("0.00");
    let world: Arc<dyn Harness> = Arc::new(Simulated::new(1));
    let conditions = Conditions::default();
    let mut attempt = run_once(
        &TRIAL,
        &world,
        "dlc-trial".to_owned(),
        0x2a,
        Effort::Quick,
        conditions,
    );
    attempt.outcome = outcome(kind);
    attempt.took = Duration::from_millis(millis);
    attempt
}

fn outcome(kind: Kind) -> Outcome {
    let text = "why\nand more".to_owned();
    match kind {
        Kind::Pass => Outcome::Pass,
        Kind::Fail => Outcome::Fail { seen: text },
        Kind::Unsupported => Outcome::Unsupported { needs: text },
        Kind::NotRun => Outcome::NotRun { reason: text },
        Kind::Waived => Outcome::Waived {
            reason: text,
            link: String::new(),
        },
        Kind::Inconclusive => Outcome::Inconclusive { why: text },
        Kind::Error => Outcome::Error { what: text },
    }
}

pub(crate) fn report(rules: Vec<RuleReport>) -> Report {
    Report::new(
        &Claims::new("acme", "1.2", Capabilities::new("store")),
        "sim",
        &Options::default(),
        Duration::from_millis(3),
        Duration::from_millis(1500),
        rules,
    )
}

fn of_kinds(kinds: &[Kind]) -> Report {
    report(kinds.iter().map(|kind| rule("8.08", *kind)).collect())
}

/// What is in a directory; nothing if there is none.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn the_worst_outcome_decides_the_exit_code() {
    use Kind::{Error, Fail, Inconclusive, NotRun, Pass, Unsupported, Waived};
    let cases: [(&[Kind], Option<Kind>, u8, usize); 11] = [
        (&[], None, 4, 0),
        (&[Pass], Some(Pass), 0, 1),
        (&[Pass, Unsupported], Some(Pass), 0, 1),
        (&[Pass, Waived], Some(Waived), 0, 1),
        (&[Pass, NotRun, Waived], Some(NotRun), 0, 1),
        (&[NotRun, Waived], Some(NotRun), 4, 0),
        (&[Unsupported], None, 4, 0),
        (&[Pass, Inconclusive], Some(Inconclusive), 2, 2),
        (&[Inconclusive, Fail, Pass], Some(Fail), 1, 3),
        (&[Fail, Inconclusive, Error, Pass], Some(Error), 3, 4),
        (&[Unsupported, Error], Some(Error), 3, 1),
    ];
    for (kinds, total, code, run) in cases {
        let report = of_kinds(kinds);
        let found = (report.total(), report.exit_code(), report.run_count());
        assert_eq!(found, (total, code, run), "{kinds:?}");
    }
    let mut without_basis = of_kinds(&[Pass]);
    without_basis.missing_basis = vec![Need::Try];
    assert_eq!(without_basis.exit_code(), 4);
    without_basis.problems = vec!["a panic".to_owned()];
    assert_eq!(without_basis.exit_code(), 3);
}

/// The summary of these rules, from one line on to the next empty one.
fn paragraph(report: &Report, heading: &str) -> String {
    let summary = report.summary();
    let (_, rest) = summary.split_once(heading).unwrap();
    let (text, _) = rest
        .trim_start_matches('\n')
        .split_once("\n\n")
        .unwrap_or((rest.trim(), ""));
    text.to_owned()
}

#[test]
fn the_summary_starts_with_what_is_not_proven() {
    let mut network = rule("15.05", Kind::NotRun);
    network.access = vec![Access::P];
    let mut hands = rule("7.06", Kind::NotRun);
    hands.access = vec![Access::H];
    let mut inherited = rule("5.01", Kind::Pass);
    inherited.inherited = true;
    let mut report = report(vec![
        rule("1.01", Kind::Error),
        rule("1.02", Kind::Fail),
        rule("1.03", Kind::Inconclusive),
        rule("1.04", Kind::NotRun),
        rule("1.06", Kind::Waived),
        rule("1.07", Kind::Pass),
        rule("1.08", Kind::Unsupported),
        network,
        hands,
        inherited,
    ]);
    report.missing_basis = vec![Need::Try];
    report.problems = vec!["a panic".to_owned()];
    report.wide_bounds = vec!["slack 9s".to_owned(), "skew 2".to_owned()];
    report.complete = false;
    report.engine = Engine::Inherited;
    assert!(report.summary().starts_with("# acme 1.2 on sim: conformance\n\n"));
    assert_eq!(
        paragraph(&report, "**Not proven by this run:**"),
        "\
- the kit itself failed on (1): 1.01
- broken (1): 1.02
- not decided (1): 1.03
- not run (3): 1.04, 15.05, 7.06
- waived (1): 1.06
- what happens when the network fails, or a request is repeated or late: the harness names no server for \
the proxy (`Harness::servers`)
- what a restart, a clock step or foreign data does to the store, where the harness offers no hook \
(`Harness::hooks`)
- any profile: [Try] is not claimed, which all of them need
- anything but this problem: a panic
- what tighter bounds would show; the claimed bounds are wide: slack 9s, skew 2
- the other rules: this run was filtered
- 1 rules are kept by the engine of dlock-core, not by the backend
- black-box tests refute, they do not prove; exclusion by leases holds only while clocks and pauses stay \
within the claims"
    );
    assert_eq!(
        paragraph(&report, "## Counts"),
        "- error: 1\n- fail: 1\n- inconclusive: 1\n- not run: 3\n- waived: 1\n- pass: 2\n- \
            unsupported: 1"
    );
}

#[test]
fn a_flawless_run_leaves_only_the_limits_of_testing() {
    let mut network = rule("15.05", Kind::Pass);
    network.access = vec![Access::P];
    let mut hands = rule("7.06", Kind::Pass);
    hands.access = vec![Access::H];
    let mut report = report(vec![
        rule("1.01", Kind::Pass),
        rule("1.02", Kind::NotRun),
        network,
        hands,
    ]);
    report.engine = Engine::Own;
    assert_eq!(
        paragraph(&report, "**Not proven by this run:**"),
        "\
- not run (1): 1.02
- black-box tests refute, they do not prove; exclusion by leases holds only while clocks and pauses stay \
within the claims"
    );
    // Of what did not occur nothing is counted.
    assert_eq!(paragraph(&report, "## Counts"), "- not run: 1\n- pass: 3");
}

#[test]
fn each_rule_has_a_row_in_which_nothing_breaks_the_table() {
    let mut inherited = rule("5.01", Kind::Fail);
    inherited.inherited = true;
    let report = report(vec![rule("1.01", Kind::Pass), inherited]);
    assert_eq!(
        paragraph(&report, "## Rules"),
        "\
| rule | outcome | |
|---|---|---|
| 1.01 One \\| two three. | pass |  |
| 5.01 One \\| two three. | fail (inherited from the engine of dlock-core) | why |"
    );
    let summary = report.summary();
    let shown = "Seed `0x5eed`, Quick effort, took 1.5 s, canary p99.9 3ms.";
    assert!(summary.lines().any(|l| l == shown), "{summary}");
}

#[test]
fn a_profile_is_whole_only_if_all_of_its_rules_passed() {
    use Kind::{Error, Fail, Inconclusive, NotRun, Pass, Unsupported, Waived};
    let line = |report: &Report, name: &str| {
        let head = format!("| {name} | ");
        let summary = report.summary();
        let found = summary.lines().find_map(|l| l.strip_prefix(&head));
        found.and_then(|l| l.split(" | ").next()).map(str::to_owned)
    };
    let cases: [(&[Kind], &str); 7] = [
        (&[Pass, Pass], "proven (2 passed)"),
        (&[Unsupported], "not claimed"),
        (&[Pass, NotRun, NotRun, Waived], "partly (1 passed, 3 open)"),
        (&[NotRun], "partly (0 passed, 1 open)"),
        (&[Pass, Fail, Fail], "failed (2 of 3)"),
        (&[Pass, Error, Error, Inconclusive, Fail, Fail], "failed (4 of 6)"),
        (&[Inconclusive, NotRun], "partly (0 passed, 2 open)"),
    ];
    for (kinds, state) in cases {
        assert_eq!(line(&of_kinds(kinds), "Priority").as_deref(), Some(state));
    }
    let mut filtered = of_kinds(&[Pass]);
    filtered.complete = false;
    let state = "partly (1 passed, the run was filtered)";
    assert_eq!(line(&filtered, "Priority").as_deref(), Some(state));
    let mut without_basis = of_kinds(&[Pass, Pass, NotRun, Waived, Waived]);
    without_basis.missing_basis = vec![Need::Lock];
    let state = "partly (2 passed, 3 open, [Lock] is not claimed, which all profiles need)";
    assert_eq!(line(&without_basis, "Priority").as_deref(), Some(state));
    // What is not binding, and what has no test, is in none.
    let report = report(vec![rule("8.09", Fail), rule("99.01", Fail)]);
    assert_eq!(line(&report, "Priority"), None);
}

#[test]
fn a_rule_counts_to_the_profile_of_its_first_special_need() {
    for (id, profile) in [
        ("2.05", "Core"),
        ("3.01", "Lease"),
        ("5.05", "Lease"),
        ("6.03", "Lease"),
        ("5.08", "Fencing"),
        ("7.10", "Fencing"),
        ("7.11", "Fencing"),
        ("7.12", "Fencing"),
        ("19.03", "Fencing"),
        ("11.04", "Shared"),
        ("11.15", "Shared"),
        ("8.06", "Fair"),
        ("8.08", "Priority"),
        ("10.04", "Reentrant"),
        ("12.04", "Watch"),
        ("12.11", "Watch"),
        ("13.16", "Watch"),
        ("18.02", "Quorum"),
        ("18.03", "Quorum"),
    ] {
        let profiles = report(vec![rule(id, Kind::Pass)]).profiles();
        let names: Vec<&str> = profiles.iter().map(|p| p.name).collect();
        assert_eq!(names, [profile], "{id}");
    }
}

#[test]
fn profiles_name_the_access_of_their_rules() {
    // A proxy, hands, a child process twice, the simulator, the API alone.
    let ids = ["3.03", "7.06", "7.15", "8.06", "15.06", "8.08"];
    let table = |kind: Kind, means: &str| {
        let report = report(ids.map(|id| rule(id, kind)).to_vec());
        let table = paragraph(&report, &format!("## Profiles (MUST rules; access {means})"));
        let cells = table
            .lines()
            .skip(2)
            .map(|line| line.split(" | ").collect::<Vec<_>>());
        let rows: Vec<String> = cells.map(|row| format!("{} {}", &row[0][2..], row[1])).collect();
        rows.join(", ")
    };
    assert_eq!(
        table(Kind::Pass, "A, P, C, H, S"),
        "\
Core proven (1 passed), Lease proven (1 passed), Fencing proven (2 passed), Fair proven (1 passed), \
Priority proven (1 passed)"
    );
    assert_eq!(
        table(Kind::NotRun, ""),
        "\
Lease partly (0 passed, 1 open), Fencing partly (0 passed, 1 open), \
Fair partly (0 passed, 1 open), Priority partly (0 passed, 1 open)"
    );
}

#[test]
fn the_verdict_starts_with_broken_rules() {
    use Kind::{Fail, NotRun, Pass, Waived};
    let mut whole = report(vec![
        rule("1.01", Pass),
        rule("3.01", Fail),
        rule("5.02", NotRun),
        rule("8.08", Pass),
        rule("8.06", Waived),
    ]);
    assert_eq!(
        whole.verdict(),
        "failed: Lease (3.01); proven: Core, Priority; partly: Fair (1 open); \
         1 fail, 1 not run, 1 waived, 2 pass"
    );
    whole.problems = vec!["a panic".to_owned()];
    whole.complete = false;
    assert_eq!(
        whole.verdict(),
        "1 fail, 1 not run, 1 waived, 2 pass; with problems outside the rules"
    );
    assert_eq!(report(Vec::new()).verdict(), "no rule was run");
}

#[test]
fn junit_has_a_case_for_each_rule_and_a_count_of_each_kind() {
    let mut failed = rule("1.02", Kind::Fail);
    failed.attempts = vec![attempt(Kind::Fail, 250), attempt(Kind::Fail, 500)];
    let report = report(vec![
        rule("1.01", Kind::Pass),
        failed,
        rule("2.01", Kind::Error),
        rule("2.02", Kind::Inconclusive),
        rule("2.03", Kind::NotRun),
        rule("2.04", Kind::Unsupported),
        rule("2.05", Kind::Waived),
    ]);
    let scratch = Scratch::new("junit");
    report.write_to(scratch.path()).unwrap();
    let xml = std::fs::read_to_string(scratch.path().join("store-sim/junit.xml")).unwrap();
    let suite = "<testsuite name=\"dlock-conformance store-sim\" tests=\"7\" failures=\"2\" errors=\"1\" \
        skipped=\"3\" time=\"1.500\">";
    assert!(xml.lines().any(|l| l == suite), "{xml}");
    let cases = [
        "<testcase classname=\"section 1\" name=\"must_1_01_\" time=\"0.000\"></testcase>\n",
        "<testcase classname=\"section 1\" name=\"must_1_02_\" time=\"0.750\"><failure message=\"fail: \
            why\">rule 1.02 Must: One | two\n",
        "name=\"must_2_01_\" time=\"0.000\"><error message=\"error: why\">rule 2.01 Must: One",
        "name=\"must_2_02_\" time=\"0.000\"><failure message=\"inconclusive: why\">rule 2.02",
        "name=\"must_2_03_\" time=\"0.000\"><skipped message=\"not run: why\"/></testcase>\n",
        "name=\"must_2_04_\" time=\"0.000\"><skipped message=\"unsupported: why\"/></testcase>\n",
        "name=\"must_2_05_\" time=\"0.000\"><skipped message=\"waived: why\"/></testcase>\n",
    ];
    for case in cases {
        assert!(xml.contains(case), "{case}\n{xml}");
    }
}

#[test]
fn a_failure_text_is_complete() {
    let mut full = rule("1.02", Kind::Fail);
    full.intent = "stock is oversold";
    full.check_first = "the clock";
    full.replay = "cargo test -- 1.02".to_owned();
    let mut second = attempt(Kind::Fail, 20);
    second.stall = Duration::from_millis(7);
    second.evidence.insert("grants", 9);
    second.notes.push("a note".to_owned());
    second.stored = Some("/tmp/h.jsonl".into());
    full.attempts = vec![attempt(Kind::Inconclusive, 10), second];
    assert_eq!(
        full.failure_text(),
        "\
rule 1.02 Must: One | two\nthree.
  fail:
    why
    and more
  why it matters: stock is oversold
  check this first: the clock
  required by Processes, claimed by default; to claim less, call `.without(Need::Processes)`
  attempt 1: inconclusive, seed 0x2a, took 10ms
  attempt 2: fail, seed 0x2a, took 20ms, worst stall of the machine 7ms
    grants: 9
    a note
  replay: cargo test -- 1.02
  history: /tmp/h.jsonl
"
    );
    let bare = "rule 1.02 Must: One | two\nthree.\n  fail:\n    why\n    and more\n  \
        required by Processes, claimed by default; to claim less, call `.without(Need::Processes)`\n";
    assert_eq!(rule("1.02", Kind::Fail).failure_text(), bare);
}

#[test]
fn long_words_are_cut_short_and_short_ones_are_not() {
    let long = |length: usize| "n".repeat(length);
    let cut = |kept: usize, length: usize| format!("{}[... {length} characters]", long(kept));
    let failed = |seen: String| {
        let mut failed = rule("1.02", Kind::Fail);
        failed.outcome = Outcome::Fail { seen };
        failed
    };
    for (seen, told) in [
        (
            format!("the name {} was refused\nand more", long(1000)),
            format!("the name {} was refused", cut(30, 1000)),
        ),
        (long(60), long(60)),
        (long(61), cut(30, 61)),
    ] {
        let table = paragraph(&report(vec![failed(seen)]), "## Rules");
        assert!(table.ends_with(&format!("| fail | {told} |")), "{table}");
    }
    // A failure text has paths as well, and names at their limit.
    for (seen, told) in [(long(200), long(200)), (long(201), cut(100, 201))] {
        let text = failed(seen).failure_text();
        assert!(text.contains(&format!("\n    {told}\n")), "{text}");
    }
}

#[test]
fn each_run_has_a_line_in_the_summary_of_all() {
    let scratch = Scratch::new("merge");
    let path = scratch.path().join("summary.json");
    let read = || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap() };
    of_kinds(&[Kind::Pass]).write_to(scratch.path()).unwrap();
    assert_eq!(read()["runs"]["store-sim"]["counts"]["pass"], 1);
    // What was there and is no summary is no matter.
    for junk in ["[1, 2]", "no json at all"] {
        std::fs::write(&path, junk).unwrap();
        of_kinds(&[Kind::Pass]).write_to(scratch.path()).unwrap();
        assert_eq!(read()["runs"]["store-sim"]["counts"]["pass"], 1, "{junk}");
    }
    let mut other = report(vec![
        rule("10.01", Kind::Fail),
        rule("3.01", Kind::Fail),
        rule("3.02", Kind::Pass),
        rule("3.03", Kind::Waived),
    ]);
    other.backend = "other";
    other.write_to(scratch.path()).unwrap();
    let all = read();
    assert_eq!(all["schema"], SCHEMA);
    assert_eq!(all["runs"]["store-sim"]["total"], "pass");
    let line = &all["runs"]["other-sim"];
    assert_eq!(line["failed"], serde_json::json!(["3.01", "10.01"]));
    assert_eq!(line["waived"], serde_json::json!(["3.03"]));
    assert_eq!(line["total"], "fail");
    // What cannot be read is not overwritten: nothing is even prepared.
    let blocked = scratch.path().join("blocked");
    std::fs::create_dir_all(blocked.join("summary.json")).unwrap();
    assert!(other.write_to(&blocked).is_err());
    assert_eq!(names(&blocked), ["other-sim", "summary.json"]);
}

#[test]
fn a_report_is_written_in_all_of_its_forms() {
    let scratch = Scratch::new("forms");
    let report = of_kinds(&[Kind::Fail]);
    report.write_to(scratch.path()).unwrap();
    let own = scratch.path().join("store-sim");
    assert_eq!(names(scratch.path()), ["store-sim", "summary.json"]);
    assert_eq!(
        names(&own),
        ["junit.xml", "report.html", "report.json", "summary.md"]
    );
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let json = |path: PathBuf| -> serde_json::Value { serde_json::from_str(&read(path)).unwrap() };
    assert_eq!(json(own.join("report.json"))["rules"][0]["id"], "8.08");
    assert!(read(own.join("junit.xml")).contains("failures=\"1\""));
    assert_eq!(read(own.join("summary.md")), report.summary());
    let all = json(scratch.path().join("summary.json"));
    assert_eq!(all["runs"]["store-sim"]["failed"], serde_json::json!(["8.08"]));
}

#[test]
fn only_earlier_histories_of_the_same_rules_are_replaced() {
    let scratch = Scratch::new("histories");
    let own = scratch.path().join("store-sim");
    let with_history = |id: &'static str, kind| {
        let mut rule = rule(id, kind);
        let mut attempt = attempt(kind, 1);
        attempt.history = vec![Event::new(EventKind::FaultBegin, 1, 1, "x")];
        rule.attempts = vec![attempt];
        rule
    };
    let mut silent = rule("1.03", Kind::Fail);
    silent.attempts = vec![attempt(Kind::Fail, 1)];
    let mut report = report(vec![with_history("1.01", Kind::Pass), silent]);
    // Where there is nothing to keep, no directory is made.
    report
        .write_histories(scratch.path(), Histories::NotPassed)
        .unwrap();
    assert!(!own.exists());
    let rules = [with_history("1.02", Kind::Fail), rule("1.05", Kind::NotRun)];
    report.rules.extend(rules);
    std::fs::create_dir_all(&own).unwrap();
    let earlier = [
        "1.01-0x1.jsonl",
        "1.02-0x1.jsonl",
        "1.02-notes.txt",
        "1.05-0x1.jsonl",
        "11.01-0x1.jsonl",
    ];
    for name in earlier {
        std::fs::write(own.join(name), "").unwrap();
    }
    report
        .write_histories(scratch.path(), Histories::NotPassed)
        .unwrap();
    let kept = [
        "1.02-0x2a.jsonl",
        "1.02-notes.txt",
        "1.05-0x1.jsonl",
        "11.01-0x1.jsonl",
    ];
    assert_eq!(names(&own), kept);
    assert_eq!(
        report.rules[2].attempts[0].stored,
        Some(own.join("1.02-0x2a.jsonl"))
    );
    report.write_histories(scratch.path(), Histories::All).unwrap();
    assert!(names(&own).contains(&"1.01-0x2a.jsonl".to_owned()));
    // A file in the place of the directory is told of.
    let blocked = scratch.path().join("blocked");
    std::fs::create_dir_all(&blocked).unwrap();
    std::fs::write(blocked.join("store-sim"), "").unwrap();
    assert!(report.write_histories(&blocked, Histories::All).is_err());
}
