//! What others have of a connection, and until when it can be relied on.
//!
//! The server ends a session that it has heard nothing of for the ttl (`idle_session_timeout`,
//! `wait_timeout`). It begins to count when it has answered, which is not before the request was *sent*. So a
//! belief counts from when the last request that was answered had been sent, and lasts one ttl; the engine
//! takes its margin for drift off that.
//!
//! What could break it, and why it does not:
//!
//! * *The answer comes late*, or this process was stopped meanwhile. It counts from the send time, so it is
//!   worth less, never more.
//! * *The lock comes at the end of a long wait.* A grant counts from when its *turn* was sent, which is a
//!   third of a ttl at most: see [`wait`](super::wait).
//! * *The session is ended sooner*, by an operator or a job that ends idle ones. Then its connection ends as
//!   well, which is seen at once where the driver can listen while it is idle (PostgreSQL), and else at the
//!   next ping. Until then two may believe to hold the lock: the fence keeps the first one out.
//! * *Another server answers* behind a proxy. Each answer names its backend, and another one is a loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{RequestId, Result, Timestamp, Token};
use futures::channel::{mpsc, oneshot};

use super::board::{Bid, Stop};
use super::dialect::Backend;
use super::failure::{ended, perhaps_done};
use super::keys::Key;

/// A connection, to those who ask on it. It ends when nobody has one of it any more.
pub(super) struct Handle {
    pub(super) id: u64,
    pub(super) life: Life,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Handle {
    /// Of a connection whose first request was sent at that time and was answered; and what is asked on it.
    pub(super) fn new(id: u64, sent: Timestamp, ttl: Duration) -> (Arc<Self>, mpsc::UnboundedReceiver<Job>) {
        let (jobs, receive) = mpsc::unbounded();
        let life = Life {
            confirmed: Arc::new(sent.as_nanos().into()),
            ttl,
        };
        (Arc::new(Self { id, life, jobs }), receive)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    /// # Errors
    /// The connection has ended, and what was sent is dropped.
    pub(super) fn send(&self, job: Job) -> Result<()> {
        self.jobs.unbounded_send(job).map_err(|_| ended())
    }

    /// Waits for the lock turn after turn. Only the board is told what comes of it.
    pub(super) fn wait(self: Arc<Self>, bid: Bid, stop: Stop) {
        let _ = self.send(Job::Wait(bid, stop, self.clone()));
    }

    async fn call<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(job(reply))?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// # Errors
    /// `Unknown` if the session ended meanwhile.
    pub(super) async fn unlock(&self, key: Key, id: RequestId) -> Result<bool> {
        self.call(|reply| Job::Unlock(key, id, reply))
            .await
            .map_err(perhaps_done)
    }

    /// Sees to it that the session was heard of since that time: by a request of this call, or of another.
    pub(super) async fn be_heard(&self, since: Timestamp) -> Result<()> {
        self.call(|reply| Job::Ping(since, reply)).await
    }

    pub(super) async fn cancel(&self, other: Backend) -> Result<()> {
        self.call(|reply| Job::Cancel(other, reply)).await
    }
}

/// What is asked of a connection. The board is told of what has become of it before the caller is.
pub(super) enum Job {
    /// To try, and to hold on this connection.
    Try(Bid, Arc<Handle>, Reply<Option<Token>>),
    Wait(Bid, Stop, Arc<Handle>),
    Unlock(Key, RequestId, Reply<bool>),
    /// For a sign of life since then.
    Ping(Timestamp, Reply<()>),
    Cancel(Backend, Reply<()>),
}

pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// Until when a session is believed in.
#[derive(Clone)]
pub(super) struct Life {
    confirmed: Arc<AtomicU64>,
    /// How long a belief lasts.
    pub(super) ttl: Duration,
}

impl Life {
    /// A request that was sent at that time has been answered by the session.
    pub(super) fn confirm(&self, sent: Timestamp) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// From when the belief counts.
    pub(super) fn confirmed(&self) -> Timestamp {
        Timestamp::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// When a server that hears no more has ended it, at the earliest.
    pub(super) fn lapses(&self) -> Timestamp {
        self.confirmed() + self.ttl
    }

    /// Whether enough is left to hand out a lock without another request.
    pub(super) fn is_ample(&self, now: Timestamp) -> bool {
        now.since(self.confirmed()) <= self.ttl / 2
    }
}
