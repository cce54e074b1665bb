//! The rules for readers: one by one in the terminal, and all of them on a page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};

use crate::folding::wrapped;
use crate::museum::{WRAPPERS, exhibits};
use crate::options::Options;
use crate::rule::{Access, Detection, Rule, Test, order};
use crate::rules;

/// The place where a rule is read.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Terminal,
    Page,
}
use Form::{Page, Terminal};

/// The title of each section, and what it is about, in the order of their numbers.
fn sections() -> impl Iterator<Item = ((&'static str, &'static str), u32)> {
    let sections = include_str!("book/sections.txt").split("## ").skip(1);
    sections
        .filter_map(|section| section.trim().split_once("\n\n"))
        .zip(1..)
}

/// The contents of `docs/rules.md`: every rule, by sections.
///
/// Made by `cargo run -p dlock-conformance --example rules -- page > docs/rules.md`; a test fails when the
/// file is stale.
pub fn rules_page() -> String {
    let mut page = include_str!("book/head.txt").to_owned() + "\n";
    for ((title, _), number) in sections() {
        let title = format!("{number}. {title}");
        page += &format!("* [{title}](#{})\n", anchor(&title));
    }
    page += concat!("\n", include_str!("book/needs.txt"), "\n");
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

/// Prints everything about the rules that these names select; see [`Options::selects`].
///
/// The exit code: 0, or 2 if a name selects no rule.
pub(crate) fn explain(names: &[String], out: &mut impl Write) -> io::Result<u8> {
    let mut code = 0;
    for name in names {
        let options = Options {
            filters: vec![name.clone()],
            ..Options::default()
        };
        let mut found = rules::all().filter(|rule| options.selects(rule)).peekable();
        if found.peek().is_none() {
            writeln!(out, "there is no rule {name}; similar ones are {}", near(name))?;
            code = 2;
        }
        for rule in found {
            writeln!(out, "{}", told(rule, Terminal))?;
        }
    }
    Ok(code)
}

/// The rules that may have been meant: by the words of their names first, then by their numbers.
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

/// Everything about a rule.
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
        // Cargo keeps the sources of built packages. If they are gone, the link above is left.
        let file = format!("{}/{}", env!("CARGO_MANIFEST_DIR"), planted(rule, bug));
        text += &format!("\n{}", fs::read_to_string(file).unwrap_or_default());
    }
    text
}

fn items(rule: &Rule, form: Form) -> Vec<(&'static str, String)> {
    let needs = rule.needed().map(|need| match form {
        Page => format!("`{need:?}`"),
        Terminal => format!("`{need:?}` ({})", need.claimed()),
    });
    let test = match rule.test {
        Test::D => "a fixed scenario",
        Test::T => "timing, with a lower and an upper bound",
        Test::X => "a seeded random history, judged by checkers",
        Test::Z => "a sweep that drops the future at every poll",
        Test::K => "the compiler",
    };
    let access = match rule.access {
        Access::A => "the API alone (A)",
        Access::P => "a proxy in front of the server (P)",
        Access::C => "another process that is killed and stopped (C)",
        Access::H => "a hook of the harness (H)",
        Access::S => "the simulator (S)",
    };
    let (name, seconds) = (rule.test_name(), rule.budget.as_secs());
    let evidence = rule.evidence.iter();
    let evidence = evidence.map(|e| format!("`{}` at least {}", e.counter, e.least));
    let mut items = vec![
        ("why it matters", rule.intent.to_owned()),
        ("check this first", rule.check_first.to_owned()),
        ("needs", needs.collect::<Vec<_>>().join(", ")),
        ("kept by", rule.layer.to_string()),
        (
            "test",
            format!("`{name}`: {test}; through {access}, for at most {seconds} s"),
        ),
        ("evidence", evidence.collect::<Vec<_>>().join(", ")),
    ];
    if let Some((bug, detection)) = rule.bug {
        let caught = match detection {
            Detection::Deterministic => "all of 20 runs",
            Detection::Stochastic => "at least 198 of 200 runs, because it depends on chance or time",
        };
        let place = match form {
            Page => "",
            Terminal => " in the reference backend",
        };
        let bug = link(bug, &planted(rule, bug), form);
        items.push(("planted bug", format!("{bug}{place}, caught in {caught}")));
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

/// The file of that bug in the kit.
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

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
