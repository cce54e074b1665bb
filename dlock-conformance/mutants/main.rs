//! Changes the logic of Rust sources in one place at a time, to see whether a rule or a test notices.
//!
//! ```text
//! scripts/mutants --help
//! mutants plant COPY LIST FILE...      writes all mutants of those Rust files into the copy of the workspace
//! mutants text COPY LIST FILE...       the same for scripts in Lua and functions in SQL
//! mutants run LIST SECONDS COMMAND...  runs the commands for each until one fails, and says which; ONLY=7,12
//!                                      takes those alone, ONLY=LOG those that survived in that log of a
//!                                      former run, JOBS=2 two at a time, FIRST=1 the first command alone
//! ```
//!
//! All mutants are in one build (mutant schemata: Untch, Offutt and Harrold, 1993): a comparison `a < b`
//! becomes `lt(7, &a, &b)`, which is `a <= b` where the environment variable `DLOCK_MUTANT` is 7. So a mutant
//! costs a run and no build. A command that does not come to where a mutant would make a difference is not
//! run for it.
//!
//! | what | becomes |
//! |---|---|
//! | `a < b`, `a <= b`, `a > b`, `a >= b` | the same with or without equality |
//! | `a == b`, `a != b`, `!a`, the condition of an `if` | its contrary |
//! | `a && b`, `a \|\| b` | `a` alone, and `b` alone |
//! | a number | one more |
//! | a statement that is a call or an assignment | nothing |
//!
//! What is constant, a pattern, a type, inside a macro or a test is left alone.
//!
//! A script is text that is sent to a server: there the product replaces one line by another, which two
//! environment variables name.

mod rust;
mod text;

use std::collections::HashSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{env, fs};

type Result<T> = std::result::Result<T, String>;

/// What the mutated sources call. It is added to the core of the copy.
const SWITCH: &str = r#"
/// Which mutant is on.
#[doc(hidden)]
#[allow(missing_docs, clippy::all)]
pub mod mutant {
    use std::io::Write as _;
    use std::sync::{LazyLock, Mutex};
    static CHOSEN: LazyLock<u32> =
        LazyLock::new(|| std::env::var("DLOCK_MUTANT").ok().and_then(|n| n.parse().ok()).unwrap_or(0));
    /// Where it is written down which would have made a difference.
    static SEEN: LazyLock<Option<Mutex<(std::fs::File, std::collections::HashSet<u32>)>>> = LazyLock::new(|| {
        let file = std::env::var("DLOCK_MUTANTS_SEEN").ok()?;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file).ok()?;
        Some(Mutex::new((file, Default::default())))
    });
    pub fn on(n: u32) -> bool {
        if let Some(seen) = &*SEEN
            && let Ok(mut seen) = seen.lock()
            && seen.1.insert(n)
        {
            let _ = seen.0.write_all(format!("{n}\n").as_bytes());
        }
        *CHOSEN == n
    }
    /// A script, with one line of it replaced.
    pub fn text(script: &str) -> String {
        match (std::env::var("DLOCK_MUTANT_OLD"), std::env::var("DLOCK_MUTANT_NEW")) {
            (Ok(old), Ok(new)) => script.replace(&old, &new),
            _ => script.to_owned(),
        }
    }
    pub fn lt<T: PartialOrd + ?Sized>(n: u32, a: &T, b: &T) -> bool {
        a < b || a == b && on(n)
    }
    pub fn le<T: PartialOrd + ?Sized>(n: u32, a: &T, b: &T) -> bool {
        a < b || a == b && !on(n)
    }
    pub fn number<T: From<bool> + std::ops::Add<Output = T>>(n: u32, value: T) -> T {
        value + T::from(on(n))
    }
}
"#;

fn add_switch(copy: &Path) -> Result<()> {
    let core = copy.join("dlock-core/src/lib.rs");
    let clean = read(&core)?;
    write(&core, &format!("{clean}{SWITCH}"))
}

/// Runs the commands for each mutant, one after the other, until one fails or takes too long.
fn run(list: &Path, limit: u32, commands: &[String]) -> Result<()> {
    let table = read(list)?;
    let only = env::var("ONLY").unwrap_or_default();
    let former = match Path::new(&only).is_file() {
        true => read(Path::new(&only))?,
        false => String::new(),
    };
    // Numbers and lines are others once the sources have changed: known again by file and text.
    let lived: HashSet<_> = former
        .lines()
        .filter_map(|row| named(row.strip_prefix("SURVIVED\t")?))
        .collect();
    let numbers: HashSet<&str> = only.split(',').collect();
    let chosen = |row: &&str| match named(row) {
        _ if only.is_empty() => true,
        Some(what) if !former.is_empty() => lived.contains(&what),
        _ => row.split('\t').next().is_some_and(|n| numbers.contains(n)),
    };
    let rows: Vec<&str> = table.lines().filter(chosen).collect();
    let first = env::var("FIRST").ok().and_then(|n| n.parse().ok());
    let commands = &commands[..first.unwrap_or(commands.len()).min(commands.len())];
    // Without a mutant all must pass, or their failures say nothing. How long each takes says when it hangs.
    // And it is written down which mutants it reaches: the others it does not kill.
    let (mut limits, mut reached) = (Vec::new(), Vec::new());
    let seen = list.with_extension("seen");
    for command in commands {
        let began = Instant::now();
        write(&seen, "")?;
        let noting = format!(
            "DLOCK_MUTANTS_SEEN='{}'; export DLOCK_MUTANTS_SEEN; {command}",
            seen.display()
        );
        if let Some(why) = killed(&noting, "0", limit)? {
            return Err(format!("without a mutant `{command}` {why}"));
        }
        limits.push(limit.min(10 + 4 * u32::try_from(began.elapsed().as_secs()).unwrap_or(limit)));
        let all: HashSet<String> = read(&seen)?.lines().map(str::to_owned).collect();
        println!(
            "{} s, {} reached: `{command}`",
            began.elapsed().as_secs(),
            all.len()
        );
        reached.push(all);
    }
    let jobs = env::var("JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(vec![None; rows.len()]));
    let work = || -> Result<()> {
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut by = None;
            for (k, command) in commands.iter().enumerate() {
                let number = row.split('\t').next().unwrap_or_default();
                // A script's tell nothing.
                let can = reached[k].is_empty() || reached[k].contains(number);
                if by.is_none() && can {
                    by = killed(command, row, limits[k])?.map(|why| (k, why));
                }
            }
            let shown = row.split('\t').take(3).collect::<Vec<_>>().join("\t");
            let said = by.map_or("SURVIVED".to_owned(), |(k, why)| format!("{why} {k}"));
            println!("{said}\t{shown}");
            let at = rows.iter().position(|r| r == row).unwrap_or_default();
            outcomes.lock().map_err(|e| e.to_string())?[at] = by;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        all.into_iter()
            .try_for_each(|job| job.join().map_err(|_| "a panic".to_owned())?)
    })?;
    let outcomes = outcomes.into_inner().map_err(|e| e.to_string())?;
    let survived = outcomes.iter().filter(|by| by.is_none()).count();
    println!("\nmade {}, survived {survived}", rows.len());
    for (k, command) in commands.iter().enumerate() {
        let many = outcomes.iter().flatten().filter(|(by, _)| *by == k).count();
        println!("killed by {k}, `{command}`: {many}");
    }
    Ok(())
}

/// The file of a mutant, and what it does.
fn named(row: &str) -> Option<(&str, &str)> {
    let mut columns = row.split('\t').skip(1);
    Some((columns.next()?.split(':').next()?, columns.next()?))
}

/// How that command fails with that mutant, if it does.
fn killed(command: &str, row: &str, limit: u32) -> Result<Option<&'static str>> {
    let columns: Vec<String> = row
        .split('\t')
        .map(|column| column.replace("\\n", "\n"))
        .collect();
    let mut run = Command::new("timeout");
    if let [_, _, _, old, new] = &columns[..] {
        run.env("DLOCK_MUTANT_OLD", old).env("DLOCK_MUTANT_NEW", new);
    }
    let status = run
        .args(["--kill-after=2", &limit.to_string(), "sh", "-c", command])
        .env("DLOCK_MUTANT", &columns[0])
        // Nobody reads it, and it takes longer than the test.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|e| format!("{command}: {e}"))?;
    Ok(match status.code() {
        Some(0) => None,
        Some(124 | 137 | 152) => Some("ran for ever"),
        _ => Some("failed"),
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plant", copy, list, _, ..] => rust::plant(Path::new(copy), Path::new(list), &args[3..]),
        ["text", copy, list, _, ..] => text::list(Path::new(copy), Path::new(list), &args[3..]),
        ["run", list, limit, _, ..] => match limit.parse() {
            Ok(limit) => run(Path::new(list), limit, &args[3..]),
            Err(_) => Err(format!("{limit} is no number of seconds")),
        },
        _ => Err(
            "usage: mutants plant|text COPY LIST FILE... | mutants run LIST SECONDS COMMAND...".to_owned(),
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::FAILURE
        }
    }
}
