//! Each subcommand on each kind of store.

use std::process::Stdio;

use dlock_testkit::{MariaDbServer, PostgresServer, RedisServer, ZkServer};
use serde_json::Value;

use crate::site::{Running, Site, soon};

/// What all stores do. `ttl` is one that the store takes: a machine that is busy stands still for some of it,
/// and a hold that is ended by force is waited for until its next renewal.
fn all_of_it(site: &Site, ttl: &str) {
    let json = |args: &[&str]| -> Vec<Value> {
        let (code, said) = site.run(args);
        assert_eq!(code, 0, "{args:?}: {said}");
        said.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    assert_eq!(site.run(&["ls", "jobs/"]), (0, String::new()));
    let watch = site
        .dlock(["watch", "--json", "jobs/a"])
        .stdout(Stdio::piped())
        .spawn();
    let watch = Running::of(watch.unwrap());
    let told = || -> Value { serde_json::from_str(&watch.line()).unwrap() };
    assert_eq!(told()["event"], "snapshot");
    let mut held = site.start(
        &["run", "--ttl", ttl, "--label", "me", "jobs/a"],
        "echo up; sleep 60",
    );
    held.line();
    // Before it there may be a state in which nobody holds yet.
    let is_told = |now: &Value| now["event"] == "granted" || now["holders"][0]["owner"] == "me";
    while !is_told(&told()) {}
    let mut leader = site.start(
        &["elect", "--ttl", ttl, "--value", "here:1", "jobs/b"],
        "echo up; sleep 60",
    );
    leader.line();
    let (code, said) = site.run(&["run", "--try", "--ttl", ttl, "jobs/a", "--", "true"]);
    assert_eq!(code, 124, "{said}");
    let names = |args: &[&str]| {
        let mut names: Vec<_> = json(args)
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&["ls", "--json", "jobs/"]), ["jobs/a", "jobs/b"]);
    assert_eq!(site.run(&["ls", "jobs/a"]), (0, "jobs/a\n".to_owned()));
    let long = json(&["ls", "--long", "--json", "jobs/b"]);
    assert_eq!(long[0]["holders"][0]["owner"], "here:1", "{long:?}");
    assert_eq!(
        json(&["status", "--json", "jobs/a"])[0]["holders"][0]["owner"],
        "me"
    );
    assert_eq!(
        site.run(&["release", "--force", "--yes", "jobs/a"]),
        (0, "1 hold ended\n".to_owned())
    );
    assert_eq!(
        site.run(&["release", "--force", "--yes", "jobs/none"]),
        (0, "nothing to end: nobody holds jobs/none\n".to_owned())
    );
    assert_eq!(held.code(), 120);
    leader.signal("TERM");
    assert_eq!(leader.code(), 143);
    soon("the leader's lock is free", || {
        site.run(&["ls", "jobs/"]) == (0, String::new())
    });
    let bench = json(&["bench", "--for", "300ms", "--json"]);
    assert!(bench[0]["pair"]["count"].as_f64() > Some(0.0), "{bench:?}");
}

/// What the doctor says. Again, if the machine is so busy just now that the store is slow.
fn asked(site: &Site, args: &[&str]) -> (i32, String) {
    let ask = || site.run(&[&["doctor"], args].concat());
    let is_slow = |(_, said): &(i32, String)| said.contains("choose a ttl");
    let quick = std::iter::repeat_with(ask).take(4).find(|said| !is_slow(said));
    quick.unwrap_or_else(ask)
}

/// The same, by its severity: of a sound store that is nothing.
fn doctor(site: &Site, args: &[&str], severity: &str) -> (i32, Vec<String>) {
    let (code, said) = asked(site, &[&["--json"], args].concat());
    let findings: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = findings.iter().filter(|finding| finding["severity"] == severity);
    (
        code,
        of.map(|finding| format!("{}: {}", finding["about"], finding["text"]))
            .collect(),
    )
}

fn is_sound(site: &Site, product: &str, warnings: &[&str]) {
    let (code, good) = doctor(site, &[], "good");
    assert!(code == 0 && good[0].contains(product), "{code} {good:?}");
    assert!(
        good.iter()
            .any(|text| text.contains("refused to a second client")),
        "{good:?}"
    );
    let (code, told) = doctor(site, &["--strict"], "warning");
    assert_eq!(code, if warnings.is_empty() { 0 } else { 123 });
    assert_eq!(told.len(), warnings.len(), "{told:?}");
    for (told, expected) in told.iter().zip(warnings) {
        assert!(told.contains(expected), "{told:?}");
    }
    let (code, said) = asked(site, &[]);
    let last = format!("problems: 0, warnings: {}\n", warnings.len());
    assert!(code == 0 && said.ends_with(&last), "{said}");
}

#[test]
fn sqlite() {
    let site = Site::new();
    all_of_it(&site, "9s");
    is_sound(&site, "SQLite", &[]);
}

#[test]
fn redis() {
    let server = RedisServer::start().unwrap();
    let site = Site::with(server.url());
    all_of_it(&site, "9s");
    is_sound(&site, "Redis", &["appendonly"]);
}

#[test]
fn postgres() {
    // The server of the tests is quick, and no model.
    let server = PostgresServer::with(dlock_testkit::PostgresOptions::new().durable()).unwrap();
    let site = Site::with(server.url());
    all_of_it(&site, "9s");
    is_sound(&site, "PostgreSQL", &[]);
}

#[test]
fn mariadb() {
    let server = MariaDbServer::with(dlock_testkit::MariaDbOptions::new().durable()).unwrap();
    let site = Site::with(server.url());
    all_of_it(&site, "9s");
    is_sound(&site, "MariaDB", &[]);
}

#[test]
fn zookeeper() {
    let server = ZkServer::start().unwrap();
    let site = Site::with(format!("zk://{}?session_timeout=9s", server.address()));
    all_of_it(&site, "9s");
    is_sound(&site, "ZooKeeper", &["only one server"]);
    outlasts_no_session(&site);
}

#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    let server = dlock_testkit::EtcdServer::start().unwrap();
    let site = Site::with(format!("etcd://{}?session_timeout=9s", server.address()));
    all_of_it(&site, "9s");
    outlasts_no_session(&site);
}

/// A lock that lasts as long as a session of nine seconds, whatever ttl was asked for.
fn outlasts_no_session(site: &Site) {
    let run =
        |args: &[&str]| site.run(&[&["run", "--ttl", "2m"], args, &["long", "--", "sleep", "0.1"]].concat());
    assert_eq!(run(&[]), (0, String::new()));
    let (code, _) = run(&["--kill-after", "4s"]);
    assert_eq!(code, 125);
}
