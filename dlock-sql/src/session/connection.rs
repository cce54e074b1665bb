//! One connection, and the task that owns it: nobody else touches it, so nobody who goes away leaves a
//! request on it half read.
//!
//! The *shared* one holds what was free when it was asked for, and never waits. Any other
//! [waits](super::wait) for one lock, holds that one alone, and waits for another after its release.
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
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dlock_core::{ErrorKind, RequestId, Result, Timestamp};
use futures::channel::mpsc;
use futures::future::{BoxFuture, Either, pending, select};
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _};

use super::board::Bid;
use super::connections::{Connections, within};
use super::dialect::{Backend, Request, Told, Wire, pooled};
use super::failure::{Answer, Failed, ended, perhaps_done, token};
use super::handle::{Handle, Job, Life, What};
use super::keys::Key;

/// How often it is looked whether something that is held has lapsed, or sooner where sessions are short.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The task.
pub(super) struct Connection {
    pub(super) client: Arc<Connections>,
    pub(super) wire: Box<dyn Wire>,
    pub(super) backend: Backend,
    pub(super) life: Life,
    id: u64,
    is_shared: bool,
    jobs: mpsc::UnboundedReceiver<Job>,
    /// What the session holds, and for whom. Unlocking is by this: a second unlock of a request never meets a
    /// successor's lock of the same name.
    held: HashMap<Key, RequestId>,
    /// When it was last looked whether something of that has lapsed.
    looked: Timestamp,
    /// One for many jobs: it may be early, and then there is another one.
    timer: (Timestamp, BoxFuture<'static, ()>),
    /// Before that nothing is to be locked in it: see [`restart`](super::restart).
    pub(super) opens: Timestamp,
}

enum Event {
    Job(Option<Job>),
    Broken(sqlx::Error),
    Due,
}

impl Connections {
    /// A new connection, and its task. To be called in a task of the given runtime.
    pub(super) async fn make(self: &Arc<Self>, is_shared: bool) -> Result<Arc<Handle>> {
        let (asked, at) = (self.now(), &self.server.site().at);
        let connecting = self.server.connect().map_err(|failed| failed.error);
        let session = within(self.config.timeout, &self.runtime, at, connecting).await?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (handle, jobs) = Handle::new(id, is_shared, asked, self.config.ttl);
        let connection = Connection {
            client: self.clone(),
            wire: session.wire,
            backend: session.backend,
            life: handle.life.clone(),
            id,
            is_shared,
            jobs,
            held: HashMap::new(),
            looked: self.now(),
            timer: (Timestamp::MAX, pending().boxed()),
            opens: self.now() + session.closed_for,
        };
        self.runtime.spawn(connection.serve().boxed());
        Ok(handle)
    }
}

impl Connection {
    /// Until it is not needed any more, or has ended.
    pub(super) async fn serve(mut self) {
        let why = self.work().await.err();
        // What is lost is told before the connection is closed: with it go its locks.
        self.client.board.over(self.id, why.as_ref());
        if !self.is_shared {
            self.client.board.one_less();
        }
        self.jobs.close();
        let why = why.map_or_else(ended, |failed| failed.error);
        while let Some(job) = self.jobs.next().await {
            job.refuse(why.clone());
        }
        // A server that does not answer is not waited for.
        let limit = self.client.runtime.sleep(self.client.config.timeout);
        select(self.wire.close(), limit).await;
    }

    async fn work(&mut self) -> Answer<()> {
        loop {
            match self.next().await {
                Event::Job(None) => return Ok(()),
                Event::Job(Some(Job { what, me, reply })) => match self.run(what, me).await {
                    Err(failed) if failed.fatal => {
                        // Who asked looks whether it is lost.
                        self.client.board.over(self.id, Some(&failed));
                        let _ = reply.send(Err(perhaps_done(failed.error.clone())));
                        return Err(failed);
                    }
                    answer => drop(reply.send(answer.map_err(|failed| failed.error))),
                },
                Event::Broken(e) => return Err(self.client.server.failed(e).into_fatal()),
                Event::Due => self.look().await?,
            }
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            let due_at = self.due_at();
            if due_at < self.timer.0 {
                self.timer = (due_at, self.client.runtime.sleep(self.now().until(due_at)));
            }
            match select(
                self.jobs.next(),
                select(self.wire.broken(), self.timer.1.as_mut()),
            )
            .await
            {
                Either::Left((job, _)) => return Event::Job(job),
                Either::Right((Either::Left((e, _)), _)) => return Event::Broken(e),
                Either::Right((Either::Right(_), _)) => {}
            }
            self.timer = (Timestamp::MAX, pending().boxed());
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
            false => self.client.config.limits.ping.min(self.life.ttl / 3),
        };
        self.life.confirmed() + every
    }

    /// Gives back what nobody has renewed, and sends a ping if it is time.
    async fn look(&mut self) -> Answer<()> {
        self.looked = self.now();
        let board = self.client.board.clone();
        board.retire(self.looked);
        for (key, id, me) in board.lapsed(self.id, self.looked) {
            self.unlock(&key, id, me).await?;
        }
        if self.now() >= self.ping_at() {
            self.must(Request::Ping).await?;
        }
        Ok(())
    }

    async fn run(&mut self, what: What, me: Arc<Handle>) -> Answer<bool> {
        match what {
            What::Try(bid) => self.try_lock(bid, &me).await,
            What::Wait(bid, stop) => self.wait(bid, stop, me).await,
            What::Unlock(key, id) => self.unlock(&key, id, me).await,
            What::Ping(since) if self.life.confirmed() >= since => Ok(true),
            What::Ping(_) => self.must(Request::Ping).await.map(|_| true),
            What::Cancel(other) => self.ask(Request::Cancel(&other)).await.map(|_| true),
        }
    }

    /// Asks the session, with a time limit. Its answer is a sign of life.
    async fn ask(&mut self, request: Request<'_>) -> Answer<Option<i64>> {
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
    pub(super) fn read(&self, answer: sqlx::Result<Told>) -> Answer<Option<i64>> {
        let server = &self.client.server;
        let (value, by) = answer.map_err(|e| server.failed(e))?;
        match by.is_none_or(|by| by == self.backend.id) {
            true => Ok(value),
            false => Err(pooled(&server.site().at)),
        }
    }

    /// Where that is not done, the session has to end.
    async fn must(&mut self, request: Request<'_>) -> Answer<Option<i64>> {
        self.ask(request).await.map_err(Failed::into_fatal)
    }

    /// How long an answer is waited for.
    fn limit(&self) -> Duration {
        let believed = self.now().until(self.life.lapses());
        match self.held.is_empty() {
            true => believed.min(self.client.config.timeout),
            false => believed,
        }
    }

    async fn try_lock(&mut self, mut bid: Bid, me: &Arc<Handle>) -> Answer<bool> {
        // Sooner than that it is not known whether it is free. A waiter contends, and that begins then.
        if self.now() < self.opens {
            return Ok(false);
        }
        bid.doubt = Some(self.now() + self.life.ttl * 2);
        let answer = self.ask(Request::Try(&bid.key)).await;
        if let Ok(None) = answer {
            bid.doubt = None;
            return Ok(false);
        }
        let key = bid.key;
        self.settle(&mut bid, answer, me, Request::Unlock(&key)).await
    }

    /// What comes of an answer: `true` if somebody who wants the lock has it now. If not, nothing is held of
    /// it any more, or the session must end, and the request may have the lock for as long as the server
    /// keeps that.
    pub(super) async fn settle(
        &mut self,
        bid: &mut Bid,
        answer: Answer<Option<i64>>,
        me: &Arc<Handle>,
        undo: Request<'_>,
    ) -> Answer<bool> {
        let at = &self.client.server.site().at;
        let token = answer.and_then(|value| value.map(|n| token(n, at)).transpose());
        if let Ok(Some(token)) = token
            && let Some(id) = bid.won(token, me.clone(), self.now())
        {
            self.held.insert(bid.key, id);
            return Ok(true);
        }
        // The session may have the lock all the same: what draws the token fails after that, and the end of
        // a turn crosses with the grant.
        let undone = match &token {
            Err(failed) if failed.fatal => Err(failed.clone()),
            _ => self.must(undo).await,
        };
        bid.doubt = undone.is_err().then(|| self.now() + self.life.ttl);
        match (token, undone) {
            (Err(failed), Err(_)) => Err(failed.into_fatal()),
            (Err(failed), Ok(_)) | (Ok(_), Err(failed)) => Err(failed),
            (Ok(_), Ok(_)) => Ok(false),
        }
    }

    /// Whether it was held. After an error all that hangs on the session is told as lost.
    async fn unlock(&mut self, key: &Key, id: RequestId, me: Arc<Handle>) -> Answer<bool> {
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
        let board = &self.client.board;
        // First this: the next waiter, who is rung by the other, finds it.
        board.put_back(me, self.now());
        board.unlocked(key, id, was_held, self.now());
        Ok(was_held)
    }
}

pub(super) fn no_answer(limit: Duration) -> Failed {
    let message = format!("the database did not answer within {limit:?}; the connection is given up");
    Failed::fatal(ErrorKind::Unavailable, message)
}
