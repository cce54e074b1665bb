use std::process::{Command, Output};

use crate::Store;

fn nightly(url: &str, day: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nightly"))
        .arg(day)
        .env("DLOCK_URL", url)
        .output()
        .unwrap()
}

#[test]
fn the_variable_names_the_store_that_processes_share() {
    let store = Store::new();
    for says in ["Now", "Before"] {
        let output = nightly(&store.url(), "2026-11-27");
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.lines().last(), Some(says));
    }
}

#[test]
fn a_url_that_names_no_store_ends_the_program_with_a_reason() {
    let output = nightly("nosuch://locks.example", "2026-11-27");
    assert!(!output.status.success());
    let reason = String::from_utf8(output.stderr).unwrap();
    assert!(reason.contains("the scheme of the URL is unknown"), "{reason}");
}
