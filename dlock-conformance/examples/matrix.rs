//! The proof that the kit bites: every planted bug against every rule, in virtual time.
//!
//! ```text
//! RUSTFLAGS="--cfg dlock_saboteur" cargo run -p dlock-conformance --example matrix -- [--quick | --soak] [--others N] [--bug NAME]... [--rule NUMBER]... [--out FILE] [--museum FILE] [--text]
//! ```
//!
//! `--others N` runs each rule that is not the bug's own on N seeds instead of 5: to measure a blast radius
//! before declaring it.
//!
//! `--rule ID` runs, of the rules that are not the bug's own, only these: to measure what all bugs do to a
//! rule that was changed.
//!
//! `--soak` plants nothing: the correct backend alone, on 1,000 seeds of each rule, 100 where it is one of
//! timing or chance.
//!
//! `--rule` runs only the rules of these numbers: for what the bugs of before break among new rules.
//!
//! `--museum FILE` writes the museum, `MUSEUM.md`. Without `--out` that is all: the bugs on show, each
//! against its own rule.
//!
//! `--text` prints what each bug's own rule says of it, as a run of the kit prints it, instead of the table.
//!
//! Ends with 1 if a bug is missed, a rule outside of a bug's declared blast radius breaks, or the correct
//! backend fails.

use std::process::ExitCode;

#[cfg(dlock_saboteur)]
fn main() -> ExitCode {
    use std::io::Write as _;

    use dlock_conformance::matrix::{Options, run};
    use dlock_conformance::museum;

    let mut options = Options::default();
    let mut out = None;
    let mut museum = None;
    let mut only_text = false;
    let mut args = std::env::args().skip(1);
    let mut complain = std::io::stderr();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => {
                let (bugs, rules) = (options.bugs, options.rules);
                options = Options::quick();
                (options.bugs, options.rules) = (bugs, rules);
            }
            "--soak" => options = Options::soak(),
            "--bug" => options.bugs.extend(args.next()),
            "--rule" => options.rules.extend(args.next()),
            "--others" => match args.next().and_then(|n| n.parse().ok()) {
                Some(seeds) => options.others = seeds,
                None => {
                    let _ = writeln!(complain, "--others needs a number of seeds");
                    return ExitCode::from(2);
                }
            },
            "--out" => out = args.next(),
            "--museum" => museum = args.next(),
            "--text" => only_text = true,
            _ => {
                let _ = writeln!(
                    complain,
                    "no such flag: {arg} (--quick, --soak, --others N, --bug NAME, --rule NUMBER, --out \
                        FILE, --museum FILE, --text)"
                );
                return ExitCode::from(2);
            }
        }
    }
    let only_museum = museum.is_some() && out.is_none();
    if only_museum {
        options = options.museum();
    }
    let matrix = run(&options, &|line| {
        let _ = writeln!(std::io::stderr(), "{line}");
    });
    let text = match only_text {
        _ if !options.plant => format!(
            "correct backend: {} of {} runs are no pass\n{}",
            matrix.correct.len(),
            matrix.correct_runs,
            matrix.correct.join("\n")
        ),
        true => matrix.rows.iter().map(|row| format!("{}\n", row.text)).collect(),
        false => matrix.markdown(),
    };
    if let Some(path) = museum {
        let written = museum::page(&matrix)
            .and_then(|page| std::fs::write(path, page).map_err(|error| error.to_string()));
        if let Err(error) = written {
            let _ = writeln!(complain, "the museum could not be written: {error}");
            return ExitCode::from(3);
        }
    }
    let written = match out {
        None if only_museum => Ok(()),
        Some(path) => std::fs::write(path, text),
        None => std::io::stdout().write_all(text.as_bytes()),
    };
    if let Err(error) = written {
        let _ = writeln!(complain, "the matrix could not be written: {error}");
        return ExitCode::from(3);
    }
    if matrix.is_sharp() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(not(dlock_saboteur))]
fn main() -> ExitCode {
    use std::io::Write as _;

    let _ = writeln!(
        std::io::stderr(),
        "this build has no planted bugs: build it with RUSTFLAGS=\"--cfg dlock_saboteur\""
    );
    ExitCode::from(2)
}
