//! The plain recipe, `SET key id NX PX ttl` and compare-and-delete: for locks that are shared with other
//! clients.
//!
//! What could break it, and why it does not:
//!
//! * *A reply is lost, and the request is sent again.* The value is the id of the acquisition: it finds
//!   itself, and gets the time that is left.
//! * *A request is given up, and arrives late.* Abandoning it leaves a tombstone, a key of its own that
//!   expires after a minute; the acquire looks for that first. Other clients see none of it.
//! * *A release comes twice, or after the lease.* It compares the id and deletes in one step.
//! * *Another program's lock has no expiry* (redis-py without a timeout). Then it is held until it is
//!   deleted.
//! * *Another program removes our lock's expiry, or deletes the lock.* The next renewal restores the expiry,
//!   or reports the loss.
//! * *What the recipe itself cannot do*: see [`PlainLock`].

mod lock;
mod renew;

use std::fmt;
use std::sync::Arc;

use dlock_core::{Capabilities, Capability, LockName, RequestId, Result};

use crate::backend::Store;
use crate::failure::invalid;
use crate::scripts::{Script, scripts};

/// Locks in the form that most clients of Redis use: a key with the lock's name, the holder's id as its
/// value, and an expiry.
///
/// They exclude, and are excluded by, redis-py's `Lock`, node-redlock, redsync, rslock on one server, and
/// every other client that sets a key with `NX` and an expiry and deletes it only if it has its own value.
/// That is their purpose. Where all programs are yours, use [`RedisLock`](crate::RedisLock): it costs as
/// little and has everything that is missing here.
///
/// # What it guarantees
///
/// On one server, or one master that does not change, and whose clock is not set: there is one holder at a
/// time; a holder that vanishes keeps the lock for the ttl at most; a loss is reported by the deadline; a
/// repeated acquire and a late release do no harm.
///
/// # What it does not
///
/// * *No fencing tokens.* A holder that stalls past its lease can write after its successor. The store may
///   forget locks (failover, restart, eviction), and then nothing tells two holders from one another.
/// * *No queue.* A waiter polls every 2 to 100 ms, and the first to ask after a release gets the lock: no
///   fairness, no priority, no hand-off.
/// * *Exclusive only*: no readers, permits, conversions, minimum hold, watch, `inspect` or `force_release`.
///   All of that answers `Unsupported`.
/// * *Plain keys.* The key is the prefix, which is empty unless set, and the name, byte by byte. A string
///   under it is a lock for as long as it is there, and any other type is `BackendData`.
///
/// Opened by [`Config::connect_plain`](crate::Config::connect_plain). Clones share one connection.
#[derive(Clone)]
pub struct PlainLock {
    store: Arc<Store>,
    scripts: Arc<Scripts>,
}

scripts!(Scripts in "scripts/": acquire, release, extend);

impl Scripts {
    pub(crate) fn new() -> Self {
        Self::of(|text| Script::new(text.to_owned()))
    }
}

pub(crate) fn capabilities() -> Capabilities {
    let mut all = Capabilities::new("redis-plain").with(Capability::PerGrantTtl);
    all.clock_sensitive = true;
    all
}

impl PlainLock {
    pub(crate) fn new(store: Arc<Store>, scripts: Scripts) -> Self {
        let scripts = Arc::new(scripts);
        Self { store, scripts }
    }

    /// Where the lock of that name is, for all clients.
    fn key(&self, name: &LockName) -> Vec<u8> {
        [self.store.prefix.as_bytes(), name.as_bytes()].concat()
    }

    /// Where an abandoned request is remembered: in the slot of its lock.
    fn tombstone(&self, key: &[u8], id: RequestId) -> Result<Vec<u8>> {
        let end = format!(":dlock:{id}");
        match (has_tag(key), key.contains(&b'}')) {
            (false, false) => Ok([b"{", key, b"}", end.as_bytes()].concat()),
            (false, true) if self.store.connection.is_spread() => Err(invalid(
                "on a cluster a plain lock needs a name without `}`, or with a hash tag, so that all of its \
                 keys are in one slot",
            )),
            _ => Ok([key, end.as_bytes()].concat()),
        }
    }
}

/// Whether a cluster finds the slot of a key by a part in braces, and not by all of it. Then what is put
/// behind the key changes nothing.
fn has_tag(key: &[u8]) -> bool {
    let open = key.iter().position(|b| *b == b'{');
    let tag = open.and_then(|o| key[o + 1..].iter().position(|b| *b == b'}'));
    tag.is_some_and(|len| len > 0)
}

impl fmt::Debug for PlainLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainLock")
            .field("at", &self.store.at)
            .field("prefix", &self.store.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_what_is_in_the_first_braces() {
        for (key, is) in [
            ("a", false),
            ("a{b", false),
            ("a{b}c", true),
            ("a{}b", false),
            ("a}{b}", true),
        ] {
            assert_eq!(has_tag(key.as_bytes()), is, "{key}");
        }
    }
}
