//! The same API for threads that block: [`connect`], and all of [`dlock_core::blocking`].

use dlock_core::Result;
pub use dlock_core::blocking::*;

/// Connects to the store of that URL, for threads that block. Renewals go on, on a thread of their own, while
/// yours compute. To set more than a URL can say: [`Connect::blocking`](crate::Connect::blocking).
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
