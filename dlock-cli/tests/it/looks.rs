//! `dlock status` and `dlock watch`.

use std::process::Stdio;

use crate::site::{Running, Site};

#[test]
fn who_holds_is_shown_and_how_that_changes() {
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
