//! The proof that the kit catches bugs: rules × planted bugs, on the reference backend in virtual time. Those
//! about quorums run on a quorum of five.
//!
//! It requires that the correct backend breaks no rule, that each bug (a rule's own or a rebuilt one) is
//! caught by its rule, always if it is deterministic and 99 of 100 times if not, and that the failure text
//! names the rule and not the kit's internals. `MATRIX.md` shows which other rules break.
//!
//! Each bug runs in a separate process, in which it is switched on from the beginning.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::museum::{self, Planted, REBUILT};
use crate::attempt::{Attempt, run_once};
use crate::claims::Need;
use crate::cx::{Conditions, Effort};
use crate::harness::Harness;
use crate::outcome::Kind;
use crate::report::RuleReport;
use crate::report::text::first_line;
use crate::rule::{Detection, Rule, Test, order};
use crate::rules;
use crate::side_by_side::side_by_side;
use crate::simulated::Simulated;

/// The rule that runs everything at once breaks now and then under most bugs, which says nothing about how
/// sharp the other rules are.
const EVERYTHING: &str = "16.15";

/// How many seeds, and which bugs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Options {
    /// Seeds for a bug that shows in every run.
    pub deterministic: u64,
    /// Seeds for a bug that shows by chance or timing.
    pub stochastic: u64,
    /// Seeds for each rule that is not the bug's own.
    pub others: u64,
    /// Seeds for each rule on the correct backend.
    pub correct: u64,
    /// Of these, seeds for a rule of timing or of chance, which takes longer.
    pub correct_timed: u64,
    /// Whether bugs are planted at all.
    pub plant: bool,
    /// Names of bugs. All, if empty.
    pub bugs: Vec<String>,
    /// Numbers of the rules to run, to see which new rules old bugs break. All, if empty.
    pub rules: Vec<String>,
    /// How many bugs at once.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deterministic: 20,
            stochastic: 200,
            others: 5,
            correct: 20,
            correct_timed: 20,
            plant: true,
            bugs: Vec::new(),
            rules: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Options {
    /// The correct backend alone, on enough seeds to show what fails once in a hundred runs.
    pub fn soak() -> Self {
        Self {
            correct: 1000,
            correct_timed: 100,
            plant: false,
            ..Self::default()
        }
    }

    fn rules(&self) -> impl Iterator<Item = &'static Rule> {
        rules::all().filter(|rule| self.runs(rule))
    }

    fn runs(&self, rule: &Rule) -> bool {
        self.rules.is_empty() || self.rules.iter().any(|id| id == rule.id)
    }

    /// Each bug against its own rule, on a quarter of the seeds.
    pub fn own() -> Self {
        Self {
            deterministic: 5,
            stochastic: 50,
            others: 0,
            correct: 5,
            correct_timed: 5,
            ..Self::default()
        }
    }

    /// What the museum needs: the bugs on show, each against its own rule.
    pub fn museum(self) -> Self {
        Self {
            others: 0,
            correct: 0,
            correct_timed: 0,
            bugs: museum::exhibits().map(|e| e.bug.to_owned()).collect(),
            ..self
        }
    }

    fn seeds(&self, rule: &Rule) -> u64 {
        match rule.test {
            Test::T | Test::X => self.correct_timed,
            _ => self.correct,
        }
    }
}

/// The result.
#[derive(Debug)]
#[non_exhaustive]
pub struct Matrix {
    /// One row per bug.
    pub rows: Vec<Row>,
    /// Runs of the correct backend that did not pass.
    pub correct: Vec<String>,
    /// How many runs of the correct backend there were.
    pub correct_runs: u64,
    /// How long it took.
    pub took: Duration,
}

/// The row of a bug.
#[derive(Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// The bug.
    pub bug: String,
    /// The number of the rule that must catch it.
    pub rule: String,
    /// How reliably.
    pub detection: Detection,
    /// In how many runs its rule caught it.
    pub caught: u64,
    /// Of how many.
    pub runs: u64,
    /// Which other rules broke, and in how many runs.
    pub blast: BTreeMap<String, u64>,
    /// What the rule said.
    pub excerpt: String,
    /// Its whole failure text, as a run of the kit prints it.
    pub text: String,
    /// Problems of the failure text, and runs that neither passed nor failed.
    pub problems: Vec<String>,
}

impl Row {
    /// Whether the bug is caught as reliably as it must be.
    pub fn is_caught(&self) -> bool {
        match self.detection {
            Detection::Deterministic => self.caught == self.runs,
            Detection::Stochastic => self.caught * 100 >= self.runs * 99,
        }
    }

    /// In how many runs it is caught, in words that do not depend on their number.
    pub(crate) fn often(&self) -> String {
        match self.caught {
            caught if caught > 0 && caught == self.runs => "always".to_owned(),
            caught => format!("{caught} of {}", self.runs),
        }
    }
}

impl Matrix {
    /// Whether all requirements hold.
    pub fn is_sharp(&self) -> bool {
        self.correct.is_empty() && self.rows.iter().all(|r| r.is_caught() && r.problems.is_empty())
    }

    /// `MATRIX.md`. It omits durations and how many runs there were, so that the same build gives the same
    /// file.
    pub fn markdown(&self) -> String {
        let mut text = String::from("# Planted bugs and the rules that catch them\n\n");
        // Writing to a string cannot fail.
        let caught = self.rows.iter().filter(|r| r.is_caught()).count();
        let _ = writeln!(
            text,
            "{caught} of {} planted bugs are caught by their own rule as reliably as they must be.\n\
             Runs of the correct backend that did not pass: {}.\n",
            self.rows.len(),
            self.correct.len()
        );
        text.push_str(LEGEND);
        let _ = writeln!(
            text,
            "| rule | bug | kind | caught | other rules that broke | what the rule said \
                |\n|---|---|---|---|---|---|"
        );
        for row in &self.rows {
            let kind = match row.detection {
                Detection::Deterministic => "deterministic",
                Detection::Stochastic => "stochastic",
            };
            let missed = if row.is_caught() { "" } else { " **missed**" };
            let mut blast: Vec<_> = row.blast.keys().map(String::as_str).collect();
            blast.sort_by_key(|id| order(id));
            let _ = writeln!(
                text,
                "| {} | `{}` | {kind} | {}{missed} | {} | {} |",
                row.rule,
                row.bug,
                row.often(),
                blast.join(", "),
                excerpt(row).replace('|', "\\|")
            );
        }
        let problems: Vec<String> = self
            .correct
            .iter()
            .map(|p| format!("correct backend: {p}"))
            .chain(
                self.rows
                    .iter()
                    .flat_map(|r| r.problems.iter().map(|p| format!("`{}`: {p}", r.bug))),
            )
            .collect();
        if !problems.is_empty() {
            let _ = writeln!(text, "\n## Problems\n");
            for problem in problems {
                let _ = writeln!(text, "- {}", problem.replace('\n', " "));
            }
        }
        text
    }
}

/// What the columns mean.
const LEGEND: &str = "\
A row is one planted bug in the kit's reference backend or in the engine, with the rule that must catch it.

- **kind**: a deterministic bug must be caught in all of 20 runs. A stochastic one depends on chance or real
  time and must be caught in at least 198 of 200. Each run has its own seed.
- **caught**: in how many runs its own rule failed.
- **other rules that broke**: every other rule ran with the bug as well, on five seeds. These rules failed.
- **what the rule said**: the first sentence of a failure, as a backend author would see it.

To generate this file again:

```sh
scripts/matrix --out dlock-conformance/MATRIX.md --museum dlock-conformance/MUSEUM.md
```

";

/// Runs it. `tell` hears a line per bug as it is done.
pub fn run(options: &Options, tell: &(dyn Fn(&str) + Sync)) -> Matrix {
    let started = Instant::now();
    let (correct, correct_runs) = correct(options, tell);
    if options.plant {
        tell(&format!(
            "correct backend: {} of {correct_runs} runs are no pass",
            correct.len()
        ));
    }
    let bugs: Vec<Planted> = bugs()
        .filter(|_| options.plant)
        .filter(|bug| options.bugs.is_empty() || options.bugs.iter().any(|name| name == bug.bug))
        .collect();
    let mut rows = side_by_side(options.threads, &bugs, |bug| {
        let row = elsewhere(bug, options);
        let verdict = if row.is_caught() { "caught" } else { "MISSED" };
        tell(&format!(
            "{} {}: {verdict} {}/{}",
            row.rule, row.bug, row.caught, row.runs
        ));
        row
    });
    // The rule's own bug first, then the rebuilt ones.
    rows.sort_by_key(|row: &Row| {
        (
            order(&row.rule),
            museum::rebuilt(&row.bug).is_some(),
            row.bug.clone(),
        )
    });
    Matrix {
        rows,
        correct,
        correct_runs,
        took: started.elapsed(),
    }
}

/// Each rule's own bug, and the rebuilt ones.
fn bugs() -> impl Iterator<Item = Planted> {
    let own = rules::all().filter_map(|rule| {
        let (bug, detection) = rule.bug?;
        let rule = rule.id;
        Some(Planted { bug, rule, detection })
    });
    own.chain(REBUILT.iter().copied())
}

/// The row of a bug, from a process in which it is switched on: this program, called for that
/// [row](row_here).
fn elsewhere(bug: &Planted, options: &Options) -> Row {
    let asked = serde_json::to_string(options).map_err(|e| e.to_string());
    let answer = asked.and_then(|options| {
        let output = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(["--row", bug.bug, &options])
                .env("DLOCK_BUG", bug.bug)
                .stderr(Stdio::inherit())
                .output()
        });
        let output = output.map_err(|e| e.to_string())?;
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{}: {e}", output.status))
    });
    answer.unwrap_or_else(|e| {
        let mut row = Row::of(bug);
        row.problems.push(format!("it could not be tried: {e}"));
        row
    })
}

/// The row of the bug of that name, which is switched on in this process, as a line of JSON.
///
/// # Errors
/// What is wrong with the name or the options.
pub fn row_here(bug: &str, options: &str) -> Result<String, String> {
    let options = serde_json::from_str(options).map_err(|e| e.to_string())?;
    let bug = bugs().find(|b| b.bug == bug).ok_or("there is no such bug")?;
    serde_json::to_string(&row(&bug, &options)).map_err(|e| e.to_string())
}

/// Runs every rule on the correct backend. Returns the runs that did not pass, and the number of runs.
fn correct(options: &Options, tell: &(dyn Fn(&str) + Sync)) -> (Vec<String>, u64) {
    let rules: Vec<_> = options.rules().collect();
    let runs = rules.iter().map(|rule| options.seeds(rule)).sum();
    let done = AtomicUsize::new(0);
    let bad = side_by_side(options.threads, &rules, |rule| {
        let mut bad = Vec::new();
        for seed in 0..options.seeds(rule) {
            let attempt = attempt(rule, false, seed);
            if attempt.outcome.kind() != Kind::Pass {
                bad.push(format!("{rule:?}, seed {seed:#x}: {:?}", attempt.outcome));
            }
        }
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if !options.plant && done.is_multiple_of(10) {
            tell(&format!("{done} of {} rules", rules.len()));
        }
        bad
    });
    let mut bad = bad.concat();
    bad.sort();
    (bad, runs)
}

/// The beginning of the failure text of a bug's rule.
pub(crate) fn excerpt(row: &Row) -> String {
    let text = without_lines(&first_line(&row.excerpt));
    text.chars().take(240).collect()
}

/// Removes source line numbers, because any edit above them would make the file stale.
fn without_lines(text: &str) -> String {
    let mut parts = text.split(".rs:");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(".rs");
        kept.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    kept
}

/// Members of the quorum that proves the rules of that section. With three, a majority of those that granted
/// is a majority of all.
const MEMBERS: usize = 5;

/// Where a rule is proved: on one store, or on a quorum if the rule or the bug is about quorums.
fn subject(rule: &Rule, on_quorum: bool, seed: u64) -> Arc<dyn Harness> {
    if on_quorum || is_about_quorums(rule) {
        return Arc::new(Simulated::quorum(seed, MEMBERS));
    }
    Arc::new(Simulated::new(seed))
}

fn is_about_quorums(rule: &Rule) -> bool {
    rule.needs.contains(&Need::Quorum)
}

/// Even a correct quorum does not keep rules that it does not claim.
fn is_claimed_of_a_quorum(rule: &Rule) -> bool {
    let claims = Simulated::quorum(0, MEMBERS).claims();
    rule.needs.iter().all(|need| claims.has(*need))
}

fn attempt(rule: &'static Rule, on_quorum: bool, seed: u64) -> Attempt {
    let name = format!("dlc-matrix-{}-0", rule.id);
    let harness = subject(rule, on_quorum, seed);
    run_once(rule, &harness, name, seed, Effort::Quick, Conditions::default())
}

impl Row {
    /// One of which nothing is known yet.
    fn of(planted: &Planted) -> Self {
        Self {
            bug: planted.bug.to_owned(),
            rule: planted.rule.to_owned(),
            detection: planted.detection,
            caught: 0,
            runs: 0,
            blast: BTreeMap::new(),
            excerpt: String::new(),
            text: String::new(),
            problems: Vec::new(),
        }
    }
}

fn row(bug: &Planted, options: &Options) -> Row {
    let mut row = Row::of(bug);
    let Some(own) = rules::find(bug.rule) else {
        row.problems.push(format!("there is no rule {}", bug.rule));
        return row;
    };
    let on_quorum = is_about_quorums(own);
    row.runs = match bug.detection {
        _ if !options.runs(own) => 0,
        Detection::Deterministic => options.deterministic,
        Detection::Stochastic => options.stochastic,
    };
    for seed in 0..row.runs {
        let attempt = attempt(own, on_quorum, seed);
        match attempt.outcome.kind() {
            Kind::Fail => {
                row.caught += 1;
                if row.excerpt.is_empty() {
                    row.excerpt = attempt.outcome.text().to_owned();
                    row.text = failure_text(own, attempt);
                    row.problems.extend(bad_text(own, &row.text));
                }
            }
            Kind::Pass => {}
            _ => row
                .problems
                .push(format!("{own:?}, seed {seed:#x}: {:?}", attempt.outcome)),
        }
    }
    for rule in options
        .rules()
        .filter(|rule| rule.id != bug.rule && rule.id != EVERYTHING)
        .filter(|rule| !on_quorum || is_claimed_of_a_quorum(rule))
    {
        for seed in 0..options.others {
            let kind = attempt(rule, on_quorum, seed).outcome.kind();
            // A simulated quorum has no hooks and no processes.
            let holds = kind == Kind::Pass || on_quorum && kind == Kind::NotRun;
            if !holds {
                *row.blast.entry(rule.id.to_owned()).or_default() += 1;
            }
        }
    }
    row
}

fn failure_text(rule: &Rule, attempt: Attempt) -> String {
    let replay = format!("seed {:#x}", attempt.seed);
    RuleReport::tested(rule, attempt.outcome.clone(), vec![attempt], false, replay).failure_text()
}

/// The failure text names the rule, and not the kit's own insides, and no drawing in it is longer than a
/// screen.
fn bad_text(rule: &Rule, text: &str) -> Vec<String> {
    const LINES: usize = 60;
    let mut problems = Vec::new();
    if !text.contains(rule.id) {
        problems.push(format!("the failure text of {rule:?} does not name the rule"));
    }
    for inside in ["unwrap", "RecvError"] {
        if text.contains(inside) {
            problems.push(format!("the failure text of {rule:?} speaks of `{inside}`"));
        }
    }
    if text.lines().count() > LINES {
        problems.push(format!(
            "the failure text of {rule:?} has more than {LINES} lines"
        ));
    }
    problems
}
