//! "Is there any news?", for those who are not told: one look at a name, for all that wait for it in one
//! client.
//!
//! A look compares what it sees with the look before. With ten clients of fifty waiters each, to ask in full
//! after each change would be five hundred questions.
//!
//! What could be missed, and is not:
//! * *A change between an attempt and the first look*: the attempt says how it left the name. If it does not,
//!   the first look counts as one that has found others there.
//! * *A waiter that is admitted before it is seated here*: as long as one of ours has not come for what it
//!   was offered, every look says so.
//! * *A lease expires, which stores nothing*: the look says that something is due.
//! * *A look that is dropped or fails*: the next one counts as the first.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{LeaseKey, News, Probe, Wake};
use dlock_core::{LockName, RequestId, Result};

/// What one look has shown.
#[derive(Default)]
pub(crate) struct Look<M> {
    /// Another one whenever the holders are others.
    pub(crate) mark: M,
    /// Something is to be taken back.
    pub(crate) due: bool,
    /// The waiter, of any client, that was offered a lease and has not claimed it.
    pub(crate) offered: Vec<RequestId>,
}

/// A store that can be looked at.
#[async_trait]
pub(crate) trait Looks: Send + Sync + 'static {
    type Mark: Hash + PartialEq + Send;

    async fn look(&self, name: &LockName) -> Result<Look<Self::Mark>>;
}

struct Seen<S: Looks> {
    store: S,
    key: LeaseKey,
    mark: Mutex<Option<S::Mark>>,
}

/// Looks that soon and that late; `mark` is that of the name as the attempt left it.
pub(crate) fn looking<S: Looks>(
    store: S,
    key: LeaseKey,
    mark: Option<S::Mark>,
    (min, max): (Duration, Duration),
) -> Wake {
    let mark = Mutex::new(mark);
    let probe = Arc::new(Seen { store, key, mark });
    Wake::Poll { probe, min, max }
}

#[async_trait]
impl<S: Looks> Probe for Seen<S> {
    async fn look(&self) -> Result<News> {
        let before = self.mark.lock().unwrap_or_else(PoisonError::into_inner).take();
        let look = self.store.look(&self.key.name).await?;
        let ours = |id: &RequestId| id.client() == self.key.id.client();
        let admitted: Vec<_> = look.offered.into_iter().filter(ours).collect();
        let is_same = before.as_ref() == Some(&look.mark);
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(look.mark);
        Ok(match look.due {
            true => News::Changed,
            false if admitted.is_empty() && is_same => News::Nothing,
            false => News::Admitted(admitted),
        })
    }

    fn seen(&self) -> Option<u64> {
        let mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        mark.as_ref()
            .map(|mark| BuildHasherDefault::<DefaultHasher>::default().hash_one(mark))
    }
}
