//! The server that is measured.

use std::time::Duration;

use dlock_testkit::{EtcdOptions, EtcdServer};

use crate::redis::{Counted, Meter};

/// Of all clients: so long that nothing is renewed while they are busy.
pub(crate) const SESSION: Duration = Duration::from_secs(60);

/// What is counted: a name of ours, and the server's.
const COUNTS: [(&str, &str); 3] = [
    ("proposals", "etcd_server_proposals_committed_total"),
    ("events", "etcd_debugging_mvcc_events_total"),
    ("watchers", "etcd_debugging_mvcc_watcher_total"),
];

/// An etcd server of this program's own, which ends with it. It waits for its disk at every proposal, where
/// `DLOCK_TEST_FOLDER` is on one.
#[derive(Debug)]
pub struct Server(EtcdServer);

impl Server {
    /// One that serves.
    ///
    /// # Panics
    /// Where etcd is not installed.
    pub fn start() -> Self {
        let options = EtcdOptions::new().times(Duration::from_millis(100), Duration::from_secs(1));
        Self(EtcdServer::with(options).expect("etcd is installed: scripts/services"))
    }

    /// Where it is.
    pub fn address(&self) -> String {
        self.0.address().to_string()
    }
}

impl Meter for Server {
    fn counted(&self) -> Counted {
        let count = |(name, metric): (&str, &str)| {
            let value = self.0.metric(metric).expect("it answers");
            (name.to_owned(), value as u64)
        };
        COUNTS.map(count).into_iter().collect()
    }
}
