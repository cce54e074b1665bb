//! The sweep of drops: an operation is dropped at its first poll, its second, ... until it completes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures::future::poll_fn;

/// Under which wakers an operation is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// The task's own, as an executor does.
    Honest,
    /// A fresh waker at each poll, which wakes the task; only the latest one counts by the contract of
    /// `Future`.
    Swapped,
    /// The task's own, and each poll is followed by a spurious one.
    Spurious,
}

impl Waking {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Honest, Self::Swapped, Self::Spurious];
}

impl fmt::Display for Waking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Honest => "polled with the task's waker",
            Self::Swapped => "polled with a new waker each time",
            Self::Spurious => "with a spurious poll after each",
        })
    }
}

/// How one cut went.
#[derive(Debug)]
pub enum Cut<T> {
    /// It was pending after the last poll that it got, and is dropped.
    Dropped,
    /// It completed before that.
    Completed(T),
}

impl<T> Cut<T> {
    /// In words, after that many polls at most.
    pub(crate) fn how(&self, polls: usize) -> String {
        match self {
            Self::Dropped => format!("dropped after poll {polls}"),
            Self::Completed(_) => format!("which completed at poll {polls}"),
        }
    }
}

/// Cuts operations short, one poll later each time.
///
/// ```
/// use dlock_conformance::{Sweep, Waking};
/// # futures::executor::block_on(async {
/// let mut sweep = Sweep::new(Waking::Honest, 100);
/// while let Some(cut) = sweep.next(async { futures::pending!() }).await {
///     // probe here: after the drop nothing may be left behind
///     # let _ = cut;
///     # break;
/// }
/// // Dropped without a poll: that cuts nothing.
/// assert_eq!((sweep.cut_points(), sweep.is_complete()), (0, false));
/// # });
/// ```
#[derive(Debug)]
pub struct Sweep {
    waking: Waking,
    polls: usize,
    max: usize,
    finished: bool,
    cuts: usize,
}

impl Sweep {
    /// A sweep that ends when an operation completes, or after `max` of them were dropped. In the second case
    /// it has not cut every point, and [`is_complete`](Self::is_complete) is false.
    pub fn new(waking: Waking, max: usize) -> Self {
        Self {
            waking,
            polls: 0,
            max,
            finished: false,
            cuts: 0,
        }
    }

    /// Polls the operation once more than the one before it (the first one not at all), each time after a
    /// wake-up, and then drops it. `None` when the sweep is over; the operation is then dropped without a
    /// poll.
    ///
    /// It waits for a wake-up without a limit: pass operations that complete, or that the rule wakes.
    ///
    /// # Cancel safety
    /// Dropped, it drops the operation where it is. That cut is not counted, and the next call makes it anew.
    pub async fn next<T>(&mut self, operation: impl Future<Output = T>) -> Option<Cut<T>> {
        if self.finished || self.polls >= self.max {
            return None;
        }
        let cut = cut(self.waking, self.polls, operation).await;
        match cut {
            Cut::Dropped if self.polls > 0 => self.cuts += 1,
            Cut::Dropped => {}
            Cut::Completed(_) => self.finished = true,
        }
        self.polls += 1;
        Some(cut)
    }

    /// The number of points at which started operations were dropped. 0 if it completes at its first poll.
    pub fn cut_points(&self) -> usize {
        self.cuts
    }

    /// Whether an operation has completed, so that every point was cut.
    pub fn is_complete(&self) -> bool {
        self.finished
    }
}

/// Polls `polls` times at most, then drops.
async fn cut<T>(waking: Waking, polls: usize, operation: impl Future<Output = T>) -> Cut<T> {
    if polls == 0 {
        return Cut::Dropped;
    }
    // Boxed, so that it can be dropped before this returns rather than when the caller's frame ends.
    let mut operation = Box::pin(operation);
    let mut left = polls;
    let completed = poll_fn(|cx| {
        let polled = poll(waking, operation.as_mut(), cx);
        if polled.is_ready() {
            return polled.map(Some);
        }
        left -= 1;
        if left == 0 {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await;
    drop(operation);
    match completed {
        Some(value) => Cut::Completed(value),
        None => Cut::Dropped,
    }
}

fn poll<F: Future + ?Sized>(
    waking: Waking,
    mut operation: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    match waking {
        Waking::Honest => operation.poll(cx),
        Waking::Swapped => {
            let fresh = Waker::from(Arc::new(Relay(cx.waker().clone())));
            operation.poll(&mut Context::from_waker(&fresh))
        }
        Waking::Spurious => match operation.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(value),
            Poll::Pending => operation.poll(cx),
        },
    }
}

/// A waker of its own that wakes another: `will_wake` tells them apart.
struct Relay(Waker);

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_by_ref();
    }
}
