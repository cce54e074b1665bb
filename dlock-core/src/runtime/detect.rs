//! Which runtime, if nobody says.

use std::sync::Arc;

use super::Runtime;
use crate::error::Result;
#[cfg(not(any(feature = "smol", feature = "async-std")))]
use crate::error::{Error, ErrorKind};

/// Chooses the runtime for a client that is not given one: the tokio runtime that is current, else smol, else
/// async-std, as far as their features are on.
///
/// Smol and async-std need not be entered, so they serve wherever no tokio is current. Enabling one more
/// feature, in this crate or far away in the same build, takes the choice away from nobody: what worked goes
/// on working.
///
/// # Errors
/// `InvalidInput` if only tokio is enabled and none is current here; `Unsupported` if no runtime is enabled.
/// Either says what to do.
pub fn detect() -> Result<Arc<dyn Runtime>> {
    #[cfg(feature = "tokio")]
    if let Ok(handle) = tokio::runtime::Handle::try_current() {
        return super::Tokio::from_handle(handle);
    }
    fallback()
}

#[cfg(feature = "smol")]
fn fallback() -> Result<Arc<dyn Runtime>> {
    super::Smol::global()
}

#[cfg(all(feature = "async-std", not(feature = "smol")))]
fn fallback() -> Result<Arc<dyn Runtime>> {
    super::AsyncStd::global()
}

#[cfg(all(feature = "tokio", not(feature = "smol"), not(feature = "async-std")))]
fn fallback() -> Result<Arc<dyn Runtime>> {
    Err(Error::new(
        ErrorKind::InvalidInput,
        "no tokio runtime is current here: call this from within one, or give a runtime explicitly, for \
            example \
         `runtime::own_thread()`; or enable the feature `smol` or `async-std`",
    ))
}

#[cfg(not(any(feature = "tokio", feature = "smol", feature = "async-std")))]
fn fallback() -> Result<Arc<dyn Runtime>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "no async runtime is enabled: enable the feature `tokio`, `smol` or `async-std`, or give a runtime \
            of your own",
    ))
}
