//! Programs, commands, those that watch over them and servers are killed, stopped and cut off at random: no
//! two commands of one name are at work at once, none is left behind, and each program ends as it is
//! documented.
//!
//! `DLOCK_CLI_ROUNDS=200 cargo test -p dlock-cli random` for more than the few rounds of each run.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use dlock::Timestamp;
use dlock_testkit::{Persistence, Port, PostgresServer, Proxy, RedisOptions, RedisServer};

use crate::site::{Running, Site, lives, signal, soon};

const TTL: Duration = Duration::from_millis(2_000);

/// The command: says that it is at work until it is killed. Of no use by itself.
#[test]
fn worker() {
    let Some(log) = std::env::var_os("DLOCK_TEST_LOG") else {
        return;
    };
    let mut log = OpenOptions::new().append(true).create(true).open(log).unwrap();
    let (own, began) = (std::process::id(), Timestamp::now().as_nanos());
    loop {
        writeln!(log, "{began} {own} {}", Timestamp::now().as_nanos()).unwrap();
        sleep(Duration::from_millis(5));
    }
}

/// What a server can suffer: how it begins, and how it ends.
type Trouble<'a> = (&'a dyn Fn(), &'a dyn Fn());

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace()
        .nth(1)
        .and_then(|pid| pid.parse().ok())
        .unwrap_or(0)
}

/// Process, first and last beat of each command, in the order of the first. (Numbers of processes come
/// again.)
fn beats(log: &str) -> Vec<(i32, u64, u64)> {
    let mut of: BTreeMap<u64, (i32, u64)> = BTreeMap::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [began, pid, at] = words[..] else { continue };
        let (Ok(began), Ok(pid), Ok(at)) = (began.parse(), pid.parse(), at.parse()) else {
            continue;
        };
        of.insert(began, (pid, at));
    }
    of.into_iter()
        .map(|(began, (pid, last))| (pid, began, last))
        .collect()
}

fn rounds(site: &Site, seed: u64, troubles: &[Trouble<'_>]) {
    let many = std::env::var("DLOCK_CLI_ROUNDS").map_or(8, |n| n.parse().unwrap());
    let log = site.path("beats");
    let own = std::env::current_exe().unwrap();
    let contend = || {
        let ttl = format!("{}ms", TTL.as_millis());
        let mut command = site.dlock(["run", "--ttl", &ttl, "job", "--", "sh", "-c"]);
        let script = format!("trap '' TERM; exec {} --exact random::worker", own.display());
        command.arg(script).env("DLOCK_TEST_LOG", &log);
        Running::of(
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    };
    let mut state = seed | 1;
    let mut below = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut all: Vec<Running> = (0..3).map(|_| contend()).collect();
    let text = || fs::read_to_string(&log).unwrap_or_default();
    let at_work = || {
        beats(&text())
            .last()
            .map(|(pid, ..)| *pid)
            .filter(|pid| lives(*pid))
    };
    let mut round = 0;
    while round < many {
        soon(
            &format!("somebody is at work: seed {seed}, round {round}"),
            || at_work().is_some(),
        );
        sleep(Duration::from_millis(below(400)));
        let Some(command) = at_work() else { continue };
        let leash = parent(command);
        let Some(n) = all.iter().position(|one| one.pid() == parent(leash)) else {
            continue;
        };
        let program = all[n].pid();
        let action = below(7 + troubles.len() as u64);
        let stopped = |pid| {
            signal("STOP", pid);
            sleep(TTL * 3 / 2);
            signal("CONT", pid);
        };
        let ends_with = match action {
            0 | 1 => {
                signal("KILL", program);
                137
            }
            2 => {
                stopped(program);
                120
            }
            3 => {
                signal("KILL", leash);
                126
            }
            4 => {
                signal("KILL", command);
                137
            }
            5 => {
                stopped(command);
                signal("KILL", command);
                137
            }
            6 => {
                signal("TERM", program);
                sleep(Duration::from_millis(200));
                signal("KILL", command);
                137
            }
            n => {
                let (begin, end) = troubles[n as usize - 7];
                begin();
                sleep(TTL * 3 / 2);
                end();
                120
            }
        };
        assert_eq!(
            all[n].code(),
            ends_with,
            "seed {seed}, round {round}, action {action}"
        );
        round += 1;
        // Others may have given up, as one whose server was away does.
        all.retain_mut(|one| one.child.try_wait().unwrap().is_none());
        while all.len() < 3 {
            all.push(contend());
        }
    }
    for one in &all {
        one.signal("KILL");
    }
    // Numbers of processes come again.
    let is_worker = |pid: i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        lives(pid) && String::from_utf8_lossy(&words).contains("random::worker")
    };
    soon("none is left", || {
        !beats(&text()).iter().any(|(pid, ..)| is_worker(*pid))
    });
    let seen = beats(&text());
    for pair in seen.windows(2) {
        let ((one, _, last), (other, first, _)) = (pair[0], pair[1]);
        assert!(
            last < first,
            "seed {seed}: {one} was at work at {last}, and {other} at {first}"
        );
    }
    assert!(
        seen.len() as u64 >= many,
        "{} commands in {many} rounds",
        seen.len()
    );
}

fn seed() -> u64 {
    let given = std::env::var("DLOCK_CLI_SEED").ok().and_then(|n| n.parse().ok());
    given.unwrap_or_else(|| u64::from(std::process::id()))
}

#[test]
fn on_sqlite() {
    rounds(&Site::new(), seed(), &[]);
}

/// Where nobody listens: the port is taken, and given to no server.
fn nowhere() -> (Port, SocketAddr) {
    let port = Port::free().unwrap();
    let at = port.address();
    (port, at)
}

#[test]
fn on_redis() {
    let options = RedisOptions::new().persistence(Persistence::Always);
    let server = RedisServer::with(options).unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let (_taken, nowhere) = nowhere();
    rounds(
        &Site::with(format!("redis://{}", proxy.address())),
        seed(),
        &[
            (&|| server.pause().unwrap(), &|| server.go_on().unwrap()),
            (&|| proxy.lead_to(nowhere), &|| proxy.lead_to(server.address())),
            (&|| server.crash().unwrap(), &|| server.start_again().unwrap()),
        ],
    );
}

#[test]
fn on_postgres() {
    let server = PostgresServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let (_taken, nowhere) = nowhere();
    let url = server
        .url()
        .replace(&server.address().to_string(), &proxy.address().to_string());
    rounds(
        &Site::with(url),
        seed(),
        &[
            (&|| server.pause().unwrap(), &|| server.go_on().unwrap()),
            (&|| proxy.lead_to(nowhere), &|| proxy.lead_to(server.address())),
            (&|| server.crash().unwrap(), &|| server.start_again().unwrap()),
        ],
    );
}
