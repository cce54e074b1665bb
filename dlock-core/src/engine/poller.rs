//! One poller per client and name, for stores that do not push.
//!
//! However many tasks of this client wait for a name, one cheap question per look goes to the store. If it
//! answers who was admitted, those are asked for in full. If it can only say that something has changed, the
//! first few in line are, in one batch; when one of them was granted, the next few are asked for at once, so
//! that one release that admits a hundred readers reaches them all without a hundred questions a look.

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
    /// Of those who joined since the last look. What changed between their attempt and that look only they
    /// know of.
    newcomers: Mutex<Vec<Arc<dyn Probe>>>,
    /// How soon and how late after a look the next one comes, as whoever came last was told.
    bounds: [AtomicU64; 2],
    interval: AtomicU64,
    /// Since when a probe is on its way; nought while none is.
    looking: AtomicU64,
    /// From when on news of the store may hasten the next look.
    rests_until: AtomicU64,
    /// Asked to look again while looking.
    again: AtomicU64,
    waiters: Mutex<Vec<Arc<Waiter>>>,
    /// Who was admitted, as far as looks have said and nobody has acted on yet. Not in the look itself: that
    /// may be dropped, or fail at the next probe, and a probe may have said it for the only time.
    named: Mutex<Vec<RequestId>>,
    /// One of the first in line was granted, so the next few are due.
    goes_on: AtomicBool,
    pub(crate) place: Place,
}

/// What a look comes to, beside those whom it named.
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

/// For how many times as long as a look took the next is not hastened: in a store that always has news, of
/// whatever names, looks must not take all the time there is.
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

    /// One more waits; with its own probe, if it is not the first. What it was told of how soon and how late
    /// to look again is true for all.
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

    /// Whether there is news for anybody here.
    pub(crate) async fn ask(&self) -> Result<Looked> {
        // Before the first look: what that one sees is later than the attempts of those taken here.
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

    /// Those who are asked for in full after that answer.
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

    /// One of the first in line was granted: there may be more to whom the same happened.
    pub(crate) fn go_on(&self) {
        self.goes_on.store(true, Ordering::Release);
    }

    /// Takes a waiter out; `true` if it was the last.
    pub(crate) fn leave(&self, waiter: &Arc<Waiter>) -> bool {
        let mut waiters = self.waiters();
        waiters.retain(|w| !Arc::ptr_eq(w, waiter));
        waiters.is_empty()
    }

    /// Those in line whom a change concerns first.
    fn first_in_line(&self) -> Vec<Arc<Waiter>> {
        let mut waiters = self.waiters().clone();
        // Those who have been granted, and have not run since, are in nobody's way.
        waiters.retain(|w| w.queue_ttl.is_some() && !w.is_granted());
        // Stable: of those with the same number ahead, the first to arrive comes first.
        waiters.sort_by_key(|w| w.ahead());
        waiters.truncate(FIRST_IN_LINE);
        waiters
    }

    /// Something changed, or somebody new waits: look often again.
    pub(crate) fn reset(&self) {
        let min = self.bounds[0].load(Ordering::Relaxed);
        self.interval.store(min, Ordering::Relaxed);
    }

    /// How long until the next look, before jitter; longer each time nothing has changed.
    pub(crate) fn next_interval(&self) -> Duration {
        let now = self.interval.load(Ordering::Relaxed);
        let longer = (now + now / 2).min(self.bounds[1].load(Ordering::Relaxed));
        self.interval.store(longer, Ordering::Relaxed);
        Duration::from_nanos(now)
    }

    /// Takes the right to look; if a look is on its way, asks it to look again.
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

    /// The store has news, perhaps of other names only: when to look, which is often from now on.
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
    fn news_hastens_a_look_but_leaves_the_store_a_rest() {
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
    fn one_look_serves_those_who_joined_before_it() {
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
        // One whose attempt saw what the look sees, and one whose attempt is older than a change.
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
