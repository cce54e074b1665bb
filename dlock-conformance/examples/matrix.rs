//! The proof that the kit catches bugs: every planted bug against every rule, in virtual time.
//!
//! ```text
//! scripts/matrix [--own | --soak] [--others N] [--bug NAME]... [--rule NUMBER]... [--out FILE] [--museum
//! FILE] [--check] [--text]
//! ```
//!
//! `--own` runs each bug against its own rule only, on a quarter of the seeds and in a debug build, and
//! writes no table. Otherwise the build is optimised.
//! `--soak` plants nothing: it runs the correct backend alone, on 1,000 seeds of each rule, or 100 for a rule
//! about timing or chance.
//!
//! `--bug` selects bugs by name, and `--rule` selects rules by number. `--others N` runs each rule that is
//! not the bug's own on N seeds instead of 5.
//!
//! `--out FILE` writes the table, `MATRIX.md`, and `--museum FILE` the museum, `MUSEUM.md`. `--museum`
//! without `--out` runs only the exhibits, each against its own rule. `--check` fails if the two files of the
//! kit are stale; with `--own` it ignores the column of other rules.
//!
//! `--text` prints the failure text of each bug's own rule instead of the table.
//!
//! Ends with 1 if a bug is missed, the correct backend fails, or a file is stale.

use std::process::ExitCode;

#[cfg(dlock_saboteur)]
fn main() -> ExitCode {
    use std::io::Write as _;

    use dlock_conformance::saboteur;
    use dlock_conformance::saboteur::matrix::{Options, run};

    let mut options = Options::default();
    let mut out = None;
    let mut museum = None;
    let (mut only_text, mut check) = (false, false);
    let mut args = std::env::args().skip(1);
    let mut complain = std::io::stderr();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--own" | "--soak" => {
                let size = if arg == "--own" {
                    Options::own()
                } else {
                    Options::soak()
                };
                let chosen = std::mem::replace(&mut options, size);
                (options.bugs, options.rules) = (chosen.bugs, chosen.rules);
            }
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
            "--check" => check = true,
            // How the program calls itself for the row of one bug.
            "--row" => {
                let (bug, options) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
                return match dlock_conformance::saboteur::matrix::row_here(&bug, &options) {
                    Ok(row) => {
                        let _ = writeln!(std::io::stdout(), "{row}");
                        ExitCode::SUCCESS
                    }
                    Err(e) => {
                        let _ = writeln!(complain, "{bug}: {e}");
                        ExitCode::from(2)
                    }
                };
            }
            _ => {
                let _ = writeln!(
                    complain,
                    "no such flag: {arg} (--own, --soak, --others N, --bug NAME, --rule NUMBER, --out FILE, \
                     --museum FILE, --check, --text)"
                );
                return ExitCode::from(2);
            }
        }
    }
    if out.is_some() && options.others == 0 {
        let _ = writeln!(
            complain,
            "--out writes what other rules find as well: leave --own out"
        );
        return ExitCode::from(2);
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
    if check {
        let page = saboteur::page(&matrix).unwrap_or_else(|e| e);
        for (file, fresh) in [("MATRIX.md", &text), ("MUSEUM.md", &page)] {
            let file = format!("dlock-conformance/{file}");
            let recorded = std::fs::read_to_string(&file).unwrap_or_default();
            let same = match options.others {
                0 => own(&recorded) == own(fresh),
                _ => recorded == *fresh,
            };
            if !same {
                let remedy =
                    "scripts/matrix --out dlock-conformance/MATRIX.md --museum dlock-conformance/MUSEUM.md";
                let _ = writeln!(complain, "{text}\nerror: {file} is stale: run {remedy}");
                return ExitCode::FAILURE;
            }
        }
    }
    if let Some(path) = museum {
        let written = saboteur::page(&matrix)
            .and_then(|page| std::fs::write(path, page).map_err(|error| error.to_string()));
        if let Err(error) = written {
            let _ = writeln!(complain, "the museum could not be written: {error}");
            return ExitCode::from(3);
        }
    }
    let written = match out {
        None if only_museum || check => Ok(()),
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

/// The table without the column of the other rules that broke.
#[cfg(dlock_saboteur)]
fn own(table: &str) -> Vec<String> {
    let rows = table.lines().map(|line| {
        let mut cells: Vec<_> = line.splitn(7, '|').collect();
        if cells.len() == 7 {
            cells.remove(5);
        }
        cells.join("|")
    });
    rows.collect()
}

#[cfg(not(dlock_saboteur))]
fn main() -> ExitCode {
    use std::io::Write as _;

    let _ = writeln!(
        std::io::stderr(),
        "this build has no planted bugs: run scripts/matrix"
    );
    ExitCode::from(2)
}
