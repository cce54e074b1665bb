//! The same API for threads that block: [`connect`], and all of [`dlock_core::blocking`].

use dlock_core::Result;
pub use dlock_core::blocking::*;

/// Connects to the store at `url`, for threads that block. The client runs on a thread of its own, so locks
/// are renewed while your threads compute. To set more than the URL can, use
/// [`Connect::blocking`](crate::Connect::blocking).
///
/// # Errors
///
/// As [`Connect`](crate::Connect); `Unavailable` if the thread cannot be started.
///
/// # Examples
///
/// ```
/// # #[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
/// # fn main() -> dlock::Result<()> {
/// let client = dlock::blocking::connect("memory://?ttl=20s")?;
/// let guard = client.lock("stock/42")?.acquire()?;
/// guard.release()?;
/// client.close()
/// # }
/// # #[cfg(not(any(feature = "tokio", feature = "smol", feature = "async-std")))]
/// # fn main() {}
/// ```
pub fn connect(url: impl Into<String>) -> Result<Client> {
    crate::connect(url).blocking()
}
