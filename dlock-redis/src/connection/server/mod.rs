//! The connection to one server, the master: made, kept, and made again.
//!
//! All requests of a client go over one connection, which the driver multiplexes; grants and changes are
//! pushed on it. Beyond the driver's connection manager:
//!
//! * A connection is made in a task of its own on the client's runtime: a request that is dropped, or polled
//!   on a foreign thread, neither cuts it short nor decides where it lives.
//! * Subscriptions are renewed before any request can use a new connection: a waiter that asks again after a
//!   loss cannot miss its push. The scripts are loaded, too.
//! * It is known whether a request was sent at all: one that was not has no unknown outcome.
//! * A dead connection is found by a PING and given up; TCP would notice after minutes. The PING is sent when
//!   a request is given up, and every ten seconds while a waiter listens in silence: if a NAT forgot the
//!   connection, each hand-off would pass that waiter over.
//! * A master that became a replica is left, and looked up anew: by its name, or at the sentinels.
//! * Each new connection is checked first: another server may be there than before, or the same one may have
//!   been restarted (`check.rs`, `rejoin.rs`).

mod probe;
mod together;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Runtime;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, PushInfo, PushKind, RedisError, RedisResult, ServerErrorKind,
    Value, cmd,
};

use self::probe::Asked;
use self::together::Together;
pub(crate) use self::together::ask_together;
use crate::connection::check::{self, Demands};
use crate::connection::rejoin::Bar;
#[cfg(feature = "sentinel")]
use crate::connection::sentinel::Sentinels;
use crate::failure::{Cause, Failed, is_of_a_replica, timed_out};
use crate::scripts::Script;
use crate::wait::Pushes;

const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// How many requests may wait to be written before more have to wait.
const BUFFER: usize = 1024;

/// Where the master is.
pub(crate) enum Source {
    Server(Box<Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Sentinels),
}

/// Told of a channel of a cluster's node whose slot is not there any more.
pub(crate) type Moved = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// What all connections of a client have in common.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) demands: Demands,
    /// How long a connection may take to be made, and a request without a limit of its own.
    pub(crate) timeout: Duration,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) scripts: Arc<[Script]>,
    pub(crate) pushes: Arc<Pushes>,
}

impl Setup {
    /// Gives a request as much time as it may take.
    pub(crate) async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        match select(pin!(request), self.runtime.sleep(self.timeout)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Failed::sent(timed_out())),
        }
    }

    pub(super) fn random(&self) -> u8 {
        let mut random = [0];
        self.runtime.fill_random(&mut random);
        random[0]
    }
}

pub(crate) struct Server {
    source: Source,
    /// Of a cluster's node that is listened on: channels are those of its slots.
    moved: Option<Moved>,
    pub(crate) setup: Setup,
    pub(crate) together: Arc<Together>,
    state: Mutex<State>,
    /// When the last request was sent that was answered, in nanoseconds of `Timestamp`.
    heard: AtomicU64,
}

#[derive(Clone)]
struct Up {
    connection: MultiplexedConnection,
    generation: u64,
    /// The server's run id, if known.
    run: Option<Arc<str>>,
}

type Attempt = Shared<oneshot::Receiver<Result<Up, Cause>>>;

#[derive(Default)]
enum Line {
    Up(Up),
    Connecting(Attempt),
    #[default]
    Down,
}

#[derive(Default)]
struct State {
    /// Of the connection that is there or being made. What an older one says is not heard.
    generation: u64,
    line: Line,
    /// The connection that is being made has broken already.
    broken: bool,
    channels: BTreeSet<Vec<u8>>,
    /// The server had been up for too short a time when it was last seen.
    bar: Option<Bar>,
    /// Attempts that failed in a row.
    failures: u32,
    retrying: bool,
    checking: bool,
    was_up: bool,
    /// The loss of the connection was reported, but not its return.
    lost: bool,
    /// Ends the task that looks whether what is listened on still answers, when dropped.
    probing: Option<oneshot::Sender<()>>,
    closed: bool,
}

impl Server {
    pub(crate) fn new(setup: Setup, source: Source, moved: Option<Moved>) -> Arc<Self> {
        Arc::new(Self {
            source,
            moved,
            setup,
            together: Arc::default(),
            state: Mutex::default(),
            heard: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on the connection, which is made if there is none.
    pub(crate) async fn ask<T, F: Future<Output = RedisResult<T>>>(
        self: &Arc<Self>,
        request: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, Failed> {
        let up = self.up().await.map_err(Failed::unsent)?;
        self.ask_on(up, request).await
    }

    /// The same; with the answer, on the how manieth connection: the next one may be to another server.
    pub(crate) async fn ask_numbered<T, F: Future<Output = RedisResult<T>>>(
        self: &Arc<Self>,
        request: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(u64, T), Failed> {
        let up = self.up().await.map_err(Failed::unsent)?;
        let generation = up.generation;
        Ok((generation, self.ask_on(up, request).await?))
    }

    async fn ask_on<T, F: Future<Output = RedisResult<T>>>(
        self: &Arc<Self>,
        up: Up,
        request: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, Failed> {
        let asked = Asked::new(self, up.generation);
        let answer = request(up.connection).await;
        asked.answered(answer.is_ok());
        answer.map_err(|e| {
            if is_of_a_replica(&e) || e.is_unrecoverable_error() {
                self.lost(up.generation);
            }
            Failed::sent(e)
        })
    }

    pub(crate) async fn subscribe(self: &Arc<Self>, channel: &[u8]) -> Result<(), Failed> {
        // Noted first: a connection that is made meanwhile subscribes on its own.
        self.state().channels.insert(channel.to_vec());
        self.probe();
        let asked = self.ask(|mut c| async move { self.subscribe_on(&mut c, channel).await });
        let subscribed = self.setup.within(asked).await;
        if subscribed.is_err() && self.moved.is_some() {
            // The caller looks for the right node.
            self.state().channels.remove(channel);
        }
        subscribed
    }

    pub(crate) async fn unsubscribe(self: &Arc<Self>, channel: &[u8]) {
        self.state().channels.remove(channel);
        let unsubscribe = |mut c: MultiplexedConnection| async move {
            match self.moved {
                Some(_) => cmd("SUNSUBSCRIBE").arg(channel).exec_async(&mut c).await,
                None => c.unsubscribe(channel).await,
            }
        };
        // If it fails, the subscription costs a message now and then that has no listener.
        let _ = self.setup.within(self.ask(unsubscribe)).await;
    }

    async fn subscribe_on(&self, connection: &mut MultiplexedConnection, channel: &[u8]) -> RedisResult<()> {
        match self.moved {
            Some(_) => cmd("SSUBSCRIBE").arg(channel).exec_async(connection).await,
            None => connection.subscribe(channel).await,
        }
    }

    /// Ends listening to that channel by giving up this connection.
    #[cfg(feature = "cluster")]
    pub(crate) fn forget(self: &Arc<Self>, channel: &[u8]) {
        let mut state = self.state();
        state.channels.remove(channel);
        let generation = state.generation;
        drop(state);
        self.lost(generation);
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.line = Line::Down;
        state.channels.clear();
        state.probing = None;
    }

    /// The run id of the connected server, if known.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match &self.state().line {
            Line::Up(up) => up.run.clone(),
            _ => None,
        }
    }

    async fn up(self: &Arc<Self>) -> Result<Up, Cause> {
        let attempt = {
            let mut state = self.state();
            if state.closed {
                return Err(gone());
            }
            match &state.line {
                Line::Up(up) => return Ok(up.clone()),
                Line::Connecting(attempt) => attempt.clone(),
                Line::Down => match state.bar.filter(Bar::stands) {
                    // At once, without a connection that is made for nothing.
                    Some(bar) => return Err(Cause::Barred(bar)),
                    None => self.begin(&mut state),
                },
            }
        };
        attempt.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Begins to connect.
    fn begin(self: &Arc<Self>, state: &mut State) -> Attempt {
        state.generation += 1;
        state.broken = false;
        let (done, attempt) = oneshot::channel();
        let attempt = attempt.shared();
        state.line = Line::Connecting(attempt.clone());
        let (me, generation) = (self.clone(), state.generation);
        let connecting = async move {
            let connecting = async { me.connect(generation).await.map_err(Failed::unsent) };
            let answer = me.setup.within(connecting).await.map_err(|failed| failed.cause);
            me.connected(generation, &answer);
            let _ = done.send(answer);
        };
        self.setup.runtime.spawn(connecting.boxed());
        attempt
    }

    async fn connect(self: &Arc<Self>, generation: u64) -> Result<Up, Cause> {
        let me = Arc::downgrade(self);
        let hear = move |push| {
            if let Some(me) = me.upgrade() {
                me.hear(generation, push);
            }
            Ok::<(), SendError>(())
        };
        // No time limit of the driver's: it would be kept by whichever runtime polls.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(hear);
        let client = match &self.source {
            Source::Server(client) => client.as_ref().clone(),
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => sentinels.master().await?,
        };
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let run = check::check(&self.setup.demands, &mut connection).await?;
        match self.load(&mut connection).await {
            // A server that refuses that says so where it is asked for a lock.
            Err(e) if e.is_unrecoverable_error() => return Err(e.into()),
            _ => {}
        }
        self.listen(&mut connection).await?;
        Ok(Up {
            connection,
            generation,
            run,
        })
    }

    /// Subscribes to what was subscribed to before.
    async fn listen(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let channels: Vec<_> = self.state().channels.iter().cloned().collect();
        if let Some(moved) = &self.moved {
            // Of several slots: one by one.
            for channel in channels {
                match self.subscribe_on(connection, &channel).await {
                    Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::Moved) => {
                        self.state().channels.remove(&channel);
                        moved(&channel);
                    }
                    answer => answer?,
                }
            }
            return Ok(());
        }
        match channels.is_empty() {
            true => Ok(()),
            false => connection.subscribe(channels).await,
        }
    }

    /// Gives the server the scripts that it does not have, so that no request takes three round trips.
    async fn load(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let scripts = &self.setup.scripts;
        let mut exists = cmd("SCRIPT");
        exists.arg("EXISTS");
        for script in scripts.iter() {
            exists.arg(&*script.hash);
        }
        let there: Vec<bool> = exists.query_async(connection).await?;
        for (script, there) in scripts.iter().zip(there) {
            if !there {
                script.load().exec_async(connection).await?;
            }
        }
        Ok(())
    }

    fn connected(self: &Arc<Self>, generation: u64, answer: &Result<Up, Cause>) {
        let mut state = self.state();
        if state.closed || state.generation != generation {
            return;
        }
        state.bar = match answer {
            Err(Cause::Barred(bar)) => Some(*bar),
            _ => None,
        };
        match answer {
            Ok(up) if !state.broken => {
                state.line = Line::Up(up.clone());
                state.failures = 0;
                state.was_up = true;
                let was_lost = std::mem::take(&mut state.lost);
                drop(state);
                if was_lost {
                    self.setup.pushes.back();
                }
            }
            _ => {
                state.line = Line::Down;
                state.failures = state.failures.saturating_add(1);
                // Opening a client sends its own request; there is no waiter for its pushes yet.
                if state.was_up {
                    self.retry(&mut state);
                }
            }
        }
    }

    /// Reconnects after a while, even without a request: some clients only listen.
    fn retry(self: &Arc<Self>, state: &mut State) {
        if std::mem::replace(&mut state.retrying, true) {
            return;
        }
        let longest = (RETRY_MIN * (1 << state.failures.min(8))).min(RETRY_MAX);
        let pause = longest / 2 + longest / 2 * u32::from(self.setup.random()) / 255;
        let (sleep, me) = (self.setup.runtime.sleep(pause), Arc::downgrade(self));
        let retrying = async move {
            sleep.await;
            let Some(me) = me.upgrade() else { return };
            let mut state = me.state();
            state.retrying = false;
            if matches!(state.line, Line::Down) && !state.closed {
                drop(me.begin(&mut state));
            }
        };
        self.setup.runtime.spawn(retrying.boxed());
    }

    fn hear(self: &Arc<Self>, generation: u64, push: PushInfo) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        match (&push.kind, &self.moved, push.data.first()) {
            (PushKind::Disconnection, ..) => {
                state.broken |= matches!(state.line, Line::Connecting(_));
                drop(state);
                self.lost(generation);
            }
            // The node has ended a subscription: its slot has moved. The driver may have taken that for an
            // answer, so the connection is useless.
            (PushKind::SUnsubscribe, Some(moved), Some(Value::BulkString(channel)))
                if state.channels.remove(channel) =>
            {
                drop(state);
                moved(channel);
                self.lost(generation);
            }
            _ => {
                drop(state);
                self.setup.pushes.take(push);
            }
        }
    }

    /// That connection is of no more use.
    fn lost(self: &Arc<Self>, generation: u64) {
        let mut state = self.state();
        if state.closed || state.generation != generation || !matches!(state.line, Line::Up(_)) {
            return;
        }
        // It has no listener from here on.
        state.lost = true;
        drop(self.begin(&mut state));
        drop(state);
        self.setup.pushes.disconnected();
    }
}

fn gone() -> Cause {
    RedisError::from((ErrorKind::Io, "the connection is gone")).into()
}
