//! One poller per client and name, for stores that do not push.
//!
//! However many tasks of this client wait for a name, each look sends one cheap question to the store. If the
//! answer names admitted waiters, these are asked for in full. If it only says that something has changed,
//! the first few waiters are asked for, in one batch. When one of them is granted, the next few follow at
//! once. So a release that admits a hundred readers reaches all of them, without a hundred questions per
//! look.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::place::Place;
use super::waiter::Waiter;
use crate::error::Result;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::{News, Probe};
use crate::timestamp::Timestamp;

pub(crate) struct Poller {
    pub(crate) name: LockName,
    probe: Option<Arc<dyn Probe>>,
    /// The probes of waiters that joined since the last look. Only they know of changes between their attempt
    /// and the next look.
    newcomers: Mutex<Vec<Arc<dyn Probe>>>,
    /// The shortest and longest pause after a look, as reported to the latest waiter.
    bounds: [AtomicU64; 2],
    interval: AtomicU64,
    /// Since when a look is in transit; 0 while none is.
    looking: AtomicU64,
    /// The time from which news of the store may hasten the next look.
    rests_until: AtomicU64,
    /// Asked to look again while looking.
    again: AtomicU64,
    waiters: Mutex<Vec<Arc<Waiter>>>,
    /// Admitted waiters that looks have named and that were not asked for yet. They are not kept in the look
    /// itself: a look may be dropped, or fail at the next probe, and a probe may name an admission only once.
    named: Mutex<Vec<RequestId>>,
    /// One of the first waiters was granted, so the next few are due.
    goes_on: AtomicBool,
    pub(crate) place: Place,
}

/// The result of a look, besides the waiters that it named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Looked {
    Nothing,
    OtherHolders,
    Changed,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// How many waiters are asked for in full at once.
const FIRST_IN_LINE: usize = 8;

/// After a look, the next one is not hastened for this many times its duration: in a store that always has
/// news, of any names, looks must not take all the time.
const REST: u64 = 4;

impl Poller {
    pub(crate) fn new(name: LockName, probe: Option<Arc<dyn Probe>>) -> Self {
        Self {
            name,
            probe,
            newcomers: Mutex::default(),
            bounds: Default::default(),
            interval: AtomicU64::new(0),
            looking: AtomicU64::new(0),
            rests_until: AtomicU64::new(0),
            again: AtomicU64::new(0),
            waiters: Mutex::default(),
            named: Mutex::default(),
            goes_on: AtomicBool::new(false),
            place: Place::nowhere(),
        }
    }

    fn waiters(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Waiter>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a waiter, with its own probe if it is not the first. Its bounds of the pause apply to all.
    pub(crate) fn join(
        &self,
        waiter: Arc<Waiter>,
        probe: Option<Arc<dyn Probe>>,
        (min, max): (Duration, Duration),
    ) {
        let min = min.max(Duration::from_micros(100));
        for (bound, to) in self.bounds.iter().zip([min, max.max(min)]) {
            bound.store(to.as_nanos() as u64, Ordering::Relaxed);
        }
        self.waiters().push(waiter);
        self.newcomers().extend(probe);
        self.reset();
    }

    fn newcomers(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Probe>>> {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn named(&self) -> std::sync::MutexGuard<'_, Vec<RequestId>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks whether there is news for any waiter.
    pub(crate) async fn ask(&self) -> Result<Looked> {
        // Taken before the first look, so that the look is later than their attempts.
        let newcomers = std::mem::take(&mut *self.newcomers());
        let mut all = Looked::Nothing;
        for (n, probe) in self.probe.iter().chain(&newcomers).enumerate() {
            let latest = self.probe.as_ref().filter(|_| n > 0);
            if let (Some(seen), Some(latest)) = (probe.seen(), latest.and_then(|p| p.seen())) {
                let changed = seen != latest;
                all = all.max(if changed {
                    Looked::OtherHolders
                } else {
                    Looked::Nothing
                });
                continue;
            }
            all = all.max(match probe.look().await? {
                News::Nothing => Looked::Nothing,
                News::Admitted(ids) => {
                    self.named().extend(ids);
                    Looked::OtherHolders
                }
                News::Changed => Looked::Changed,
            });
        }
        Ok(all)
    }

    /// The waiters to ask for in full after this answer.
    pub(crate) fn concerned(&self, answer: &Result<Looked>) -> Vec<Arc<Waiter>> {
        let named = std::mem::take(&mut *self.named());
        let goes_on = self.goes_on.swap(false, Ordering::AcqRel);
        let mut first = match answer {
            Ok(Looked::Changed) | Err(_) => self.first_in_line(),
            _ if goes_on => self.first_in_line(),
            Ok(_) => Vec::new(),
        };
        first.iter().for_each(|w| w.asked_as_one_of_the_first(true));
        if matches!(answer, Ok(Looked::Nothing)) {
            return first;
        }
        let mut others = self.waiters().clone();
        others.retain(|w| w.queue_ttl.is_none() || named.contains(&w.key.id));
        others.retain(|w| !first.iter().any(|f| Arc::ptr_eq(f, w)));
        others.iter().for_each(|w| w.asked_as_one_of_the_first(false));
        first.append(&mut others);
        first
    }

    /// One of the first waiters was granted: more may have been.
    pub(crate) fn look_at_next(&self) {
        self.goes_on.store(true, Ordering::Release);
    }

    /// Removes a waiter; `true` if it was the last.
    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) -> bool {
        let mut waiters = self.waiters();
        waiters.retain(|w| !Arc::ptr_eq(w, waiter));
        waiters.is_empty()
    }

    /// The waiters that a change concerns first.
    fn first_in_line(&self) -> Vec<Arc<Waiter>> {
        let mut waiters = self.waiters().clone();
        // Waiters that were granted and have not run since block nobody.
        waiters.retain(|w| w.queue_ttl.is_some() && !w.is_granted());
        // Stable: of those with the same number ahead, the first to arrive comes first.
        waiters.sort_by_key(|w| w.ahead());
        waiters.truncate(FIRST_IN_LINE);
        waiters
    }

    /// Something changed, or there is a new waiter: looks become frequent again.
    pub(crate) fn reset(&self) {
        let min = self.bounds[0].load(Ordering::Relaxed);
        self.interval.store(min, Ordering::Relaxed);
    }

    /// The pause before the next look, without jitter. It grows each time that nothing has changed.
    pub(crate) fn next_interval(&self) -> Duration {
        let now = self.interval.load(Ordering::Relaxed);
        let longer = (now + now / 2).min(self.bounds[1].load(Ordering::Relaxed));
        self.interval.store(longer, Ordering::Relaxed);
        Duration::from_nanos(now)
    }

    /// Takes the right to look. If a look is in transit, makes it look again.
    pub(crate) fn begin_look(&self, now: Timestamp) -> bool {
        let since = now.as_nanos().max(1);
        let begun = self
            .looking
            .compare_exchange(0, since, Ordering::AcqRel, Ordering::Acquire);
        if begun.is_err() {
            self.again.store(1, Ordering::Release);
        }
        begun.is_ok()
    }

    /// Whether to look again at once.
    pub(crate) fn end_look(&self, now: Timestamp) -> bool {
        let (since, now) = (self.looking.swap(0, Ordering::AcqRel), now.as_nanos());
        let rest = now.saturating_sub(since) * REST;
        self.rests_until.store(now + rest, Ordering::Release);
        self.again.swap(0, Ordering::AcqRel) == 1
    }

    /// The store has news, possibly of other names only: returns when to look. Looks become frequent again.
    pub(crate) fn look_at(&self, now: Timestamp) -> Timestamp {
        self.reset();
        now.max(Timestamp::from_nanos(self.rests_until.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::spi::LeaseKey;

    struct Counted {
        looks: AtomicU64,
        seen: AtomicU64,
        name: Arc<AtomicU64>,
    }

    #[async_trait::async_trait]
    impl Probe for Counted {
        async fn look(&self) -> Result<News> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            self.seen
                .store(self.name.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(News::Nothing)
        }

        fn seen(&self) -> Option<u64> {
            Some(self.seen.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn news_hastens_a_look_after_a_minimum_pause() {
        let ms = |n| Timestamp::from_nanos(n * 1_000_000);
        let poller = Poller::new(LockName::new("x").unwrap(), None);
        assert_eq!(poller.look_at(ms(5)), ms(5));
        assert!(poller.begin_look(ms(5)) && !poller.begin_look(ms(6)));
        assert!(poller.end_look(ms(7)));
        // It took two milliseconds.
        assert_eq!(poller.look_at(ms(8)), ms(7 + 2 * REST));
        assert_eq!(poller.look_at(ms(30)), ms(30));
    }

    #[test]
    fn one_look_serves_all_waiters_that_joined_before() {
        let name = Arc::new(AtomicU64::new(7));
        let probe = |seen| {
            Arc::new(Counted {
                looks: AtomicU64::new(0),
                seen: AtomicU64::new(seen),
                name: name.clone(),
            })
        };
        let lock = LockName::new("x").unwrap();
        let first = probe(7);
        let poller = Poller::new(lock.clone(), Some(first.clone()));
        // One whose attempt saw the same state as the look, and one whose attempt precedes a change.
        for (n, seen, looked) in [(1, 7, Looked::Nothing), (2, 6, Looked::OtherHolders)] {
            let key = LeaseKey::new(lock.clone(), RequestId::new(1, n));
            let newcomer = probe(seen);
            let waiter = Arc::new(Waiter::new(key, None, None));
            poller.join(waiter, Some(newcomer.clone()), Default::default());
            assert_eq!(poller.ask().now_or_never().unwrap().unwrap(), looked);
            assert_eq!(newcomer.looks.load(Ordering::Relaxed), 0);
            assert_eq!(first.looks.load(Ordering::Relaxed), n);
        }
    }
}
