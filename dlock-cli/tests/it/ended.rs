//! A command is ended in time, and with all that it has started, whatever becomes of the program.

use std::time::{Duration, Instant};

use crate::site::{Running, Site, children, lives, signal, soon};

/// It hears no TERM, and says who it is.
const DEAF: &str = "trap '' TERM; echo $$; while :; do sleep 0.05; done";

fn pid(running: &Running) -> i32 {
    running.line().parse().unwrap()
}

/// Which process watches over the command.
fn leash(running: &Running) -> i32 {
    children(running.pid())[0]
}

#[test]
fn a_signal_is_passed_on_and_the_exit_code_comes_back() {
    let site = Site::new();
    for name in ["TERM", "INT", "HUP", "USR1"] {
        let mut running = site.start(
            &["run", "x"],
            &format!("trap 'exit 9' {name}; echo up; while :; do sleep 0.05; done"),
        );
        running.line();
        running.signal(name);
        assert_eq!(running.code(), 9, "{name}");
    }
    let held = site.start(&["run", "x"], "echo up; sleep 60");
    held.line();
    let mut waiting = site.start(&["run", "x"], "true");
    soon("it waits", || site.run(&["status", "x"]).1.contains("1 waiting"));
    waiting.signal("TERM");
    assert_eq!(waiting.code(), 143);
    soon("it does not wait", || {
        !site.run(&["status", "x"]).1.contains("waiting")
    });
}

#[test]
fn what_the_command_leaves_in_the_background_is_ended() {
    let site = Site::new();
    let script = "trap '' TERM; sleep 61 & echo $!; setsid sh -c 'trap \"\" TERM; echo $$; sleep 62' & \
                  sleep 0.2; exit 3";
    let mut running = site.start(&["run", "--ttl", "3s", "x"], script);
    let left = [pid(&running), pid(&running)];
    assert_eq!(running.code(), 3);
    assert!(!left.into_iter().any(lives));
}

#[test]
fn a_command_ends_when_the_program_is_killed() {
    let site = Site::new();
    let running = site.start(&["run", "--ttl", "6s", "x"], DEAF);
    let (command, next) = (pid(&running), site.start(&["run", "x"], "echo up"));
    running.signal("KILL");
    soon("the command has ended", || !lives(command));
    next.line();
}

#[test]
fn the_command_of_a_stopped_program_ends_before_the_next_begins() {
    let site = Site::new();
    let mut running = site.start(&["run", "--ttl", "3s", "x"], DEAF);
    let (command, next) = (pid(&running), site.start(&["run", "x"], "date +%s%N; sleep 60"));
    running.signal("STOP");
    while lives(command) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let gone = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let began: u128 = next.line().parse().unwrap();
    assert!(gone.as_nanos() < began, "{} {began}", gone.as_nanos());
    running.signal("CONT");
    assert_eq!(running.code(), 120);
}

#[test]
fn a_command_ends_when_its_leash_is_killed() {
    let site = Site::new();
    let mut running = site.start(&["run", "--ttl", "6s", "x"], DEAF);
    let command = pid(&running);
    signal("KILL", leash(&running));
    assert_eq!(running.code(), 126);
    assert!(!lives(command));
    assert_eq!(site.run(&["run", "--try", "x", "--", "true"]).0, 0);
}

#[test]
fn a_command_ends_when_the_store_is_away() {
    let redis = dlock_testkit::RedisServer::start().unwrap();
    let site = Site::with(redis.url());
    let mut running = site.start(
        &["run", "--ttl", "3s", "x"],
        "trap 'echo told; exit 1' TERM; echo up; while :; do sleep 0.05; done",
    );
    running.line();
    redis.pause().unwrap();
    let from = Instant::now();
    // Half a second before others could have it: a sixth of the ttl.
    assert_eq!(running.line(), "told");
    assert!(
        from.elapsed() < Duration::from_millis(2_900),
        "{:?}",
        from.elapsed()
    );
    assert_eq!(running.code(), 120);
    redis.go_on().unwrap();
}

#[test]
fn a_forced_release_ends_the_command() {
    let site = Site::new();
    let mut running = site.start(&["run", "--ttl", "3s", "x"], DEAF);
    let command = pid(&running);
    let (code, said) = site.run(&["release", "--force", "x"]);
    assert!(code == 125 && said.contains("--yes"), "{said}");
    let (code, said) = site.run(&["release", "--force", "--yes", "x"]);
    assert!(code == 0 && said.contains("1 hold ended"), "{said}");
    assert_eq!(running.code(), 120);
    assert!(!lives(command));
}
