//! A service of three processes, of which one schedules: leader election, watched while the leader is killed,
//! paused and cut off.
//!
//! `cargo run --features redis --example election`   exit code 0 only if every promise was observed
//!
//! Each process campaigns. The one that leads counts up a number behind the fence gate, some twenty times a
//! second. At the end each number must have been written once, by leaders whose tokens grow: at each moment
//! at most one of them wrote.
//!
//! It starts a Redis server of its own: `redis-server` has to be in PATH.
#![allow(clippy::print_stdout, clippy::print_stderr)] // showing is what it is for

#[cfg(unix)]
#[path = "election/candidate.rs"]
mod candidate;
#[cfg(unix)]
#[path = "election/link.rs"]
mod link;
#[cfg(unix)]
#[path = "quickstart/process.rs"]
mod process;
#[cfg(unix)]
#[allow(dead_code)] // it is also another example's
#[path = "redlock/servers.rs"]
mod servers;
#[cfg(unix)]
#[path = "election/troubles.rs"]
mod troubles;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [] => troubles::run(),
        // What the program starts itself as.
        ["as", "candidate", url] => candidate::run(url),
        _ => Err("it takes no arguments".into()),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("election: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(unix))]
fn main() -> std::process::ExitCode {
    eprintln!("this program stops processes with signals, as only Unix has them");
    std::process::ExitCode::FAILURE
}
