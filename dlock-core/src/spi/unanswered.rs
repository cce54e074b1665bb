//! What was sent and not answered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::LeaseKey;
use crate::{ErrorKind, Result, Timestamp};

/// What is older is forgotten when there is much: nothing is on its way for so long, and nobody tries to
/// release for so long.
const OLD: Duration = Duration::from_secs(60 * 60);

/// Up to so many are kept however old they are.
const FEW: usize = 1024;

/// What was sent of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sent {
    /// An [`attempt`](super::Lock::attempt).
    Acquire,
    /// A [`release`](super::Lock::release).
    Release,
}

/// What of a lease was not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftOpen {
    /// A copy of the acquire may come yet.
    pub acquire: bool,
    /// A release may have ended it already.
    pub release: bool,
}

/// For a backend: of which leases something was sent that was not answered, because it failed on its way or
/// because whoever waited for the answer was dropped.
///
/// * *An acquire.* A copy of it may be on its way yet: the release of such a lease has to leave a mark in the
///   store that keeps it from being heard.
/// * *A release.* One that finds nothing after it has not lost anything: it is
///   [`Released`](super::Released::Released).
///
/// What was noted stays until it is [forgotten](Self::forget), an hour at least, in this process alone: one
/// that is started anew has other request ids. The calls about one lease follow one another.
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
    /// How many there are, nearly always none: to be seen without the lock and without hashing.
    many: AtomicUsize,
}

#[derive(Debug, Default)]
struct Kept {
    of: HashMap<LeaseKey, (LeftOpen, Timestamp)>,
    /// How many there may be before it is looked for old ones.
    room: usize,
}

impl Unanswered {
    /// To be made before a request is sent, and [told](Asking::answered) the answer. Dropped without, there
    /// was none.
    ///
    /// What was [left open](Self::of) is to be asked for before that of a release is made.
    pub fn asks<'a>(&'a self, key: &'a LeaseKey, what: Sent) -> Asking<'a> {
        Asking {
            all: self,
            key,
            what,
            answered: false,
        }
    }

    /// What of that lease was not answered.
    pub fn of(&self, key: &LeaseKey) -> LeftOpen {
        if self.many.load(Ordering::Acquire) == 0 {
            return LeftOpen::default();
        }
        self.kept()
            .of
            .get(key)
            .map_or_else(LeftOpen::default, |(open, _)| *open)
    }

    /// That lease has ended, and nothing of it can come any more: the store has answered to a release or an
    /// abandon, and has the mark where one was due.
    pub fn forget(&self, key: &LeaseKey) {
        if self.many.load(Ordering::Acquire) > 0 {
            let mut kept = self.kept();
            kept.of.remove(key);
            self.many.store(kept.of.len(), Ordering::Release);
        }
    }

    /// Of what was sent there was no answer, and it is sent again within the same call.
    ///
    /// Only for a request that is idempotent and was lost with a connection that had stood idle. The first
    /// copy may still arrive: an acquire that is refused after that has to be
    /// [abandoned](super::Lock::abandon) before the refusal is told, or is [`Unknown`](ErrorKind::Unknown),
    /// since whoever is refused abandons nothing.
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

/// One request on its way.
#[derive(Debug)]
#[must_use = "dropped, it is taken for a request that was not answered"]
pub struct Asking<'a> {
    all: &'a Unanswered,
    key: &'a LeaseKey,
    what: Sent,
    answered: bool,
}

impl Asking<'_> {
    /// Takes note of the answer, or that there was none, which is [`Unknown`](ErrorKind::Unknown) and no
    /// other error: those say that nothing was done.
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
    fn what_is_old_goes_when_there_is_much() {
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
