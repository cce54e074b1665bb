use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::error::{Error, ErrorKind, Result};
use crate::inspection::{Change, Inspection};
use crate::name::LockName;

/// The part for observing locks. It needs no lease and never queues, holds or delays anything.
#[async_trait]
pub trait Watch: Send + Sync {
    /// Returns the stream of changes of one name: a [`Change::Snapshot`], then every later change, in grant
    /// order. If changes may have been skipped, because of a slow consumer or a broken connection, a new
    /// `Snapshot` with `skipped: true` follows. The stream ends with an error or never. It reports the expiry
    /// of a lease even if nobody touches the name. A consumer that does not read costs a bounded backlog.
    ///
    /// A backend that polls cannot see every change between two looks. If there was more than it reports, it
    /// sends such a snapshot. The latest state is always delivered.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping it, or the stream, leaves nothing behind. A new watch starts with a snapshot.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt); an error of the stream is its last item.
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>>;

    /// Reads who holds the name now, with tokens and remaining times, and how many requests wait.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn inspect(&self, name: &LockName) -> Result<Inspection>;

    /// Ends every lease of the name, whoever holds it, admits the next waiters, and returns how many leases
    /// were ended. For operators: a former holder learns of it at its next renewal, and until then only the
    /// fence gate keeps its writes out.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not have taken effect, and is not repeated. Calling it again ends whatever
    /// lease there is by then.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn force_release(&self, name: &LockName) -> Result<u32>;

    /// Returns one page of the names that start with `prefix` and are held or waited for: the first page, or
    /// the one at [`Page::next`] of the page before. A name that is in use throughout is on at least one
    /// page, possibly on several. A name that is free throughout is on none. A page may be empty without
    /// being the last. [`Client::list`](crate::Client::list) says what some backends omit.
    ///
    /// Only for backends that claim [`Capability::List`](crate::Capability::List). The default fails with
    /// `Unsupported`.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn list(&self, _prefix: &[u8], _from: Option<&[u8]>) -> Result<Page> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this backend cannot list names",
        ))
    }
}

/// One page of names. From [`Watch::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The names, in any order.
    pub names: Vec<LockName>,
    /// Where the next page starts, in the backend's own terms; `None` after the last page.
    pub next: Option<Vec<u8>>,
}

impl Page {
    /// Creates a page.
    pub fn new(names: Vec<LockName>, next: Option<Vec<u8>>) -> Self {
        Self { names, next }
    }
}
