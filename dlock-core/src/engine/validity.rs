//! The validity of a lease: one word that only the clock and a confirmed renewal change.
//!
//! The word is the local deadline in nanoseconds, or `ENDED`. "A lost guard never becomes valid again" must
//! hold even when a late renewal is confirmed on one thread while another finds the deadline passed. Both are
//! a compare-and-swap of the same word. A look that reports the end has first set the word to `ENDED`, and a
//! confirmation fails on `ENDED`. A confirmation has replaced the old deadline before any look reported the
//! end.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::timestamp::Timestamp;

const ENDED: u64 = 0;

#[derive(Debug)]
pub(crate) struct Validity(AtomicU64);

/// What a look at the clock showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Valid(Timestamp),
    /// The deadline has passed, and this look ended it: the caller notifies the observers.
    JustExpired,
    Ended,
}

impl Validity {
    pub(crate) fn until(deadline: Timestamp) -> Self {
        Self(AtomicU64::new(deadline.as_nanos().max(1)))
    }

    /// Whether it is valid at `now`. Never a cached answer.
    pub(crate) fn look(&self, now: Timestamp) -> Look {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            if word == ENDED {
                return Look::Ended;
            }
            if now.as_nanos() < word {
                return Look::Valid(Timestamp::from_nanos(word));
            }
            match self
                .0
                .compare_exchange_weak(word, ENDED, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Look::JustExpired,
                Err(current) => word = current,
            }
        }
    }

    /// Moves the deadline to `to` if that is later, unless it has passed at `now`.
    pub(crate) fn confirm(&self, now: Timestamp, to: Timestamp) -> Look {
        loop {
            match self.look(now) {
                Look::Valid(deadline) => {
                    let later = deadline.max(to);
                    let swap = self.0.compare_exchange(
                        deadline.as_nanos(),
                        later.as_nanos(),
                        Ordering::AcqRel,
                        Ordering::Acquire,
                    );
                    if swap.is_ok() {
                        return Look::Valid(later);
                    }
                }
                over => return over,
            }
        }
    }

    /// Ends it. `true` if this call did.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(ENDED, Ordering::AcqRel) != ENDED
    }

    /// The deadline, whatever the time is; `None` once ended.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        match self.0.load(Ordering::Acquire) {
            ENDED => None,
            word => Some(Timestamp::from_nanos(word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Timestamp {
        Timestamp::from_nanos(n)
    }

    #[test]
    fn a_confirmation_after_the_deadline_changes_nothing() {
        let v = Validity::until(at(100));
        assert_eq!(v.confirm(at(100), at(200)), Look::JustExpired);
        assert_eq!(v.confirm(at(50), at(200)), Look::Ended);
        assert_eq!(v.look(at(1)), Look::Ended);
    }

    #[test]
    fn a_confirmation_never_shortens() {
        let v = Validity::until(at(100));
        assert_eq!(v.confirm(at(10), at(50)), Look::Valid(at(100)));
        assert_eq!(v.confirm(at(10), at(150)), Look::Valid(at(150)));
        assert_eq!(v.look(at(149)), Look::Valid(at(150)));
    }

    #[test]
    fn exactly_one_look_notices_the_expiry() {
        let v = Validity::until(at(100));
        assert_eq!(v.look(at(100)), Look::JustExpired);
        assert_eq!(v.look(at(100)), Look::Ended);
        assert!(!v.end());
    }

    #[test]
    fn expired_lease_is_never_seen_valid_again() {
        use std::sync::atomic::AtomicBool;
        for _ in 0..2_000 {
            let v = Validity::until(at(100));
            let over = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| {
                    if !matches!(v.look(at(100)), Look::Valid(_)) {
                        over.store(true, Ordering::SeqCst);
                    }
                });
                s.spawn(|| {
                    v.confirm(at(99), at(200));
                });
                s.spawn(|| {
                    let was_over = over.load(Ordering::SeqCst);
                    let valid = matches!(v.look(at(99)), Look::Valid(_));
                    assert!(!(was_over && valid));
                });
            });
        }
    }
}
