//! The server that is measured, and the core that it shares with us.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use dlock_testkit::{Connection, RedisServer};

use super::stats::{Counted, Meter};

/// A Redis server of this program's own, which ends with it.
#[derive(Debug)]
pub struct Server(RedisServer);

impl Server {
    /// One that answers.
    ///
    /// # Panics
    /// Where `redis-server` is not installed.
    pub fn start() -> Self {
        Self(RedisServer::start().expect("redis-server is installed: scripts/services"))
    }

    /// Where it is, for drivers.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Its port of 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.0.address().port()
    }

    /// A connection that blocks.
    pub fn wire(&self) -> Wire {
        Wire(self.0.connection().expect("it answers"))
    }

    /// The answer to one command, as text.
    pub fn ask(&self, words: &[&str]) -> String {
        self.wire().ask(words)
    }

    /// A value of its INFO.
    pub fn info(&self, name: &str) -> String {
        self.0.info(name).expect("it answers")
    }
}

impl Meter for Server {
    fn counted(&self) -> Counted {
        Counted::now(self)
    }
}

/// A connection without a driver, which blocks.
#[derive(Debug)]
pub struct Wire(Connection);

impl Wire {
    /// The answer to a command, as text.
    pub fn ask(&mut self, words: &[&str]) -> String {
        self.0.ask(words).expect("it answers").text()
    }

    /// What it says next, of MONITOR say.
    pub fn hear(&mut self) -> String {
        self.0.answer().expect("it goes on").text()
    }
}

/// Where a comparison runs, in words. Puts this process, and what it starts from now on, on one core alone;
/// unless `DLOCK_BENCH_CORES` is `all`, which shows throughput and tails as they are, and less well what is
/// whose work.
pub fn cores() -> &'static str {
    if std::env::var("DLOCK_BENCH_CORES").is_ok_and(|cores| cores == "all") {
        return "all cores";
    }
    let allowed = sched_getaffinity(None).expect("the cores can be asked for");
    let last = (0..CpuSet::MAX_CPU).rev().find(|n| allowed.is_set(*n));
    let mut one = CpuSet::new();
    one.set(last.expect("there is a core"));
    sched_setaffinity(None, &one).expect("a core of ours can be chosen");
    "one core"
}
