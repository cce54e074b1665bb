//! The async runtime interface: the four things that the engine needs, and the adaptors that provide them.
//!
//! Each of the features `tokio`, `smol` and `async-std` adds one adaptor and changes nothing else. [`detect`]
//! chooses one for a client that is not given one. [`own_thread`] runs on a thread of its own, apart from the
//! program's executor.

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
/// Because random bytes come from it too, a run under the simulated runtime depends on its seed alone.
pub trait Runtime: Send + Sync + Debug + 'static {
    /// Runs a task to its end in the background. Never panics: if the runtime has shut down, the task is
    /// dropped.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Completes after this duration. Usable from any thread, and pollable by any executor while this runtime
    /// lives.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Returns the time now, on the one clock that measures this client's leases: deadlines are times of this
    /// clock, and every [`Grant::counted_from`](crate::spi::Grant::counted_from) was read from it.
    ///
    /// A runtime in real time keeps the default, [`Timestamp::now`]. Backends may read that clock directly:
    /// SQLite stores expiries of it, for all processes of the machine. With another clock here, deadlines
    /// would be wrong by the difference, and guards would count as valid after their lease. A runtime with a
    /// clock of its own, such as the simulator's, is for backends that take all times from it.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Fills the buffer with unguessable random bytes. By default they come from the operating system.
    fn fill_random(&self, buffer: &mut [u8]) {
        random::fill(buffer);
    }

    /// Returns a short name for messages: `tokio`, `smol`, `async-std`, `sim`.
    fn name(&self) -> &'static str;
}

/// Lets the other tasks of this thread run once, on any executor.
///
/// For backends: the timers of a runtime that is shut down complete at once. A loop that pauses and has no
/// other end would keep its task from being dropped and, on a single thread, all other tasks too. Each such
/// pause is followed by this.
///
/// # Cancel safety
/// Cancel safe: nothing is lost.
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
