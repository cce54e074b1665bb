//! The server that is measured.

use std::process::Command;
use std::time::Duration;

use crate::redis::{Counted, Meter};
use dlock_testkit::{ZkOptions, ZkServer};

/// Of all clients: so long that no ping is sent where they are busy.
pub(crate) const SESSION: Duration = Duration::from_secs(60);

/// A ZooKeeper server of this program's own, which ends with it. Its log is in memory where the system's
/// temporary files are.
#[derive(Debug)]
pub struct Server(ZkServer);

impl Server {
    /// One that serves, and removes empty containers once a minute, as it comes.
    ///
    /// # Panics
    /// Where ZooKeeper is not installed.
    pub fn start() -> Self {
        Self::with(Duration::from_secs(60))
    }

    /// One that removes empty containers once a second, to see what it leaves.
    ///
    /// # Panics
    /// Where ZooKeeper is not installed.
    pub fn that_sweeps() -> Self {
        Self::with(Duration::from_secs(1))
    }

    fn with(containers: Duration) -> Self {
        let options = ZkOptions::new()
            .tick(Duration::from_secs(1))
            .sessions(Duration::from_secs(2), SESSION)
            .containers(containers)
            .compiled();
        Self(ZkServer::with(options).expect("ZooKeeper is installed: scripts/services"))
    }

    /// Where it is.
    pub fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// How many nodes there are below that path, itself included.
    pub fn nodes(&self, path: &str) -> usize {
        let all = self.0.with_session(|session| session.all(path));
        all.expect("it answers").len()
    }

    /// How much live memory it has, in bytes, after its garbage has been collected.
    ///
    /// # Panics
    /// Where `jmap`, of the Java development kit, is not installed.
    pub fn memory(&self) -> u64 {
        let pid = self.0.pid().expect("it runs").to_string();
        let shown = Command::new("jmap").args(["-histo:live", &pid]).output();
        let shown = shown.expect("jmap is installed: scripts/services");
        let text = String::from_utf8_lossy(&shown.stdout);
        // Number, instances, bytes, class. Arrays of `int` are left out: the collector fills with them what
        // it does not care to close.
        let bytes = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let bytes: u64 = words.by_ref().nth(2)?.parse().ok()?;
            (words.next()? != "[I").then_some(bytes)
        });
        let bytes: u64 = bytes.sum();
        assert!(bytes > 0, "jmap said: {text}");
        bytes
    }
}

/// Packets in sessions that are there now: `received` are requests, and of what was `sent` all that is no
/// answer is an event. Pings are in both, where there are any.
impl Meter for Server {
    fn counted(&self) -> Counted {
        let clients = self.0.clients().expect("it answers");
        let sum = |of: fn(&dlock_testkit::ZkClient) -> u64| clients.iter().map(of).sum();
        [
            ("received".to_owned(), sum(|c| c.received)),
            ("sent".to_owned(), sum(|c| c.sent)),
        ]
        .into_iter()
        .collect()
    }
}
