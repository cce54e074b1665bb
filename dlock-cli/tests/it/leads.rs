//! `dlock elect`.

use crate::site::{Site, soon};

#[test]
fn one_host_leads_and_another_follows_when_it_vanishes() {
    let site = Site::new();
    let elect = |value| {
        site.start(
            &["elect", "--ttl", "2s", "--value", value, "scheduler"],
            "echo $DLOCK_TOKEN; sleep 60",
        )
    };
    let mut first = elect("a:1");
    let token: u64 = first.line().parse().unwrap();
    let mut second = elect("b:2");
    assert!(site.run(&["status", "scheduler"]).1.contains("a:1"));
    first.signal("KILL");
    let later: u64 = second.line().parse().unwrap();
    assert!(later > token);
    soon("the other leads", || {
        site.run(&["status", "scheduler"]).1.contains("b:2")
    });
    // It is lost, the command is ended, and begins again when it leads again.
    assert_eq!(site.run(&["release", "--force", "--yes", "scheduler"]).0, 0);
    let again: u64 = second.line().parse().unwrap();
    assert!(again > later);
    second.signal("TERM");
    assert_eq!(second.code(), 143);
    first.code();
}

#[test]
fn elect_ends_with_its_command_or_restarts_it() {
    let site = Site::new();
    let mut once = site.start(&["elect", "x"], "exit 4");
    assert_eq!(once.code(), 4);
    // It is running when it is told to end: the second time it stays.
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("was-up").display().to_string();
    let script = format!("echo up; [ -e {mark} ] && sleep 60; touch {mark}; exit 4");
    let mut again = site.start(&["elect", "--restart", "x"], &script);
    again.line();
    again.line();
    again.signal("TERM");
    assert_eq!(again.code(), 143);
}
