//! A master and its replica behind one address, as behind a virtual IP or a name: a client sees a server that
//! is gone and comes back, and it is another one.
//!
//! Replication is asynchronous: what the master answered last the replica may not have.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ports::Port;
use crate::redis::RedisServer;
use crate::redis_options::RedisOptions;

const SYNC: Duration = Duration::from_secs(20);

/// Two servers, of which the first in the list is the one that answers.
#[derive(Debug)]
pub struct RedisPair {
    both: [RedisServer; 2],
    /// Which of them is the master.
    serving: Mutex<usize>,
}

impl RedisPair {
    /// Both with these options. The replica is in sync.
    pub fn with(options: RedisOptions) -> io::Result<Self> {
        let master = RedisServer::with(options.clone())?;
        let replica = RedisServer::with(options.replica_of(master.address()))?;
        replica.wait_until_in_sync(SYNC)?;
        Ok(Self {
            both: [master, replica],
            serving: Mutex::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the master is, whichever it is.
    pub fn address(&self) -> SocketAddr {
        self.serving().address()
    }

    /// Which of the two is the master: 0 or 1.
    pub fn leader(&self) -> usize {
        *self.lock()
    }

    /// The master.
    pub fn serving(&self) -> &RedisServer {
        &self.both[self.leader()]
    }

    /// The replica.
    pub fn standing_by(&self) -> &RedisServer {
        &self.both[1 - self.leader()]
    }

    /// Both, whichever is the master.
    pub fn servers(&self) -> &[RedisServer; 2] {
        &self.both
    }

    /// The master is killed, and the replica takes its address. What was the master comes back as a replica,
    /// which is in sync when this returns. What the master answered in its last moments the replica may not
    /// have heard.
    pub fn fail_over(&self) -> io::Result<()> {
        // It may have been restarted, or its master.
        self.standing_by().wait_until_in_sync(SYNC)?;
        self.take_over()
    }

    /// The same to a replica that lacks what `writes` did, and whatever else was written meanwhile.
    pub fn fail_over_to_stale<T>(&self, writes: impl FnOnce() -> T) -> io::Result<T> {
        self.standing_by().wait_until_in_sync(SYNC)?;
        self.serving().cut_replicas()?;
        let written = writes();
        self.take_over()?;
        Ok(written)
    }

    /// The same with whatever the replica has.
    pub fn take_over(&self) -> io::Result<()> {
        let mut serving = self.lock();
        let (old, new) = (&self.both[*serving], &self.both[1 - *serving]);
        old.crash()?;
        new.follow(None)?;
        // The address moves: the dead one must not keep it, and gets another.
        let address = old.move_to(Port::free()?)?;
        let address = new.move_to(address)?;
        drop(old.move_to(address)?);
        new.reconfigure()?;
        old.will_follow(Some(new.address()));
        old.reconfigure()?;
        *serving = 1 - *serving;
        drop(serving);
        old.start_again()?;
        old.wait_until_in_sync(SYNC)
    }
}
