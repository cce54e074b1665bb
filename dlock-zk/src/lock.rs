//! The core of the backend: attempt, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Place, Queueing, Release, Released, Renew, RwLock,
    Signal, Wait, Wake, Watch, whereabouts,
};
use dlock_core::{Capabilities, Capability, Error, ErrorKind, Finding, LockName, Mode, Nature, Result};
use futures::future::join_all;
use futures::stream::BoxStream;

use crate::connection::Connection;
use crate::keys::Paths;
use crate::layout::Layout;
use crate::line::{Line, nodes, place_of};
use crate::requests::{Node, Request};
use crate::session::Session;

/// The longest label of an owner, in bytes.
const LONGEST_OWNER: usize = 1024;

/// Locks in ZooKeeper. See [the crate](crate) for the guarantees, and [`Config`](crate::Config) for how to
/// connect.
///
/// Clones share one session, and so do clients built on clones. Closing one of several such clients ends its
/// own locks; the last one closes the session.
#[derive(Clone)]
pub struct ZkLock {
    pub(crate) connection: Arc<Connection>,
    capabilities: Arc<Capabilities>,
    pub(crate) whereabouts: Arc<str>,
}

impl ZkLock {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        use Capability::{Permits, Queue, Shared};
        let paths = &connection.settings.paths;
        let claimed = Capabilities::new("zookeeper");
        let claimed = claimed.with(Capability::List);
        let claimed = match paths.layout {
            _ if paths.unfair => claimed,
            Layout::Curator => claimed.with(Queue),
            Layout::Own => claimed.with_all([Queue, Shared, Permits]),
        };
        // What is shorter than the session cannot be promised; how long the engine may be asked to hold one
        // is not ZooKeeper's concern.
        let least = connection.session_timeout;
        let capabilities = claimed
            .with_nature(Nature::Session)
            .with_owner_label(LONGEST_OWNER)
            .with_ttl(least..=Duration::from_secs(24 * 3600), Duration::from_millis(1));
        Self {
            connection,
            capabilities: Arc::new(capabilities),
            whereabouts: whereabouts().into(),
        }
    }

    /// The number of the session of now, as `zkCli` and the server's log show it; `None` while another one is
    /// being made.
    pub fn session_id(&self) -> Option<i64> {
        self.connection.present().map(|s| s.id)
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.connection.settings.paths
    }

    pub(crate) fn check_name(&self, name: &LockName) -> Result<()> {
        self.capabilities.check_name(name)
    }

    fn check(&self, request: &Acquire) -> Result<()> {
        let wanted = match request.mode {
            Mode::Exclusive => None,
            Mode::Shared { limit: None } => Some(Capability::Shared),
            Mode::Shared { .. } => Some(Capability::Permits),
            _ => return Err(unsupported("the ZooKeeper backend does not know this mode")),
        };
        if wanted.is_some_and(|c| !self.capabilities.has(c)) {
            return Err(unsupported(
                "unfair locks and locks in the layout of Curator are exclusive only",
            ));
        }
        if request.priority != Acquire::DEFAULT_PRIORITY {
            return Err(unsupported("ZooKeeper locks have no priorities"));
        }
        self.capabilities.check(request)
    }

    /// Notes a request of which nothing is left.
    fn note_anew(&self, session: &Session, request: &Acquire) -> Result<()> {
        let key = &request.key;
        session.requests.note(request)?;
        // A later abandon finds it.
        self.connection
            .check_buried(key.id)
            .inspect_err(|_| session.requests.forget(key))
    }

    /// What that line says of the request; `None` if its node is not in there, or has been ended since.
    async fn answer(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
        node: &Node,
        line: &Line,
    ) -> Result<Option<Attempt>> {
        let key = &request.key;
        Ok(Some(match place_of(line, &node.name) {
            None => return Ok(None),
            Some(Place::Admitted) => {
                session.be_ample().await.map_err(in_line)?;
                match session.grant(key, node) {
                    Some(grant) => Attempt::Granted(grant),
                    None => return Ok(None),
                }
            }
            Some(Place::Behind { ahead, watch }) if request.queue == Queueing::Join => {
                let turn = self.turn(session, key, node, nodes(line, watch));
                Attempt::Queued(Wait::new(Wake::Push(turn)).ahead(ahead))
            }
            Some(Place::Behind { watch, .. }) => {
                self.withdraw(session, request, node).await?;
                let path = self.paths().lock(&key.name);
                Attempt::Held(Wait::new(Wake::Push(self.change(
                    session,
                    path,
                    nodes(line, watch),
                ))))
            }
            Some(Place::Mismatch(other)) => {
                self.withdraw(session, request, node).await?;
                return Err(other.mismatch(request.mode));
            }
        }))
    }

    /// Takes a node out of the line again, during a [call](crate::requests) of its request: also if it was
    /// forgotten meanwhile.
    pub(crate) async fn withdraw(&self, session: &Session, request: &Acquire, node: &Node) -> Result<()> {
        let noted = session.requests.keep(request, node)?;
        self.leave(session, &noted, node).await.map(drop)
    }

    /// Ends whatever there is of that request, if it is one of the session of now. Answers its node, if there
    /// was one, and whether it was granted.
    async fn undo(&self, key: &LeaseKey) -> Result<Option<(bool, Node)>> {
        self.connection.check_open()?;
        // What hung on an earlier session went with it.
        let session = self.connection.present();
        if session.is_none_or(|s| !s.requests.knows(key)) {
            return Ok(None);
        }
        let session = self.connection.session().await?;
        let _in_call = session.requests.call(key)?;
        match session.requests.get(key) {
            Some(request) => self.undo_in(&session, &request).await,
            None => Ok(None),
        }
    }

    /// The same in that session, of what is noted there.
    async fn undo_in(&self, session: &Session, request: &Request) -> Result<Option<(bool, Node)>> {
        let key = &request.key;
        let node = match &request.node {
            Some(node) => Some(node.clone()),
            None if self.paths().unfair => self.find_taken(session, key).await?,
            None => self.find(session, key).await?,
        };
        let was_there = match (&node, self.paths().unfair) {
            (Some(node), true) => self.give_back(session, request, node).await?,
            (Some(node), false) => self.leave(session, request, node).await?,
            (None, true) => {
                // Somebody may have deleted the other one by hand.
                self.delete_own(session, &self.paths().holder(key.id)).await?;
                session.requests.forget(key);
                false
            }
            (None, false) => {
                session.requests.forget(key);
                // Its first half may have been done.
                let line = self.paths().lock(&key.name);
                self.remove_line(&*session.client()?, &line).await;
                false
            }
        };
        Ok(node.filter(|_| was_there).map(|node| (request.granted, node)))
    }
}

pub(crate) fn unsupported(message: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// The request may have a node in the line: however the question behind that failed, it may be granted.
pub(crate) fn in_line(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unavailable => Error::new(
            ErrorKind::Unknown,
            "the request may be queued for the lock, or granted; its place in the queue is not known",
        )
        .with_source(e),
        _ => e,
    }
}

#[async_trait]
impl Lock for ZkLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.capabilities.has(Capability::Shared).then_some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        Some(self)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.connection.signals()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.check(request)?;
        let key = &request.key;
        let session = self.connection.session().await?;
        let _in_call = session.requests.call(key)?;
        let known = session.requests.get(key);
        session.requests.note(request)?;
        // A later abandon finds it. A request that was noted before may have a node, and stays noted.
        self.connection.check_buried(key.id).inspect_err(|_| {
            if known.is_none() {
                session.requests.forget(key);
            }
        })?;
        let known = match known {
            // What may be about to go is not come back to: a server that is behind shows it for a while yet.
            Some(before) if before.leaving => {
                self.undo_in(&session, &before).await.map_err(in_line)?;
                self.note_anew(&session, request)?;
                None
            }
            known => known,
        };
        if self.paths().unfair {
            return self.take(&session, request, known.is_some()).await;
        }
        // Where it was asked for before, it may be in the line, or its first message may be on its way.
        let mut node = match known {
            None => None,
            Some(before) => match before.node {
                Some(node) => Some(node),
                // Its first message may have been carried out.
                None => self.find(&session, key).await.map_err(in_line)?,
            },
        };
        loop {
            let (node_now, line) = match node.take() {
                Some(node) if self.is_at_the_end(&node) => {
                    match self.leave_to_the_end(&session, request, &node).await? {
                        Some(wait) => return Ok(Attempt::Held(wait)),
                        None => {
                            self.note_anew(&session, request)?;
                            continue;
                        }
                    }
                }
                None => {
                    let (made, listed) = self.enter(&session, request).await?;
                    if self.is_at_the_end(&made) {
                        node = Some(made);
                        continue;
                    }
                    match listed {
                        Ok(children) if !session.requests.is_doubted(key) => (made, self.line(children)),
                        // It is in the line, and where is not known yet, or not any more.
                        _ => (made, self.read_line_of_now(&session, key).await),
                    }
                }
                // The server that is asked may be behind the one that was asked before.
                Some(node) => (node, self.read_line_of_now(&session, key).await),
            };
            let line = match line {
                Ok(line) => line,
                Err(e) if e.kind() == ErrorKind::BackendData => {
                    self.withdraw(&session, request, &node_now).await?;
                    return Err(e);
                }
                Err(e) => return Err(in_line(e)),
            };
            match self.answer(&session, request, &node_now, &line).await? {
                Some(attempt) => return Ok(attempt),
                // It was removed from the queue by another, and the next waiter may have the lock; or it was
                // forgotten.
                None => {
                    self.withdraw(&session, request, &node_now)
                        .await
                        .map_err(in_line)?;
                    self.note_anew(&session, request)?;
                }
            }
        }
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        if how != Release::Now {
            return Err(unsupported("ZooKeeper locks have no minimum hold"));
        }
        match self.undo(lease).await? {
            Some(_) => Ok(Released::Released),
            None => Ok(Released::NotHeld),
        }
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        join_all(requests.iter().map(|key| async move {
            // First the tombstone: an attempt that comes just now sees it, or is seen.
            self.connection.bury(key.id);
            Ok(match self.undo(key).await? {
                Some((true, node)) => Abandoned::WasGranted(node.token()),
                Some((false, _)) => Abandoned::Withdrawn,
                None => Abandoned::Nothing,
            })
        }))
        .await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.findings().await
    }

    async fn close(&self) -> Result<()> {
        self.connection.close();
        Ok(())
    }
}

impl fmt::Debug for ZkLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkLock")
            .field("at", &self.connection.settings.at)
            .field("paths", self.paths())
            .finish_non_exhaustive()
    }
}
