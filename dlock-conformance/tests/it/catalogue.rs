//! What is generated is up to date.

use dlock_conformance::rules;

/// 3.02 before 10.01.
fn number(id: &str) -> (u32, u32) {
    let (section, rule) = id.split_once('.').unwrap();
    (section.parse().unwrap(), rule.parse().unwrap())
}

#[test]
fn rules_are_in_the_order_of_their_numbers_each_used_once() {
    let ids: Vec<&str> = rules::all().map(|rule| rule.id).collect();
    assert!(ids.is_sorted_by(|a, b| number(a) < number(b)), "{ids:?}");
    let json: serde_json::Value = serde_json::from_str(&dlock_conformance::rules_json()).unwrap();
    let listed = json["rules"].as_array().unwrap().iter();
    let listed: Vec<&str> = listed.map(|rule| rule["id"].as_str().unwrap()).collect();
    assert_eq!(listed, ids);
}

#[test]
fn rules_json_is_up_to_date() {
    let stored = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/RULES.json")).unwrap();
    assert!(
        stored == dlock_conformance::rules_json(),
        "RULES.json is stale: run `cargo run -p dlock-conformance --example rules > \
            dlock-conformance/RULES.json`"
    );
}

#[test]
fn the_page_of_rules_is_up_to_date() {
    let stored = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rules.md")).unwrap();
    assert!(
        stored == dlock_conformance::rules_page(),
        "docs/rules.md is stale: run `cargo run -p dlock-conformance --example rules -- page > docs/rules.md`"
    );
}

/// In one line, as before it was folded.
fn unfolded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The figures in it are compared with what is measured where bugs can be planted (`scripts/matrix --check`);
/// here, that nothing is missing.
#[test]
fn the_museum_shows_every_exhibit() {
    use dlock_conformance::museum::{WAITING, exhibits};

    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/MUSEUM.md")).unwrap();
    let page = unfolded(&page);
    for exhibit in exhibits() {
        let shown = [
            format!("### {}\n", exhibit.title),
            format!("([{}]({}))", exhibit.issue, exhibit.url()),
            exhibit.story.to_owned(),
            format!(
                "| {} | {} | {} |",
                exhibit.since.year(),
                exhibit.lived(),
                exhibit.rule()
            ),
        ];
        for text in shown {
            assert!(
                page.contains(&unfolded(&text)),
                "MUSEUM.md is stale, it lacks {text:?}: its last lines tell how to write it anew"
            );
        }
    }
    for absent in WAITING {
        assert!(
            page.contains(&unfolded(absent.story)),
            "MUSEUM.md is stale: {}",
            absent.issue
        );
    }
}
