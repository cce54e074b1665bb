//! Runs the rules: which, in which order, how often.
//!
//! First the ones that look for races, a few at a time. Then the ones about time, also a few at a time, with
//! the canary. Then, one after the other, the ones that disturb others through hooks into the store. A rule
//! that lacked evidence beside others runs once more alone. In a simulation all run one after the other.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::Runtime;

use crate::attempt::{Attempt, attempt};
use crate::canary::Canary;
use crate::certificate::Certificate;
use crate::claims::{Claims, Engine};
use crate::cx::{Conditions, Setup};
use crate::harness::Harness;
use crate::options::Options;
use crate::outcome::{Kind, Outcome};
use crate::panics;
use crate::report::{Report, RuleReport};
use crate::rng::Rng;
use crate::rule::{Layer, Rule, Test, order};
use crate::rules;
use crate::run_state::RunState;
use crate::side_by_side::side_by_side;

/// How often a rule is run at most when the machine stalls in it.
const ATTEMPTS: usize = 3;

/// Runs the selected rules and reports the outcome of each.
///
/// Blocks the thread; call it from outside of any async runtime. A panic anywhere in the process outside the
/// kit becomes a problem of the report. With [`Options::report_to`] the reports are written there.
pub fn run(harness: impl Harness, options: &Options) -> Report {
    run_with(Arc::new(harness), options, |_| {})
}

/// Checks that each waiver names a rule, and says why.
fn check_waivers(claims: &Claims) -> Result<(), String> {
    for waiver in &claims.waivers {
        let rule = &waiver.rule;
        if rules::find(rule).is_none() {
            return Err(format!("rule {rule} is waived, and there is no such rule"));
        }
        if waiver.reason.trim().is_empty() || waiver.link.trim().is_empty() {
            return Err(format!("the waiver of rule {rule} needs a reason and a link"));
        }
    }
    Ok(())
}

/// The same, with a callback for each outcome.
pub(crate) fn run_with(
    harness: Arc<dyn Harness>,
    options: &Options,
    tell: impl Fn(&RuleReport) + Sync,
) -> Report {
    let started = Instant::now();
    let claims = harness.claims();
    let runtime = harness.runtime();
    if let Err(problem) = claims.check().and_then(|()| check_waivers(&claims)) {
        let (name, took) = (runtime.name(), started.elapsed());
        let mut report = Report::new(&claims, name, options, Duration::ZERO, took, Vec::new());
        report.problems.push(problem);
        return write(report, options);
    }
    let is_virtual = harness.clockwork().is_virtual();
    let canary = (!is_virtual).then(Canary::start);
    let disk = harness.disk().and_then(|folder| Canary::of_disk(&folder).ok());
    if canary.is_some() {
        // The lateness of this machine at rest.
        std::thread::sleep(Duration::from_millis(100));
    }
    panics::watch();
    let panics_before = panics::count(is_virtual);
    let runner = Runner {
        run: run_number(&*runtime),
        harness,
        options,
        state: Arc::new(RunState::new(claims)),
        canary,
        disk,
    };
    let selected: Vec<&'static Rule> = rules::all().filter(|rule| options.selects(rule)).collect();
    let (alone, together): (Vec<_>, Vec<_>) = selected
        .into_iter()
        .partition(|rule| is_virtual || rule.disturbs());
    let (timed, together): (Vec<_>, Vec<_>) = together.into_iter().partition(|rule| rule.test == Test::T);
    let beside_others = options.parallel > 1;
    let mut reports = Vec::new();
    // A rule that lacked evidence while the store was busy with others is run again, before the ones that run
    // alone.
    let mut by_itself = Vec::new();
    for rules in [together, timed] {
        let done = side_by_side(options.parallel, &rules, |rule| {
            let report = runner.rule(rule, Vec::new(), beside_others);
            if beside_others && report.outcome.kind() == Kind::Inconclusive {
                return Err((*rule, report.attempts));
            }
            tell(&report);
            Ok(report)
        });
        for one in done {
            match one {
                Ok(report) => reports.push(report),
                Err(again) => by_itself.push(again),
            }
        }
    }
    by_itself.extend(alone.into_iter().map(|rule| (rule, Vec::new())));
    for (rule, attempts) in by_itself {
        let report = runner.rule(rule, attempts, false);
        tell(&report);
        reports.push(report);
    }
    if runner.state.has_connected() {
        // Before the first connection it was possible that there is no store. There is one.
        for report in &mut reports {
            if report.blame_connecting() {
                tell(report);
            }
        }
    }
    reports.sort_by_key(|r| order(&r.id));
    let canary = runner.canary.as_ref().map_or(Duration::ZERO, Canary::p999);
    let (claims, took) = (&runner.state.claims, started.elapsed());
    let mut report = Report::new(claims, runtime.name(), options, canary, took, reports);
    let panics = panics::count(is_virtual) - panics_before;
    if panics > 0 {
        let latest = panics::latest().map_or_else(String::new, |p| {
            format!("; the latest, at {}:{}: {}", p.file, p.line, p.text)
        });
        report.problems.push(format!(
            "{panics} panics happened outside the kit during the run{latest}"
        ));
    }
    write(report, options)
}

fn write(mut report: Report, options: &Options) -> Report {
    let beside = options.report_to.as_ref().map(|to| to.join("history"));
    let histories = options.histories_to.clone().or(beside);
    let which = options.histories;
    type Write<'a> = &'a dyn Fn(&mut Report, &Path) -> io::Result<()>;
    let written: [(_, _, Write<'_>); 3] = [
        ("histories", &histories, &|report, to| {
            report.write_histories(to, which)
        }),
        ("reports", &options.report_to, &|report, to| report.write_to(to)),
        ("certificate", &options.certificate_to, &|report, to| {
            Certificate::write(report, to)
        }),
    ];
    for (what, directory, write) in written {
        if let Some(directory) = directory
            && let Err(error) = write(&mut report, directory)
        {
            let directory = directory.display();
            let problem = format!("the {what} could not be written to {directory}: {error}");
            report.problems.push(problem);
        }
    }
    report
}

/// Eight hexadecimal digits, so that two runs on one server do not meet.
fn run_number(runtime: &dyn Runtime) -> String {
    let mut bytes = [0; 4];
    runtime.fill_random(&mut bytes);
    format!("{:08x}", u32::from_le_bytes(bytes))
}

struct Runner<'a> {
    run: String,
    harness: Arc<dyn Harness>,
    options: &'a Options,
    state: Arc<RunState>,
    canary: Option<Canary>,
    disk: Option<Canary>,
}

impl Runner<'_> {
    /// Runs the rule; `attempts` has those that were made already.
    fn rule(&self, rule: &'static Rule, mut attempts: Vec<Attempt>, beside_others: bool) -> RuleReport {
        let missing = rule.needed().filter(|need| !self.state.claims.has(*need));
        let missing: Vec<String> = missing.map(|need| format!("{need:?}")).collect();
        let mut outcome = match missing.is_empty() {
            // The rule learns whether there is a proxy, a process or a hook when it requests one.
            true => self.attempts(rule, &mut attempts, beside_others),
            false => Outcome::Unsupported {
                needs: format!("not claimed: {}", missing.join(", ")),
            },
        };
        // No waiver covers an unreachable store.
        if !attempts.last().is_some_and(|last| last.unconnected) {
            outcome = self.waived(rule, outcome);
        }
        let replay = self.options.replay_of(rule, &attempts);
        let inherited = rule.layer == Layer::Engine && self.state.claims.engine == Engine::Inherited;
        RuleReport::tested(rule, outcome, attempts, inherited, replay)
    }

    fn attempts(&self, rule: &'static Rule, attempts: &mut Vec<Attempt>, beside_others: bool) -> Outcome {
        let most = attempts.len() + ATTEMPTS;
        loop {
            // Also its number: the seed and the names of each attempt are its own.
            let n = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
            let began = Instant::now();
            let late = self.canary.as_ref().map_or(Duration::ZERO, Canary::p999);
            let seed = rule_seed(self.options.seed, rule.id, n);
            let setup = Setup {
                rule: rule.id.to_owned(),
                namespace: format!("dlc-{}-{}-{n}", self.run, rule.id),
                seed: self.options.attempt_seed.unwrap_or(seed),
                effort: self.options.effort,
                harness: Arc::clone(&self.harness),
                run: Arc::clone(&self.state),
                conditions: Conditions { late, beside_others },
            };
            let mut attempt = attempt(rule, setup);
            let worst = |canary: &Option<Canary>| {
                let stall = canary.as_ref().map(|canary| canary.worst_since(began));
                stall.unwrap_or_default()
            };
            attempt.stall = worst(&self.canary);
            if attempt.outcome.kind() == Kind::Fail {
                // A rule that passed although the disk was late has passed.
                attempt.stall = attempt.stall.max(worst(&self.disk));
            }
            let limit = self.state.claims.slack / 2;
            let kind = attempt.outcome.kind();
            let is_verdict = matches!(kind, Kind::Pass | Kind::Fail | Kind::Inconclusive);
            let stalled = rule.test == Test::T && attempt.stall > limit && is_verdict;
            if stalled {
                let meanwhile = match attempt.outcome.text() {
                    "" => "it would have passed",
                    text => text,
                };
                let why = format!(
                    "this machine or its disk stalled for {:?}, more than half of the slack ({limit:?}); \
                        {meanwhile}",
                    attempt.stall
                );
                attempt.outcome = Outcome::Inconclusive { why };
            }
            let outcome = attempt.outcome.clone();
            attempts.push(attempt);
            if !stalled || attempts.len() == most {
                return outcome;
            }
        }
    }

    /// A waived rule is run too: if it holds, the waiver is out of date.
    fn waived(&self, rule: &Rule, outcome: Outcome) -> Outcome {
        match self.state.claims.waiver(rule.id) {
            Some(waiver) if matches!(outcome.kind(), Kind::Fail | Kind::Inconclusive | Kind::NotRun) => {
                Outcome::Waived {
                    reason: format!("{}; seen: {}", waiver.reason, outcome.text()),
                    link: waiver.link.clone(),
                }
            }
            _ => outcome,
        }
    }
}

/// The seed of an attempt is a function of the run's seed, the number of the rule and the attempt's.
fn rule_seed(seed: u64, id: &str, attempt: u32) -> u64 {
    let mut rng = Rng::new(seed);
    for byte in id.bytes() {
        rng = Rng::new(rng.bits() ^ u64::from(byte));
    }
    rng.bits() ^ u64::from(attempt)
}
