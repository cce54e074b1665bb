//! `dlock status`, `dlock watch` and `dlock bench`.

use std::process::Stdio;

use crate::site::{Running, Site};

#[test]
fn status_and_watch_show_holders() {
    let site = Site::new();
    assert_eq!(site.run(&["status", "x"]), (0, "x: free\n".to_owned()));
    let watch = Running::of(
        site.dlock(["watch", "--json", "x"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let next = || -> serde_json::Value { serde_json::from_str(&watch.line()).unwrap() };
    assert_eq!(next()["event"], "snapshot");
    let mut running = site.start(&["run", "--label", "me", "x"], "echo up; sleep 60");
    running.line();
    let (_, said) = site.run(&["status", "x"]);
    assert!(
        said.starts_with("x: held\n  exclusive, token ") && said.contains("\"me\""),
        "{said}"
    );
    let (_, said) = site.run(&["status", "--json", "x"]);
    let status: serde_json::Value = serde_json::from_str(&said).unwrap();
    let holder = &status["holders"][0];
    assert_eq!(
        (&status["name"], &status["waiting"], &holder["owner"]),
        (&"x".into(), &0.into(), &"me".into())
    );
    let granted = next();
    assert_eq!(
        (&granted["event"], &granted["id"]),
        (&"granted".into(), &holder["id"])
    );
    assert_eq!(granted["holder"]["token"], holder["token"]);
    running.signal("TERM");
    running.code();
    let released = next();
    assert_eq!(
        (&released["event"], &released["id"]),
        (&"released".into(), &holder["id"])
    );
}

/// What a terminal would take for a command is escaped where it is printed, and a program is told it as it
/// is.
#[test]
fn a_name_is_listed_as_it_was_given() {
    let site = Site::new();
    let mut holds = ["a\tb", "a\\tb"].map(|name| site.start(&["run", name], "echo up; sleep 60"));
    holds.iter().for_each(|running| {
        running.line();
    });
    assert_eq!(site.run(&["ls"]), (0, "a\\tb\na\\tb\n".to_owned()));
    for args in [&["ls", "--json"][..], &["ls", "--long", "--json"]] {
        let (_, said) = site.run(args);
        let mut names: Vec<_> = said
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone())
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["a\tb", "a\\tb"], "{said}");
    }
    holds.iter_mut().for_each(|running| {
        running.signal("TERM");
        running.code();
    });
}

#[test]
fn bench_measures_and_leaves_nothing() {
    let site = Site::new();
    let bench = site
        .dlock(["bench", "--for", "600ms", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("dlock-bench-{}", bench.id());
    let output = bench.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(site.run(&["status", &name]), (0, format!("{name}: free\n")));
    let all: serde_json::Value = serde_json::from_str(&said).unwrap();
    for what in ["round_trip", "pair", "hand_off"] {
        let of = |figure: &str| all[what][figure].as_f64().unwrap_or(0.0);
        assert!(
            of("count") >= 1.0 && of("p50_ms") > 0.0 && of("p50_ms") <= of("p99_ms"),
            "{said}"
        );
    }
    let (code, said) = site.run(&["bench", "--for", "300ms"]);
    assert!(
        code == 0 && said.lines().count() == 4 && said.contains("hand-off"),
        "{said}"
    );
    assert_eq!(site.run(&["bench", "--for", "0s"]).0, 125);
}

#[test]
fn in_memory_store_is_refused() {
    for url in ["memory://", "sqlite::memory:"] {
        let (code, said) = Site::with(url.to_owned()).run(&["run", "x", "--", "true"]);
        assert!(code == 125 && said.contains("exclude nobody"), "{code} {said}");
    }
}
