//! One waiting acquire.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;

use super::losses::Heard;
use super::place::Place;
use crate::error::Error;
use crate::spi::{Grant, LeaseKey};
use crate::timestamp::Timestamp;

/// A waiter, shared by its future and the keeper, which asks again for it.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) key: LeaseKey,
    /// The life of its queue entry. `None` if the store does not queue it; then the future asks again itself.
    pub(crate) queue_ttl: Option<Duration>,
    inbox: Mutex<Option<Delivery>>,
    task: AtomicWaker,
    /// The number of waiters ahead, as last reported by the store. Orders the re-asks of one name in one
    /// client.
    ahead: AtomicU64,
    /// Since when re-asks have failed, without a success in between; 0 if they have not.
    failing_since: AtomicU64,
    /// Whether a re-ask is in transit.
    asking: AtomicBool,
    /// Whether something changed meanwhile.
    again: AtomicBool,
    /// Whether it was last asked for as one of the first waiters, and not because a look named it.
    first: AtomicBool,
    /// Whether the future was dropped.
    left: AtomicBool,
    pub(crate) place: Place,
}

/// A message of the keeper to a waiter.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// With `Core::heard` from before it was asked for.
    Granted(Grant, Heard),
    /// Attempt again: something changed, or the store has lost the queue entry.
    AskAgain,
    Failed(Error),
}

impl Waiter {
    pub(crate) fn new(key: LeaseKey, queue_ttl: Option<Duration>, ahead: Option<u32>) -> Self {
        Self {
            key,
            queue_ttl,
            inbox: Mutex::new(None),
            task: AtomicWaker::new(),
            ahead: AtomicU64::new(ahead.map_or(0, u64::from)),
            failing_since: AtomicU64::new(0),
            asking: AtomicBool::new(false),
            again: AtomicBool::new(false),
            first: AtomicBool::new(false),
            left: AtomicBool::new(false),
            place: Place::nowhere(),
        }
    }

    /// Leaves a message for the waiting future and wakes it. A grant is never replaced.
    pub(crate) fn deliver(&self, delivery: Delivery) {
        {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            if !matches!(*inbox, Some(Delivery::Granted(..))) {
                *inbox = Some(delivery);
            }
        }
        self.task.wake();
    }

    pub(crate) fn poll_delivery(&self, cx: &mut Context<'_>) -> Poll<Delivery> {
        // Register first, look second: a delivery between the two wakes the task.
        self.task.register(cx.waker());
        match self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(delivery) => Poll::Ready(delivery),
            None => Poll::Pending,
        }
    }

    /// Whether a grant is waiting to be taken by the future.
    pub(crate) fn is_granted(&self) -> bool {
        let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*inbox, Some(Delivery::Granted(..)))
    }

    pub(crate) fn asked_as_one_of_the_first(&self, is_first: bool) {
        self.first.store(is_first, Ordering::Relaxed);
    }

    pub(crate) fn was_one_of_the_first(&self) -> bool {
        self.first.load(Ordering::Relaxed)
    }

    /// The future was dropped and takes no deliveries any more. Only under the mutex of the engine's state.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    pub(crate) fn ahead(&self) -> u64 {
        self.ahead.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ahead(&self, ahead: Option<u32>) {
        if let Some(n) = ahead {
            self.ahead.store(u64::from(n), Ordering::Relaxed);
        }
    }

    /// Takes the right to re-ask, so that only one re-ask is in transit.
    pub(crate) fn begin_ask(&self) -> bool {
        let begins = !self.asking.swap(true, Ordering::AcqRel);
        if begins {
            self.again.store(false, Ordering::Release);
        }
        begins
    }

    pub(crate) fn end_ask(&self) {
        self.asking.store(false, Ordering::Release);
    }

    /// Something changed while it was being asked for.
    pub(crate) fn ask_again(&self) {
        self.again.store(true, Ordering::Release);
    }

    pub(crate) fn is_to_ask_again(&self) -> bool {
        self.again.load(Ordering::Acquire)
    }

    /// Records a failed re-ask, and returns for how long re-asks have failed.
    pub(crate) fn failing_for(&self, now: Timestamp) -> Duration {
        let since = match self.failing_since.load(Ordering::Relaxed) {
            0 => {
                self.failing_since.store(now.as_nanos().max(1), Ordering::Relaxed);
                now
            }
            since => Timestamp::from_nanos(since),
        };
        now.since(since)
    }

    pub(crate) fn succeeded(&self) {
        self.failing_since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::name::LockName;
    use crate::request_id::RequestId;

    fn waiter() -> Waiter {
        let key = LeaseKey::new(LockName::new("x").unwrap(), RequestId::new(1, 1));
        Waiter::new(key, None, Some(3))
    }

    /// Only its future can give the grant back.
    #[test]
    fn a_grant_that_was_delivered_is_not_replaced() {
        let waiter = waiter();
        let heard = Heard { losses: 0, doubts: 0 };
        let grant = Grant::new(waiter.key.clone(), None, Timestamp::ZERO, Duration::from_secs(1));
        waiter.deliver(Delivery::AskAgain);
        assert!(!waiter.is_granted());
        waiter.deliver(Delivery::Granted(grant, heard));
        waiter.deliver(Delivery::Failed(Error::new(ErrorKind::Unavailable, "away")));
        assert!(waiter.is_granted());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(matches!(
            waiter.poll_delivery(&mut cx),
            Poll::Ready(Delivery::Granted(..))
        ));
        assert!(waiter.poll_delivery(&mut cx).is_pending());
    }

    #[test]
    fn failures_count_from_the_first_until_a_success() {
        let waiter = waiter();
        let at = |s| Timestamp::ZERO + Duration::from_secs(s);
        assert_eq!(waiter.failing_for(at(5)), Duration::ZERO);
        assert_eq!(waiter.failing_for(at(7)), Duration::from_secs(2));
        waiter.succeeded();
        assert_eq!(waiter.failing_for(at(9)), Duration::ZERO);
    }

    #[test]
    fn waiter_is_asked_for_once_at_a_time() {
        let waiter = waiter();
        assert!(waiter.begin_ask() && !waiter.begin_ask());
        waiter.ask_again();
        assert!(waiter.is_to_ask_again());
        waiter.end_ask();
        assert!(waiter.begin_ask() && !waiter.is_to_ask_again());
        // If the store reports no number, the old one stays.
        waiter.set_ahead(None);
        assert_eq!(waiter.ahead(), 3);
        waiter.set_ahead(Some(1));
        assert_eq!(waiter.ahead(), 1);
    }
}
