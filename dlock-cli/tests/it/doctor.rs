//! What `dlock doctor` finds wrong.

use dlock_testkit::{Following, PostgresOptions, PostgresPair, PostgresServer, RedisOptions, RedisServer};

use crate::site::Site;

fn says(site: &Site, code: i32, words: &[&str]) {
    let (ended, said) = site.run(&["doctor"]);
    assert_eq!(ended, code, "{said}");
    for words in words {
        assert!(said.contains(words), "not {words:?}: {said}");
    }
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn missing_right_is_reported() {
    let rights = "~dlock{* &dlock* +@all -scan -info";
    let options = RedisOptions::new()
        .user("default off")
        .user(&format!("app on >secret {rights}"));
    let server = RedisServer::with(options).unwrap();
    let site = |password: &str| Site::with(format!("redis://app:{password}@{}", server.address()));
    says(
        &site("secret"),
        0,
        &[
            "warning  rights       listing locks failed",
            "scan",
            "warning  server       version, persistence, memory and replicas are not known",
            "problems: 0, warnings: 2",
        ],
    );
    server.ask(&["ACL", "SETUSER", "app", "-pexpire"]).unwrap();
    says(
        &site("secret"),
        123,
        &["problem  rights       renewing a lock failed"],
    );
    says(&site("secretive"), 122, &["problem  connection"]);
}

#[test]
fn clock_difference_is_reported() {
    let server = RedisServer::with(RedisOptions::new().own_clock()).unwrap();
    server.clock().unwrap().set(90_000).unwrap();
    says(
        &Site::with(server.url()),
        0,
        &["warning  clock        the server's clock is 90.0s ahead of"],
    );
}

#[test]
fn findings_are_reported_if_second_connection_fails() {
    let server = RedisServer::start().unwrap();
    let site = Site::with(server.url());
    server.ask(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    let told = [
        "good     server       Redis",
        "problem  connection   opening a second",
    ];
    says(&site, 123, &told);
}

#[test]
fn unavailable_store_is_reported_with_its_exit_code() {
    let server = RedisServer::start().unwrap();
    let site = Site::with(server.url());
    server.crash().unwrap();
    says(&site, 121, &["problem  connection"]);
}

#[test]
fn session_settings_are_checked() {
    let server = PostgresServer::with(PostgresOptions::new().durable()).unwrap();
    server.set("idle_session_timeout", "1h").unwrap();
    server.set("synchronous_commit", "off").unwrap();
    let site = Site::with(format!("{}?strategy=session", server.url()));
    let told = [
        "good     sessions     locks hang on connections",
        "none of the tokens that were given",
        "problems: 0, warnings: 0",
    ];
    says(&site, 0, &told);
    says(
        &Site::with(server.url()),
        0,
        &["warning  persistence  synchronous_commit is off"],
    );
}

#[test]
fn asynchronous_standby_is_reported() {
    let pair = PostgresPair::start(Following::Behind).unwrap();
    let says_so = [
        "warning  replication  standbys: 1, none of them synchronous",
        "fsync",
    ];
    says(&Site::with(pair.first().url()), 123, &says_so);
}
