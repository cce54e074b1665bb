//! The rules, told to somebody who did not write them: one by one in the terminal, and all on a page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};

use crate::museum::{WRAPPERS, exhibits};
use crate::options::Options;
use crate::rule::{Access, Detection, Layer, Rule, Test, order};
use crate::rules;

/// Where a rule is read.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Terminal,
    Page,
}
use Form::{Page, Terminal};

/// The title of each section, and what it is about, in the order of their numbers.
const SECTIONS: [&str; 19] = [
    "Mutual exclusion and ownership\nAt most one holds a name at any time, and a hold belongs to one guard.",
    "Acquire: try, wait, deadline\n\
        A try answers at once, a wait ends in time, and neither leaves anything behind.",
    "Lease and expiry\nA hold that is not renewed ends, neither early nor late, and its holder knows when.",
    "Release and guard drop\nLetting go frees the name at once, and ends no hold but one's own.",
    "Renew and auto-renew\n\
        A renewal prolongs a live hold of one's own, and goes on for as long as it is wanted.",
    "The loss signal\n\
        A holder that has lost its lock is told so in time, for good, and never without a cause.",
    "Fencing\nEach grant has a larger token than the one before, and a resource refuses the smaller one.",
    "Waking, fairness, priority\nThose who wait are woken in time and served in the order that is promised.",
    "Cancellation and async contract\n\
        Whatever is dropped, and whenever, nothing hangs and nothing is left behind.",
    "Re-entrancy\n\
        One owner holds a name several times, and it is free when the last of these holds has ended.",
    "Readers, writers and permits\n\
        Readers share, writers exclude, permits are counted, and nobody waits for ever.",
    "Watching and operating\n\
        What is told of a lock is true, complete and in order, and an operator can end its holds.",
    "Names and limits\n\
        Different names are different locks, whatever is in them, and a declared limit is the limit.",
    "Many names, many tasks, one client\n\
        What one task does with one name neither delays nor harms the others.",
    "Lost replies, retries, stale messages\n\
        Messages are lost, sent again and late, and still no outcome is guessed.",
    "Connection, session, process, server, clock\n\
        What breaks under a lock makes no second holder, and the lock works again afterwards.",
    "The contract\nErrors, claims, events and closing are what they are said to be.",
    "Quorum\nA majority of several servers decides, whichever majority that is.",
    "Elections\nOne leads at a time, all see who, and a leader's work ends with its lead.",
];

const HEAD: &str = "\
# The rules

What the conformance kit asks of a lock, rule by rule. [Writing a backend](writing-a-backend.md) says how to
run them, [Reading a failure](reading-a-failure.md) what one prints when it fails. In the terminal
`cargo test --test conformance -- explain 3.02` tells the same of one rule, with the diff of its planted bug
and the stories of real ones. `RULES.json` has it for programs. This page is made from the declarations of the
rules, and a test fails while it is stale:

```sh
cargo run -p dlock-conformance --example rules -- page > docs/rules.md
```

* A number is for ever. **Must**: without it, it is no lock of that kind. **Should**: good, and listed.
  **May**: optional, and tested where it is claimed.
* **needs**: a rule runs where all of that is claimed; see [Needs](#needs).
* **evidence**: what a run must have counted. One that saw less proves nothing and is inconclusive.
* **planted bug**: a mistake, made in the kit's reference backend or in the engine, that the rule must catch.
  [MATRIX.md][MATRIX.md] shows what it said then.
* **real bug**: one that a library had in the field, which the rule must catch as well.

## Sections

";

const NEEDS: &str = "
## Needs

What a rule may need of the subject, by what claims it. The methods are those of `Claims`. Those of
`Claims::foreign` begin with less: [Writing a backend](writing-a-backend.md#proving-it) names it.

";

/// The contents of `docs/rules.md`: every rule, by sections.
///
/// Made by `cargo run -p dlock-conformance --example rules -- page > docs/rules.md`; a test fails when the
/// file is stale.
pub fn rules_page() -> String {
    let mut page = HEAD.to_owned();
    let sections = || SECTIONS.iter().flat_map(|s| s.split_once('\n')).zip(1_u32..);
    for ((title, _), number) in sections() {
        let title = format!("{number}. {title}");
        page += &format!("* [{title}](#{})\n", anchor(&title));
    }
    page += NEEDS;
    let mut by_claim = BTreeMap::<String, BTreeSet<String>>::new();
    for need in rules::all().flat_map(|rule| rule.needs) {
        let claim = need.claimed().replace(&format!("Need::{need:?}"), "..");
        by_claim.entry(claim).or_default().insert(format!("`{need:?}`"));
    }
    for (claim, needs) in by_claim {
        let needs: Vec<_> = needs.into_iter().collect();
        page += &wrapped(&format!("* {}: {claim}", needs.join(", ")), "  ");
    }
    for ((title, about), number) in sections() {
        page += &format!("\n## {number}. {title}\n\n{about}\n");
        for rule in rules::all().filter(|rule| order(rule.id).0 == number) {
            page += &told(rule, Page);
        }
    }
    let links = page.split("][").skip(1).filter_map(|rest| rest.split_once(']'));
    let files: BTreeSet<_> = links.map(|(file, _)| file.to_owned()).collect();
    page.push('\n');
    for file in files {
        page += &format!("[{file}]: {FOLDER}/{file}\n");
    }
    page
}

/// Tells all that is known of the rules of these names, as [`Options::selects`] understands them.
///
/// The exit code: 0, or 2 if no rule is called by one of them.
pub(crate) fn explain(names: &[String], out: &mut impl Write) -> io::Result<u8> {
    let mut code = 0;
    for name in names {
        let options = Options {
            filters: vec![name.clone()],
            ..Options::default()
        };
        let mut found = rules::all().filter(|rule| options.selects(rule)).peekable();
        if found.peek().is_none() {
            writeln!(out, "no rule is called {name}; near it are {}", near(name))?;
            code = 2;
        }
        for rule in found {
            writeln!(out, "{}", told(rule, Terminal))?;
        }
    }
    Ok(code)
}

/// The rules that may have been meant: by their names' words first, and then by their numbers.
fn near(name: &str) -> String {
    let meant = order(name);
    let mut all: Vec<_> = rules::all().collect();
    all.sort_by_cached_key(|rule| {
        let (own, number) = (rule.test_name(), order(rule.id));
        let unknown = name.split('_').filter(|word| !own.contains(word)).count();
        (unknown, number.0.abs_diff(meant.0), number.1.abs_diff(meant.1))
    });
    let named = all[..3]
        .iter()
        .map(|rule| format!("{} ({})", rule.id, rule.test_name()));
    named.collect::<Vec<_>>().join(", ")
}

/// All that is known of a rule.
fn told(rule: &Rule, form: Form) -> String {
    let (id, level) = (rule.id, rule.level);
    let (heading, first, mark) = match form {
        Page => (
            format!("\n### {id} {}\n\n", rule.title.replace('_', " ")),
            format!("**{level:?}**"),
            "**",
        ),
        Terminal => (String::new(), format!("rule {id} {level:?}"), ""),
    };
    let mut text = heading + &wrapped(&format!("{first}: {}", rule.statement), "") + "\n";
    for (label, said) in items(rule, form).iter().filter(|(_, said)| !said.is_empty()) {
        text += &wrapped(&format!("* {mark}{label}{mark}: {said}"), "  ");
    }
    if let (Terminal, Some((bug, _))) = (form, rule.bug)
        && !WRAPPERS.contains(&bug)
    {
        // Cargo keeps the sources of what it has built. Where they are gone, the address above is left.
        let file = format!("{}/{}", env!("CARGO_MANIFEST_DIR"), planted(rule, bug));
        text += &format!("\n{}", fs::read_to_string(file).unwrap_or_default());
    }
    text
}

fn items(rule: &Rule, form: Form) -> Vec<(&'static str, String)> {
    let needs = rule.needs.iter().map(|need| match form {
        Page => format!("`{need:?}`"),
        Terminal => format!("`{need:?}` ({})", need.claimed()),
    });
    let layer = match rule.layer {
        Layer::Backend => "the store and its driver",
        Layer::Engine => "whatever waits, renews and loses: the engine of dlock, or your own",
        Layer::Both => "the store and its driver, and whatever waits, renews and loses",
    };
    let test = match rule.test {
        Test::D => "a fixed scene",
        Test::T => "timing, with a bound on either side",
        Test::X => "a seeded history, and checkers",
        Test::Z => "a sweep of drops at every poll",
        Test::K => "the compiler",
    };
    let access = match rule.access {
        Access::A => "the API alone (A)",
        Access::P => "a proxy before the server (P)",
        Access::C => "another process, which is killed and stopped (C)",
        Access::H => "a hook of the harness (H)",
        Access::S => "the simulator (S)",
    };
    let seconds = rule.budget.as_secs();
    let evidence = rule.evidence.iter();
    let evidence = evidence.map(|e| format!("`{}` at least {}", e.counter, e.least));
    let mut items = vec![
        ("why it matters", rule.intent.to_owned()),
        ("check this first", rule.check_first.to_owned()),
        ("needs", needs.collect::<Vec<_>>().join(", ")),
        ("kept by", layer.to_owned()),
        (
            "test",
            format!(
                "`{}`: {test}, over {access}, for {seconds} s at most",
                rule.test_name()
            ),
        ),
        ("evidence", evidence.collect::<Vec<_>>().join(", ")),
    ];
    if let Some((bug, detection)) = rule.bug {
        let caught = match detection {
            Detection::Deterministic => "every one of 20 runs",
            Detection::Stochastic => "198 of 200 runs at least, since chance or time decides",
        };
        let bug = link(bug, &planted(rule, bug), form);
        items.push(("planted bug", format!("{bug}, caught in {caught}")));
    }
    for real in exhibits().filter(|real| real.rule() == rule.id) {
        let title = link(real.title, &format!("MUSEUM.md#{}", anchor(real.title)), form);
        let mut said = format!("{title}, {}, {}", real.project, real.since.month());
        if rule.bug.is_none_or(|(own, _)| own != real.bug) {
            said += &format!(", planted as {}", link(real.bug, &planted(rule, real.bug), form));
        }
        if form == Terminal {
            said += &format!(". {} {}", real.story, real.url());
        }
        items.push(("real bug", said));
    }
    items
}

/// Where the kit has that bug.
fn planted(rule: &Rule, bug: &str) -> String {
    match WRAPPERS.contains(&bug) {
        true => "saboteur/planted/mod.rs".to_owned(),
        false => format!("bugs/{}-{bug}.diff", rule.id),
    }
}

/// Where the files are. Absolute: the page is also in a book, which does not have them.
const FOLDER: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/dlock-conformance");

fn link(text: &str, file: &str, form: Form) -> String {
    match form {
        Page => format!("[{text}][{file}]"),
        Terminal => format!("{text} ({FOLDER}/{file})"),
    }
}

/// What the address of a heading ends with.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// In lines of 110 columns, the second and later ones with that indent.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let word_width = word.chars().count();
        if width + word_width >= 110 {
            lines += &format!("\n{indent}");
            width = indent.len();
        } else if width > 0 {
            lines += " ";
            width += 1;
        }
        lines += word;
        width += word_width;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(name: &str) -> (u8, String) {
        let mut out = Vec::new();
        let code = explain(&[name.to_owned()], &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_rule_is_explained_with_its_bug_and_the_real_ones() {
        let (code, text) = explained("3.06");
        assert_eq!(code, 0);
        let shown = [
            "rule 3.06 Must: ",
            "`.without(Need::Lease)` takes it back",
            "https://github.com/lukas-krecan/ShedLock/issues/2583",
            "--- a/",
        ];
        for part in shown {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(explained("an_expired_guard_harms_no"), (0, text));
    }

    #[test]
    fn a_name_of_no_rule_is_an_error_and_has_neighbours() {
        let (code, text) = explained("3.99");
        assert!(code == 2 && text.contains("3.13 (must_3_13_"), "{text}");
        let (code, text) = explained("no_early_grunt");
        assert!(code == 2 && text.contains("3.02 (must_3_02_"), "{text}");
    }
}
