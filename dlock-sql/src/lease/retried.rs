//! Of which leases something was sent that was not answered: it failed on its way, or whoever waited for the answer was dropped.
//!
//! *An acquire.* A copy of it may be on its way yet. So the release of such a lease leaves a mark that keeps it from being heard.
//!
//! *A release.* It has perhaps done its work, and one that finds nothing after it has not lost anything.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::{Abandoned, Attempt, LeaseKey};
use dlock_core::{Error, ErrorKind, Result, Timestamp};

/// What is older is forgotten when there is much: nothing is on its way for so long, and nobody tries to release for so long.
const OLD: Duration = Duration::from_secs(60 * 60);

/// Up to so many are kept however old they are.
const FEW: usize = 1024;

/// What was not answered.
#[derive(Clone, Copy)]
pub(in crate::lease) enum Sent {
    Acquire,
    Release,
}

/// What of a lease was not answered.
#[derive(Clone, Copy, Default)]
pub(in crate::lease) struct Open {
    /// A copy of the acquire may come.
    pub(in crate::lease) acquire: bool,
    /// A release may have ended it.
    pub(in crate::lease) release: bool,
}

#[derive(Default)]
pub(in crate::lease) struct Retried {
    open: Mutex<Kept>,
    /// How many there are, nearly always none: to be seen without the lock and without hashing. Whoever asks about a lease has awaited what
    /// was sent for it before, or dropped it.
    many: AtomicUsize,
}

#[derive(Default)]
struct Kept {
    of: HashMap<LeaseKey, (Open, Timestamp)>,
    /// How many there may be before it is looked for old ones.
    room: usize,
}

impl Retried {
    /// To be made before it is sent, and told the answer. Dropped without, there was none.
    pub(in crate::lease) fn asks<'a>(&'a self, key: &'a LeaseKey, what: Sent) -> Unanswered<'a> {
        Unanswered {
            retried: self,
            key,
            what,
            answered: false,
        }
    }

    pub(in crate::lease) fn of(&self, key: &LeaseKey) -> Open {
        if self.many.load(Ordering::Acquire) == 0 {
            return Open::default();
        }
        self.kept()
            .of
            .get(key)
            .map_or_else(Open::default, |(open, _)| *open)
    }

    /// It has ended.
    pub(in crate::lease) fn forget(&self, key: &LeaseKey) {
        if self.many.load(Ordering::Acquire) > 0 {
            let mut kept = self.kept();
            kept.of.remove(key);
            self.many.store(kept.of.len(), Ordering::Release);
        }
    }

    /// Of what was sent there was no answer, and it is sent again.
    pub(in crate::lease) fn note(&self, key: &LeaseKey, what: Sent, now: Timestamp) {
        let mut kept = self.kept();
        if kept.of.len() >= kept.room {
            kept.of.retain(|_, (_, since)| now.since(*since) < OLD);
            kept.room = FEW.max(kept.of.len() * 2);
        }
        let (open, since) = kept.of.entry(key.clone()).or_insert((Open::default(), now));
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
pub(in crate::lease) struct Unanswered<'a> {
    retried: &'a Retried,
    key: &'a LeaseKey,
    what: Sent,
    answered: bool,
}

impl Unanswered<'_> {
    /// Takes note of the answer, or that there was none.
    pub(in crate::lease) fn answered<T>(mut self, answer: Result<T>) -> Result<T> {
        self.answered = !matches!(&answer, Err(e) if e.kind() == ErrorKind::Unknown);
        answer
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.retried.note(self.key, self.what, Timestamp::now());
        }
    }
}

/// A copy of a request went unanswered, and the next one was refused, or did nothing: whoever asked takes that as the end of it, and abandons nothing. The
/// first copy may be on its way yet, and would be granted for nobody when it arrives after the name was let go. One that was granted or queued ends with a
/// release or an abandon, which leave the tombstone.
pub(in crate::lease) async fn after_stray(
    asked: Result<Attempt>,
    abandon: impl Future<Output = Result<Abandoned>>,
) -> Result<Attempt> {
    match asked {
        Ok(Attempt::Held(_)) => abandon.await.map_err(stray)?,
        // It has a tombstone, or its outcome is looked after already.
        Err(e) if matches!(e.kind(), ErrorKind::Lost | ErrorKind::Unknown) => return Err(e),
        Err(e) => return Err(stray(e)),
        Ok(asked) => return Ok(asked),
    };
    asked
}

fn stray(e: Error) -> Error {
    let message = "the lock was refused, but an earlier copy of the request may still be on its way and could not be taken back";
    Error::new(ErrorKind::Unknown, message).with_source(e)
}

#[cfg(test)]
mod tests {
    use dlock_core::LockName;
    use dlock_core::spi::RequestId;

    use super::*;

    fn key(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, n))
    }

    #[test]
    fn an_acquire_and_a_release_are_told_apart() {
        let retried = Retried::default();
        let (a, b) = (key(1), key(2));
        let lost = || Err::<(), _>(Error::new(ErrorKind::Unknown, "no answer"));
        assert!(retried.asks(&a, Sent::Acquire).answered(lost()).is_err());
        assert!(retried.of(&a).acquire && !retried.of(&a).release);
        assert!(retried.asks(&b, Sent::Release).answered(lost()).is_err());
        assert!(!retried.of(&b).acquire && retried.of(&b).release);
        retried.forget(&a);
        assert!(!retried.of(&a).acquire);
    }

    #[test]
    fn dropped_on_the_way_it_is_unanswered_and_refused_it_is_not() {
        let retried = Retried::default();
        let a = key(1);
        let refused = Err::<(), _>(Error::new(ErrorKind::Unavailable, "it was not sent"));
        assert!(retried.asks(&a, Sent::Release).answered(refused).is_err());
        assert!(!retried.of(&a).release);
        drop(retried.asks(&a, Sent::Release));
        assert!(retried.of(&a).release);
    }

    #[test]
    fn what_is_old_goes_when_there_is_much() {
        let retried = Retried::default();
        let start = Timestamp::now();
        for n in 0..FEW as u64 {
            retried.note(&key(n), Sent::Acquire, start);
        }
        assert!(retried.of(&key(0)).acquire);
        retried.note(&key(u64::MAX), Sent::Acquire, start + OLD);
        assert!(!retried.of(&key(0)).acquire && retried.of(&key(u64::MAX)).acquire);
    }
}
