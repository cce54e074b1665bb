//! Every backend of this repository under the conformance kit, on every runtime.
//!
//! ```text
//! cargo test --all-features --test conformance     every rule of each backend on one runtime, the smoke set
//!                                                  on the others
//! ... --test conformance -- --cross                every rule on every runtime
//! ... --test conformance -- --full                 the budgets of the catalogue instead of quick ones
//! ... --test conformance -- --only sqlite-smol 3.02        some rules on one of them
//! ```
//!
//! Each backend on a runtime is a process of its own, and some run at once: rules wait for most of their
//! time.
//!
//! Writes a folder of reports for each run to `target/conformance`; where something was chosen, only if
//! `--report` says where, so that a part does not pass for the whole.
//!
//! To `cargo test` and `cargo nextest` each backend on a runtime is one test, and the flags of libtest are
//! taken.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program that reports

mod backends;

use std::path::PathBuf;
use std::process::{self, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use backends::{BACKENDS, RuntimeKind, Subjects};
use dlock_conformance::{Access, Arguments, Kind, Options, Report, RuleReport, agent, rules, run};

const HELP: &str =
    "usage: conformance [--cross] [--full] [--only BACKEND-RUNTIME] [--test-threads N] [--report DIR]
                   [--seed N] [--attempt-seed N] [NAME...]
  NAME         a backend on a runtime or a part of its name, as --list shows them; otherwise the number of a
               rule or a part of its test's name; if nothing matches, nothing runs and the exit code is 0, as
               in libtest
  --cross      every rule on every runtime, instead of the smoke set on all but the first
  --full       more rounds: the budgets of the catalogue instead of quick ones
  --only X     one backend on one runtime, such as sqlite-smol; every rule unless some are named
  --test-threads N  how many backends run at once, each in its own process (default 4)
  --report DIR the directory for reports (default target/conformance; none with --only or a NAME)
  --seed N     the seed of the run
  --attempt-seed N  the seed of one attempt, from a report: repeats a rule exactly
  --histories  keep the histories of all rules, not only of those that did not pass
  --certificate DIR  the directory for the certificates of whole runs, one directory each
  verify PATH...  judge histories and certificates again, without the store
  explain RULE...  show everything about these rules: the reason, the needs, the planted and real bugs
  --list, --format pretty|terse, --exact, --skip NAME, --ignored, --include-ignored, --nocapture,
  --show-output, --quiet, --color C: as in libtest";

/// Which rules may be left out, and why; any other that was not run is a failure.
fn excuse(backend: &str, rule: &RuleReport) -> Option<&'static str> {
    match backend {
        "memory" if rule.id == "17.06" => {
            Some("its store is a part of the process and cannot be out of reach")
        }
        "sqlite" if rule.id == "7.16" => {
            Some("nothing here reads its tables but itself; its schema has one counter for all names")
        }
        "sqlite" if rule.id == "13.13" => {
            Some("nothing here reads its tables but itself; it sweeps rows that ran out")
        }
        "memory" | "sqlite" if rule.id == "7.07" || rule.id == "16.11" => {
            Some("it goes by a clock that nobody can set")
        }
        "redis-cluster" if rule.access.contains(&Access::P) => {
            Some("a client of a cluster goes to the addresses that its nodes tell, past any proxy")
        }
        "redis-cluster" if rule.id == "16.12" => Some(
            "its masters have no replicas here; what a replica lacks is shown on a master and its replica, \
                and dlock-redis's own tests kill a master of a cluster",
        ),
        "redis-plain" if rule.access.contains(&Access::H) => Some(
            "nothing here lays hands on its server, which is the one of redis; what it forgets in a restart \
                is forgotten, and nothing tells",
        ),
        "redlock" if rule.id == "16.12" => Some(
            "its members are no replicas of one another: what fails over is who is in the majority, in \
                18.01 to 18.03",
        ),
        "zookeeper" | "zookeeper-ensemble" if rule.id == "7.08" => {
            Some("its tokens are the numbers of ZooKeeper's transactions, which nobody can set")
        }
        "etcd" | "etcd-ensemble" if rule.id == "7.08" => {
            Some("its tokens are revisions of the cluster, which nobody can set")
        }
        "etcd" | "etcd-ensemble" if ["7.07", "16.11"].contains(&&*rule.id) => {
            Some("nothing of it goes by a clock that somebody can set")
        }
        "postgres-session" | "mariadb-session" if ["7.07", "16.11"].contains(&&*rule.id) => {
            Some("nothing of it goes by a clock of the server")
        }
        "postgres-session" | "mariadb-session" if ["7.08", "16.14", "16.17"].contains(&&*rule.id) => {
            Some("it keeps nothing of a name: the server has the locks, and one sequence all tokens")
        }
        "postgres" | "postgres-pooler" | "postgres-session" | "mariadb" | "mariadb-session"
            if rule.id == "16.12" =>
        {
            Some("there is one of it, and nothing to fail over to")
        }
        "memory" | "sqlite" | "zookeeper" | "etcd" if rule.id == "16.12" => {
            Some("there is one of it, and nothing to fail over to")
        }
        "redis" | "redis-cluster" | "redis-plain" | "redlock" | "zookeeper" | "zookeeper-ensemble"
        | "etcd" | "etcd-ensemble" | "postgres" | "postgres-pooler" | "postgres-session" | "mariadb"
        | "mariadb-session"
            if rule.id == "15.06" =>
        {
            Some("the kit's proxy knows bytes and no requests; the simulator sends them twice")
        }
        _ if rule.id == "16.16" && !["redis", "redis-cluster"].contains(&backend) => {
            Some("nothing here fills it")
        }
        _ if rule.id == "15.06" => Some("it has no network that could send a request twice"),
        _ if rule.access.contains(&Access::C) && !cfg!(unix) => Some("no process can be stopped here"),
        // Only elsewhere: no machine has what it needs there by default.
        _ if rule.id == "3.05" && !cfg!(target_os = "linux") => Some("it needs libfaketime"),
        _ => None,
    }
}

struct Command {
    arguments: Arguments,
    cross: bool,
    only: Option<String>,
    /// The one run of this process, which another one started.
    one: Option<String>,
    /// How many runs at once.
    at_once: usize,
    /// Parts of names of runs.
    runs: Vec<String>,
}

impl Command {
    /// Whether that backend on that runtime is asked for.
    fn chooses(&self, label: &str) -> bool {
        let matches = |name: &String| names(name, label, self.options().exact);
        self.only.as_ref().is_none_or(|only| only == label)
            && self.one.as_ref().is_none_or(|one| one == label)
            && (self.runs.is_empty() || self.runs.iter().any(matches))
            && !self.options().skip.iter().any(matches)
    }

    fn options(&self) -> &Options {
        &self.arguments.options
    }
}

fn names(name: &str, label: &str, exact: bool) -> bool {
    name == label || (!exact && label.contains(name))
}

fn command() -> Result<Command, ExitCode> {
    let labels = backends::labels();
    let (mut cross, mut only, mut one) = (false, None, None);
    let mut arguments = Arguments::from_env(HELP, |flag, value| {
        match flag {
            "--cross" => cross = true,
            "--only" => {
                let label = value()?;
                if !labels.contains(&label) {
                    return Err(format!(
                        "nothing is called {label}: there are {}",
                        labels.join(", ")
                    ));
                }
                only = Some(label);
            }
            "--one" => one = Some(value()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let options = &mut arguments.options;
    let exact = options.exact;
    let at_once = std::mem::replace(&mut options.parallel, Options::default().parallel);
    let is_run = |name: &String| labels.iter().any(|label| names(name, label, exact));
    let (runs, filters): (Vec<String>, _) =
        std::mem::take(&mut options.filters).into_iter().partition(is_run);
    options.filters = filters;
    let reports = PathBuf::from(option_env!("CARGO_TARGET_DIR").unwrap_or("target")).join("conformance");
    if options.report_to.is_none() {
        // What a failure has to show is kept, whatever was chosen.
        options.histories_to = Some(reports.join("history"));
    }
    if only.is_none() && runs.is_empty() && options.is_complete() {
        options.report_to.get_or_insert(reports);
    }
    Ok(Command {
        arguments,
        cross,
        only,
        one,
        at_once,
        runs,
    })
}

/// The runs as tests, in the form of libtest.
fn list(command: &Command) {
    let labels = backends::labels();
    let chosen: Vec<_> = labels
        .iter()
        .filter(|label| !command.arguments.ignored_only && command.chooses(label))
        .collect();
    for label in &chosen {
        println!("{label}: test");
    }
    if !command.arguments.terse {
        println!("\n{} tests, 0 benchmarks", chosen.len());
    }
}

/// What keeps that report from being green.
fn faults(backend: &str, report: &Report) -> Vec<String> {
    let mut faults = report.problems.clone();
    for rule in &report.rules {
        let excused = excuse(backend, rule).is_some();
        match rule.outcome.kind() {
            Kind::Fail | Kind::Inconclusive | Kind::Error => faults.push(rule.failure_text()),
            Kind::NotRun if !excused => faults.push(rule.failure_text()),
            _ => {}
        }
    }
    if faults.is_empty() && report.exit_code() != 0 {
        faults.push(format!(
            "nothing passed, or no profile is claimed (exit code {})",
            report.exit_code()
        ));
    }
    faults
}

fn main() -> ExitCode {
    // A child process of a rule, before anything else.
    if let Some(told) = agent::handed_over() {
        return agent::serve(Subjects::of_a_child(&told));
    }
    let command = match command() {
        Ok(command) => command,
        Err(code) => return code,
    };
    if command.arguments.list {
        list(&command);
        return ExitCode::SUCCESS;
    }
    if command.arguments.ignored_only {
        // Nothing is ever marked as ignored.
        return ExitCode::SUCCESS;
    }
    let options = command.options();
    if !options.filters.is_empty() && !rules::all().any(|rule| options.selects(rule)) {
        println!(
            "no backend, runtime or rule is called {}: nothing was run",
            options.filters.join(" or ")
        );
        return ExitCode::SUCCESS;
    }
    let runs = chosen(&command);
    if runs.is_empty() {
        println!("all runs were skipped: nothing is said about any rule");
        return ExitCode::SUCCESS;
    }
    let passed = match runs[..] {
        [one] => one.judged(&command),
        _ => side_by_side(&runs, command.at_once),
    };
    if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// One backend on one runtime.
#[derive(Clone, Copy)]
struct Run {
    backend: &'static str,
    runtime: RuntimeKind,
    /// Every rule, and not the smoke set alone.
    whole: bool,
}

/// What the command asks for; what takes longest comes first, and what is heavy beside what sleeps.
fn chosen(command: &Command) -> Vec<Run> {
    let every = command.cross || command.only.is_some();
    let named = every || !command.runs.is_empty();
    let mut runs = Vec::new();
    for (backend, runtimes) in BACKENDS {
        for (i, &runtime) in runtimes.iter().enumerate() {
            let differs = backends::is_mostly_another(backend);
            let first = i == 0 && !differs;
            let whole = first || every || !command.options().filters.is_empty();
            let run = Run {
                backend,
                runtime,
                whole,
            };
            if command.chooses(&run.label()) && (named || i == 0 || !differs) {
                runs.push(run);
            }
        }
    }
    runs.sort_by_key(|run| {
        let (heavy, sleeps) = (backends::is_heavy(run.backend), backends::sleeps(run.backend));
        let class = match run.whole {
            true if heavy || sleeps => 0,
            false if sleeps => 1,
            true => 2,
            false => 3,
        };
        // Those of one backend are apart: together they keep its servers and the processors busy.
        (class, run.runtime as u8)
    });
    runs
}

/// Each in a process of its own, some at once. Says whether all passed.
fn side_by_side(runs: &[Run], at_once: usize) -> bool {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once.max(1) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let label = run.label();
                    println!("== {label}: {}", run.rules());
                    let output = std::env::current_exe().and_then(|this| {
                        process::Command::new(this)
                            .args(std::env::args().skip(1))
                            .args(["--one", &label])
                            .stderr(Stdio::inherit())
                            .output()
                    });
                    let (passed, text) = match output {
                        Ok(output) => (
                            output.status.success(),
                            String::from_utf8_lossy(&output.stdout).into_owned(),
                        ),
                        Err(error) => (false, format!("{label} could not be run: {error}\n")),
                    };
                    print!("{text}");
                    done.lock().expect("no run panics").push((label, passed, text));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no run panics");
    done.sort();
    println!("\n| backend and runtime | rules | outcomes | time |\n|---|---|---|---|");
    for row in done
        .iter()
        .flat_map(|(.., text)| text.lines())
        .filter(|line| line.starts_with("| "))
    {
        println!("{row}");
    }
    // Once more, where one looks first and where a log that is cut still has them.
    done.retain(|(_, passed, _)| !passed);
    for (label, _, text) in &done {
        println!("\n== {label} failed:\n{text}");
    }
    println!("{} runs, {} failed", runs.len(), done.len());
    done.is_empty()
}

impl Run {
    fn label(self) -> String {
        format!("{}-{}", self.backend, self.runtime.name())
    }

    fn rules(self) -> &'static str {
        if self.whole { "every rule" } else { "the smoke set" }
    }

    /// Runs the rules here, says what came of it, and whether it is good.
    fn judged(self, command: &Command) -> bool {
        let (backend, label) = (self.backend, self.label());
        let mut options = command.options().clone();
        if !self.whole {
            options = options.smoke();
        }
        if command.one.is_some() {
            // Others run beside this one. Of the runtimes in the smoke set some have but one thread, on which
            // a rule of timing would wait for another rule.
            options.parallel = match backend {
                _ if !self.whole => 1,
                // A client that a rule cuts off keeps a connection of the pooler's, for which others wait.
                "postgres-pooler" => 1,
                // Their ttls are those of sessions, seconds long, and rules wait for these.
                "zookeeper" | "etcd" | "mariadb-session" => 4,
                _ => 2,
            };
        }
        options.report_to = options.report_to.map(|reports| reports.join(&label));
        options.replay = format!("cargo test --all-features --test conformance -- --only {label}");
        let report = run(Subjects::new(backend, self.runtime), &options);
        for rule in &report.rules {
            // Without a server, the rules about networks are not run by the dozen, and have nothing to say.
            let no_server = rule.access.contains(&Access::P) && !backends::has_server(backend);
            let kind = rule.outcome.kind();
            if matches!(kind, Kind::NotRun | Kind::Unsupported) && !no_server {
                let excused = excuse(backend, rule).filter(|_| kind == Kind::NotRun);
                let why = excused.unwrap_or_else(|| rule.outcome.text());
                println!("rule {} {kind} on {label}: {why}", rule.id);
            }
        }
        // Last, so that the end of a log has them.
        let faults = faults(backend, &report);
        for fault in &faults {
            println!("{label}: {fault}");
        }
        let counts = Kind::ALL.map(|kind| (kind, report.count(kind)));
        let counts = counts
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(kind, n)| format!("{n} {kind}"));
        println!(
            "| {label:<36} | {:<13} | {} | {:.0} s |",
            self.rules(),
            counts.collect::<Vec<_>>().join(", "),
            report.took.as_secs_f64()
        );
        faults.is_empty()
    }
}
