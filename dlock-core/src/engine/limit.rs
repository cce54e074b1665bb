//! The time limit of a user's request, which also ends the request when the client closes. It is an entry in
//! the keeper's timers, so a request costs neither a timer of the runtime nor a listener of its own.
//!
//! What could break it, and why it does not:
//!
//! * *It is due, or the client closes, between the poll of the request and the check of the limit.* The task
//!   registers first and checks the limit second; the keeper sets the limit to over first, and wakes second.
//! * *The client closes before the limit is in the timers.* It is added under the mutex of the state, where
//!   the phase is checked; the keeper removes everything, once, after the phase was set.
//! * *The future is dropped while the keeper handles the limit.* The drop marks the limit under the mutex,
//!   and the keeper, which puts back limits that are not due under the same mutex, checks the mark.
//! * *The keeper is gone* (its runtime was shut down): every limit in the timers was ended, and none is added
//!   any more.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;

use super::place::Place;
use crate::timestamp::Timestamp;

/// Shared by the future of a request and the keeper.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) at: Timestamp,
    over: AtomicU8,
    task: AtomicWaker,
    /// The future was dropped. Only written under the mutex of the engine's state.
    left: AtomicBool,
    pub(crate) place: Place,
}

/// Why the wait for a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Time = 1,
    Closing = 2,
}

impl Limit {
    pub(super) fn at(at: Timestamp) -> Self {
        Self {
            at,
            over: AtomicU8::new(0),
            task: AtomicWaker::new(),
            left: AtomicBool::new(false),
            place: Place::nowhere(),
        }
    }

    /// Returns why it is over, if it is. Otherwise registers the task to be woken then.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Over> {
        self.task.register(cx.waker());
        match self.over.load(Ordering::Acquire) {
            0 => Poll::Pending,
            1 => Poll::Ready(Over::Time),
            _ => Poll::Ready(Over::Closing),
        }
    }

    /// The future was dropped. Under the mutex of the engine's state.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Ends the wait for the request.
    pub(super) fn end(&self, why: Over) {
        self.over.store(why as u8, Ordering::Release);
        self.task.wake();
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}
