//! The connections of one client, and the task that owns each: nobody else touches it, so nobody who goes
//! away leaves a request on it half read.
//!
//! The *shared* one, which is made when it is needed, holds what was free when it was asked for, and never
//! waits. Any other [waits](super::wait) for one lock, holds that one alone, and waits for another after its
//! release.
//!
//! They are made with the options of the caller's pool, and are not of the pool: so locks do not use up a
//! small pool, and nothing that the pool does with its connections (closing the idle ones, handing them on
//! with whatever they hold) happens to a session that holds a lock.
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
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{ErrorKind, RequestId, Result, Runtime, Timestamp};
use futures::future::{BoxFuture, Either, select};
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _};

use super::board::{Bid, Board};
use super::config::Config;
use super::dialect::{Backend, Dialect, Request, Site, Told, Wire, pooled};
use super::failure::{Answer, Failed, ended, perhaps_done, token, unavailable};
use super::handle::{Handle, Job, Jobs, Life, What};
use super::keys::Key;

/// What the calls and the connections of one client share.
pub(super) struct Connections {
    pub(super) board: Arc<Board>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) site: Site,
    pub(super) config: Config,
}

impl Connections {
    pub(super) fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// The shared connection. Where there is none, it is made, once for all who ask meanwhile.
    ///
    /// # Errors
    /// Why there is none: nothing was sent.
    pub(super) async fn shared(self: &Arc<Self>) -> Result<Arc<Handle>> {
        let shared = self.board.shared(|| self.open(true))?;
        shared.made().await?;
        Ok(shared)
    }

    /// Makes a connection, in a task of its own: the caller may go away at any moment.
    pub(super) fn open(self: &Arc<Self>, is_shared: bool) -> Arc<Handle> {
        let (handle, jobs) = Handle::new(Life::new(is_shared, self.config.ttl));
        let task = serve(self.clone(), handle.life.clone(), jobs);
        self.runtime.spawn(task.boxed());
        handle
    }
}

/// What the task has of it.
pub(super) struct Connection {
    pub(super) client: Arc<Connections>,
    pub(super) wire: Box<dyn Wire>,
    pub(super) backend: Backend,
    pub(super) life: Arc<Life>,
    /// What the session holds, and for whom. Unlocking is by this: a second unlock of a request never meets a
    /// successor's lock of the same name.
    held: HashMap<Key, RequestId>,
    /// Until the next look. One for many jobs.
    tick: BoxFuture<'static, ()>,
    /// Before that nothing is to be locked in it: see [`restart`](super::restart).
    pub(super) opens: Timestamp,
}

enum Event {
    Job(Option<Job>),
    Broken(sqlx::Error),
    Tick,
}

/// The task: makes the connection, and does what is asked on it until nobody needs it any more, or it has
/// ended.
pub(super) async fn serve(client: Arc<Connections>, life: Arc<Life>, mut jobs: Jobs) {
    let (why, wire) = match Connection::make(&client, &life).await {
        Err(e) => (e, None),
        Ok(mut connection) => {
            let why = connection.work(&mut jobs).await.err();
            // Losses are reported before the connection is closed, which ends its locks.
            client.board.over(&life, why.as_ref());
            (
                why.map_or_else(ended, |failed| failed.error),
                Some(connection.wire),
            )
        }
    };
    if !life.is_shared {
        client.board.one_less();
    }
    let why = life.over.get_or_init(|| why);
    jobs.close();
    while let Some(job) = jobs.next().await {
        job.refuse(why.clone());
    }
    if let Some(wire) = wire {
        // A server that does not answer is not waited for.
        select(wire.close(), client.runtime.sleep(client.config.timeout)).await;
    }
}

impl Connection {
    async fn make(client: &Arc<Connections>, life: &Arc<Life>) -> Result<Self> {
        let (asked, site, config) = (client.now(), &client.site, &client.config);
        let connecting = client.dialect.connect(config, site);
        let connecting = connecting.map_err(|failed| failed.error);
        let session = within(config.timeout, &client.runtime, &site.at, connecting).await?;
        life.confirm(asked);
        if life.is_shared {
            client.board.back();
        }
        Ok(Self {
            client: client.clone(),
            wire: session.wire,
            backend: session.backend,
            life: life.clone(),
            held: HashMap::new(),
            tick: client.runtime.sleep(looks(life)),
            opens: client.now() + session.closed_for,
        })
    }

    async fn work(&mut self, jobs: &mut Jobs) -> Answer<()> {
        loop {
            match self.next(jobs).await {
                Event::Job(None) => return Ok(()),
                Event::Job(Some(Job { what, me, reply })) => match self.run(what, me).await {
                    Err(failed) if failed.fatal => {
                        // Who asked looks whether it is lost.
                        self.client.board.over(&self.life, Some(&failed));
                        let _ = reply.send(Err(perhaps_done(failed.error.clone())));
                        return Err(failed);
                    }
                    answer => drop(reply.send(answer.map_err(|failed| failed.error))),
                },
                Event::Broken(e) => return Err(self.failed(e).into_fatal()),
                Event::Tick => self.look().await?,
            }
        }
    }

    async fn next(&mut self, jobs: &mut Jobs) -> Event {
        let idle = select(self.wire.broken(), self.tick.as_mut());
        match select(jobs.next(), idle).await {
            Either::Left((job, _)) => Event::Job(job),
            Either::Right((Either::Left((e, _)), _)) => Event::Broken(e),
            Either::Right((Either::Right(_), _)) => Event::Tick,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.client.now()
    }

    /// Releases what was not renewed, and sends a ping if the next look would be too late.
    async fn look(&mut self) -> Answer<()> {
        let (now, pause) = (self.now(), looks(&self.life));
        self.tick = self.client.runtime.sleep(pause);
        let board = self.client.board.clone();
        board.retire(now);
        for (key, id, me) in board.lapsed(&self.life, now) {
            self.unlock(&key, id, me).await?;
        }
        let third = self.life.ttl / 3;
        let every = match self.held.is_empty() {
            true => third,
            false => self.client.config.limits.ping.min(third),
        };
        if self.now() + pause >= self.life.confirmed() + every {
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
        let (value, by) = answer.map_err(|e| self.failed(e))?;
        match by.is_none_or(|by| by == self.backend.id) {
            true => Ok(value),
            false => Err(pooled(&self.client.site.at)),
        }
    }

    fn failed(&self, e: sqlx::Error) -> Failed {
        self.client.dialect.failed(e, &self.client.site.at)
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
        let at = &self.client.site.at;
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

    /// Whether it was held. After an error all locks of the session are reported lost.
    async fn unlock(&mut self, key: &Key, id: RequestId, me: Arc<Handle>) -> Answer<bool> {
        if self.held.get(key) != Some(&id) {
            return Ok(self.client.board.was_released(id));
        }
        let answer = match self.ask(Request::Unlock(key)).await {
            // Once more, and if that fails, by ending the session.
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

/// How often it is looked whether something that is held has lapsed, and whether it is time for a ping.
fn looks(life: &Life) -> Duration {
    Duration::from_secs(1).min(life.ttl / 6)
}

/// Connects, with a time limit.
pub(super) async fn within<T>(
    limit: Duration,
    runtime: &Arc<dyn Runtime>,
    at: &str,
    connecting: impl Future<Output = Result<T>>,
) -> Result<T> {
    match select(pin!(connecting), runtime.sleep(limit)).await {
        Either::Left((connected, _)) => connected,
        Either::Right(_) => Err(unavailable(format!(
            "{at} could not be connected to within {limit:?}"
        ))),
    }
}

pub(super) fn no_answer(limit: Duration) -> Failed {
    let message = format!("the database did not answer within {limit:?}; the connection is given up");
    Failed::fatal(ErrorKind::Unavailable, message)
}
