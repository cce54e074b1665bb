//! One connection, and the task that owns it: nobody else touches it, so nobody who goes away leaves a request on it half read.
//!
//! There are two kinds. The *shared* one holds what was free when it was asked for, and never waits. A *waiting* one holds nothing, waits for one lock, holds that one when it has it, and waits for another
//! after that one's release. A lock cannot be handed from one session to another.
//!
//! # Turns
//!
//! A wait is sent for a *turn*, a third of the ttl, and then anew. That costs two statements a turn, and whoever else waits at the server may come in front. It is worth it:
//!
//! * The server counts the idle time of the session from when it let the waiter in, which nobody here sees. It was not before the turn was sent: so the grant counts from there, and two thirds of the
//!   ttl are left of it at least, without another question.
//! * A statement that waits holds a snapshot (PostgreSQL), which stops vacuum and holds up `CREATE INDEX CONCURRENTLY`. So it is no older than a turn.
//! * A connection that leads nowhere any more is found out within two turns.
//!
//! # What could break it, and why it does not
//!
//! * *The wait ends with an error, and the lock was given all the same* (the time limit and the grant cross one another; session locks outlive the statement that failed). So after
//!   each turn that did not end with the lock the session gives back all that it has. It holds nothing else while it waits.
//! * *A cancel comes too early*, before the statement has arrived: it is said again until the statement has ended.
//! * *A cancel comes too late*, and would hit the next statement: the next one is not sent before the cancel was answered, and then the server has told the session.
//! * *The way to cancel is gone*, since the shared connection is. Then this one is closed. Its session, if it is let in before it finds that out, ends at once and holds nothing.
//! * *An answer does not come.* Where something is held it is waited for as long as there is belief in the session; else for the time limit of a request. Then it is told as lost, and closed.
//! * *A statement fails with the lock taken* (the sequence is not to be read): the lock is given back before the caller is told.
//! * *This task is dropped with its runtime.* With it goes the connection, and with that the session.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, RequestId};
use dlock_core::{Error, ErrorKind, LossReason, Result, Runtime, Timestamp, Token};
use futures::channel::{mpsc, oneshot};
use futures::future::{BoxFuture, Either, select};
use futures::{FutureExt as _, StreamExt as _};

use super::board::{Board, Cancel, GRACE, IsHeard, Verdict};
use super::key::Key;
use super::life::Life;
use super::wire::{Answer, Backend, Failed, Waited, Wire};

/// How long a waiting connection is kept that nobody needs.
const KEPT_IDLE: Duration = Duration::from_secs(30);

/// Between two cancels of one statement.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

/// How long things take, for all connections of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// After which the server ends a session that it hears nothing of.
    pub(super) ttl: Duration,
    /// How long a wait is sent for.
    pub(super) turn: Duration,
    /// How long an answer is waited for, where no lock depends on it.
    pub(super) timeout: Duration,
    /// How often a connection is asked on which a lock hangs.
    pub(super) ping: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Shared,
    Waiting,
}

/// A connection, to those who ask on it. It ends when nobody has one of it any more.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) id: u64,
    pub(super) life: Arc<Life>,
    backend: Backend,
    jobs: mpsc::UnboundedSender<Job>,
}

/// What is asked.
#[derive(Debug)]
pub(super) enum Job {
    /// See [`Wire::try_lock`]. The table is told before the caller is.
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
        link: Arc<Handle>,
    },
    /// See [`Wire::unlock`]. The table is told before the caller is.
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
    pub(super) fn send(&self, job: Job) -> std::result::Result<(), Job> {
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
    pub(super) async fn unlock(&self, key: Key, id: RequestId) -> Result<bool> {
        self.call(|reply| Job::Unlock { key, id, reply })
            .await
            .map_err(perhaps)
    }

    /// Sees to it that the session was heard of since that time.
    pub(super) async fn be_heard(&self, since: Timestamp) -> Result<()> {
        self.call(|reply| Job::Ping { since, reply }).await
    }

    pub(super) async fn barrier(&self) -> Result<()> {
        self.call(|reply| Job::Barrier { reply }).await
    }

    async fn cancel(&self, other: Backend) -> Result<()> {
        self.call(|reply| Job::Cancel { other, reply }).await
    }

    /// Of a connection that is nowhere, for the tests of the table.
    #[cfg(test)]
    pub(super) fn apart(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            life: Arc::new(Life::new(Timestamp::ZERO, Duration::from_secs(1))),
            backend: Backend {
                id: 0,
                since: String::new(),
            },
            jobs: mpsc::unbounded().0,
        })
    }
}

/// The task.
pub(super) struct Link {
    wire: Box<dyn Wire>,
    kind: Kind,
    jobs: mpsc::UnboundedReceiver<Job>,
    /// None of its own: it would never end.
    me: Weak<Handle>,
    id: u64,
    life: Arc<Life>,
    board: Arc<Board>,
    runtime: Arc<dyn Runtime>,
    timing: Timing,
    /// What the session holds, and for whom. Unlocking is by this: a second unlock of a request never meets a successor's lock of the same name.
    held: HashMap<Key, RequestId>,
    /// When it was last needed.
    used: Timestamp,
    /// When to look whether a ping is due, at the latest.
    due: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

enum Event {
    Job(Option<Job>),
    Broken(Failed),
    Due,
}

impl Link {
    /// A connection that was asked for at that time.
    pub(super) fn new(
        wire: Box<dyn Wire>,
        kind: Kind,
        id: u64,
        asked: Timestamp,
        board: Arc<Board>,
        runtime: Arc<dyn Runtime>,
        timing: Timing,
    ) -> (Self, Arc<Handle>) {
        let (send, jobs) = mpsc::unbounded();
        let life = Arc::new(Life::new(asked, timing.ttl));
        let handle = Arc::new(Handle {
            id,
            life: life.clone(),
            backend: wire.backend().clone(),
            jobs: send,
        });
        let link = Self {
            wire,
            kind,
            jobs,
            me: Arc::downgrade(&handle),
            id,
            life,
            held: HashMap::new(),
            used: runtime.now(),
            due: None,
            board,
            runtime,
            timing,
        };
        (link, handle)
    }

    /// Until it is not needed any more, or has ended.
    pub(super) async fn serve(mut self) {
        let why = self.work().await.err();
        // First told, then closed: with the connection go its locks.
        self.board.over(self.id, self.kind, why.as_ref());
        self.jobs.close();
        while let Some(job) = self.jobs.next().await {
            self.refuse(job, why.as_ref());
        }
        // A server that does not answer is not waited for.
        let ended = self.wire.end();
        select(ended, self.runtime.sleep(self.timing.timeout)).await;
    }

    async fn work(&mut self) -> Answer<()> {
        loop {
            match self.next().await {
                Event::Job(None) => return Ok(()),
                Event::Job(Some(job)) => {
                    self.run(job).await?;
                    self.used = self.runtime.now();
                }
                Event::Broken(failed) => return Err(failed),
                Event::Due if self.is_idle() && self.board.retire(self.id) => return Ok(()),
                Event::Due => self.ping().await?,
            }
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let at = self.ping_at();
            // One timer for many jobs: it may be early, and then there is another one.
            let (_, due) = match self.due.take().filter(|(armed, _)| *armed <= at) {
                Some(due) => self.due.insert(due),
                None => {
                    let sleep = self.runtime.sleep(self.runtime.now().until(at));
                    self.due.insert((at, sleep))
                }
            };
            let job = self.jobs.next();
            let broken = self.wire.broken();
            match select(job, select(broken, due.as_mut())).await {
                Either::Left((job, _)) => return Event::Job(job),
                Either::Right((Either::Left((failed, _)), _)) => return Event::Broken(failed),
                Either::Right((Either::Right(_), _)) => {}
            }
            self.due = None;
            if self.runtime.now() >= self.ping_at() {
                return Event::Due;
            }
        }
    }

    fn ping_at(&self) -> Timestamp {
        let every = match self.held.is_empty() {
            true => self.timing.ttl / 3,
            false => self.timing.ping,
        };
        self.life.confirmed() + every
    }

    fn is_idle(&self) -> bool {
        self.kind == Kind::Waiting && self.runtime.now().since(self.used) >= KEPT_IDLE
    }

    async fn run(&mut self, job: Job) -> Answer<()> {
        match job {
            Job::Try { key, lease, reply } => self.try_lock(key, lease, reply).await,
            Job::Wait {
                key,
                lease,
                cancel,
                link,
            } => self.wait(key, lease, &cancel, link).await,
            Job::Unlock { key, id, reply } => self.unlock(key, id, reply).await,
            Job::Ping { since, reply } => {
                let answer = match self.life.confirmed() >= since {
                    true => Ok(()),
                    false => self.ping().await,
                };
                let _ = reply.send(told(&answer));
                answer
            }
            Job::Cancel { other, reply } => {
                let (sent, limit) = (self.runtime.now(), self.limit());
                let cancelled = self.wire.cancel(&other);
                let answer = limited(&*self.runtime, limit, cancelled).await;
                if answer.is_ok() {
                    self.life.confirm(sent);
                }
                let _ = reply.send(told(&answer));
                only_fatal(answer)
            }
            Job::Barrier { reply } => {
                let _ = reply.send(Ok(()));
                Ok(())
            }
        }
    }

    async fn ping(&mut self) -> Answer<()> {
        let (sent, limit) = (self.runtime.now(), self.limit());
        limited(&*self.runtime, limit, self.wire.ping())
            .await
            .map_err(|f| Failed::fatal(f.error))?;
        self.life.confirm(sent);
        Ok(())
    }

    async fn try_lock(
        &mut self,
        key: Key,
        lease: LeaseKey,
        reply: oneshot::Sender<Result<Option<Token>>>,
    ) -> Answer<()> {
        let (sent, limit) = (self.runtime.now(), self.limit());
        let tried = limited(&*self.runtime, limit, self.wire.try_lock(&key)).await;
        let failed = match tried {
            Ok(token) => {
                self.life.confirm(sent);
                let got = token.and_then(|token| Some((token, self.me.upgrade()?)));
                // Where the handle is gone nobody is left to hold it for.
                let is_stray = token.is_some() && got.is_none();
                if is_stray || self.board.tried(&key, &lease, got) == Verdict::GiveBack {
                    let given_back = self.give_back(&key).await;
                    self.board.tried(&key, &lease, None);
                    let _ = reply.send(Err(Error::lost(LossReason::Refused)));
                    return given_back;
                }
                if token.is_some() {
                    self.held.insert(key, lease.id);
                }
                let _ = reply.send(Ok(token));
                return Ok(());
            }
            Err(failed) => failed,
        };
        // It may have the lock: what draws the token fails after that.
        let given_back = match failed.fatal {
            true => Err(Failed::fatal(failed.error.clone())),
            false => self.give_back(&key).await,
        };
        self.board.tried(&key, &lease, None);
        let _ = reply.send(Err(match &given_back {
            Ok(()) => failed.error,
            Err(_) => perhaps(failed.error),
        }));
        given_back
    }

    /// Unlocks what may be held. If that cannot be done, the session must end.
    async fn give_back(&mut self, key: &Key) -> Answer<()> {
        let (sent, limit) = (self.runtime.now(), self.limit());
        let unlocked = match self.kind {
            Kind::Shared => limited(&*self.runtime, limit, self.wire.unlock(key))
                .await
                .map(drop),
            Kind::Waiting => limited(&*self.runtime, limit, self.wire.clean()).await,
        };
        unlocked.map_err(|f| Failed::fatal(f.error))?;
        self.life.confirm(sent);
        Ok(())
    }

    async fn unlock(&mut self, key: Key, id: RequestId, reply: oneshot::Sender<Result<bool>>) -> Answer<()> {
        if self.held.get(&key) != Some(&id) {
            let _ = reply.send(Ok(self.board.was_released(id)));
            return Ok(());
        }
        let (sent, limit) = (self.runtime.now(), self.limit());
        let mut answer = limited(&*self.runtime, limit, self.wire.unlock(&key)).await;
        if let Err(failed) = &answer
            && !failed.fatal
        {
            // Once more, and if it is not to be had then, by ending the session.
            answer = limited(&*self.runtime, limit, self.wire.unlock(&key)).await;
        }
        let answer = answer.map_err(|f| Failed::fatal(f.error));
        if let Ok(was_held) = answer {
            self.life.confirm(sent);
            self.held.remove(&key);
            self.board.unlocked(&key, id, was_held);
            self.put_back();
        }
        // Otherwise all that hangs on it is taken out at once.
        let _ = reply.send(told(&answer));
        answer.map(drop)
    }

    /// A waiting connection that has nothing to do is somebody else's to take.
    fn put_back(&mut self) {
        self.used = self.runtime.now();
        if self.kind == Kind::Waiting
            && let Some(me) = self.me.upgrade()
        {
            self.board.put_back(me);
        }
    }

    // ---- waiting ----

    async fn wait(&mut self, key: Key, lease: LeaseKey, cancel: &Cancel, link: Arc<Handle>) -> Answer<()> {
        let mut failure = None;
        let mut is_clean = true;
        while failure.is_none() && self.board.is_wanted(&key, &lease, self.runtime.now()) {
            let sent = self.runtime.now();
            is_clean = false;
            match self.turn(&key, cancel).await {
                Ok(Waited::Locked(token)) => {
                    self.life.confirm(sent);
                    let now = self.runtime.now();
                    let (verdict, heard) = self.board.contended(&key, &lease, token, link.clone(), now);
                    if verdict == Verdict::GiveBack {
                        break;
                    }
                    self.held.insert(key, lease.id);
                    if heard == IsHeard::No {
                        self.look_later(key, lease, link);
                    }
                    return Ok(());
                }
                Ok(Waited::NotYet) => {}
                Err(failed) if failed.fatal => return Err(failed),
                Err(failed) => failure = Some(failed.error),
            }
            // It may have been let in at the last moment.
            self.give_back(&key).await?;
            is_clean = true;
        }
        if !is_clean {
            // It was let in, and nobody wants it any more.
            self.give_back(&key).await?;
        }
        self.board.withdrawn(&key, &lease, failure);
        self.put_back();
        Ok(())
    }

    /// One turn, which is cut short when it is cancelled.
    async fn turn(&mut self, key: &Key, cancel: &Cancel) -> Answer<Waited> {
        let backend = self.wire.backend().clone();
        let limit = self.timing.turn * 2 + self.timing.timeout.min(self.timing.turn);
        let mut over = self.runtime.sleep(limit);
        let mut waiting = self.wire.wait_lock(key);
        loop {
            let cancelled = cancel.event.listen();
            if !cancel.is_set() {
                match select(waiting.as_mut(), select(cancelled, over.as_mut())).await {
                    Either::Left((answer, _)) => return answer,
                    Either::Right((Either::Left(_), _)) => continue,
                    Either::Right((Either::Right(_), _)) => return Err(no_answer(limit)),
                }
            }
            let Some(shared) = self.board.shared() else {
                return Err(no_way_to_cancel());
            };
            // Answered before anything else is sent here.
            match select(pin!(shared.cancel(backend.clone())), over.as_mut()).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) => return Err(no_way_to_cancel()),
                Either::Right(_) => return Err(no_answer(limit)),
            }
            let again = self.runtime.sleep(CANCEL_AGAIN);
            if let Either::Left((answer, _)) = select(waiting.as_mut(), again).await {
                return answer;
            }
        }
    }

    /// Nobody listened when it was let in: who asks again within a while has it, and otherwise it is given back.
    fn look_later(&self, key: Key, lease: LeaseKey, link: Arc<Handle>) {
        let (board, runtime) = (self.board.clone(), self.runtime.clone());
        let looking = async move {
            runtime.sleep(GRACE).await;
            if board.leave_unclaimed(&key, lease.id) {
                let _ = link.unlock(key, lease.id).await;
            }
        };
        self.runtime.spawn(looking.boxed());
    }

    // ---- the end ----

    /// How long an answer is waited for.
    fn limit(&self) -> Duration {
        let believed = self.runtime.now().until(self.life.lapses());
        match self.held.is_empty() {
            true => believed.min(self.timing.timeout),
            false => believed,
        }
    }

    fn refuse(&self, job: Job, why: Option<&Failed>) {
        let error = why.map_or_else(gone, |f| f.error.clone());
        match job {
            // It was not sent.
            Job::Try { key, lease, reply } => {
                self.board.tried(&key, &lease, None);
                let _ = reply.send(Err(error));
            }
            // The table has put it in front of the line again, or nobody wants it.
            Job::Wait { key, lease, .. } => self.board.withdrawn(&key, &lease, Some(error)),
            Job::Unlock { reply, .. } => drop(reply.send(Err(error))),
            Job::Ping { reply, .. } | Job::Cancel { reply, .. } | Job::Barrier { reply } => {
                drop(reply.send(Err(error)));
            }
        }
    }
}

/// With a time limit, after which the connection is of no use.
async fn limited<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    answer: impl Future<Output = Answer<T>>,
) -> Answer<T> {
    match select(pin!(answer), runtime.sleep(limit)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(no_answer(limit)),
    }
}

fn told<T: Copy>(answer: &Answer<T>) -> Result<T> {
    match answer {
        Ok(value) => Ok(*value),
        Err(failed) => Err(failed.error.clone()),
    }
}

fn only_fatal<T>(answer: Answer<T>) -> Answer<()> {
    match answer {
        Err(failed) if failed.fatal => Err(failed),
        _ => Ok(()),
    }
}

/// What was sent may have been done.
fn perhaps(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Unavailable => Error::new(
            ErrorKind::Unknown,
            "the connection ended while the request was on its way; its session ends with it, at the latest after the ttl",
        )
        .with_source(e),
        _ => e,
    }
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the connection to the database was closed",
    )
}

fn no_answer(limit: Duration) -> Failed {
    Failed::fatal(Error::new(
        ErrorKind::Unavailable,
        format!("the database did not answer within {limit:?}; the connection is given up"),
    ))
}

fn no_way_to_cancel() -> Failed {
    Failed::fatal(Error::new(
        ErrorKind::Unavailable,
        "a wait was cancelled by closing its connection, since there was no other one to cancel it on",
    ))
}
