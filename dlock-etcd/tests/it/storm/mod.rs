//! An ensemble whose members are killed, stopped and cut off at random, one or two at a time, while clients
//! on it are killed and cut off as well.
//!
//! `DLOCK_ETCD_STORM=600` has it last for ten minutes rather than ten seconds, and `DLOCK_ETCD_SEED=7` makes
//! other choices. It ends with the first thing that must not be, and says what was done.
//!
//! * No two valid guards exclude each other, and tokens grow from grant to grant.
//! * A gate admits no write with a smaller token than one that it had admitted before that write was sent.
//! * When all is well again, every name is free within its bound.
//!
//! A leader never stands still for longer than what is left of any lease. Otherwise it may end leases when it
//! goes on, which is a fault of these servers (etcd's issue 15247).
#![allow(clippy::print_stderr)] // the figures

mod judge;
mod process;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::Client;
use dlock_etcd::Config;
use dlock_testkit::EtcdEnsemble;
use fastrand::Rng;

use self::judge::Judge;
use self::process::Process;
use crate::{LONG, client_of, here};

pub(crate) const NAMES: [&str; 3] = ["x", "y", "z"];
const PROCESSES: usize = 5;
const SESSION: Duration = Duration::from_secs(6);

/// After an election each lease has its whole time again. Then come the second that etcd needs to end it, an
/// election timeout, and those that stand in line before.
const FREE: Duration = Duration::from_secs(6 + 1 + 1 + 3);

struct Storm {
    servers: Arc<EtcdEnsemble>,
    judge: Arc<Judge>,
    processes: Vec<Process>,
    rng: Rng,
}

fn number(variable: &str, unless_set: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(unless_set, |n| n.parse().expect("a number"))
}

/// A client that knows all members.
fn config(servers: &EtcdEnsemble) -> Config {
    let all = servers.addresses();
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    Config::new(&all.join(","))
}

impl Storm {
    fn new(seed: u64) -> Self {
        let servers = Arc::new(EtcdEnsemble::start().unwrap());
        let (judge, mut rng) = (Arc::new(Judge::default()), Rng::with_seed(seed));
        let processes = (0..PROCESSES).map(|_| Process::start(&servers, &judge, rng.fork()));
        Self {
            processes: processes.collect(),
            servers,
            judge,
            rng,
        }
    }

    fn pause(&mut self, least: f32, most: f32) {
        let part = least + (most - least) * self.rng.f32();
        std::thread::sleep(SESSION.mul_f32(part));
    }

    /// Something happens, and is mended. What it was.
    fn one_fault(&mut self) -> String {
        self.pause(0.0, 0.2);
        let leader = self.servers.leader().unwrap();
        // Every other time it is the leader.
        let one = (leader + [0, 0, 1, 2][self.rng.usize(..4)]) % 3;
        let who = if one == leader { "the leader" } else { "a follower" };
        let what = match self.rng.u8(..9) {
            0 => self.kill(&[one], who),
            1 => self.stand_still(one, who, one == leader),
            2 | 3 => self.cut(&[one], who),
            4 => self.kill(&[one, (one + 1) % 3], "two members"),
            5 => self.cut(&[one, (one + 1) % 3], "two members"),
            6 => self.kill_process(),
            _ => self.cut_process(),
        };
        self.servers.wait_until_ok().unwrap();
        what
    }

    fn kill(&mut self, members: &[usize], who: &str) -> String {
        let all = self.servers.members();
        members.iter().for_each(|n| all[*n].crash().unwrap());
        self.pause(0.0, 1.5);
        let all = self.servers.members();
        // One does not serve before the other runs.
        std::thread::scope(|scope| {
            for n in members {
                scope.spawn(|| all[*n].start_again().unwrap());
            }
        });
        format!("{who} killed")
    }

    fn stand_still(&mut self, member: usize, who: &str, leads: bool) -> String {
        let member = self.servers.members()[member].clone();
        member.pause().unwrap();
        self.pause(0.1, if leads { 0.33 } else { 1.5 });
        member.go_on().unwrap();
        format!("{who} stood still")
    }

    fn cut(&mut self, members: &[usize], who: &str) -> String {
        members.iter().for_each(|n| self.servers.cut(*n));
        self.pause(0.1, 1.5);
        members.iter().for_each(|n| self.servers.heal(*n));
        format!("{who} cut off")
    }

    fn kill_process(&mut self) -> String {
        let next = Process::start(&self.servers, &self.judge, self.rng.fork());
        let which = self.rng.usize(..PROCESSES);
        std::mem::replace(&mut self.processes[which], next).kill();
        "a client killed".to_owned()
    }

    fn cut_process(&mut self) -> String {
        let which = self.rng.usize(..PROCESSES);
        self.processes[which].cut(true);
        self.pause(0.5, 2.0);
        self.processes[which].cut(false);
        "a client cut off".to_owned()
    }
}

/// Takes every name once. The longest that it took.
async fn free_again(probe: &Client) -> Duration {
    let takes = NAMES.map(|name| async move {
        let from = Instant::now();
        let guard = probe.lock(name).unwrap().acquire_timeout(FREE).await;
        guard.unwrap().release().await.unwrap();
        from.elapsed()
    });
    let took = futures::future::join_all(takes).await;
    took.into_iter().max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_two_valid_guards_in_a_storm() {
    let lasts = Duration::from_secs(number("DLOCK_ETCD_STORM", 10));
    let seed = number("DLOCK_ETCD_SEED", 1);
    let mut storm = tokio::task::spawn_blocking(move || Storm::new(seed))
        .await
        .unwrap();
    // One that nothing is done to.
    let probe = config(&storm.servers).session_timeout(LONG).connect(here());
    let probe = client_of(probe.await.unwrap());
    let from = Instant::now();
    let (mut faults, mut slowest) = (0, Duration::ZERO);
    while from.elapsed() < lasts {
        let (same, what) = tokio::task::spawn_blocking(move || {
            let what = storm.one_fault();
            (storm, what)
        })
        .await
        .unwrap();
        storm = same;
        let free = free_again(&probe).await;
        eprintln!(
            "{:>6.1} s: {what}; free after {free:.1?}",
            from.elapsed().as_secs_f32()
        );
        (faults, slowest) = (faults + 1, slowest.max(free));
        storm.judge.check();
    }
    let judge = storm.judge.clone();
    storm.processes.into_iter().for_each(Process::kill);
    tokio::task::spawn_blocking(move || drop(storm.servers))
        .await
        .unwrap();
    eprintln!("{faults} faults of seed {seed}, {judge}; free after {slowest:.1?} at most");
}
