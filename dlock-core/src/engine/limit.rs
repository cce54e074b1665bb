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

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;

use super::ask::closed;
use super::core::Core;
use super::timers::{Entry, Place};
use crate::error::Result;
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
    /// Ends the wait for the request.
    pub(super) fn end(&self, why: Over) {
        self.over.store(why as u8, Ordering::Release);
        self.task.wake();
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

/// A limit in the keeper's timers, taken out when dropped.
pub(super) struct Limited<'a> {
    core: &'a Core,
    limit: Arc<Limit>,
}

impl<'a> Limited<'a> {
    /// Counted from now; refused when the client closes.
    pub(super) fn begin(core: &'a Core, limit: Duration) -> Result<Self> {
        let limit = Arc::new(Limit {
            at: core.now() + limit,
            over: AtomicU8::new(0),
            task: AtomicWaker::new(),
            left: AtomicBool::new(false),
            place: Place::nowhere(),
        });
        let earlier = {
            let mut state = core.state();
            if !core.is_open() {
                return Err(closed());
            }
            state.timers.set(limit.at, Entry::Limit(limit.clone()));
            limit.at < state.armed
        };
        if earlier {
            core.wake_keeper();
        }
        Ok(Self { core, limit })
    }
}

impl Future for Limited<'_> {
    type Output = Over;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Over> {
        self.limit.task.register(cx.waker());
        match self.limit.over.load(Ordering::Acquire) {
            0 => Poll::Pending,
            1 => Poll::Ready(Over::Time),
            _ => Poll::Ready(Over::Closing),
        }
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        let mut state = self.core.state();
        self.limit.left.store(true, Ordering::Relaxed);
        state.timers.remove(&self.limit.place);
    }
}
