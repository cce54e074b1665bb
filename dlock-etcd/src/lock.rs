//! The core of the backend: attempt, release, abandon.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Fencing, LeaseKey, Lock, Queueing, Release, Released, Renew, RwLock, Signal,
    Wait, Wake, Watch,
};
use dlock_core::{Capabilities, Capability, Error, ErrorKind, Finding, LockName, Mode, Nature, Result};
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;

use crate::connection::Connection;
use crate::failure::{in_line, unsupported};
use crate::join::{Behind, Entered, Turn};
use crate::keys::Keys;
use crate::line::token;
use crate::requests::{Request, State};
use crate::session::Session;

/// The longest label of an owner, in bytes.
const LONGEST_OWNER: usize = 1024;

const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

/// How often another may delete an entry while it joins.
const TRIES: usize = 8;

/// Locks in etcd. See [the crate](crate) for the guarantees, and [`Config`](crate::Config) for how to
/// connect.
///
/// Clones share one lease, and so do clients built on clones. Closing one of several such clients ends its
/// own locks; the last one revokes the lease.
#[derive(Clone)]
pub struct EtcdLock {
    pub(crate) connection: Arc<Connection>,
    capabilities: Arc<Capabilities>,
}

impl EtcdLock {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        use Capability::{List, Permits, Queue, Shared};
        // What is shorter than the lease cannot be promised; how long the engine may be asked to hold one is
        // not etcd's concern.
        let capabilities = Capabilities::new("etcd")
            .with_all([Queue, Shared, Permits, List])
            .with_nature(Nature::Session)
            .with_owner_label(LONGEST_OWNER)
            .with_ttl(connection.ttl..=LONGEST_TTL, Duration::from_millis(1));
        Self {
            connection,
            capabilities: Arc::new(capabilities),
        }
    }

    /// The id of the present lease, which `etcdctl lease list` shows in hexadecimal; `None` while a new one
    /// is being made.
    pub fn lease_id(&self) -> Option<i64> {
        self.connection.present().map(|s| s.lease)
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.connection.settings.keys
    }

    /// What is read on a connection that breaks is read once more on the next.
    pub(crate) async fn reading<'a, T>(
        &'a self,
        read: impl Fn(Arc<Session>) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let session = self.connection.session().await?;
        match read(session.clone()).await {
            Err(e) if e.kind() == ErrorKind::Unavailable && !session.is_connected() => {
                read(self.connection.session().await?).await
            }
            answer => answer,
        }
    }

    pub(crate) fn check_name(&self, name: &LockName) -> Result<()> {
        self.capabilities.check_name(name)
    }

    /// The answer to a request with that turn; `None` if its entry has gone.
    async fn answer(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
        revision: i64,
        turn: Turn,
    ) -> Result<Option<Attempt>> {
        let key = &request.key;
        Ok(Some(match turn {
            Turn::Gone => return Ok(None),
            Turn::Admitted => {
                session.be_ample().await.map_err(in_line)?;
                match session.grant(key, revision) {
                    Some(grant) => Attempt::Granted(grant),
                    None => return Ok(None),
                }
            }
            Turn::Behind(behind) if request.queue == Queueing::Join => {
                let ahead = behind.ahead;
                let turn = self.turn(session, (key, request.mode), revision, behind);
                let wait = Wait::new(Wake::Push(turn));
                Attempt::Queued(match ahead {
                    Some(ahead) => wait.ahead(ahead),
                    None => wait,
                })
            }
            Turn::Behind(behind) => {
                self.leave(session, key).await?;
                self.held(session, request.mode, behind)
            }
            Turn::Mismatch(other) => {
                self.leave(session, key).await?;
                return Err(other.mismatch(request.mode));
            }
        }))
    }

    fn held(&self, session: &Arc<Session>, mode: Mode, behind: Behind) -> Attempt {
        Attempt::Held(Wait::new(Wake::Push(self.change(session, mode, behind))))
    }

    async fn attempt_in(&self, session: &Arc<Session>, request: &Acquire) -> Result<Attempt> {
        let (key, mode) = (&request.key, request.mode);
        // Once more: a later abandon finds that it is in a call.
        self.connection.check_buried(key.id)?;
        let mut entry = match session.requests.state(key, mode)? {
            None => None,
            Some(State::Sent) => self.settle(session, key).await.map_err(in_line)?,
            Some(State::InLine(revision)) => Some(revision),
            // What may be about to go is not come back to.
            Some(State::Leaving(_)) => {
                self.leave(session, key).await?;
                None
            }
        };
        for _ in 0..TRIES {
            let (revision, turn) = match entry.take() {
                Some(revision) => {
                    let look = self.look(session, (key, mode), revision, false).await;
                    (revision, look)
                }
                None => match self.enter(session, request).await? {
                    Entered::InLine(revision, turn) => (revision, turn),
                    Entered::Held(behind) => return Ok(self.held(session, mode, behind)),
                },
            };
            let turn = match turn {
                Err(e) if e.kind() == ErrorKind::BackendData => {
                    self.leave(session, key).await?;
                    return Err(e);
                }
                turn => turn.map_err(in_line)?,
            };
            match self.answer(session, request, revision, turn).await? {
                Some(attempt) => return Ok(attempt),
                // It was removed from the queue by another, and the next waiter may have the lock.
                None => self.leave(session, key).await?,
            }
        }
        let message = "the queue entry of this request was deleted each time it was made: try again";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// Ends whatever there is of that request, if it is one on the lease of now. Answers the revision of its
    /// entry, if there was one, and whether it was granted.
    async fn undo(&self, key: &LeaseKey) -> Result<Option<(bool, i64)>> {
        self.connection.check_open()?;
        // What hung on an earlier lease went with it.
        let session = self.connection.present();
        if session.is_none_or(|s| !s.requests.knows(key)) {
            return Ok(None);
        }
        let session = self.connection.session().await?;
        let _in_call = session.requests.call(key)?;
        let Some(request) = session.requests.get(key) else {
            return Ok(None);
        };
        let ended = match request.state {
            State::Sent => self.forbid(&session, &request).await?,
            State::InLine(revision) | State::Leaving(revision) => {
                let (was_there, was_granted) = self.delete(&session, &request).await?;
                // A deletion before this one was not answered.
                let ended = was_there || matches!(request.state, State::Leaving(_));
                ended.then_some((was_granted, revision))
            }
        };
        session.requests.forget(key);
        Ok(ended)
    }

    /// Takes the entry out of the line again, during a call of its request.
    pub(crate) async fn leave(&self, session: &Session, key: &LeaseKey) -> Result<()> {
        if let Some(request) = session.requests.get(key) {
            self.delete(session, &request).await.map_err(in_line)?;
            session.requests.forget(key);
        }
        Ok(())
    }

    /// Deletes the entry. Whether it was there, and was handed out before.
    async fn delete(&self, session: &Session, request: &Request) -> Result<(bool, bool)> {
        let was_granted = session.requests.change(&request.key, |r| {
            match r.state {
                State::InLine(revision) => r.state = State::Leaving(revision),
                // Another deletion was sent before.
                _ => r.unsure = true,
            }
            r.granted
        });
        let was_there = session.delete(&request.entry).await?;
        Ok((was_there, was_granted.unwrap_or(request.granted)))
    }
}

#[async_trait]
impl Lock for EtcdLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        Some(self)
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
        if request.priority != Acquire::DEFAULT_PRIORITY {
            return Err(unsupported("etcd locks have no priorities"));
        }
        if !matches!(request.mode, Mode::Exclusive | Mode::Shared { .. }) {
            return Err(unsupported("the etcd backend does not know this mode"));
        }
        self.capabilities.check(request)?;
        self.connection.check_buried(request.key.id)?;
        let session = self.connection.session().await?;
        let _in_call = session.requests.call(&request.key)?;
        self.attempt_in(&session, request).await
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        if matches!(how, Release::KeepFor(_)) {
            return Err(unsupported("etcd locks have no minimum hold"));
        }
        // A copy of its acquire that comes from here on is refused.
        self.connection.bury(lease.id);
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
                Some((true, revision)) => Abandoned::WasGranted(token(revision)),
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
        self.connection.close().await;
        Ok(())
    }
}

impl fmt::Debug for EtcdLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLock")
            .field("at", &self.connection.settings.at)
            .field("keys", self.keys())
            .finish_non_exhaustive()
    }
}
