//! One session: the driver's client, its deadline, and the requests that have nodes in it.
//!
//! All nodes of a client belong to one session, and end with it. Its requests are noted only here. So a node
//! of an earlier session, which a server may still show for a while, is never taken for an own one.
//! (Curator's oldest open bug is a lock granted on the node of a session that has ended.)

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dlock_core::spi::{Grant, LeaseKey};
use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::future::join;
use zookeeper_client::{Client, Error as Zk, MultiWriteResult, MultiWriter, SessionState, Stat};

use crate::deadline::Deadline;
use crate::failure::{is_answer, told};
use crate::ping::Pings;
use crate::requests::{Node, Requests};
use crate::watch_budget::WatchBudget;

/// A session with an ensemble.
pub(crate) struct Session {
    /// Gone when the session is over: dropping the last one closes it.
    pub(crate) client: RwLock<Option<Arc<Client>>>,
    pub(crate) id: i64,
    pub(crate) timeout: Duration,
    pub(crate) deadline: Arc<Deadline>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) at: Arc<str>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) pings: Pings,
    pub(crate) watches: Arc<WatchBudget>,
    pub(crate) mark: Arc<Mark>,
    /// The root under which `sync` is asked for.
    pub(crate) root: String,
}

/// The node that shows that a session is there: to operators, to watchers, and to the session itself, which
/// writes it to be heard.
pub(crate) struct Mark {
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
}

impl Session {
    /// The driver's client, while the session may be there.
    pub(crate) fn client(&self) -> Result<Arc<Client>> {
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner).clone();
        client.ok_or_else(|| self.failed(Zk::SessionExpired))
    }

    /// Whether a request would be sent now.
    pub(crate) fn is_connected(&self) -> bool {
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        client
            .as_ref()
            .is_some_and(|c| c.state() == SessionState::SyncConnected)
    }

    /// Closes it, once no request waits for an answer.
    pub(crate) fn end(&self) {
        self.requests.shut();
        // Dropped when nothing is locked.
        let _client = self.client.write().unwrap_or_else(PoisonError::into_inner).take();
        self.pings.forget();
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// What a request that only reads, or does nothing that matters, failed with.
    pub(crate) fn failed(&self, e: Zk) -> Error {
        told(e, ErrorKind::Unavailable, &self.at)
    }

    /// The same of one that may have been carried out although its answer did not come.
    pub(crate) fn perhaps(&self, e: Zk) -> Error {
        told(e, ErrorKind::Unknown, &self.at)
    }

    /// Sends a write, and takes its answer as a sign that the session lives.
    pub(crate) async fn written<T, F>(&self, write: impl FnOnce() -> F) -> Result<T, Zk>
    where
        F: Future<Output = Result<T, Zk>>,
    {
        let sent = self.now();
        let answer = write().await;
        self.heard(sent, &answer);
        answer
    }

    /// Sends several writes, of which all are done or none.
    pub(crate) async fn commit(&self, mut all: MultiWriter<'_>) -> Result<Vec<MultiWriteResult>, Zk> {
        let commit = || {
            let sending = all.commit();
            async { sending.await.map_err(Zk::from) }
        };
        self.written(commit).await
    }

    /// A write that was sent at that time was answered so.
    pub(crate) fn heard<T>(&self, sent: Timestamp, answer: &Result<T, Zk>) {
        if is_answer(answer) {
            self.deadline.confirm(sent);
        }
    }

    /// Asks for the answer to a read that is no older than this call.
    ///
    /// A server may be behind its leader. `sync` is answered by way of the leader, and what is asked behind
    /// it in the same session comes after: one round trip for both. It is no sign that the session lives, see
    /// [`deadline`](crate::deadline).
    pub(crate) async fn synced<T, F>(&self, client: &Client, read: impl FnOnce() -> F) -> Result<T, Zk>
    where
        F: Future<Output = Result<T, Zk>>,
    {
        let sync = client.sync(&self.root);
        let (synced, answer) = join(sync, read()).await;
        synced?;
        answer
    }

    /// The names of what is below that path; none if it is not there. Behind a `sync`.
    pub(crate) async fn children(&self, client: &Client, path: &str) -> Result<Vec<String>> {
        match self.synced(client, || client.list_children(path)).await {
            Ok(children) => Ok(children),
            Err(Zk::NoNode) => Ok(Vec::new()),
            Err(e) => Err(self.failed(e)),
        }
    }

    /// What is in a node, if it is there. Behind a `sync`.
    pub(crate) async fn data(&self, client: &Client, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        match self.synced(client, || client.get_data(path)).await {
            Ok(found) => Ok(Some(found)),
            Err(Zk::NoNode) => Ok(None),
            Err(e) => Err(self.failed(e)),
        }
    }

    /// Sees to it that a lock which is handed out now lasts for a while.
    pub(crate) async fn be_ample(&self) -> Result<()> {
        match self.deadline.is_ample(self.now()) {
            true => Ok(()),
            false => self.be_heard().await,
        }
    }

    /// The same for many leases, whose renewals come batch after batch as they were acquired: a write for
    /// each would be hundreds for ten thousand. What was heard in the last twentieth of the timeout is
    /// enough. They last from then, and not from now.
    pub(crate) async fn be_heard_recently(&self) -> Result<()> {
        let _is_there = self.client()?;
        match self.now().since(self.deadline.confirmed()) <= self.timeout / 20 {
            true => Ok(()),
            false => self.be_heard().await,
        }
    }

    /// Writes the session's own node, to know that the session lives. One write serves all who come until it
    /// is answered.
    pub(crate) async fn be_heard(&self) -> Result<()> {
        let client = self.client()?;
        let (deadline, runtime, mark) = (self.deadline.clone(), self.runtime.clone(), self.mark.clone());
        let known = deadline.confirmed();
        let is_enough = {
            let (deadline, runtime) = (deadline.clone(), runtime.clone());
            // Since this call, and recently.
            move || deadline.confirmed() > known && deadline.is_ample(runtime.now())
        };
        let ask = || async move {
            let sent = runtime.now();
            let answer = client.set_data(&mark.path, &mark.data, None).await.map(drop);
            if is_answer(&answer) {
                deadline.confirm(sent);
            }
            match answer {
                // Somebody has deleted it. The leader and its followers found that out, as with a write.
                Err(Zk::NoNode) => Ok(()),
                answer => answer,
            }
        };
        let answer = self.pings.next(is_enough, ask).await;
        answer.map_err(|e| self.failed(e))
    }

    /// Whether a node is one of this session.
    pub(crate) fn owns(&self, stat: &Stat) -> bool {
        stat.ephemeral_owner == self.id
    }

    /// A grant of that node, which lasts as long as the session is believed in. `None` if the request has
    /// [ended](Requests::hand_out) since its node was seen.
    pub(crate) fn grant(&self, key: &LeaseKey, node: &Node) -> Option<Grant> {
        let handed_out = self.requests.hand_out(key, node);
        let (from, span) = (self.deadline.confirmed(), self.deadline.span());
        handed_out.then(|| Grant::new(key.clone(), node.token(), from, span))
    }
}
