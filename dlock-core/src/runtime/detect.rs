//! The choice of a runtime.

use std::sync::Arc;

use super::Runtime;
use crate::error::Result;
#[cfg(not(any(feature = "smol", feature = "async-std")))]
use crate::error::{Error, ErrorKind};

/// Chooses the runtime for a client that is not given one: the current tokio runtime, else smol, else
/// async-std, as far as their features are enabled.
///
/// Smol and async-std need not be entered, so they serve wherever no tokio is current. Enabling one more
/// feature, in this crate or elsewhere in the same build, breaks no program that worked before.
///
/// # Errors
/// `InvalidInput` if only tokio is enabled and none is current here; `Unsupported` if no runtime is enabled.
/// The message says what to do.
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
        "there is no current tokio runtime: call this within one, pass a runtime such as \
            `runtime::own_thread()`, or enable the feature `smol` or `async-std`",
    ))
}

#[cfg(not(any(feature = "tokio", feature = "smol", feature = "async-std")))]
fn fallback() -> Result<Arc<dyn Runtime>> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "no async runtime is enabled: enable the feature `tokio`, `smol` or `async-std`, or pass a runtime \
            of your own",
    ))
}
