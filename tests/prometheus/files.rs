//! The two files by themselves.

use std::collections::BTreeSet;
use std::path::Path;

use dlock_testkit::promtool;
use serde_json::Value;

use crate::site::{ALERTS, buckets, get, in_memory, scraped};

const DASHBOARD: &str = include_str!("../../docs/prometheus/dashboard.json");

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// What the dashboard asks for.
pub(crate) fn expressions() -> Vec<String> {
    let targets = panels()
        .into_iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    targets
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

/// The metrics that a text names. A histogram is asked for by its parts.
pub(crate) fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let own = words.filter(|word| word.starts_with("dlock_"));
    let part = |name| {
        ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|part| str::strip_suffix(name, part))
    };
    own.map(|name| part(name).unwrap_or(name)).collect()
}

/// The words that a label has to have in an expression, as `label="word"`.
fn words_in(text: &str) -> BTreeSet<String> {
    let parts: Vec<&str> = text.split('"').collect();
    let mut words = BTreeSet::new();
    for pair in parts.windows(2) {
        let before = pair[0].strip_suffix('~').unwrap_or(pair[0]);
        for label in ["outcome", "reason", "answer"] {
            if before.ends_with(&format!("{label}=")) {
                words.extend(pair[1].split('|').map(|word| format!("{label}=\"{word}\"")));
            }
        }
    }
    words
}

#[test]
fn both_files_ask_for_what_is_there_from_the_first_client_on() {
    scraped(async |site| {
        let (_store, _client) = in_memory();
        let there = site.scrape();
        let reported = metrics_in(&there);
        assert_eq!(
            metrics_in(DASHBOARD),
            reported,
            "the dashboard shows all there is"
        );
        assert!(
            metrics_in(ALERTS).is_subset(&reported),
            "{:?}",
            metrics_in(ALERTS)
        );
        let asked = words_in(&format!("{ALERTS} {}", expressions().concat()));
        assert!(asked.len() > 8, "{asked:?}");
        for word in asked {
            assert!(there.contains(&word), "nothing is reported with {word}");
        }
    });
}

#[test]
fn each_rule_says_what_to_do_and_is_provoked_by_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/prometheus");
    promtool(&folder, &["check", "rules", "alerts.yml"]).unwrap();
    let told = get("/api/v1/rules").unwrap();
    let rules = told["groups"][0]["rules"].as_array().unwrap();
    assert!(!rules.is_empty());
    for rule in rules {
        let name = rule["name"].as_str().unwrap();
        assert!(
            matches!(rule["labels"]["severity"].as_str(), Some("critical" | "warning")),
            "{rule}"
        );
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].is_string(), "{name} has no {text}");
        }
        let provoked = include_str!("alarms.rs").contains(&format!("(\"{name}\""));
        assert!(provoked, "nothing in alarms.rs raises {name}");
    }
}

/// In synthetic time, with the file as it is.
#[test]
fn what_passes_is_no_alarm_and_what_lasts_is_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prometheus");
    promtool(&folder, &["test", "rules", "lasting.yml"]).unwrap();
}

#[test]
fn the_limit_of_waits_is_one_of_the_buckets_of_the_page() {
    let (_, rest) = ALERTS
        .split_once("rate(dlock_wait_seconds_bucket[5m]))) > ")
        .unwrap();
    let limit: f64 = rest.lines().next().unwrap().parse().unwrap();
    assert!(buckets().contains(&limit), "{limit} is not in {:?}", buckets());
    assert!(buckets().is_sorted());
}

/// As far as that can be told without it.
#[test]
fn the_dashboard_is_one_that_grafana_9_imports() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    assert_eq!(dashboard["schemaVersion"], 37);
    assert!(dashboard["id"].is_null());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "backend"]);
    assert_eq!(variables[0]["type"], "datasource");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(
            ["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()),
            "{panel}"
        );
        assert!(
            panel["title"].is_string() && panel["description"].is_string(),
            "{panel}"
        );
        for source in [&panel["datasource"], &panel["targets"][0]["datasource"]] {
            assert_eq!(
                (&source["type"], &source["uid"]),
                (&"prometheus".into(), &"${datasource}".into())
            );
        }
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{panel}");
        for (x, y) in (0..at("w")).flat_map(|x| (0..at("h")).map(move |y| (x, y))) {
            assert!(
                cells.insert((at("x") + x, at("y") + y)),
                "it covers another one: {panel}"
            );
        }
    }
}
