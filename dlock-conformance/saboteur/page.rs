//! `MUSEUM.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::matrix::{Matrix, Row, excerpt};
use super::museum::{End, Exhibit, HALLS, WAITING, exhibits, rebuilt};
use crate::rules;

const HEAD: &str = "\
# A museum of real bugs

Why trust a lock at all? Not because its author is careful. The authors of the libraries on this page were
careful; most of them had tests, some had been at it for ten years, and one of the bugs sat behind a test that
flipped a coin with one side. A lock that is wrong looks exactly like one that is right, until two machines
meet in the same second, or a reply is lost, or a garbage collector takes its time; and then nothing crashes.
Two jobs run. A number in a table is one too small. A queue stands still until somebody restarts something.

So this project does not ask for trust. It keeps the bugs.

Everything below happened, and is on public record. For each there is a diff in this repository that plants
the same fault into our own lock, and a numbered rule of the conformance kit that must then fail. If a rule
stops catching its bug, our build breaks. What a rule *says* when it meets the bug is printed here as the kit
prints it, because a test that fails and cannot say why is half a test.

The rules are not about our code. They ask what a lock does for the one who uses it, and run against any
backend, and any other lock library that is given a [harness](src/harness.rs) of three methods. If you use or
write such a library: the bugs are free to take.

";

const TAIL: &str = "\
## How to read the figures

*Lived* is from the first day in the public record, as far as it was at hand, to the change that mended it.
`open` was not mended when last seen; for the older of these that says how long. `not known` is said rather
than guessed: the record is closed, and does not say when, or whether, it was mended. It is no measure of
anybody's diligence. Several of these were mended within a day of the report; how long they had been in the
code before is another matter, and often years.

*Caught* is in how many runs of how many the rule failed with the bug planted, each run another seed in
virtual time, by the same budget as a quick run of the kit. A bug that shows in every run must be caught by
every one; one that needs luck, in 99 of 100. How often rules fail that should not is in
[MATRIX.md](MATRIX.md).

## How an exhibit is made

1. Find what happened: the issue, what its users saw, the change that mended it. A fault of the machine is no
   exhibit; a fault that a rule of ours could have shown before a user did is one.
2. Plant it: a diff of a few lines in `dlock-conformance/bugs/` that makes the mistake where it was made, in
   the reference backend or in the engine. If a rule's own planted bug is the same mechanism, that one serves.
   If the story is another, it gets one of its own, and a line in `saboteur/museum/rebuilt.rs`.
3. If no rule catches it, the kit is wrong, not the museum: sharpen the rule. That is how 4.04, 5.09, 7.04,
   11.04 and 11.05 came to ask what they ask.
4. Tell it in `saboteur/museum/`, in your own words, with the day it was reported and the day it
   was mended; then write this page anew:

   ```text
   scripts/matrix --museum dlock-conformance/MUSEUM.md
   ```
";

/// The page; `Err` with the first exhibit that was not run.
pub fn page(matrix: &Matrix) -> Result<String, String> {
    // Writing to a string cannot fail.
    let mut text = String::from(HEAD);
    let all: Vec<&Exhibit> = exhibits().collect();
    let projects: BTreeSet<_> = all.iter().map(|e| e.project).collect();
    let first = all.iter().map(|e| e.since).min().map_or(0, |day| day.year());
    let open = all.iter().filter(|e| matches!(e.end, End::Open(_))).count();
    let rows = all
        .iter()
        .map(|exhibit| row_of(matrix, exhibit))
        .collect::<Result<Vec<_>, _>>()?;
    let caught = rows.iter().filter(|row| row.is_caught()).count();
    let rebuilt = all.iter().filter(|e| rebuilt(e.bug).is_some()).count();
    let _ = writeln!(
        text,
        "**{} bugs of {} projects, since {first}; {caught} of them are caught.** {open} are open. {rebuilt} \
            are planted as they were, since no other \
         planted bug has their mechanism.\n",
        all.len(),
        projects.len(),
    );
    let mut rows = rows.into_iter();
    for hall in HALLS {
        let _ = writeln!(text, "## {}\n\n{}\n", hall.title, hall.intro);
        for exhibit in hall.exhibits {
            let Some(row) = rows.next() else { break };
            show(&mut text, exhibit, row);
        }
    }
    catalogue(&mut text, matrix)?;
    absent(&mut text);
    text.push_str(TAIL);
    Ok(text)
}

fn row_of<'a>(matrix: &'a Matrix, exhibit: &Exhibit) -> Result<&'a Row, String> {
    let mut rows = matrix.rows.iter();
    rows.find(|row| row.bug == exhibit.bug)
        .ok_or_else(|| format!("{} was not run", exhibit.bug))
}

fn show(text: &mut String, exhibit: &Exhibit, row: &Row) {
    let lived = match exhibit.end {
        End::Mended(_) => format!(", lived {}", exhibit.lived()),
        End::Closed => String::new(),
        End::Open(_) | End::ByDesign => format!(", {}", exhibit.lived()),
    };
    let _ = writeln!(
        text,
        "### {}\n\n{}, {} ([{}]({})){lived}\n\n{}\n",
        exhibit.title,
        exhibit.project,
        exhibit.since.month(),
        exhibit.issue,
        exhibit.url(),
        exhibit.story
    );
    let _ = writeln!(
        text,
        "> **Rule {}, {}**, {} of {}: {}\n",
        row.rule,
        rules::find(&row.rule).map_or_else(String::new, |rule| rule.title.replace('_', " ")),
        row.caught,
        row.runs,
        says(row)
    );
}

/// What the rule says of it, without the kit's own prefix of names, and without names of the greatest length.
fn says(row: &Row) -> String {
    let said = excerpt(row).replace(&format!("dlc-matrix-{}-0/", row.rule), "");
    let words = said.split(' ').map(|word| match word.char_indices().nth(60) {
        None => word.to_owned(),
        Some(_) => format!("{}...", word.chars().take(12).collect::<String>()),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn catalogue(text: &mut String, matrix: &Matrix) -> Result<(), String> {
    let _ = writeln!(
        text,
        "## The catalogue\n\n| bug | project | year | lived | rule | what the rule says of it | caught | \
            planted as |\n|---|---|---|---|---|---|---|---|"
    );
    for exhibit in exhibits() {
        let row = row_of(matrix, exhibit)?;
        let missed = if row.is_caught() { "" } else { " **missed**" };
        let _ = writeln!(
            text,
            "| [{}]({}) | {} | {} | {} | {} | {} | {}/{}{missed} | `{}` |",
            exhibit.title,
            exhibit.url(),
            exhibit.project,
            exhibit.since.year(),
            exhibit.lived(),
            row.rule,
            says(row).replace('|', "\\|"),
            row.caught,
            row.runs,
            row.bug
        );
    }
    text.push('\n');
    Ok(())
}

fn absent(text: &mut String) {
    let _ = writeln!(
        text,
        "## Waiting for its backend\n\nThese cannot be rebuilt in memory: the fault is in what lies under \
            the lock. They are kept here with the rule that is to catch \
         them, for the backends to come.\n\n| bug | project | year | needs | rule |\n|---|---|---|---|---|"
    );
    for absent in WAITING {
        let _ = writeln!(
            text,
            "| {} | [{}]({}) | {} | {} | {} |",
            absent.story,
            absent.project,
            absent.url(),
            absent.since.year(),
            absent.needs,
            absent.rule
        );
    }
    text.push('\n');
}
