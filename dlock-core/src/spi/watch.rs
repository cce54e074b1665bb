use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::error::{Error, ErrorKind, Result};
use crate::inspection::{Change, Inspection};
use crate::name::LockName;

/// Looking at a lock without wanting it. Needs no lease and never queues, holds or slows anything.
#[async_trait]
pub trait Watch: Send + Sync {
    /// The stream of changes of one name: first a [`Change::Snapshot`], then every change after it, in grant
    /// order. When changes may have been skipped (a slow consumer, a broken connection) a fresh `Snapshot`
    /// with `skipped: true` says so. It ends with an error or never. A lease that runs out is told although
    /// nobody touches the name, and a consumer that does not read costs a bounded backlog.
    ///
    /// A backend that can only look now and then cannot tell apart what lies between two looks, but whether
    /// there was more than it tells: then such a snapshot says so. The latest state is always delivered.
    ///
    /// # Cancel safety
    /// Dropped, it leaves nothing that counts; the same holds for the stream. The caller watches anew and
    /// starts with a snapshot.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt); an error of the stream is its last item.
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>>;

    /// Who holds it now, with which tokens and for how long yet, and how many wait.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn inspect(&self, name: &LockName) -> Result<Inspection>;

    /// Ends every lease of that name, whoever holds it, and admits who is next. For operators: the former
    /// holders learn it only at their next renewal, so what they do meanwhile is kept out by the fence alone.
    /// Returns how many were ended.
    ///
    /// # Cancel safety
    /// Dropped, it has happened or not, and nobody repeats it. Calling it again ends whoever holds the name
    /// by then.
    ///
    /// # Errors
    /// As [`Lock::attempt`](super::Lock::attempt).
    async fn force_release(&self, name: &LockName) -> Result<u32>;

    /// One page of the names that begin with `prefix` and are held or waited for: the first page, or the one
    /// at [`Page::next`] of the page before. A name that is in use all the while is on a page at least; it
    /// may be on several. One that was free all the while is on none. A page may be empty and not the last.
    /// What some leave out, [`Client::list`](crate::Client::list) says.
    ///
    /// Only for a backend that claims [`Capability::List`](crate::Capability::List); the default answers
    /// `Unsupported`.
    ///
    /// # Cancel safety
    /// Only reads.
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

/// Some names, from [`Watch::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// In any order.
    pub names: Vec<LockName>,
    /// Where the next page begins, in the backend's own terms; `None` behind the last.
    pub next: Option<Vec<u8>>,
}

impl Page {
    /// Those names, and where it goes on.
    pub fn new(names: Vec<LockName>, next: Option<Vec<u8>>) -> Self {
        Self { names, next }
    }
}
