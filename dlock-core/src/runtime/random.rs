//! Random bytes from the operating system, for the adaptors of real runtimes.

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
use crate::error::{Error, ErrorKind, Result};

/// Checks, when an adaptor is made, that the operating system gives random bytes at all, so that its absence
/// is an error of `connect` and not a surprise in the middle of an acquisition.
#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
pub(super) fn check() -> Result<()> {
    getrandom::fill(&mut [0; 16]).map_err(|e| {
        Error::new(
            ErrorKind::Unavailable,
            "the operating system gives no random bytes, so no lock could be owned safely",
        )
        .with_source(std::io::Error::other(e.to_string()))
    })
}

/// Fills the buffer.
///
/// # Panics
/// If the operating system stops giving random bytes after [`check`] saw that it does. Going on with
/// guessable ids would let one client end another's lease, so there is nothing to go on with.
pub(super) fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).expect("the operating system gave random bytes when this runtime was chosen");
}
