//! `MUSEUM.md`.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::matrix::{Matrix, Row, excerpt};
use super::museum::{End, Exhibit, HALLS, WAITING, exhibits, rebuilt};
use crate::folding::folded;
use crate::rules;

const HEAD: &str = "\
# A museum of real bugs

Why trust a lock? Not because its author is careful. The authors of the libraries on this page were careful.
Most of them had tests, some had worked on their library for ten years, and one of the bugs sat behind a test
that chose at random from one option. A wrong lock looks exactly like a right one until two machines meet
in the same second, a reply is lost, or a garbage collection takes its time. Then nothing crashes: two jobs
run, a number in a table is too small by one, or a queue stops until the service is restarted.

So this project does not ask for trust. It keeps the bugs.

Everything below happened and is on public record. For each bug there is a diff in this repository that plants
the same fault into our own lock, and a numbered rule of the conformance kit that must then fail. If a rule
stops catching its bug, our build breaks. This page also shows what the rule *says* about the bug, as the kit
prints it, because a failing test that cannot say why it fails is only half a test.

The rules are not about our code. They test what a lock does for its user. They run against any backend, and
against any other lock library that has a [harness](src/harness.rs) of three methods. If you use or write such
a library, you are welcome to the bugs.

";

const TAIL: &str = "\
## How to read the figures

*Lived* is the time from the first day in the public record, as far as we found it, to the change that fixed
the bug. `open` bugs were not fixed when last checked; for the older ones the entry says how long that was.
`not known` means that the issue is closed and does not say when, or whether, the bug was fixed. We do not
guess. This is no measure of anyone's diligence: several of these bugs were fixed within a day of the report.
How long they had been in the code before is another question, and often the answer is years.

*Caught* says in how many runs the rule failed with the bug planted. Each run uses another seed in virtual
time, with the budget of a quick run of the kit. A bug that shows in every run must be caught in every run.
One that depends on chance must be caught in 99 of 100. [MATRIX.md](MATRIX.md) shows how often rules fail that
should not.

## How an exhibit is made

1. Find out what happened: the issue, what the users saw, the change that fixed it. A hardware fault is no
   exhibit. A fault that one of our rules could have shown before a user met it is one.
2. Plant it: a diff of a few lines in `dlock-conformance/bugs/` that makes the same mistake in the reference
   backend or in the engine. If a rule's own planted bug has the same mechanism, use that one. If not, the
   exhibit gets a planted bug of its own, and a line in `saboteur/museum/rebuilt.rs`.
3. If no rule catches it, the kit is wrong, not the museum: sharpen the rule. Rules 4.04, 5.09, 7.04, 11.04
   and 11.05 got their present form that way.
4. Describe it in `saboteur/museum/`, in your own words, with the day of the report and the day of the fix.
   Then generate this page again:

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
            have a planted bug of their own, since no rule's own planted bug has their mechanism.\n",
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
    Ok(folded(&text))
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
        "> **Rule {}, {}**, {}: {}\n",
        row.rule,
        rules::find(&row.rule).map_or_else(String::new, |rule| rule.title.replace('_', " ")),
        row.often(),
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
        "## The catalogue\n\n| bug | project | year | lived | rule | what the rule says | caught | \
            planted as |\n|---|---|---|---|---|---|---|---|"
    );
    for exhibit in exhibits() {
        let row = row_of(matrix, exhibit)?;
        let missed = if row.is_caught() { "" } else { " **missed**" };
        let _ = writeln!(
            text,
            "| [{}]({}) | {} | {} | {} | {} | {} | {}{missed} | `{}` |",
            exhibit.title,
            exhibit.url(),
            exhibit.project,
            exhibit.since.year(),
            exhibit.lived(),
            row.rule,
            says(row).replace('|', "\\|"),
            row.often(),
            row.bug
        );
    }
    text.push('\n');
    Ok(())
}

fn absent(text: &mut String) {
    let _ = writeln!(
        text,
        "## Not planted yet\n\nThese bugs cannot be rebuilt in memory, because the fault is below the lock. \
            Each is listed with the rule that should catch it.\n\n\
         | bug | project | year | needs | rule |\n|---|---|---|---|---|"
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
