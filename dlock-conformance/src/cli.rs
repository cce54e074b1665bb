//! The `main` of a test binary with `harness = false`.
//!
//! It takes the flags of libtest that `cargo test` and `cargo nextest` give, and its own `--seed`,
//! `--attempt-seed`, `--full`, `--histories` and `--report`, `verify` and files, or `explain` and rules. It
//! refuses unknown flags: a silently ignored setting is worse than none. A filter that matches no rule is
//! reported but is no failure, as in libtest, since `cargo test NAME` gives it to every test binary.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::agent;
use crate::arguments::Arguments;
use crate::cx::NO_SERVERS;
use crate::harness::Harness;
use crate::lock::lock;
use crate::options::Options;
use crate::outcome::Kind;
use crate::report::{Report, RuleReport};
use crate::rule::Rule;
use crate::rules;
use crate::runner::run_with;

/// Makes the `main` of a conformance test out of a [`Harness`].
///
/// ```no_run
/// # mod example {
/// # use std::sync::Arc;
/// # use dlock_conformance::{simulated::Simulated, *};
/// # struct Mine;
/// # impl Mine { fn new() -> Simulated { Simulated::new(1) } }
/// // Cargo.toml: [[test]] name = "conformance", harness = false
/// dlock_conformance::main!(Mine::new());
/// # }
/// ```
#[macro_export]
macro_rules! main {
    ($harness:expr) => {
        fn main() -> ::std::process::ExitCode {
            $crate::main_with(|| $harness)
        }
    };
}

/// What [`main!`](crate::main) expands to. The harness is made only if rules run.
pub fn main_with<H: Harness>(harness: impl FnOnce() -> H) -> ExitCode {
    if agent::is_child() {
        return agent::serve_with(Arc::new(harness()));
    }
    let command = match Arguments::from_env(HELP, |_, _| Ok(false)) {
        Ok(command) => with_reports(command),
        Err(code) => return code,
    };
    let mut out = io::stdout();
    if command.list {
        return list(&mut out, &command).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if command.ignored_only {
        // No rule is ever marked as ignored.
        return ExitCode::SUCCESS;
    }
    if !command.options.filters.is_empty() && !rules::all().any(|rule| command.options.selects(rule)) {
        let filters = command.options.filters.join(" or ");
        let _ = writeln!(
            out,
            "no rule matches {filters}: none was run, and nothing is proven"
        );
        return ExitCode::SUCCESS;
    }
    run_rules(Arc::new(harness()), command)
}

/// How to call it.
const HELP: &str = include_str!("help.txt").trim_ascii_end();

/// The default places for reports and histories.
fn with_reports(mut command: Arguments) -> Arguments {
    let options = &mut command.options;
    if let Some(test) = test_target(&std::env::current_exe().unwrap_or_default()) {
        options.replay = format!("cargo test --test {test} --");
    }
    if options.is_complete() && options.report_to.is_none() {
        options.report_to = Some(target_directory().join("conformance"));
    }
    if options.report_to.is_none() {
        // The histories of failures are always kept.
        options.histories_to = Some(target_directory().join("conformance/history"));
    }
    command
}

/// The name of the test whose program is at that path: cargo puts a hash behind it.
fn test_target(program: &Path) -> Option<&str> {
    let (name, hash) = program.file_stem()?.to_str()?.rsplit_once('-')?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then_some(name)
}

/// The `target` that this binary was built in; cargo marks it with a tag.
fn target_directory() -> PathBuf {
    let binary = std::env::current_exe().unwrap_or_default();
    let found = binary
        .ancestors()
        .find(|directory| directory.join("CACHEDIR.TAG").is_file());
    found.map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

fn list(out: &mut impl Write, command: &Arguments) -> io::Result<()> {
    let selected = rules::all().filter(|rule| !command.ignored_only && command.options.selects(rule));
    let names: Vec<String> = selected.map(Rule::test_name).collect();
    for name in &names {
        writeln!(out, "{name}: test")?;
    }
    if !command.terse {
        writeln!(out, "\n{} tests, 0 benchmarks", names.len())?;
    }
    Ok(())
}

fn run_rules(harness: Arc<dyn Harness>, command: Arguments) -> ExitCode {
    let out = Mutex::new(io::stdout());
    let say = |text: &str| {
        // A closed pipe must not turn a verdict into a panic.
        let _ = writeln!(lock(&out), "{text}");
    };
    if !command.quiet {
        let (claims, runtime, seed) = (harness.claims(), harness.runtime(), command.options.seed);
        let (product, version, runtime) = (claims.product, claims.version, runtime.name());
        say(&format!("{product} {version} on {runtime}, seed {seed:#x}\n"));
    }
    let report = run_with(harness, &command.options, |rule| {
        if !command.quiet {
            say(&line(rule));
        }
    });
    say(&conclusion(&report, &command));
    ExitCode::from(exit_code(&report, &command.options))
}

/// nextest runs one rule at a time and knows no third outcome, so a rule that is not claimed is no failure. A
/// rule about networks is none either if the harness names no server for the proxy: there are two dozen of
/// these. Any other reason for which nothing passed is a failure. Otherwise an unreachable store would be
/// green.
fn exit_code(report: &Report, options: &Options) -> u8 {
    match (&report.rules[..], report.exit_code()) {
        ([rule], 4)
            if options.exact
                && report.missing_basis.is_empty()
                && (rule.outcome.kind() == Kind::Unsupported || rule.outcome.text() == NO_SERVERS) =>
        {
            0
        }
        (_, code) => code,
    }
}

fn line(rule: &RuleReport) -> String {
    match rule.outcome.kind() {
        Kind::Pass => format!("test {} ... ok", rule.name),
        Kind::Fail => format!("test {} ... FAILED", rule.name),
        kind => {
            let why = crate::report::text::first_line(rule.outcome.text());
            format!("test {} ... {kind}: {why}", rule.name)
        }
    }
}

/// How late timers may be on a machine that has time for the rules.
const BUSY: Duration = Duration::from_millis(20);

fn conclusion(report: &Report, command: &Arguments) -> String {
    let mut text = String::new();
    let red = || report.rules.iter().filter(|rule| rule.outcome.is_red());
    for rule in red() {
        text += &format!("\n{}", rule.failure_text());
    }
    for problem in &report.problems {
        text += &format!("\n{problem}\n");
    }
    if let (Some(first), Some(_)) = (red().next(), red().nth(1)) {
        let first = &first.id;
        text += &format!("\nbegin with {first}: several failures often have one cause\n");
    }
    if red().next().is_some() && report.canary_p999 > BUSY {
        let late = report.canary_p999;
        text += &format!(
            "\nthis machine was busy: timers were late by {late:?} (p99.9). Run again what failed, alone\n"
        );
    }
    let (verdict, took) = (report.verdict(), report.took.as_secs_f64());
    text += &format!("\nconformance: {verdict}; {took:.1} s");
    if let Some(directory) = &command.options.report_to {
        text += &format!("\nreports: {}", directory.display());
    }
    text
}
