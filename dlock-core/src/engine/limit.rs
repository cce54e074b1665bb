//! The time limit of one request of a user, and its end when the client closes: an entry in the keeper's
//! timers, so that a request costs neither a timer of the runtime nor a listener of its own.
//!
//! What could break it, and why it does not:
//!
//! * *It is due, or the client closes, between the poll of the request and the look at the limit.* The task
//!   is registered first and the limit looked at second; the keeper says first that it is over, and wakes
//!   second.
//! * *The client closes before the limit is in the timers.* It goes in under the lock of the state, where the
//!   phase is looked at; the keeper takes everything out, once, after the phase was set.
//! * *The future is dropped while the keeper has the limit in its hands.* It says so under the lock, and the
//!   keeper, which puts back what is not due yet under that lock, asks.
//! * *The keeper is gone* (its runtime was shut down): whatever was in the timers was told so, and nothing is
//!   put there any more.

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
    /// The future has gone. Only written under the lock of the engine's state.
    left: AtomicBool,
    pub(crate) place: Place,
}

/// Why a request is not waited for any more.
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

    /// Why it is over, if it is; else the task is woken when it is.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Over> {
        self.task.register(cx.waker());
        match self.over.load(Ordering::Acquire) {
            0 => Poll::Pending,
            1 => Poll::Ready(Over::Time),
            _ => Poll::Ready(Over::Closing),
        }
    }

    /// The future has gone. Under the lock of the engine's state.
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
