//! SQLite under processes that are killed and stopped at random moments.
//!
//! `cargo test --all-features --test crash`                   20 rounds `cargo test --all-features --test
//! crash -- --rounds 200`   as many as one likes; `--seed N` for others of them
//!
//! Three processes take one lock, write to a fenced resource without asking whether they still may, and let
//! go, over and over. In each round one of them, at any moment of this, is killed, stopped for a while, or
//! stopped until another has the lock. What must hold:
//!
//! * no two guards are valid at the same time, by the deadlines that each believed in;
//! * no write with a token is admitted after one with a larger token;
//! * the lock is free for the waiters when the lease of the killed process has run out;
//! * except while a stopped process sits in a write transaction, which keeps the file from everybody: then
//!   nobody is granted until it goes on or dies. How often that happened is counted and shown.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program that reports

#[path = "../conformance/backends.rs"]
#[allow(dead_code)] // the conformance test uses all of it
mod backends;
mod judge;
mod storm;
mod transaction;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use backends::{RuntimeKind, Subjects};
use dlock_conformance::{
    Access, Conditions, Effort, Evidence, Harness, Layer, Level, Outcome, Rule, Test, agent, run_once,
};
use futures::FutureExt;

const TEST: &str = "kills_and_stops_at_random_moments";

static RULE: Rule = Rule {
    id: "0.00",
    level: Level::Must,
    phase: 1,
    needs: &[],
    layer: Layer::Both,
    access: Access::C,
    test: Test::X,
    title: "kills and stops at random moments",
    statement: "",
    intent: "",
    check_first: "",
    evidence: &[
        Evidence {
            counter: "grants",
            least: 20,
        },
        Evidence {
            counter: "kills",
            least: 1,
        },
        Evidence {
            counter: "stops",
            least: 1,
        },
        Evidence {
            counter: "hit while it held",
            least: 1,
        },
    ],
    // A round takes a second, and the machine may have others to serve.
    budget: Duration::from_secs(3600),
    bug: None,
    run: |cx| storm::storm(cx).boxed(),
};

fn number(text: Option<String>) -> Option<u64> {
    let text = text?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn main() -> ExitCode {
    // A child process, before anything else.
    if let Some(told) = agent::handed_over() {
        return agent::serve(Subjects::of_a_child(&told));
    }
    let mut seed = 0x5eed;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--rounds" => match number(args.next()) {
                Some(rounds) => storm::set_rounds(rounds),
                None => return usage(),
            },
            "--seed" => match number(args.next()) {
                Some(number) => seed = number,
                None => return usage(),
            },
            "--list" => {
                println!("{TEST}: test");
                return ExitCode::SUCCESS;
            }
            "--ignored" => return ExitCode::SUCCESS,
            // Of libtest: there is one test, and nothing of it is captured.
            "--format" | "--color" | "--test-threads" | "--skip" => drop(args.next()),
            "--nocapture" | "--show-output" | "--include-ignored" | "--quiet" | "-q" | "--exact" => {}
            // A filter, which `cargo test NAME` gives to every test program.
            filter if !filter.starts_with('-') => {
                if !TEST.contains(filter) {
                    println!("running 0 tests: none is called {filter}");
                    return ExitCode::SUCCESS;
                }
            }
            _ => return usage(),
        }
    }
    let subjects = Subjects::new("sqlite", RuntimeKind::TokioMultiThread);
    storm::set_shared_memory(subjects.shared_memory());
    let harness: Arc<dyn Harness> = Arc::new(subjects);
    let namespace = format!("crash-{}", std::process::id());
    let attempt = run_once(
        &RULE,
        &harness,
        namespace,
        seed,
        Effort::Quick,
        Conditions::default(),
    );
    for line in &attempt.notes {
        println!("{line}");
    }
    for (counter, n) in &attempt.evidence {
        println!("{n:>7}  {counter}");
    }
    match attempt.outcome {
        Outcome::Pass => {
            println!(
                "test result: ok. {:.0} s, seed {seed:#x}",
                attempt.took.as_secs_f64()
            );
            ExitCode::SUCCESS
        }
        Outcome::NotRun { reason } if cfg!(not(unix)) => {
            println!("not run: {reason}");
            ExitCode::SUCCESS
        }
        other => {
            println!(
                "test result: FAILED, seed {seed:#x}: {}: {}",
                other.kind(),
                other.text()
            );
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: crash [--rounds N] [--seed N]");
    ExitCode::from(2)
}
