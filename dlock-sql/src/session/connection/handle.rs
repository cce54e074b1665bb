//! What others have of a connection.

use std::sync::Arc;

use dlock_core::spi::LeaseKey;
use dlock_core::{RequestId, Result, Timestamp, Token};
use futures::channel::{mpsc, oneshot};

use crate::session::board::Cancel;
use crate::session::dialect::Backend;
use crate::session::failure::{gone, perhaps};
use crate::session::keys::Key;
use crate::session::life::Life;

/// A connection, to those who ask on it. It ends when nobody has one of it any more.
#[derive(Debug)]
pub(in crate::session) struct Handle {
    pub(in crate::session) id: u64,
    pub(in crate::session) life: Arc<Life>,
    pub(super) jobs: mpsc::UnboundedSender<Job>,
}

/// What is asked.
#[derive(Debug)]
pub(in crate::session) enum Job {
    /// See [`Wire::try_lock`](crate::session::dialect::Wire::try_lock). The table is told before the caller
    /// is.
    Try {
        key: Key,
        lease: LeaseKey,
        reply: oneshot::Sender<Result<Option<Token>>>,
    },
    /// Waits turn after turn. The table is told. Keeps the connection.
    Wait {
        key: Key,
        lease: LeaseKey,
        cancel: Arc<Cancel>,
        connection: Arc<Handle>,
    },
    /// See [`Wire::unlock`](crate::session::dialect::Wire::unlock). The table is told before the caller is.
    Unlock {
        key: Key,
        id: RequestId,
        reply: oneshot::Sender<Result<bool>>,
    },
    /// Nothing, if it was heard of since.
    Ping {
        since: Timestamp,
        reply: oneshot::Sender<Result<()>>,
    },
    Cancel {
        other: Backend,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Answered when all that was asked before has been.
    Barrier { reply: oneshot::Sender<Result<()>> },
}

impl Handle {
    /// Sends it, or gives it back.
    pub(in crate::session) fn send(&self, job: Job) -> std::result::Result<(), Job> {
        self.jobs.unbounded_send(job).map_err(|e| e.into_inner())
    }

    async fn call<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T>>) -> Job) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        // Where it is given back it is dropped, and the answer with it.
        let _ = self.send(job(reply));
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// # Errors
    /// `Unknown` if the session ended meanwhile.
    pub(in crate::session) async fn unlock(&self, key: Key, id: RequestId) -> Result<bool> {
        self.call(|reply| Job::Unlock { key, id, reply })
            .await
            .map_err(perhaps)
    }

    /// Sees to it that the session was heard of since that time.
    pub(in crate::session) async fn be_heard(&self, since: Timestamp) -> Result<()> {
        self.call(|reply| Job::Ping { since, reply }).await
    }

    pub(in crate::session) async fn barrier(&self) -> Result<()> {
        self.call(|reply| Job::Barrier { reply }).await
    }

    pub(super) async fn cancel(&self, other: Backend) -> Result<()> {
        self.call(|reply| Job::Cancel { other, reply }).await
    }

    /// Of a connection that is nowhere, for the tests of the table.
    #[cfg(test)]
    pub(in crate::session) fn apart(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            life: Arc::new(Life::new(Timestamp::ZERO, std::time::Duration::from_secs(1))),
            jobs: mpsc::unbounded().0,
        })
    }
}
