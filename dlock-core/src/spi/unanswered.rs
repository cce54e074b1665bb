//! Requests that were sent and not answered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::LeaseKey;
use crate::{ErrorKind, Result, Timestamp};

/// Older records are forgotten when there are many: no request is in transit for so long, and no release is
/// retried for so long.
const OLD: Duration = Duration::from_secs(60 * 60);

/// Up to this number of records are kept, however old.
const FEW: usize = 1024;

/// A kind of request about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sent {
    /// An [`attempt`](super::Lock::attempt).
    Acquire,
    /// A [`release`](super::Lock::release).
    Release,
}

/// The requests about a lease that were not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOpen {
    /// A copy of the acquire may still arrive.
    pub acquire: bool,
    /// A release may have ended the lease already.
    pub release: bool,
}

/// For a backend: remembers the leases about which a request was not answered, because it failed in transit
/// or because its caller was dropped.
///
/// * *An acquire.* A copy of it may still arrive. The release of such a lease must leave a mark in the store
///   that refuses the copy.
/// * *A release.* If a later release finds nothing, the lease was not lost: the answer is
///   [`Released::Released`](super::Released::Released).
///
/// A record is kept until it is [forgotten](Self::forget), or for at least an hour, in this process only;
/// after a restart the request ids are others. Calls about one lease must follow one another.
///
/// ```
/// use dlock_core::spi::{LeaseKey, Released, Sent, Unanswered};
/// use dlock_core::Result;
///
/// struct Backend { unanswered: Unanswered }
///
/// impl Backend {
///     async fn attempt(&self, key: &LeaseKey) -> Result<bool> {
///         let asks = self.unanswered.asks(key, Sent::Acquire);
///         asks.answered(self.send_acquire(key).await)
///     }
///
///     async fn release(&self, key: &LeaseKey) -> Result<Released> {
///         // Before this release is one of those that were not answered.
///         let open = self.unanswered.of(key);
///         let asks = self.unanswered.asks(key, Sent::Release);
///         let was_there = asks.answered(self.send_release(key, open.acquire).await)?;
///         // The store has answered, and has the mark.
///         self.unanswered.forget(key);
///         Ok(if was_there || open.release { Released::Released } else { Released::NotHeld })
///     }
/// #   async fn send_acquire(&self, _: &LeaseKey) -> Result<bool> { Ok(true) }
/// #   async fn send_release(&self, _: &LeaseKey, _leave_a_mark: bool) -> Result<bool> { Ok(true) }
/// }
/// ```
#[derive(Debug, Default)]
pub struct Unanswered {
    open: Mutex<Kept>,
    /// The number of records, nearly always 0. Readable without the mutex and without hashing.
    many: AtomicUsize,
}

#[derive(Debug, Default)]
struct Kept {
    of: HashMap<LeaseKey, (LeftOpen, Timestamp)>,
    /// The number of records from which old ones are removed.
    room: usize,
}

impl Unanswered {
    /// Records that a request is about to be sent. Pass its answer to [`Asking::answered`]. Dropped without
    /// an answer, the request counts as unanswered.
    ///
    /// Before this is called for a release, read what was [left open](Self::of).
    pub fn asks<'a>(&'a self, key: &'a LeaseKey, what: Sent) -> Asking<'a> {
        Asking {
            all: self,
            key,
            what,
            answered: false,
        }
    }

    /// Returns what was not answered about a lease.
    pub fn of(&self, key: &LeaseKey) -> LeftOpen {
        if self.many.load(Ordering::Acquire) == 0 {
            return LeftOpen::default();
        }
        self.kept()
            .of
            .get(key)
            .map_or_else(LeftOpen::default, |(open, _)| *open)
    }

    /// Forgets a lease that has ended and of which nothing can arrive any more: the store has answered a
    /// release or an abandon, and has the mark if one was needed.
    pub fn forget(&self, key: &LeaseKey) {
        if self.many.load(Ordering::Acquire) > 0 {
            let mut kept = self.kept();
            kept.of.remove(key);
            self.many.store(kept.of.len(), Ordering::Release);
        }
    }

    /// Records that a request got no answer and is sent again within the same call.
    ///
    /// Only for a request that is idempotent and was lost with an idle connection. The first copy may still
    /// arrive. If the second acquire is refused, it must be [abandoned](super::Lock::abandon) before the
    /// refusal is returned, or the error must be [`Unknown`](ErrorKind::Unknown), since a caller that is
    /// refused abandons nothing.
    pub fn note(&self, key: &LeaseKey, what: Sent) {
        self.note_at(key, what, Timestamp::now());
    }

    fn note_at(&self, key: &LeaseKey, what: Sent, now: Timestamp) {
        let mut kept = self.kept();
        if kept.of.len() >= kept.room {
            kept.of.retain(|_, (_, since)| now.since(*since) < OLD);
            kept.room = FEW.max(kept.of.len() * 2);
        }
        let (open, since) = kept.of.entry(key.clone()).or_insert((LeftOpen::default(), now));
        *since = now;
        match what {
            Sent::Acquire => open.acquire = true,
            Sent::Release => open.release = true,
        }
        self.many.store(kept.of.len(), Ordering::Release);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in transit.
#[derive(Debug)]
#[must_use = "dropped, it is taken for a request that was not answered"]
pub struct Asking<'a> {
    all: &'a Unanswered,
    key: &'a LeaseKey,
    what: Sent,
    answered: bool,
}

impl Asking<'_> {
    /// Records the answer. Only [`Unknown`](ErrorKind::Unknown) counts as none; other errors say that nothing
    /// was done.
    pub fn answered<T>(mut self, answer: Result<T>) -> Result<T> {
        self.answered = !matches!(&answer, Err(e) if e.kind() == ErrorKind::Unknown);
        answer
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.all.note(self.key, self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::LockName;
    use crate::request_id::RequestId;

    use super::*;

    fn key(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, n))
    }

    #[test]
    fn old_records_go_when_there_are_many() {
        let open = Unanswered::default();
        let start = Timestamp::now();
        for n in 0..FEW as u64 {
            open.note_at(&key(n), Sent::Acquire, start);
        }
        assert!(open.of(&key(0)).acquire);
        open.note_at(&key(u64::MAX), Sent::Acquire, start + OLD);
        assert!(!open.of(&key(0)).acquire && open.of(&key(u64::MAX)).acquire);
    }
}
