//! What the engine needs of an async runtime: four things; and the adaptors that give them.
//!
//! Each feature (`tokio`, `smol`, `async-std`) adds one adaptor and changes nothing else. [`detect`] chooses
//! among them when a client is not given one; [`own_thread`] runs apart from the program's own executor.

#[cfg(feature = "async-std")]
mod async_std;
mod detect;
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
mod own_thread;
mod random;
#[cfg(feature = "smol")]
mod smol;
#[cfg(feature = "tokio")]
mod tokio;

#[cfg(feature = "async-std")]
pub use self::async_std::AsyncStd;
pub use self::detect::detect;
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
pub use self::own_thread::own_thread;
#[cfg(feature = "smol")]
pub use self::smol::Smol;
#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

use std::fmt::Debug;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::timestamp::Timestamp;

/// An async runtime, as far as locks need one. Chosen once, when a client connects; never a global.
///
/// With `fill_random` part of it, a run under the simulated runtime is a function of its seed alone.
pub trait Runtime: Send + Sync + Debug + 'static {
    /// Runs a task to its end in the background. Never panics: on a runtime that has shut down the task is
    /// dropped.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Completes after that long. Usable from any thread, and pollable by any executor as long as this
    /// runtime lives.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// The time now, on the one clock by which this client's leases are measured: deadlines are this clock's
    /// times, and every [`Grant::counted_from`](crate::spi::Grant::counted_from) was read from it.
    ///
    /// A runtime in real time leaves it at [`Timestamp::now`]. Backends may read that clock themselves
    /// (SQLite keeps expiries on it, for all processes of the machine): beside another clock here, deadlines
    /// would be wrong by the difference, and guards would call themselves valid after their lease. A runtime
    /// with a clock of its own, as the simulator's, is for backends that take all times from it.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Fills the buffer with random bytes that nobody can guess: the operating system's, unless written.
    fn fill_random(&self, buffer: &mut [u8]) {
        random::fill(buffer);
    }

    /// A short name for messages: `tokio`, `smol`, `async-std`, `sim`.
    fn name(&self) -> &'static str;
}

/// Lets the other tasks of this thread run once, on any executor.
///
/// For backends: the timers of a runtime that is shut down complete at once, so a loop that pauses without an
/// end of its own would keep its task, and on one thread all others, from being dropped. Each such pause is
/// followed by this.
///
/// # Cancel safety
/// Nothing is lost.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// # use dlock_core as dlock;
/// use dlock::runtime::yield_now;
/// use std::time::Duration;
/// # let is_done = || true;
/// while !is_done() {
///     client.runtime().sleep(Duration::from_millis(10)).await;
///     yield_now().await;
/// }
/// # Ok(()) });
/// ```
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| match std::mem::replace(&mut yielded, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}
