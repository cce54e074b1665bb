//! The page of a run, read by a parser.

use dlock_conformance::report::timeline::svg;
use dlock_conformance::{Kind, Report, RuleReport};
use roxmltree::{Document, Node, ParsingOptions};

use crate::fixture::{LEASE, history, in_millis};
use crate::report::{attempt, declared, report, rule};

/// Two who hold at once.
const CLASH: &str = "
    0-10  A acquire a ttl=1000 token=1
    20-30 B acquire b ttl=1000 token=2
    40-50 A release a
    60-70 B release b";

fn read(page: &str) -> Document<'_> {
    let allow_dtd = true;
    let options = ParsingOptions {
        allow_dtd,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap_or_else(|e| panic!("{e}\n{page}"))
}

/// The elements of that kind whose class has that word.
fn all<'a>(page: &'a Document<'_>, tag: &str, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |node: &Node<'_, '_>| {
        let classes = node.attribute("class").unwrap_or_default();
        node.has_tag_name(tag) && (class.is_empty() || classes.split(' ').any(|c| c == class))
    };
    page.descendants().filter(has).collect()
}

fn text(node: Node<'_, '_>) -> String {
    let texts = node
        .descendants()
        .filter_map(|n| n.text().filter(|_| n.is_text()));
    texts.collect()
}

/// A rule that failed with that history.
fn failed(events: &str) -> RuleReport {
    let mut failed = rule("1.02", Kind::Fail);
    let mut attempt = attempt(Kind::Fail, 5);
    attempt.history = in_millis(events);
    attempt.notes.push("<b>a note</b>".to_owned());
    failed.attempts = vec![attempt];
    failed
}

fn hostile(link: &str) -> Report {
    let mut report = report(vec![failed(CLASH), rule("1.03", Kind::NotRun)]);
    report.product = "<script>alert(\"1\")</script>&\t\u{1}\u{1b}\u{ffff}".to_owned();
    report.rules[1].statement = "</td><img src=\"x\"/>";
    report.problems.push("<i>".to_owned());
    let claims = dlock_conformance::Claims::new("acme", "1", dlock_core::Capabilities::new("store"));
    report.waivers = claims.waive("1.03", "<u>", link).waivers;
    report
}

#[test]
fn a_page_is_well_formed_and_escapes_outside_text() {
    let html = hostile("javascript:alert(1)").html();
    let page = read(&html);
    for tag in [
        "script", "link", "img", "i", "b", "u", "iframe", "object", "image", "use",
    ] {
        let found = all(&page, tag, "");
        // The key of the drawings has its signs in bold.
        let found = found
            .iter()
            .filter(|n| n.parent().is_none_or(|p| !p.has_tag_name("span")));
        assert_eq!(found.count(), 0, "{tag}");
    }
    let attributes = page.descendants().flat_map(|node| node.attributes());
    for attribute in attributes {
        let (name, value) = (attribute.name(), attribute.value());
        assert!(
            !name.starts_with("on") && !["src", "style"].contains(&name),
            "{name}"
        );
        assert!(name != "href" || value.starts_with("#rule-"), "{value}");
    }
    let style = text(all(&page, "style", "")[0]);
    assert!(!style.contains("url(") && !style.contains("@import"));
    // XML cannot express most control characters.
    assert_eq!(
        text(all(&page, "h1", "")[0]),
        "<script>alert(\"1\")</script>&\t\u{fffd}\u{fffd}\u{fffd} 1.2"
    );
    let html = hostile("https://acme.example/7?a=1&b=2").html();
    let page = read(&html);
    let links = all(&page, "a", "");
    let outside = links.iter().find(|a| a.attribute("rel").is_some()).unwrap();
    assert_eq!(outside.attribute("href"), Some("https://acme.example/7?a=1&b=2"));
}

#[test]
fn the_page_starts_with_what_is_not_proven() {
    let html = hostile("").html();
    let page = read(&html);
    let headings: Vec<String> = all(&page, "h2", "").into_iter().map(text).collect();
    assert_eq!(
        headings,
        [
            "Not proven by this run",
            "Profiles",
            "What did not pass",
            "All rules",
            "Waivers",
            "How it was run"
        ]
    );
}

#[test]
fn an_illegal_history_is_drawn_with_the_time_of_two_holders() {
    let report = report(vec![failed(CLASH)]);
    let html = report.html();
    let page = read(&html);
    let through = all(&page, "rect", "through");
    assert_eq!(through.len(), 1);
    assert_eq!(through[0].attribute("class"), Some("clash through"));
    let figure = all(&page, "figure", "")[0];
    assert!(text(figure).contains("both hold, from 30.000 ms to 40.000 ms"));
    for item in all(&page, "g", "item") {
        assert_eq!(item.attribute("tabindex"), Some("0"));
        assert_eq!(
            item.attribute("aria-label"),
            Some(text(item.last_element_child().unwrap()).as_str())
        );
    }
    // One that is legal shows what happened last.
    let legal = "0-10 A acquire a ttl=1000 token=1\n40-50 A release a";
    let html = self::report(vec![failed(legal)]).html();
    assert!(html.contains("What happened last") && html.contains("class=\"timeline\""));
    assert!(!html.contains("clash through"));
}

#[test]
fn rules_can_be_hidden_by_outcome() {
    let html = report(Kind::ALL.map(|kind| rule("1.01", kind)).to_vec()).html();
    let page = read(&html);
    let style = text(all(&page, "style", "")[0]);
    let boxes: Vec<_> = all(&page, "input", "");
    assert_eq!(boxes.len(), Kind::ALL.len());
    for (kind, show) in Kind::ALL.iter().zip(boxes) {
        let class = kind.to_string().replace(' ', "-");
        assert_eq!(show.attribute("id"), Some(format!("show-{class}").as_str()));
        assert!(style.contains(&format!(
            "section:has(#show-{class}:not(:checked)) tr:has(.{class})"
        )));
        let badges = all(&page, "span", &class);
        let rows = badges
            .iter()
            .filter(|b| b.parent().is_some_and(|p| p.has_tag_name("td")));
        assert_eq!(rows.count(), 1, "{class}");
    }
}

#[test]
fn figures_are_those_that_passed_rules_have_noted() {
    let with_note = |kind| {
        let mut rule = RuleReport::tested(
            &declared("8.02"),
            failed("").outcome,
            Vec::new(),
            false,
            String::new(),
        );
        rule.outcome = self::rule("8.02", kind).outcome;
        rule.attempts = failed("").attempts;
        rule
    };
    let shown = |kind| report(vec![with_note(kind)]).html().contains("<h2>Measured</h2>");
    assert!(shown(Kind::Pass));
    assert!(!shown(Kind::NotRun));
}

#[test]
fn the_end_of_a_run_is_a_date_of_the_calendar() {
    for (seconds, date) in [
        (0, "1970-01-01 00:00 UTC"),
        (951_827_700, "2000-02-29 12:35 UTC"),
        (1_767_225_599, "2025-12-31 23:59 UTC"),
        (1_767_225_600, "2026-01-01 00:00 UTC"),
    ] {
        let mut report = report(Vec::new());
        report.ended_unix_s = seconds;
        let shown = format!("<td>ended</td><td>{date}</td>");
        assert!(report.html().contains(&shown), "{date}");
    }
}

/// Where a bar of that class begins and ends.
fn bars(svg: &Document<'_>, class: &str) -> Vec<(u32, u32)> {
    let number = |node: &Node<'_, '_>, name| -> u32 { node.attribute(name).unwrap().parse().unwrap() };
    let bars = all(svg, "rect", class);
    let ends = bars.iter().map(|bar| (number(bar, "x"), number(bar, "width")));
    ends.map(|(x, width)| (x, x + width)).collect()
}

#[test]
fn bars_stand_where_their_times_are() {
    let drawing = svg::draw(&in_millis(CLASH), &[1, 2], &LEASE);
    let svg = read(&drawing);
    // 70 ms in 900 columns, which begin at 94.
    let column = |ms: u32| 94 + ms * 899 / 70;
    let span = |from, until| (column(from), column(until));
    assert_eq!(bars(&svg, "asks"), [span(0, 10), span(20, 30)]);
    assert_eq!(bars(&svg, "holds"), [span(10, 40), span(30, 60)]);
    assert_eq!(bars(&svg, "lets-go"), [span(40, 50), span(60, 70)]);
    assert_eq!(bars(&svg, "perhaps"), [span(0, 50), span(20, 70)]);
    assert_eq!(bars(&svg, "sure"), [span(10, 40), span(30, 60)]);
    assert_eq!(bars(&svg, "clash"), [span(30, 40), span(30, 40)]);
}

#[test]
fn faults_deadlines_and_cuts_are_drawn() {
    let text = "
        0-10000000  A acquire a ttl=400000000 token=1
        230000000 A fault note=cut<off>
        300000000 A healed
        590000000-600000000 A release a lost
        900000000000-900010000000 A try b held";
    let drawing = svg::draw(&history(text), &[], &LEASE);
    let svg = read(&drawing);
    let says: Vec<_> = all(&svg, "g", "item")
        .iter()
        .filter_map(|g| g.attribute("aria-label"))
        .collect();
    for known in [
        "cut<off>, from 230.000 ms to 300.000 ms",
        "899400.000 ms are left out here",
    ] {
        assert!(says.contains(&known), "{known}: {says:?}");
    }
    for class in ["past", "fault", "cut"] {
        assert!(!bars(&svg, class).is_empty(), "{class}");
    }
}

#[test]
fn lanes_and_grants_beyond_a_drawing_are_counted() {
    let mut text = String::new();
    for n in 0..20 {
        text += &format!("{n}-{} L{n} acquire g{n} ttl=9000 token={n}\n", n + 500);
    }
    let drawing = svg::latest(&in_millis(&text), &LEASE);
    assert!(drawing.contains("and 6 more grants"), "{drawing}");
    let drawing = svg::draw(&in_millis(&text), &[20], &LEASE);
    assert!(drawing.contains("and 8 more lanes"), "{drawing}");
    assert!(drawing.contains(">\u{25b6} lane 20<"), "{drawing}");
    assert_eq!(svg::draw(&[], &[], &LEASE), "");
}
