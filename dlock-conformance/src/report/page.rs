//! The page for people, `report.html`: a file that loads nothing and runs no script.
//!
//! It is valid XML as well. All text from outside is escaped.

use std::fmt;

use super::summary::not_proven;
use super::text::{escape, first_line};
use super::timeline::{self, TOLD, svg};
use super::{Profile, Report, RuleReport};
use crate::attempt::Attempt;
use crate::checker::{Judgement, wgl};
use crate::history::Asked;
use crate::outcome::Kind;

pub(super) fn html(report: &Report) -> String {
    let title = escape(&format!("{} {}", report.product, report.version));
    let target = escape(&format!("{} on {}", report.backend, report.runtime));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" \
            content=\"width=device-width, initial-scale=1\"/>\n<title>{title}: conformance</title>\n\
            <style>\n{}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n<p>{target}, judged by \
            dlock-conformance {}</p>\n<p class=\"verdict\">{}</p>\n</header>\n<main>\n{}{}{}{}{}</main>\n\
            {}</body>\n</html>\n",
        include_str!("page.css"),
        report.kit,
        verdict(report),
        section("Not proven by this run", &list(not_proven(report))),
        section("Profiles", &profiles(report)),
        section("What did not pass", &failures(report)),
        section("Measured", &measured(report)),
        section("All rules", &rules(report)),
        foot(report)
    )
}

/// A section with its heading; nothing if there is nothing in it.
fn section(heading: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>{heading}</h2>\n{body}</section>\n")
}

/// A table in a box that scrolls sideways; nothing if it has no rows.
fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let row = |cells: [String; N]| format!("<tr><td>{}</td></tr>\n", cells.join("</td><td>"));
    let rows: String = rows.into_iter().map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    let heads = heads.join("</th><th scope=\"col\">");
    format!(
        "<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">{heads}</th></tr></thead>\n<tbody>\n\
            {rows}</tbody>\n</table></div>\n"
    )
}

fn list(lines: impl IntoIterator<Item = String>) -> String {
    let item = |line: String| format!("<li>{}</li>\n", escape(&line));
    let items: String = lines.into_iter().map(item).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// Lines of one cell.
fn lines(lines: impl IntoIterator<Item = String>) -> String {
    let lines: Vec<String> = lines.into_iter().map(|line| escape(&line)).collect();
    lines.join("<br/>")
}

/// A word as a class of the style sheet.
fn class(word: impl fmt::Display) -> String {
    word.to_string().replace(' ', "-")
}

/// A badge for an outcome, with a sign in addition to its colour.
fn badge(word: impl fmt::Display) -> String {
    let word = word.to_string();
    let sign = match word.as_str() {
        "pass" | "proven" => "\u{2713} ",
        "fail" | "failed" => "\u{2717} ",
        "error" => "! ",
        "inconclusive" | "partly" => "? ",
        _ => "",
    };
    format!("<span class=\"badge {}\">{sign}{word}</span>", class(&word))
}

fn verdict(report: &Report) -> String {
    let says = match report.exit_code() {
        0 => "Every rule that was run holds.",
        1 => "Rules are broken.",
        2 => "For some rules it could not be decided whether they hold.",
        3 => "The kit or the harness failed: this is no verdict.",
        _ => "Nothing is proven.",
    };
    format!("<strong>{says}</strong> {}", escape(&report.verdict()))
}

fn profiles(report: &Report) -> String {
    let row = |profile: Profile| {
        let rules = [
            ("failed", profile.failed.join(", ")),
            ("open: not decided, not run or waived", profile.open.join(", ")),
            ("not claimed", profile.unclaimed.join(", ")),
            ("but", profile.but.unwrap_or_default()),
        ];
        let told = rules.iter().filter(|(_, which)| !which.is_empty());
        let told: String = told.map(|(what, which)| format!("; {what}: {which}")).collect();
        let told = escape(&format!("{} passed{told}", profile.passed));
        let (name, proves) = (profile.name.to_owned(), profile.proves.to_owned());
        [name, proves, badge(profile.state), told]
    };
    let heads = ["profile", "proves that", "state", "its MUST rules"];
    table(heads, report.profiles().into_iter().map(row))
}

/// The notes of the rules that passed.
fn measured(report: &Report) -> String {
    let passed = report.rules.iter().filter(|r| r.outcome.kind() == Kind::Pass);
    let row = |rule: &RuleReport| {
        let notes = rule.attempts.last()?.notes.clone();
        // Its name is that of a function, behind its level and its number.
        let name: Vec<&str> = rule.name.split('_').skip(3).collect();
        let name = escape(&format!("{} {}", rule.id, name.join(" ")));
        (!notes.is_empty()).then(|| [name, lines(notes)])
    };
    table(["rule", "measured"], passed.filter_map(row))
}

fn failures(report: &Report) -> String {
    let red = report.rules.iter().filter(|rule| rule.outcome.is_red());
    let articles: String = red.map(failure).collect();
    if articles.is_empty() {
        return articles;
    }
    let key = svg::legend();
    format!("<details><summary>How to read the drawings</summary>{key}</details>\n{articles}")
}

fn failure(rule: &RuleReport) -> String {
    let (id, seen) = (escape(&rule.id), rule.outcome.text());
    let (first, rest) = seen.split_once('\n').unwrap_or((seen, ""));
    let mut attempts = rule.attempts.iter().rev();
    let drawn = attempts.find(|attempt| !attempt.history.is_empty());
    let drawing = drawn.map_or_else(String::new, |attempt| drawing(attempt, first));
    let mut text = format!(
        "<article id=\"rule-{id}\">\n<h3>{} {id} {:?}: {}</h3>\n<p class=\"seen\">{}</p>\n{drawing}",
        badge(rule.outcome.kind()),
        rule.level,
        escape(rule.statement),
        escape(first)
    );
    if !rest.is_empty() {
        let open = if drawing.is_empty() { " open=\"open\"" } else { "" };
        let rest = escape(rest);
        text += &format!(
            "<details{open}><summary>Everything that was seen, as text</summary><pre>{rest}</pre></details>\n"
        );
    }
    let stored = rule.attempts.iter().rev().find_map(|a| a.stored.as_ref());
    let stored = stored.map_or_else(String::new, |path| path.display().to_string());
    // An error, for example a panic, is not what the rule is about.
    let is_about = rule.outcome.kind() != Kind::Error;
    text += "<dl>\n";
    let check_first = if is_about { rule.check_first } else { "" };
    for (what, says, tag) in [
        ("Why it matters", rule.intent, "span"),
        ("Check this first", check_first, "span"),
        ("Replay", &rule.replay, "code"),
        ("History", &stored, "code"),
    ] {
        if !says.is_empty() {
            text += &format!("<dt>{what}</dt><dd><{tag}>{}</{tag}></dd>\n", escape(says));
        }
    }
    let heads = ["attempt", "outcome", "seed", "took", "worst stall", "counted"];
    let row = |(n, attempt): (usize, &Attempt)| {
        let counts = attempt.evidence.iter();
        let counts = counts.map(|(what, count)| format!("{what}: {count}"));
        [
            (n + 1).to_string(),
            badge(attempt.outcome.kind()),
            format!("{:#x}", attempt.seed),
            format!("{:?}", attempt.took),
            format!("{:?}", attempt.stall),
            lines(counts.chain(attempt.notes.clone())),
        ]
    };
    let attempts = table(heads, rule.attempts.iter().enumerate().map(row));
    text + &format!("</dl>\n{attempts}</article>\n")
}

/// The history of an attempt, judged again: the violation, or the last operations.
fn drawing(attempt: &Attempt, seen: &str) -> String {
    let events = &attempt.history;
    let (mut svg, mut told) = (String::new(), String::new());
    let mut caption = "No checker finds fault with the history. What happened last:".to_owned();
    if attempt.asked.is_empty() {
        caption = "What the clients did last:".to_owned();
        svg = svg::latest(events, &attempt.model);
    }
    for Asked { model, check } in &attempt.asked {
        if let Ok(Judgement::Illegal(violation)) = check.judge(events, model, wgl::BUDGET) {
            svg = svg::of(&violation, events, model);
            let about = violation.operations.iter().take(TOLD);
            told = list(about.map(|op| timeline::told(events, *op)));
            caption = format!("Its history is illegal, judged by {check}");
            if !seen.contains(&violation.explanation) {
                caption += &format!(": {violation}");
            }
            break;
        }
        svg = svg::latest(events, model);
    }
    let caption = escape(&caption);
    format!(
        "<figure>\n<figcaption>{caption}</figcaption>\n<div class=\"wide\">{svg}</div>\n{told}</figure>\n"
    )
}

/// All rules. The style sheet reads the check boxes before the table to select the rows.
fn rules(report: &Report) -> String {
    let mut text = String::new();
    for kind in Kind::ALL.into_iter().filter(|kind| report.count(*kind) > 0) {
        let (class, count, badge) = (class(kind), report.count(kind), badge(kind));
        text += &format!(
            "<label><input type=\"checkbox\" id=\"show-{class}\" checked=\"checked\"/> {count} \
                {badge}</label>\n"
        );
    }
    let row = |rule: &RuleReport| {
        let id = escape(&rule.id);
        let link = format!("<a href=\"#rule-{id}\">{id}</a>");
        let inherited = "<br/><small>kept by the engine of dlock-core</small>";
        [
            if rule.outcome.is_red() { link } else { id },
            escape(rule.statement) + if rule.inherited { inherited } else { "" },
            badge(rule.outcome.kind()),
            escape(&first_line(rule.outcome.text())),
        ]
    };
    let heads = ["rule", "statement", "outcome", "why"];
    text + &table(heads, report.rules.iter().map(row))
}

fn foot(report: &Report) -> String {
    let late = "how late the machine was at most, 999 of 1000 times";
    let facts = [
        ("seed", format!("{:#x}", report.seed)),
        ("effort", format!("{:?}", report.effort)),
        ("took", format!("{:.1} s", report.took.as_secs_f64())),
        ("ended", date(report.ended_unix_s)),
        (late, format!("{:?}", report.canary_p999)),
        ("claims", report.capabilities.clone()),
    ];
    let bounds = report.bounds.iter();
    let bounds = bounds.map(|(bound, claimed)| (*bound, claimed.clone()));
    let facts = facts.into_iter().chain(bounds);
    let facts = facts.map(|(what, says)| [what.to_owned(), escape(&says)]);
    let waivers = report.waivers.iter().map(|waiver| {
        let mut link = escape(&waiver.link);
        if link.starts_with("https://") || link.starts_with("http://") {
            link = format!("<a href=\"{link}\" rel=\"noreferrer\">{link}</a>");
        }
        [escape(&waiver.rule), escape(&waiver.reason), link]
    });
    format!(
        "<footer>\n{}{}</footer>\n",
        section("Waivers", &table(["rule", "reason", "discussed at"], waivers)),
        section("How it was run", &table(["what", "value"], facts))
    )
}

/// Formats a time in seconds since 1970 (the usual conversion to a civil date).
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    // The year begins in March, so that the odd month is its last.
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}
