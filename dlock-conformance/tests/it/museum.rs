//! The museum: each of its bugs is planted, and on record.

use std::collections::HashSet;

use dlock_conformance::museum::{End, Exhibit, REBUILT, WAITING, WRAPPERS, exhibits};
use dlock_conformance::rules;

#[test]
fn every_exhibit_has_a_planted_bug() {
    for exhibit in exhibits() {
        assert!(!exhibit.rule().is_empty(), "{}: {}", exhibit.issue, exhibit.bug);
    }
}

#[test]
fn every_rebuilt_bug_is_an_exhibit_and_no_rules_own() {
    for rebuilt in REBUILT {
        assert!(exhibits().any(|e| e.bug == rebuilt.bug), "{}", rebuilt.bug);
        let own = rules::find(rebuilt.rule).map(|rule| rule.bug.map(|(bug, _)| bug));
        assert!(own.is_some_and(|own| own != Some(rebuilt.bug)), "{}", rebuilt.bug);
    }
}

#[test]
fn every_planted_bug_is_a_diff_or_a_wrapper() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("bugs");
    let own = rules::all().filter_map(|rule| Some((rule.id, rule.bug?.0)));
    let all: HashSet<_> = own.chain(REBUILT.iter().map(|r| (r.rule, r.bug))).collect();
    for (rule, bug) in &all {
        let is_a_diff = folder.join(format!("{rule}-{bug}.diff")).is_file();
        assert!(is_a_diff != WRAPPERS.contains(bug), "{rule} {bug}");
    }
    for file in std::fs::read_dir(folder).expect("the bugs are there") {
        let file = file.expect("an entry").file_name().into_string().expect("a name");
        let name = file.strip_suffix(".diff").unwrap_or_default();
        let known = name == "shared" || name.split_once('-').is_some_and(|of| all.contains(&of));
        assert!(known, "{file} belongs to no rule");
    }
}

#[test]
fn an_issue_is_shown_once_and_can_be_looked_up() {
    let mut seen = HashSet::new();
    let absent = WAITING.iter().map(|a| a.issue);
    for issue in exhibits().map(|e| e.issue).chain(absent) {
        assert!(seen.insert(issue), "{issue} is shown twice");
        let (repository, number) = issue.split_once('#').unwrap_or_default();
        assert_eq!(repository.matches('/').count(), 1, "{issue}");
        assert!(number.parse::<u32>().is_ok(), "{issue}");
    }
}

#[test]
fn no_bug_is_fixed_before_it_is_reported() {
    for exhibit in exhibits() {
        if let End::Mended(day) | End::Open(day) = exhibit.end {
            assert!(exhibit.since <= day, "{}", exhibit.issue);
        }
    }
}

/// The first exhibit since that month.
fn since(month: &str) -> Exhibit {
    let mut all = exhibits();
    *all.find(|exhibit| exhibit.since.month() == month).unwrap()
}

#[test]
fn durations_read_naturally() {
    for (from, until, expected) in [
        ("2024-02", "2024-02", "less than a day"),
        // Over a leap day.
        ("2024-02", "2024-03", "24 days"),
        ("2018-02", "2018-08", "6 months"),
        ("2018-08", "2020-08", "2 years"),
    ] {
        let end = End::Mended(since(until).since);
        let exhibit = Exhibit { end, ..since(from) };
        assert_eq!(exhibit.lived(), expected, "{from}, {until}");
    }
    assert_eq!(since("2017-12").lived(), "1 day");
    assert_eq!(since("2015-11").lived(), "7 years, 5 months");
}
