//! One connection, and the task that owns it: nobody else touches it, so nobody who goes away leaves a
//! request on it half read.
//!
//! There are two kinds. The *shared* one holds what was free when it was asked for, and never waits. A
//! *waiting* one holds nothing, [waits](super::wait) for one lock, holds that one when it has it, and waits
//! for another after that one's release. A lock cannot move from one session to another.
//!
//! What could break it, and why it does not:
//!
//! * *An answer does not come.* Where something is held it is waited for as long as there is belief in the
//!   session; else for the time limit of a request. Then what hangs on the session is told as lost, and the
//!   connection is closed.
//! * *A statement fails with the lock taken* (the sequence is not to be read): the lock is given back before
//!   the caller is told.
//! * *This task is dropped with its runtime.* With it goes the connection, and with that the session.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Timestamp, Token};
use futures::StreamExt as _;
use futures::channel::mpsc;
use futures::future::{BoxFuture, Either, select};

use super::board::Bid;
use super::connections::Connections;
use super::dialect::{Backend, Request, Session, Wire, pooled};
use super::failure::{Answer, Failed, ended, no_token, perhaps_done};
use super::handle::{Handle, Job, Life};
use super::keys::Key;

/// How long a waiting connection is kept that nobody needs.
const KEPT_IDLE: Duration = Duration::from_secs(30);

/// How often it is looked whether something that is held has lapsed, or sooner where sessions are short.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Shared,
    Waiting,
}

/// The task.
pub(super) struct Connection {
    pub(super) client: Arc<Connections>,
    pub(super) wire: Box<dyn Wire>,
    pub(super) backend: Backend,
    kind: Kind,
    jobs: mpsc::UnboundedReceiver<Job>,
    /// None of its own: it would never end.
    me: Weak<Handle>,
    id: u64,
    pub(super) life: Life,
    /// What the session holds, and for whom. Unlocking is by this: a second unlock of a request never meets a
    /// successor's lock of the same name.
    pub(super) held: HashMap<Key, RequestId>,
    /// When it was last looked whether something of that has lapsed.
    looked: Timestamp,
    /// When it was last needed.
    used: Timestamp,
    /// Before that nothing is to be locked in it: see [`restart`](super::restart).
    pub(super) opens: Timestamp,
    /// When to look whether a ping is due, at the latest.
    timer: Option<(Timestamp, BoxFuture<'static, ()>)>,
}

enum Event {
    Job(Option<Job>),
    Broken(sqlx::Error),
    Due,
}

impl Connection {
    /// A connection that was asked for at that time.
    pub(super) fn new(
        client: Arc<Connections>,
        session: Session,
        kind: Kind,
        id: u64,
        asked: Timestamp,
    ) -> (Self, Arc<Handle>) {
        let (handle, jobs) = Handle::new(id, asked, client.settings.ttl);
        let now = client.now();
        let connection = Self {
            opens: now + session.closed_for,
            client,
            wire: session.wire,
            backend: session.backend,
            kind,
            jobs,
            me: Arc::downgrade(&handle),
            id,
            life: handle.life.clone(),
            held: HashMap::new(),
            looked: now,
            used: now,
            timer: None,
        };
        (connection, handle)
    }

    /// Until it is not needed any more, or has ended.
    pub(super) async fn serve(mut self) {
        let why = self.work().await.err();
        // What is lost is told before the connection is closed: with it go its locks.
        self.client.board.over(self.id, why.as_ref());
        if self.kind == Kind::Waiting {
            self.client.board.one_less();
        }
        self.jobs.close();
        let why = why.map_or_else(ended, |failed| failed.error);
        while let Some(job) = self.jobs.next().await {
            refuse(job, why.clone());
        }
        // A server that does not answer is not waited for.
        let limit = self.client.runtime.sleep(self.client.settings.timeout);
        select(self.wire.close(), limit).await;
    }

    async fn work(&mut self) -> Answer<()> {
        loop {
            match self.next().await {
                Event::Job(None) => return Ok(()),
                Event::Job(Some(job)) => {
                    self.run(job).await?;
                    self.used = self.now();
                }
                Event::Broken(e) => return Err(self.client.server.failed(e).into_fatal()),
                Event::Due if self.is_idle() && self.client.board.retire(self.id) => return Ok(()),
                Event::Due => {
                    self.lapse().await?;
                    if self.now() >= self.ping_at() {
                        self.must(Request::Ping).await?;
                    }
                }
            }
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let at = self.due_at();
            // One timer for many jobs: it may be early, and then there is another one.
            let (_, due) = match self.timer.take().filter(|(armed, _)| *armed <= at) {
                Some(timer) => self.timer.insert(timer),
                None => {
                    let sleep = self.client.runtime.sleep(self.now().until(at));
                    self.timer.insert((at, sleep))
                }
            };
            let job = self.jobs.next();
            let broken = self.wire.broken();
            match select(job, select(broken, due.as_mut())).await {
                Either::Left((job, _)) => return Event::Job(job),
                Either::Right((Either::Left((e, _)), _)) => return Event::Broken(e),
                Either::Right((Either::Right(_), _)) => {}
            }
            self.timer = None;
            if self.now() >= self.due_at() {
                return Event::Due;
            }
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.client.now()
    }

    fn due_at(&self) -> Timestamp {
        let look_at = self.looked + LOOK_EVERY.min(self.life.ttl / 6);
        match self.held.is_empty() {
            true => self.ping_at(),
            false => self.ping_at().min(look_at),
        }
    }

    fn ping_at(&self) -> Timestamp {
        let every = match self.held.is_empty() {
            true => self.life.ttl / 3,
            false => self.client.settings.limits.ping.min(self.life.ttl / 3),
        };
        self.life.confirmed() + every
    }

    fn is_idle(&self) -> bool {
        self.kind == Kind::Waiting && self.now().since(self.used) >= KEPT_IDLE
    }

    async fn run(&mut self, job: Job) -> Answer<()> {
        match job {
            Job::Try(bid, me, reply) => {
                let (got, done) = self.try_lock(bid, me).await;
                let _ = reply.send(got);
                done
            }
            Job::Wait(bid, stop, me) => self.wait(bid, stop, me).await,
            Job::Unlock(key, id, reply) => {
                let done = self.unlock(&key, id).await;
                let _ = reply.send(told(&done));
                done.map(drop)
            }
            Job::Ping(since, reply) => {
                let heard = match self.life.confirmed() < since {
                    true => self.must(Request::Ping).await.map(drop),
                    false => Ok(()),
                };
                if let Err(failed) = &heard {
                    self.client.board.over(self.id, Some(failed));
                }
                let _ = reply.send(told(&heard));
                heard
            }
            Job::Cancel(other, reply) => {
                let answer = self.ask(Request::Cancel(&other)).await.map(drop);
                let _ = reply.send(told(&answer));
                answer.or_else(|failed| if failed.fatal { Err(failed) } else { Ok(()) })
            }
        }
    }

    /// Asks the session, with a time limit. Its answer is a sign of life.
    async fn ask(&mut self, request: Request<'_>) -> Answer<Option<u64>> {
        let (sent, limit) = (self.now(), self.limit());
        let asked = self.wire.ask(request);
        let answer = match select(asked, self.client.runtime.sleep(limit)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => return Err(no_answer(limit)),
        };
        let answer = self.read(answer)?;
        self.life.confirm(sent);
        Ok(answer)
    }

    /// Each answer has to be of the session that was asked from the beginning.
    pub(super) fn read(&self, answer: sqlx::Result<(Option<u64>, Option<i64>)>) -> Answer<Option<u64>> {
        let server = &self.client.server;
        let (value, by) = answer.map_err(|e| server.failed(e))?;
        match by.is_none_or(|by| by == self.backend.id) {
            true => Ok(value),
            false => Err(pooled(&server.site().at)),
        }
    }

    /// Where that is not done, the session has to end.
    pub(super) async fn must(&mut self, request: Request<'_>) -> Answer<Option<u64>> {
        self.ask(request).await.map_err(Failed::into_fatal)
    }

    /// How long an answer is waited for.
    fn limit(&self) -> Duration {
        let believed = self.now().until(self.life.lapses());
        match self.held.is_empty() {
            true => believed.min(self.client.settings.timeout),
            false => believed,
        }
    }

    /// What the caller is told, and whether the session goes on.
    async fn try_lock(&mut self, mut bid: Bid, me: Arc<Handle>) -> (Result<Option<Token>>, Answer<()>) {
        // Sooner than that it is not known whether it is free. A waiter contends, and that begins then.
        if self.now() < self.opens {
            return (Ok(None), Ok(()));
        }
        bid.doubt = Some(self.now() + self.life.ttl * 2);
        let answer = self.ask(Request::Try(&bid.key)).await;
        let failed = match answer.and_then(|value| self.token(value)) {
            Ok(None) => {
                bid.doubt = None;
                return (Ok(None), Ok(()));
            }
            Ok(Some(token)) if bid.won(token, me, self.now()) => {
                self.held.insert(bid.key, bid.lease.id);
                return (Ok(Some(token)), Ok(()));
            }
            Ok(Some(_)) => Failed {
                error: Error::lost(LossReason::Refused),
                fatal: false,
            },
            Err(failed) => failed,
        };
        // The session may have the lock: what draws the token fails after that.
        let done = self.give_back(&mut bid, Some(&failed)).await;
        let error = match done {
            Ok(()) => failed.error,
            Err(_) => perhaps_done(failed.error),
        };
        (Err(error), done)
    }

    pub(super) fn token(&self, value: Option<u64>) -> Answer<Option<Token>> {
        let none = || Failed {
            error: no_token(&self.client.server.site().at),
            fatal: false,
        };
        let token = value.map(|value| Token::new(value).ok_or_else(none));
        token.transpose()
    }

    /// Unlocks what may be held. If that cannot be done, the session must end, and the request may have the
    /// lock for as long as the server keeps that: nothing is sent from here on.
    pub(super) async fn give_back(&mut self, bid: &mut Bid, failed: Option<&Failed>) -> Answer<()> {
        let unlock = match self.kind {
            Kind::Shared => Request::Unlock(&bid.key),
            Kind::Waiting => Request::Clean,
        };
        let done = match failed.filter(|failed| failed.fatal) {
            Some(failed) => Err(failed.clone()),
            None => self.must(unlock).await.map(drop),
        };
        bid.doubt = done.is_err().then(|| self.now() + self.life.ttl);
        done
    }

    /// Gives back what nobody has renewed.
    async fn lapse(&mut self) -> Answer<()> {
        self.looked = self.now();
        for (key, id) in self.client.board.lapsed(self.id, self.looked) {
            self.unlock(&key, id).await?;
        }
        Ok(())
    }

    /// Whether it was held. After an error all that hangs on the session is told as lost.
    async fn unlock(&mut self, key: &Key, id: RequestId) -> Answer<bool> {
        if self.held.get(key) != Some(&id) {
            return Ok(self.client.board.was_released(id));
        }
        let answer = match self.ask(Request::Unlock(key)).await {
            // Once more, and if it is not to be had then, by ending the session.
            Err(failed) if !failed.fatal => self.must(Request::Unlock(key)).await?,
            answer => answer?,
        };
        let was_held = answer == Some(1);
        self.held.remove(key);
        // First this: the next waiter, who is rung by the other, finds it.
        if let Some(me) = self.me.upgrade() {
            self.put_back(me);
        }
        self.client.board.unlocked(key, id, was_held, self.now());
        Ok(was_held)
    }

    /// A waiting connection that has nothing to do is anybody's to take.
    pub(super) fn put_back(&mut self, me: Arc<Handle>) {
        self.used = self.now();
        if self.kind == Kind::Waiting {
            self.client.board.put_back(me);
        }
    }
}

/// The job was not begun.
fn refuse(job: Job, why: Error) {
    match job {
        Job::Try(bid, _, reply) => {
            drop(bid);
            let _ = reply.send(Err(why));
        }
        Job::Wait(..) => {}
        Job::Unlock(.., reply) => drop(reply.send(Err(why))),
        Job::Ping(_, reply) | Job::Cancel(_, reply) => drop(reply.send(Err(why))),
    }
}

pub(super) fn no_answer(limit: Duration) -> Failed {
    let message = format!("the database did not answer within {limit:?}; the connection is given up");
    Failed::fatal(ErrorKind::Unavailable, message)
}

fn told<T: Copy>(answer: &Answer<T>) -> Result<T> {
    answer.as_ref().copied().map_err(|failed| failed.error.clone())
}
