//! A client's lease, its deadline, and the requests that have entries on it.
//!
//! All entries of a client are on one lease, and end with it. Its requests are noted only here. So an entry
//! of an earlier lease, which a member may still show for a while, is never taken for an own one.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dlock_core::spi::{Grant, LeaseKey};
use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use etcd_client::{GetOptions, GetResponse, ResponseHeader, Txn, TxnResponse};
use futures::channel::{mpsc, oneshot};

use crate::deadline::{Deadline, Renewed};
use crate::failure::{is_lease_gone, told};
use crate::keys::behind;
use crate::line::{Line, line_of, token};
use crate::link::{Link, revision};
use crate::requests::Requests;
use crate::watches::Watches;

/// Asks for a renewal; answered when there was one that was sent later.
pub(crate) type Ask = oneshot::Sender<Result<()>>;

/// What is known before a request is sent.
pub(crate) struct Before {
    pub(crate) renewed: Option<Renewed>,
    seen: i64,
}

/// A lease of the cluster.
pub(crate) struct Session {
    pub(crate) lease: i64,
    pub(crate) deadline: Deadline,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) at: Arc<str>,
    /// The latest revision that a majority has shown to it.
    seen: AtomicI64,
    link: RwLock<Option<(Arc<Link>, Watches)>>,
    upkeep: mpsc::UnboundedSender<Ask>,
}

impl Session {
    pub(crate) fn new(
        (lease, ttl): (i64, Duration),
        asked: Timestamp,
        (runtime, at): (Arc<dyn Runtime>, Arc<str>),
        upkeep: mpsc::UnboundedSender<Ask>,
    ) -> Self {
        Self {
            lease,
            deadline: Deadline::new(asked, ttl),
            runtime,
            requests: Arc::default(),
            at,
            seen: AtomicI64::new(0),
            link: RwLock::default(),
            upkeep,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// What is known before a request is sent that a majority has a part in.
    pub(crate) fn before(&self) -> Before {
        Before {
            renewed: self.deadline.to_confirm(),
            seen: self.seen.load(Ordering::Acquire),
        }
    }

    /// Takes in what stands in the answer to it. `None` if the cluster was put back to an earlier state: its
    /// revision has fallen. Otherwise whether the renewal counts that was to be confirmed.
    pub(crate) fn heard(&self, before: Before, header: Option<&ResponseHeader>) -> Option<bool> {
        let Some(header) = header else {
            return Some(false);
        };
        self.seen.fetch_max(header.revision(), Ordering::AcqRel);
        let has_grown = before.seen <= header.revision();
        has_grown.then(|| self.deadline.confirm(before.renewed, header.raft_term()))
    }

    /// Takes up a connection.
    pub(crate) fn set_link(&self, link: Arc<Link>, watches: Watches) {
        let mut now = self.link.write().unwrap_or_else(PoisonError::into_inner);
        *now = Some((link, watches));
    }

    /// Drops the connection. Its waiters ask again.
    pub(crate) fn leave_link(&self) {
        let link = self.link.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, watches)) = link {
            watches.end();
        }
    }

    /// The connection, and what is watched on it.
    ///
    /// # Errors
    /// `Unavailable`: there is none.
    pub(crate) fn link(&self) -> Result<(Arc<Link>, Watches)> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner).clone();
        link.ok_or_else(|| {
            let message = format!("no etcd member at {} can be reached", self.at);
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    pub(crate) fn is_connected(&self) -> bool {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().is_some_and(|(link, _)| !link.is_broken())
    }

    /// Reads what a majority knows.
    pub(crate) async fn get(&self, key: impl Into<Vec<u8>>, how: GetOptions) -> Result<GetResponse> {
        let (link, _) = self.link()?;
        let before = self.before();
        let answer = link.get(key, how).await;
        let answer = answer.map_err(|e| told(e, ErrorKind::Unavailable, &link.at))?;
        self.heard(before, answer.header());
        Ok(answer)
    }

    /// Reads all entries whose keys begin so. Answers in which revision they were.
    pub(crate) async fn line(&self, begin: String, how: GetOptions) -> Result<(Line, i64)> {
        let (begins, how) = (begin.len(), how.with_range(behind(&begin)));
        let read = self.get(begin, how).await?;
        Ok((line_of(read.kvs(), begins)?, revision!(read)))
    }

    /// The same without the values.
    pub(crate) async fn names(&self, begin: String) -> Result<Line> {
        Ok(self.line(begin, GetOptions::new().with_keys_only()).await?.0)
    }

    /// Reads the member's local state.
    pub(crate) async fn get_by_itself(&self, key: String, how: GetOptions) -> Result<GetResponse> {
        let (link, _) = self.link()?;
        let answer = link.get(key, how.with_serializable()).await;
        answer.map_err(|e| told(e, ErrorKind::Unavailable, &link.at))
    }

    /// Reads the state at a revision that the member has reported. It reports just before it shows.
    pub(crate) async fn get_at(&self, key: String, at: i64) -> Result<GetResponse> {
        let then = || GetOptions::new().with_revision(at);
        match self.get_by_itself(key.clone(), then()).await {
            Err(_) => self.get(key, then()).await,
            read => read,
        }
    }

    /// Reads in a transaction.
    pub(crate) async fn read(&self, txn: Txn) -> Result<TxnResponse> {
        self.transact(txn, ErrorKind::Unavailable).await
    }

    async fn transact(&self, txn: Txn, away: ErrorKind) -> Result<TxnResponse> {
        let (link, _) = self.link()?;
        let before = self.before();
        let answer = link.txn(txn).await.map_err(|e| {
            if is_lease_gone(&e) {
                // The upkeep finds out, and makes another one.
                self.wake_upkeep();
            }
            told(e, away, &link.at)
        })?;
        self.heard(before, answer.header());
        Ok(answer)
    }

    /// Writes in a transaction, which may have been carried out although its answer did not come.
    pub(crate) async fn write(&self, txn: Txn) -> Result<TxnResponse> {
        self.transact(txn, ErrorKind::Unknown).await
    }

    /// Deletes that key, which only this client makes. Returns whether it existed.
    pub(crate) async fn delete(&self, key: &str) -> Result<bool> {
        let (link, _) = self.link()?;
        let before = self.before();
        let answer = link.delete(key).await;
        let answer = answer.map_err(|e| told(e, ErrorKind::Unknown, &link.at))?;
        self.heard(before, answer.header());
        Ok(answer.deleted() > 0)
    }

    /// Has the upkeep look whether anything has changed.
    pub(crate) fn wake_upkeep(&self) {
        drop(self.ask());
    }

    fn ask(&self) -> oneshot::Receiver<Result<()>> {
        let (ask, answer) = oneshot::channel();
        let _ = self.upkeep.unbounded_send(ask);
        answer
    }

    /// Waits for a renewal of the lease that is sent after this call.
    pub(crate) async fn be_heard(&self) -> Result<()> {
        self.ask().await.unwrap_or_else(|_| {
            let message = "the lease of this client in etcd has ended, or nobody looks after it any more: \
                           the client was closed, or its runtime shut down";
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    /// Sees to it that a lock which is handed out now lasts for a while.
    pub(crate) async fn be_ample(&self) -> Result<()> {
        match self.deadline.is_ample(self.now()) {
            true => Ok(()),
            false => self.be_heard().await,
        }
    }

    /// A renewal for many leases, which come batch after batch as they were acquired: one that was sent in
    /// the last twentieth of the ttl is enough.
    pub(crate) async fn be_heard_recently(&self) -> Result<()> {
        let age = self.now().since(self.deadline.confirmed());
        match age <= self.deadline.span() / 20 {
            true => Ok(()),
            false => self.be_heard().await,
        }
    }

    /// A grant of the entry that was made in that revision, which lasts as long as the lease is believed in.
    /// `None` if the request has [ended](Requests::hand_out) since its entry was seen.
    pub(crate) fn grant(&self, key: &LeaseKey, revision: i64) -> Option<Grant> {
        let handed_out = self.requests.hand_out(key, revision);
        let (from, span) = (self.deadline.confirmed(), self.deadline.span());
        handed_out.then(|| Grant::new(key.clone(), token(revision), from, span))
    }
}
