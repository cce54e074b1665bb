//! Mutants of scripts in Lua and functions in SQL.

use std::fmt::Write as _;
use std::path::Path;

use crate::{Result, add_switch, read, write};

/// Writes the list of mutants of scripts. A line is known by the one before it and the one after.
pub(crate) fn list(copy: &Path, list: &Path, files: &[String]) -> Result<()> {
    add_switch(copy)?;
    let (mut table, mut n) = (String::new(), 0);
    for file in files {
        let source = read(&copy.join(file))?;
        let lines: Vec<&str> = source.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let around = |middle: &str| {
                [
                    lines[i.saturating_sub(1)],
                    middle,
                    lines.get(i + 1).unwrap_or(&""),
                ]
                .join("\\n")
            };
            for changed in changes(line, file.ends_with(".sql")) {
                n += 1;
                let what = format!("{} -> {}", line.trim(), changed.trim());
                let (old, new) = (around(line), around(&changed));
                let _ = writeln!(table, "{n}\t{file}:{}\t{what}\t{old}\t{new}", i + 1);
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
        all.push(String::new());
    }
    all
}
