//! One page for people, `report.html`: a file that loads nothing and runs no script.
//!
//! It is written so that a parser of XML reads it as well. All that comes from outside is escaped.

use std::fmt;

use super::summary::not_proven;
use super::text::{escape, first_line};
use super::timeline::{self, TOLD, svg};
use super::{Profile, Report, RuleReport};
use crate::attempt::Attempt;
use crate::checker::{Judgement, wgl};
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
        limits(report),
        profiles(report),
        measured(report),
        failures(report),
        rules(report),
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

/// A table in a box of its own, in which it can be moved sideways; nothing if it has no rows.
fn table(heads: &[&str], rows: &str) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heads: String = heads
        .iter()
        .map(|head| format!("<th scope=\"col\">{head}</th>"))
        .collect();
    format!(
        "<div class=\"wide\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

fn list(lines: impl IntoIterator<Item = String>) -> String {
    let items: String = lines
        .into_iter()
        .map(|l| format!("<li>{}</li>\n", escape(&l)))
        .collect();
    format!("<ul>\n{items}</ul>\n")
}

/// A word as a class of the style sheet.
fn class(word: impl fmt::Display) -> String {
    word.to_string().replace(' ', "-")
}

/// How something came out, told apart by a sign as well.
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
        2 => "Of some rules it could not be told whether they hold.",
        3 => "The kit or the harness went wrong: this is no verdict.",
        _ => "Nothing is proven.",
    };
    format!("<strong>{says}</strong> {}", escape(&report.verdict()))
}

fn limits(report: &Report) -> String {
    section("Not proven by this run", &list(not_proven(report)))
}

fn profiles(report: &Report) -> String {
    let row = |profile: Profile| {
        let rules = [
            ("not passed", profile.failed.join(", ")),
            ("not run or waived", profile.open.join(", ")),
            ("but", profile.but.unwrap_or_default()),
        ];
        let told = rules.iter().filter(|(_, which)| !which.is_empty());
        let told: String = told
            .map(|(what, which)| format!("; {what}: {}", escape(which)))
            .collect();
        let (name, proves, passed) = (profile.name, profile.proves, profile.passed);
        format!(
            "<tr><th scope=\"row\">{name}</th><td>{proves}</td><td>{}</td><td>{passed} passed{told}</td></tr>\n",
            badge(profile.state)
        )
    };
    let rows: String = report.profiles().into_iter().map(row).collect();
    let heads = ["profile", "proves that", "state", "its MUST rules"];
    section("Profiles", &table(&heads, &rows))
}

/// What the rules that passed have noted.
fn measured(report: &Report) -> String {
    let passed = report.rules.iter().filter(|r| r.outcome.kind() == Kind::Pass);
    let rows: String = passed
        .filter_map(|rule| {
            let notes = &rule.attempts.last()?.notes;
            let notes: Vec<String> = notes.iter().map(|note| escape(note)).collect();
            let (id, name) = (escape(&rule.id), name(rule));
            let row = format!(
                "<tr><th scope=\"row\">{id} {name}</th><td>{}</td></tr>\n",
                notes.join("<br/>")
            );
            (!notes.is_empty()).then_some(row)
        })
        .collect();
    section("Measured", &table(&["rule", "measured"], &rows))
}

/// Its name as words, without its level and number.
fn name(rule: &RuleReport) -> String {
    let words: Vec<&str> = rule.name.split('_').skip(3).collect();
    escape(&words.join(" "))
}

fn failures(report: &Report) -> String {
    let red = report.rules.iter().filter(|rule| rule.outcome.is_red());
    let articles: String = red.map(failure).collect();
    if articles.is_empty() {
        return articles;
    }
    let key = format!(
        "<details><summary>How to read the drawings</summary>{}</details>\n",
        svg::legend()
    );
    section("What did not pass", &(key + &articles))
}

fn failure(rule: &RuleReport) -> String {
    let (id, seen) = (escape(&rule.id), rule.outcome.text());
    let (first, rest) = seen.split_once('\n').unwrap_or((seen, ""));
    let deciding = rule
        .attempts
        .iter()
        .rev()
        .find(|attempt| !attempt.history.is_empty());
    let drawing = deciding.map_or_else(String::new, |attempt| drawing(attempt, first));
    let mut text = format!(
        "<article id=\"rule-{id}\">\n<h3>{} {id} {:?}: {}</h3>\n<p class=\"seen\">{}</p>\n{drawing}",
        badge(rule.outcome.kind()),
        rule.level,
        escape(rule.statement),
        escape(first)
    );
    if !rest.is_empty() {
        let open = if drawing.is_empty() { " open=\"open\"" } else { "" };
        text += &format!(
            "<details{open}><summary>All that was seen, as text</summary><pre>{}</pre></details>\n",
            escape(rest)
        );
    }
    let stored = rule.attempts.iter().rev().find_map(|a| a.stored.as_ref());
    // An error, a panic say, is not what the rule is about.
    let check_first = if rule.outcome.kind() == Kind::Error {
        ""
    } else {
        rule.check_first
    };
    let stored = stored.map_or_else(String::new, |path| path.display().to_string());
    text += "<dl>\n";
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
    let attempts: String = rule
        .attempts
        .iter()
        .enumerate()
        .map(|(n, a)| attempt(n, a))
        .collect();
    text + "</dl>\n"
        + &table(
            &["attempt", "outcome", "seed", "took", "worst stall", "counted"],
            &attempts,
        )
        + "</article>\n"
}

fn attempt(n: usize, attempt: &Attempt) -> String {
    let counts = attempt
        .evidence
        .iter()
        .map(|(what, count)| format!("{what}: {count}"));
    let counted: Vec<String> = counts
        .chain(attempt.notes.clone())
        .map(|line| escape(&line))
        .collect();
    format!(
        "<tr><td>{}</td><td>{}</td><td>{:#x}</td><td>{:?}</td><td>{:?}</td><td>{}</td></tr>\n",
        n + 1,
        badge(attempt.outcome.kind()),
        attempt.seed,
        attempt.took,
        attempt.stall,
        counted.join("<br/>")
    )
}

/// The history of an attempt, judged again: what is wrong with it, or what happened last.
fn drawing(attempt: &Attempt, seen: &str) -> String {
    let events = &attempt.history;
    let violation =
        attempt.asked.iter().find_map(
            |asked| match asked.check.judge(events, &asked.model, wgl::BUDGET) {
                Ok(Judgement::Illegal(violation)) => Some((asked, violation)),
                _ => None,
            },
        );
    let (svg, caption, told) = match (violation, attempt.asked.first()) {
        (Some((asked, violation)), _) => (
            svg::of(&violation, events, &asked.model),
            match seen.contains(&violation.explanation) {
                true => format!("Its history is illegal, judged by {}.", asked.check),
                false => format!("Its history is illegal, judged by {}: {violation}", asked.check),
            },
            list(
                violation
                    .operations
                    .iter()
                    .take(TOLD)
                    .map(|op| timeline::told(events, *op)),
            ),
        ),
        (None, Some(asked)) => {
            let caption = "No checker finds fault with the history. What happened last:";
            (
                svg::latest(events, &asked.model),
                caption.to_owned(),
                String::new(),
            )
        }
        (None, None) => return String::new(),
    };
    format!(
        "<figure>\n<figcaption>{}</figcaption>\n<div class=\"wide\">{svg}</div>\n{told}</figure>\n",
        escape(&caption)
    )
}

/// All rules. The boxes before the table are asked by the style sheet which rows to show.
fn rules(report: &Report) -> String {
    let mut text = String::new();
    for kind in Kind::ALL.into_iter().filter(|kind| report.count(*kind) > 0) {
        let class = class(kind);
        text += &format!(
            "<input type=\"checkbox\" id=\"show-{class}\" checked=\"checked\"/><label \
                for=\"show-{class}\">{} {}</label>\n",
            report.count(kind),
            badge(kind)
        );
    }
    let row = |rule: &RuleReport| {
        let (id, kind) = (escape(&rule.id), rule.outcome.kind());
        let id = match rule.outcome.is_red() {
            true => format!("<a href=\"#rule-{id}\">{id}</a>"),
            false => id,
        };
        let inherited = match rule.inherited {
            true => "<br/><small>kept by the engine of dlock-core</small>",
            false => "",
        };
        format!(
            "<tr class=\"{}\"><th scope=\"row\">{id}</th><td>{}{inherited}</td><td>{}</td><td>{}</td></tr>\n",
            class(kind),
            escape(rule.statement),
            badge(kind),
            escape(&first_line(rule.outcome.text()))
        )
    };
    let rows: String = report.rules.iter().map(row).collect();
    text += &table(&["rule", "statement", "outcome", "why"], &rows);
    section("All rules", &text)
}

fn foot(report: &Report) -> String {
    let mut facts = vec![
        ("seed", format!("{:#x}", report.seed)),
        ("effort", format!("{:?}", report.effort)),
        ("took", format!("{:.1} s", report.took.as_secs_f64())),
        ("ended", date(report.ended_unix_s)),
        (
            "how late the machine was, 999 of 1000 times",
            format!("{:?}", report.canary_p999),
        ),
        ("claims", report.capabilities.clone()),
    ];
    facts.extend(
        report
            .bounds
            .iter()
            .map(|(bound, claimed)| (*bound, claimed.clone())),
    );
    let facts: String = facts
        .iter()
        .map(|(what, says)| {
            format!(
                "<tr><th scope=\"row\">{what}</th><td>{}</td></tr>\n",
                escape(says)
            )
        })
        .collect();
    let waivers: String = report
        .waivers
        .iter()
        .map(|waiver| {
            let link = escape(&waiver.link);
            let link = match link.starts_with("https://") || link.starts_with("http://") {
                true => format!("<a href=\"{link}\" rel=\"noreferrer\">{link}</a>"),
                false => link,
            };
            let (rule, reason) = (escape(&waiver.rule), escape(&waiver.reason));
            format!("<tr><th scope=\"row\">{rule}</th><td>{reason}</td><td>{link}</td></tr>\n")
        })
        .collect();
    format!(
        "<footer>\n{}{}</footer>\n",
        section("Waivers", &table(&["rule", "reason", "discussed at"], &waivers)),
        section("How it was run", &table(&["what", "value"], &facts))
    )
}

/// A time in seconds since 1970 as one reads it (the usual conversion to a civil date).
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day = day_of_era - (365 * year + year / 4 - year / 100);
    // The year begins in March, so that the odd month is its last.
    let month = (5 * day + 2) / 153;
    let (day, month, turn) = (
        day - (153 * month + 2) / 5 + 1,
        (month + 2) % 12 + 1,
        u64::from(month > 9),
    );
    let year = era * 400 + year + turn;
    let (hour, minute) = (second / 3600, second % 3600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn a_date_is_that_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_827_700, "2000-02-29 12:35 UTC"),
            (1_767_225_599, "2025-12-31 23:59 UTC"),
            (1_767_225_600, "2026-01-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
