//! Five shops, two items, one SQLite file: what a distributed lock promises, watched with real processes.
//!
//! `cargo run --example quickstart`                  exit code 0 only if every promise was observed
//! `cargo run --example quickstart -- --without-lock`   the same shops without a lock, for comparison
//!
//! 1. Five buyer processes want one of two items. Exactly two are sold, and it is shown who held the lock
//!    with which token.
//! 2. A holder is killed. The next one gets the lock when the lease has run out, not before and not much
//!    later.
//! 3. A holder is paused for longer than its lease. When it goes on it is told that it lost the lock, and
//!    what it writes late is refused by the fence gate.
#![allow(clippy::print_stdout, clippy::print_stderr)] // showing is what it is for

#[cfg(unix)]
#[path = "quickstart/buyer.rs"]
mod buyer;
#[cfg(unix)]
#[path = "quickstart/process.rs"]
mod process;
#[cfg(unix)]
#[path = "quickstart/shop.rs"]
mod shop;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [] => shop::with_lock(),
        ["--without-lock"] => shop::without_lock(),
        ["--help" | "-h"] => {
            println!(
                "quickstart                  sells two items to five processes under a lock, kills and \
                    pauses holders"
            );
            println!("quickstart --without-lock   sells them without, and oversells");
            Ok(())
        }
        // What the program starts itself as.
        ["as", role, directory] => buyer::run(role, directory.as_ref()),
        _ => Err("unknown arguments; try --help".into()),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("quickstart: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(not(unix))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "this program needs Linux: its database is a SQLite file, which needs its clock, and it stops \
            processes with signals"
    );
    std::process::ExitCode::FAILURE
}
