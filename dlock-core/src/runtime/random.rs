//! Random bytes from the operating system, for the adaptors of real runtimes.

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
use crate::error::{Error, ErrorKind, Result};

/// Checks, when an adaptor is created, that the operating system provides random bytes, so that `connect`
/// fails and not a later acquire.
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
pub(super) fn check() -> Result<()> {
    getrandom::fill(&mut [0; 16]).map_err(|e| {
        Error::new(
            ErrorKind::Unavailable,
            "the operating system provides no random bytes, which locks need to be owned safely",
        )
        .with_source(std::io::Error::other(e.to_string()))
    })
}

/// Fills the buffer.
///
/// # Panics
/// If the operating system stops providing random bytes after [`check`] succeeded. With guessable ids, one
/// client could end another's lease.
pub(super) fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).expect("the operating system gave random bytes when this runtime was chosen");
}
