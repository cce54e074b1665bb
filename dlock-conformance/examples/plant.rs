//! Makes a copy of the workspace in which every planted bug can be switched on.
//!
//! ```text
//! cargo run -p dlock-conformance --example plant -- FOLDER
//! ```
//!
//! Each file of `bugs/` is a unified diff against the sources as they are: the mistake that one rule must
//! catch. `shared.diff` holds what several of them use, and the switch: a build of the copy makes the mistake
//! that the environment variable `DLOCK_BUG` names. Each diff also applies on its own (`patch -p1`). All are
//! applied at once: insertions in one place are in the order of the rules, and no two diffs may replace the
//! same line. If a diff does not apply, the program names it and builds nothing.

use std::collections::{BTreeMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// One hunk of a diff: `removed` lines from `at` on are replaced by `added`.
struct Edit {
    diff: String,
    at: usize,
    removed: usize,
    added: Vec<String>,
}

type Edits = BTreeMap<String, Vec<Edit>>;

fn main() -> ExitCode {
    let Some(to) = env::args_os().nth(1).map(PathBuf::from) else {
        let _ = writeln!(std::io::stderr(), "usage: plant FOLDER");
        return ExitCode::from(2);
    };
    match plant(&to) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn plant(to: &Path) -> Result<(), String> {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = kit.parent().ok_or("the kit lies in no workspace")?;
    let mut edits = Edits::new();
    for diff in diffs(&kit.join("bugs"))? {
        let text = read(&diff)?;
        let name = diff
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        parse(root, &name, &text, &mut edits).map_err(|e| format!("bugs/{name}: {e}"))?;
    }
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let kept: HashSet<_> = listed
        .split_terminator('\0')
        .chain(edits.keys().map(String::as_str))
        .collect();
    remove_others(to, to, &kept);
    for file in listed.split_terminator('\0') {
        if !edits.contains_key(file)
            && let Ok(content) = fs::read(root.join(file))
        {
            write(&to.join(file), &content)?;
        }
    }
    for (file, edits) in edits {
        let clean = read(&root.join(&file)).unwrap_or_default();
        let planted = apply(&file, &clean, edits)?;
        write(&to.join(file), planted.as_bytes())?;
    }
    Ok(())
}

/// The diffs in the order of their rules, the shared one first.
fn diffs(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut all: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
    all.retain(|path| path.extension().is_some_and(|e| e == "diff"));
    all.sort_by_cached_key(|path| {
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let rule = name.split('-').next().unwrap_or_default();
        let numbers: Vec<u32> = rule.split('.').flat_map(str::parse).collect();
        (numbers, name)
    });
    Ok(all)
}

fn parse(root: &Path, diff: &str, text: &str, edits: &mut Edits) -> Result<(), String> {
    let mut lines = text.lines().peekable();
    let (mut file, mut clean) = (String::new(), Vec::new());
    while let Some(line) = lines.next() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            path.clone_into(&mut file);
            clean = read(&root.join(path))
                .unwrap_or_default()
                .lines()
                .map(str::to_owned)
                .collect();
        } else if line.starts_with("@@ ") {
            let mut hunk = Vec::new();
            while let Some(line) = lines.next_if(|l| !l.starts_with("@@ ") && !l.starts_with("--- ")) {
                hunk.push(line.split_at_checked(1).unwrap_or((" ", "")));
            }
            let old: Vec<_> = hunk.iter().filter(|l| l.0 != "+").map(|l| l.1).collect();
            let mut at = place(&clean, &old, line).ok_or(format!("does not apply to {file} at {line}"))?;
            let all = edits.entry(file.clone()).or_default();
            let mut open = false;
            for (sign, line) in hunk {
                if sign != " " && !open {
                    let (diff, added) = (diff.to_owned(), Vec::new());
                    all.push(Edit {
                        diff,
                        at,
                        removed: 0,
                        added,
                    });
                }
                open = sign != " ";
                match (sign, all.last_mut()) {
                    ("+", Some(edit)) => edit.added.push(line.to_owned()),
                    ("-", Some(edit)) => edit.removed += 1,
                    _ => {}
                }
                at += usize::from(sign != "+");
            }
        }
    }
    Ok(())
}

/// The place of those lines: where the hunk says, or the only place that has them.
fn place(clean: &[String], old: &[&str], header: &str) -> Option<usize> {
    let said = header
        .split(['-', ','])
        .nth(1)?
        .parse::<usize>()
        .ok()?
        .saturating_sub(1);
    let fits = |at: usize| clean.get(at..at + old.len()).is_some_and(|lines| lines == old);
    if fits(said) {
        return Some(said);
    }
    let mut places = (0..clean.len()).filter(|at| fits(*at));
    let place = places.next();
    place.filter(|_| places.next().is_none())
}

fn apply(file: &str, clean: &str, mut edits: Vec<Edit>) -> Result<String, String> {
    // Sorting is stable: insertions in one place keep the order of the rules.
    edits.sort_by_key(|edit| (edit.at, edit.removed > 0));
    let clean: Vec<&str> = clean.lines().collect();
    let (mut planted, mut next) = (String::new(), 0);
    let mut last = String::new();
    for edit in edits {
        if edit.at < next {
            return Err(format!(
                "bugs/{} and bugs/{last} replace the same lines of {file}",
                edit.diff
            ));
        }
        let kept = clean[next..edit.at].iter().copied();
        for line in kept.chain(edit.added.iter().map(String::as_str)) {
            planted.extend([line, "\n"]);
        }
        next = edit.at + edit.removed;
        last = edit.diff;
    }
    for line in &clean[next..] {
        planted.extend([line, "\n"]);
    }
    Ok(planted)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// A moved file would exist twice.
fn remove_others(to: &Path, folder: &Path, kept: &HashSet<&str>) {
    for path in fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        let name = path.strip_prefix(to).unwrap_or(&path).to_string_lossy();
        if path.is_dir() && name != "target" {
            remove_others(to, &path, kept);
        } else if path.extension().is_some_and(|e| e == "rs") && !kept.contains(&*name) {
            // What is left is seen by the compiler.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Leaves a file with the same content alone, so that its build stays fresh.
fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|there| there == content) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .map_err(|e| format!("{}: {e}", path.display()))
}
