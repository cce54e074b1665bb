//! A handle of a connection, and how long its session can be relied on.
//!
//! The server ends a session that was silent for the ttl, counted from its last answer, which is not before
//! the request was *sent*. So the deadline counts from when the last answered request was sent, and lasts one
//! ttl, minus the engine's drift margin.
//!
//! What could break it, and why it does not:
//!
//! * *The answer comes late*, or this process was paused meanwhile. It counts from the send time, so it is
//!   worth less, never more.
//! * *The lock comes at the end of a long wait.* A grant counts from when its *turn* was sent, which is a
//!   third of a ttl at most: see [`wait`](super::wait).
//! * *The session is ended sooner*, by an operator or a job that ends idle ones. That is seen at once where
//!   the driver can listen while its connection is idle (PostgreSQL), and else at the next ping. Until then
//!   two may believe to hold the lock: the fence keeps the first one out.
//! * *Another server answers* behind a proxy. Each answer names its backend, and another one is a loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dlock_core::{Error, RequestId, Result, Timestamp};
use futures::channel::{mpsc, oneshot};

use super::board::{Bid, Stop};
use super::dialect::Backend;
use super::failure::{ended, perhaps_done, runtime_ended};
use super::keys::Key;

/// A connection, to those who ask on it. It may still be being made: then what is asked waits for that. It
/// ends with the last handle.
pub(super) struct Handle {
    pub(super) life: Arc<Life>,
    jobs: mpsc::UnboundedSender<Job>,
}

/// What is asked of a connection, which lives until that is done. The board is told of what has become of it
/// before the caller is.
pub(super) struct Job {
    pub(super) what: What,
    pub(super) me: Arc<Handle>,
    pub(super) reply: oneshot::Sender<Result<bool>>,
}

pub(super) type Jobs = mpsc::UnboundedReceiver<Job>;

pub(super) enum What {
    /// To try, and to hold on this connection. Answers whether it does.
    Try(Bid),
    /// To wait turn after turn.
    Wait(Bid, Stop),
    /// Answers whether it was held.
    Unlock(Key, RequestId),
    /// To have been heard of since that time: by a request for this, or by another one.
    Ping(Timestamp),
    /// To end what another session waits for.
    Cancel(Backend),
}

impl Handle {
    /// And what is asked on it.
    pub(super) fn new(life: Life) -> (Arc<Self>, Jobs) {
        let (jobs, asked) = mpsc::unbounded();
        let life = Arc::new(life);
        (Arc::new(Self { life, jobs }), asked)
    }

    pub(super) fn is_of(&self, life: &Arc<Life>) -> bool {
        Arc::ptr_eq(&self.life, life)
    }

    pub(super) fn is_open(&self) -> bool {
        !self.jobs.is_closed()
    }

    pub(super) fn is_made(&self) -> bool {
        self.life.confirmed() > Timestamp::ZERO
    }

    /// Until it is made.
    ///
    /// # Errors
    /// Why it is not: nothing was sent.
    pub(super) async fn made(self: &Arc<Self>) -> Result<()> {
        if self.is_made() {
            return Ok(());
        }
        let made = self.send(What::Ping(Timestamp::ZERO)).await;
        made.unwrap_or_else(|oneshot::Canceled| Err(runtime_ended()))
            .map(drop)
    }

    /// Waits for the lock turn after turn. Only the board learns the result.
    pub(super) fn wait(self: &Arc<Self>, bid: Bid, stop: Stop) {
        drop(self.send(What::Wait(bid, stop)));
    }

    fn send(self: &Arc<Self>, what: What) -> oneshot::Receiver<Result<bool>> {
        let (reply, answer) = oneshot::channel();
        let me = self.clone();
        if let Err(refused) = self.jobs.unbounded_send(Job { what, me, reply }) {
            refused
                .into_inner()
                .refuse(self.life.over.get().cloned().unwrap_or_else(ended));
        }
        answer
    }

    /// # Errors
    /// `Unknown` if the session ended meanwhile.
    pub(super) async fn call(self: &Arc<Self>, what: What) -> Result<bool> {
        let answer = self.send(what).await;
        answer.unwrap_or_else(|oneshot::Canceled| Err(perhaps_done(ended())))
    }
}

impl Job {
    /// It was not begun.
    pub(super) fn refuse(self, why: Error) {
        // First the bid: the waiter may ask again as soon as it is told.
        drop(self.what);
        let _ = self.reply.send(Err(why));
    }
}

/// Until when a session is believed in.
pub(super) struct Life {
    /// Its connection is the one that never waits.
    pub(super) is_shared: bool,
    /// How long a belief lasts.
    pub(super) ttl: Duration,
    confirmed: AtomicU64,
    /// Why it has ended, before nothing more can be asked.
    pub(super) over: OnceLock<Error>,
}

impl Life {
    /// Of a session that nothing was heard of yet.
    pub(super) fn new(is_shared: bool, ttl: Duration) -> Self {
        Self {
            is_shared,
            ttl,
            confirmed: AtomicU64::new(0),
            over: OnceLock::new(),
        }
    }

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
