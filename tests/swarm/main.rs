//! A swarm at one lock of one real Redis server: a thousand waiters in twenty processes that are killed and
//! stopped at random.
//!
//! `cargo test --all-features --test swarm`                       a few signals `cargo test --all-features
//! --test swarm -- --waiters 1000 --processes 20 --kills 200`   as many as one likes; `--seed N` for others
//! of them
//!
//! Each waiter takes the lock, holds it for a moment, lets go, and waits again. Processes are killed (the one
//! that holds, the one that is next, any; running or stopped), and replaced; others are stopped for a while.
//! In the end nobody asks again, and the queue runs empty. Processes write down what they believed, and the
//! server's own commands are listened to (`MONITOR`): who arrived when, who was granted, when that ended.
//! What must hold is judged from these two, when all is over:
//!
//! * every waiter of a process that lives is served, and no request twice;
//! * a grant goes to the one who has waited longest, of those who are there: never is one passed over who was
//!   neither killed nor stopped;
//! * a holder that dies delays the others by what was left of its ttl at most, one that dies before it
//!   claimed its turn by its claim window, and the slack; one that is stopped costs no more than one window,
//!   whatever else it waits for;
//! * no hold is ended but by its holder or its end; no two processes believe in the lock at once; tokens grow
//!   with each grant.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program that reports

mod child;
mod judge;
mod ledger;
mod monitor;
mod processes;
mod storm;

use std::process::ExitCode;
use std::time::{Duration, Instant};

const TEST: &str = "waiters_are_served_in_order_whoever_is_killed";

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) waiters: usize,
    pub(crate) processes: usize,
    /// How many processes are killed; half as many again are stopped for a while.
    pub(crate) kills: usize,
    pub(crate) seed: u64,
    pub(crate) ttl: Duration,
    pub(crate) window: Duration,
    /// How long who notices an end may take, beside what this machine is late by.
    pub(crate) slack: Duration,
}

fn number(text: Option<String>) -> Option<u64> {
    let text = text?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn main() -> ExitCode {
    // A child process, before anything else.
    if let Some(told) = child::told() {
        return child::serve(&told);
    }
    let mut plan = Plan {
        waiters: 1000,
        processes: 20,
        kills: 8,
        seed: 0x5eed,
        ttl: Duration::from_secs(2),
        window: Duration::from_millis(300),
        slack: Duration::from_millis(250),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || number(args.next());
        match arg.as_str() {
            "--waiters" | "--processes" | "--kills" | "--seed" => {
                let Some(n) = value() else { return usage() };
                let count = usize::try_from(n).unwrap_or(usize::MAX);
                match arg.as_str() {
                    "--waiters" => plan.waiters = count,
                    "--processes" => plan.processes = count,
                    "--kills" => plan.kills = count,
                    _ => plan.seed = n,
                }
            }
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
    if plan.processes < 3 || plan.waiters < plan.processes {
        return usage();
    }
    let began = Instant::now();
    let judged = storm::storm(&plan).and_then(|seen| {
        println!("{}", judge::figures(&seen));
        judge::judge(&plan, &seen)
    });
    let took = began.elapsed().as_secs_f64();
    match judged {
        Ok(table) => {
            println!("{table}");
            println!("test result: ok. {took:.0} s, seed {:#x}", plan.seed);
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("test result: FAILED, {took:.0} s, seed {:#x}: {why}", plan.seed);
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: swarm [--waiters N] [--processes N] [--kills N] [--seed N]");
    ExitCode::from(2)
}
