//! The program `dlock`: runs the command that was asked for, and turns its outcome into an exit code.
#![allow(clippy::print_stdout, clippy::print_stderr)] // it is a program that prints

mod args;
mod bench;
mod doctor;
mod elect;
mod failure;
mod job;
mod leash;
mod look;
mod pages;
mod run;
mod signals;
mod store;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Args, Command};
use crate::failure::{Failure, code};
use crate::leash::Leash;

fn main() -> ExitCode {
    if let Some(leash) = Leash::read(std::env::args_os().skip(1)) {
        return leash.run();
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            let _ = e.print();
            // Not clap's 2, which may be an exit code of the command.
            return ExitCode::from(if e.use_stderr() { code::USAGE } else { 0 });
        }
    };
    let done = match args.command {
        // These need no store.
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { folder } => pages::man(&folder),
        command => with_store(args.store, command),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("dlock: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// Runs a command that needs a store.
fn with_store(store: args::Store, command: Command) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::new(code::STORE, format!("cannot start the runtime: {e}")))?;
    let done = runtime.block_on(async {
        let store = store::find(store)?;
        match command {
            Command::Run(run) => run::main(&store, run).await,
            Command::Elect(elect) => elect::main(&store, elect).await,
            Command::Status(status) => look::status(&store, &status).await,
            Command::Ls(ls) => look::ls(&store, &ls).await,
            Command::Watch(watch) => look::watch(&store, &watch).await,
            Command::Release(release) => look::release(&store, &release).await,
            Command::Doctor(doctor) => doctor::main(&store, doctor).await,
            Command::Bench(bench) => bench::main(&store, bench).await,
            Command::Completions { .. } | Command::Man { .. } => Ok(0),
        }
    });
    // A pending read of a terminal would keep the runtime alive.
    runtime.shutdown_background();
    done
}
