//! Mutants of scripts in Lua and functions in SQL.

use std::fmt::Write as _;
use std::path::Path;

use crate::{Result, add_switch, read, write};

/// Writes the list of mutants of scripts. A line is known by those around it: by as many as it takes.
pub(crate) fn list(copy: &Path, list: &Path, files: &[String]) -> Result<()> {
    add_switch(copy)?;
    let sources: Vec<String> = files
        .iter()
        .map(|file| read(&copy.join(file)))
        .collect::<Result<_>>()?;
    let (mut table, mut n) = (String::new(), 0);
    for (file, source) in files.iter().zip(&sources) {
        let lines: Vec<&str> = source.split_inclusive('\n').collect();
        for (i, line) in lines.iter().enumerate() {
            let around = |by: usize| (i.saturating_sub(by)..i, i + 1..lines.len().min(i + 1 + by));
            let with = |middle: &str, by| {
                let (before, after) = around(by);
                [&lines[before].concat(), middle, &lines[after].concat()].concat()
            };
            let alone = |by: &usize| {
                let old = with(line, *by);
                sources.iter().map(|s| s.matches(&old).count()).sum::<usize>() == 1
            };
            let by = (0..lines.len()).find(alone).unwrap_or_default();
            for changed in changes(line, file.ends_with(".sql")) {
                n += 1;
                let what = format!("{} -> {}", line.trim(), changed.trim());
                let text = |middle: &str| with(middle, by).replace('\n', "\\n");
                let _ = writeln!(
                    table,
                    "{n}\t{file}:{}\t{what}\t{}\t{}",
                    i + 1,
                    text(line),
                    text(&changed)
                );
            }
        }
    }
    println!("{n} mutants");
    write(list, &table)
}

/// What a line of Lua or SQL is changed to, one thing at a time.
fn changes(line: &str, is_sql: bool) -> Vec<String> {
    const WORDS: [(&str, &str); 22] = [
        (" == ", " ~= "),
        (" ~= ", " == "),
        (" < ", " <= "),
        (" <= ", " < "),
        (" > ", " >= "),
        (" >= ", " > "),
        (" = ", " <> "),
        (" <> ", " = "),
        (" and ", " or "),
        (" or ", " and "),
        ("not ", ""),
        (" + ", " - "),
        (" - ", " + "),
        ("math.min", "math.max"),
        ("math.max", "math.min"),
        (" AND ", " OR "),
        (" OR ", " AND "),
        ("NOT ", ""),
        ("least(", "greatest("),
        ("greatest(", "least("),
        ("true", "false"),
        ("false", "true"),
    ];
    let code = line.trim_start();
    if code.is_empty() || code.starts_with("--") {
        return Vec::new();
    }
    let mut all = Vec::new();
    // In Lua ` = ` is an assignment.
    for (old, new) in WORDS.into_iter().filter(|(old, _)| is_sql || *old != " = ") {
        all.extend(
            line.match_indices(old)
                .map(|(at, _)| format!("{}{new}{}", &line[..at], &line[at + old.len()..])),
        );
    }
    let digits = line.match_indices(|c: char| c.is_ascii_digit());
    let starts = digits.filter(|(at, _)| {
        let before = line[..*at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || "_$%.".contains(c))
    });
    all.extend(starts.filter_map(|(at, _)| {
        let end = line[at..]
            .find(|c: char| !c.is_ascii_digit())
            .map_or(line.len(), |n| at + n);
        let number: u64 = line[at..end].parse().ok()?;
        Some(format!("{}{}{}", &line[..at], number + 1, &line[end..]))
    }));
    // A call or an assignment that stands alone.
    let alone = ["call(", "redis.call(", "PERFORM ", "UPDATE ", "DELETE "]
        .iter()
        .any(|w| code.starts_with(w))
        && (line.trim_end().ends_with(')') || line.trim_end().ends_with(';'));
    if alone {
        all.push("\n".to_owned());
    }
    all
}
