//! Every backend of this repository under the conformance kit, on every runtime.
//!
//! `cargo test --test conformance`            every rule of each backend on one runtime, the smoke set on the others
//! `cargo test --test conformance -- --cross`  every rule on every runtime
//! `cargo test --test conformance -- --only sqlite-smol 3.02`   some rules on one of them
//!
//! Needs all features. Writes `target/conformance/summary.json` and a directory of reports for each run.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program that reports

mod backends;

use std::path::PathBuf;
use std::process::ExitCode;

use backends::{BACKENDS, Subjects};
use dlock_conformance::{Effort, Kind, Options, run};

const HELP: &str =
    "usage: conformance [--cross] [--full] [--only BACKEND-RUNTIME] [--report DIR] [--seed N] [RULE...]
  --cross      every rule on every runtime, instead of the smoke set on all but the first
  --full       the budgets of the catalogue instead of quick ones
  --only X     one backend on one runtime, such as sqlite-smol; every rule unless some are named
  --report DIR where reports go; target/conformance unless given";

struct Command {
    cross: bool,
    only: Option<String>,
    report: PathBuf,
    options: Options,
}

fn parse() -> Result<Command, String> {
    let mut command = Command {
        cross: false,
        only: None,
        report: PathBuf::from(option_env!("CARGO_TARGET_DIR").unwrap_or("target")).join("conformance"),
        options: Options::default(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--cross" => command.cross = true,
            "--full" => command.options.effort = Effort::Full,
            "--only" => command.only = Some(value()?),
            "--report" => command.report = PathBuf::from(value()?),
            "--seed" => {
                let text = value()?;
                let digits = text
                    .strip_prefix("0x")
                    .map_or_else(|| text.parse(), |d| u64::from_str_radix(d, 16));
                command.options.seed = digits.map_err(|_| format!("not a seed: {text}"))?;
            }
            "--help" | "-h" => return Err(String::new()),
            _ if arg.starts_with('-') => return Err(format!("no such flag: {arg}")),
            _ => command.options.filters.push(arg),
        }
    }
    Ok(command)
}

fn main() -> ExitCode {
    let command = match parse() {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("{problem}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let mut table = Vec::new();
    let (mut passed, mut red) = (0, 0);
    for (backend, runtimes) in BACKENDS {
        for (i, runtime) in runtimes.iter().enumerate() {
            let label = format!("{backend}-{}", runtime.name());
            if command.only.as_ref().is_some_and(|only| *only != label) {
                continue;
            }
            let whole =
                i == 0 || command.cross || command.only.is_some() || !command.options.filters.is_empty();
            let mut options = if whole {
                command.options.clone()
            } else {
                command.options.clone().smoke()
            };
            options.report_to = Some(command.report.clone());
            options.replay = format!("cargo test --all-features --test conformance -- --only {label}");
            println!(
                "== {label}: {}",
                if whole { "every rule" } else { "the smoke set" }
            );
            let report = run(Subjects::new(backend, *runtime), &options);
            for rule in report.rules.iter().filter(|r| r.outcome.is_red()) {
                println!("{}", rule.failure_text());
            }
            for problem in &report.problems {
                println!("{problem}");
            }
            passed += report.count(Kind::Pass);
            let bad = [Kind::Fail, Kind::Inconclusive, Kind::Error]
                .map(|kind| report.count(kind))
                .iter()
                .sum::<usize>();
            // A run that ran nothing proves nothing.
            red += bad + usize::from(report.exit_code() != 0 && bad == 0);
            for rule in &report.rules {
                if matches!(rule.outcome.kind(), Kind::NotRun | Kind::Unsupported) {
                    println!(
                        "rule {} {}: {}",
                        rule.id,
                        rule.outcome.kind(),
                        rule.outcome.text()
                    );
                }
            }
            // What the catalogue numbers and nothing tests yet is in the report, not in the table.
            let counts = Kind::ALL.map(|kind| (kind, report.count(kind)));
            let counts = counts
                .iter()
                .filter(|(kind, n)| *n > 0 && *kind != Kind::Untested)
                .map(|(kind, n)| format!("{n} {kind}"));
            let counts = counts.collect::<Vec<_>>().join(", ");
            table.push(format!(
                "| {label:<26} | {:<9} | {counts} | {:.0} s |",
                if whole { "every one" } else { "smoke set" },
                report.took.as_secs_f64()
            ));
        }
    }
    if table.is_empty() {
        eprintln!(
            "nothing is called that: there are {}",
            backends::labels().join(", ")
        );
        return ExitCode::from(2);
    }
    println!("\n| backend and runtime | rules | outcomes | time |\n|---|---|---|---|");
    for line in table {
        println!("{line}");
    }
    println!("\n{passed} passed, {red} failed");
    if red == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
