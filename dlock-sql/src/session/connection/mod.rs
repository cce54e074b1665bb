//! One connection, and the task that owns it: nobody else touches it, so nobody who goes away leaves a
//! request on it half read.
//!
//! There are two kinds. The *shared* one holds what was free when it was asked for, and never waits. A
//! *waiting* one holds nothing, waits for one lock, holds that one when it has it, and waits for another
//! after that one's release. A lock cannot be handed from one session to another.
//!
//! # Turns
//!
//! A wait is sent for a *turn*, a third of the ttl, and then anew. That costs two statements a turn, and
//! whoever else waits at the server may come in front. It is worth it:
//!
//! * The server counts the idle time of the session from when it let the waiter in, which nobody here sees.
//!   It was not before the turn was sent: so the grant counts from there, and two thirds of the ttl are left
//!   of it at least, without another question.
//! * A statement that waits holds a snapshot (PostgreSQL), which stops vacuum and holds up `CREATE INDEX
//!   CONCURRENTLY`. So it is no older than a turn.
//! * A connection that leads nowhere any more is found out within two turns.
//!
//! # What could break it, and why it does not
//!
//! * *The wait ends with an error, and the lock was given all the same* (the time limit and the grant cross
//!   one another; session locks outlive the statement that failed). So after each turn that did not end with
//!   the lock the session gives back all that it has. It holds nothing else while it waits.
//! * *A cancel comes too early*, before the statement has arrived: it is said again until the statement has
//!   ended.
//! * *A cancel comes too late*, and would hit the next statement: the next one is not sent before the cancel
//!   was answered, and then the server has told the session.
//! * *The way to cancel is gone*, since the shared connection is. Then this one is closed. Its session, if it
//!   is let in before it finds that out, ends at once and holds nothing.
//! * *An answer does not come.* Where something is held it is waited for as long as there is belief in the
//!   session; else for the time limit of a request. Then it is told as lost, and closed.
//! * *A statement fails with the lock taken* (the sequence is not to be read): the lock is given back before
//!   the caller is told.
//! * *This task is dropped with its runtime.* With it goes the connection, and with that the session.

mod handle;
mod lock;
mod wait;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::{RequestId, Result, Runtime, Timestamp};
use futures::StreamExt as _;
use futures::channel::{mpsc, oneshot};
use futures::future::{BoxFuture, Either, select};

pub(super) use self::handle::{Handle, Job};
use super::board::Board;
use super::dialect::Wire;
use super::failure::{Answer, Failed};
use super::failure::{gone, limited, only_fatal, told};
use super::keys::Key;
use super::life::Life;

/// How long a waiting connection is kept that nobody needs.
const KEPT_IDLE: Duration = Duration::from_secs(30);

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

/// The task.
pub(super) struct Connection {
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
    /// What the session holds, and for whom. Unlocking is by this: a second unlock of a request never meets a
    /// successor's lock of the same name.
    held: HashMap<Key, RequestId>,
    /// When it was last looked whether something of that has lapsed.
    looked: Timestamp,
    /// When it was last needed.
    used: Timestamp,
    /// Before that nothing is to be locked in it: see [`restart`](super::restart).
    opens: Timestamp,
    /// Who asked whether it is there, and it was not: they are told when the table knows.
    unheard: Vec<oneshot::Sender<Result<()>>>,
    /// When to look whether a ping is due, at the latest.
    due: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

enum Event {
    Job(Option<Job>),
    Broken(Failed),
    Due,
}

impl Connection {
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
            jobs: send,
        });
        let opens = runtime.now() + wire.closed_for();
        let connection = Self {
            opens,
            wire,
            kind,
            jobs,
            me: Arc::downgrade(&handle),
            id,
            life,
            held: HashMap::new(),
            looked: runtime.now(),
            used: runtime.now(),
            unheard: Vec::new(),
            due: None,
            board,
            runtime,
            timing,
        };
        (connection, handle)
    }

    /// Until it is not needed any more, or has ended.
    pub(super) async fn serve(mut self) {
        let why = self.work().await.err();
        // First told, then closed: with the connection go its locks.
        self.board.over(self.id, self.kind, why.as_ref());
        for reply in self.unheard.drain(..) {
            let _ = reply.send(Err(why.as_ref().map_or_else(gone, |f| f.error.clone())));
        }
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
                Event::Due => {
                    self.lapse().await?;
                    if self.runtime.now() >= self.ping_at() {
                        self.ping().await?;
                    }
                }
            }
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let at = self.due_at();
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
            if self.runtime.now() >= self.due_at() {
                return Event::Due;
            }
        }
    }

    fn due_at(&self) -> Timestamp {
        match self.held.is_empty() {
            true => self.ping_at(),
            false => self.ping_at().min(self.looked + self.timing.ttl / 6),
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
                connection,
            } => {
                let waited = self.wait(key, lease.clone(), &cancel, connection).await;
                self.doubt(&lease, &waited);
                waited
            }
            Job::Unlock { key, id, reply } => self.unlock(key, id, reply).await,
            Job::Ping { since, reply } => {
                let answer = match self.life.confirmed() >= since {
                    true => Ok(()),
                    false => self.ping().await,
                };
                match &answer {
                    Ok(()) => drop(reply.send(Ok(()))),
                    Err(_) => self.unheard.push(reply),
                }
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
