//! The connection to the one server that is the master: made, kept, made again.
//!
//! Everything of a client goes over one connection, which the driver multiplexes; grants and changes are
//! pushed on it. The driver has a manager that makes a connection again, but not all that a lock needs of
//! one:
//!
//! * A connection is made in a task of its own on the client's runtime: a request that is dropped, or that is
//!   polled on a foreign thread, neither cuts it short nor decides where it lives.
//! * What was subscribed to is subscribed to again before anybody can ask on a new connection: who asks again
//!   after a loss cannot miss its push.
//! * A new connection finds the scripts there.
//! * It is known whether a request was sent at all: what was not is no unknown outcome.
//! * A connection that answers nothing (a black hole, a peer that was switched off) is found out by a PING
//!   and given up. TCP would notice after minutes. A request that is given up has it asked; and one that is
//!   listened on and silent is asked every ten seconds, since who only listens asks nothing. A NAT that
//!   forgot a connection would otherwise leave a waiter deaf for as long as it waits, and each hand-off pass
//!   it over.
//! * A master that became a replica is left, and looked up anew: by its name, or at the sentinels.
//! * Whatever is connected to is looked at first, each time: another server may be there than was before, or
//!   the same one may have been started again (`server.rs`, `rejoin.rs`).

mod probe;
mod role;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dlock_core::Runtime;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, Shared, select};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, PushInfo, PushKind, RedisError, RedisResult};

use self::probe::Asked;
pub(crate) use self::role::Role;
use crate::connection::check::{self, Demands, Refusal};
use crate::connection::rejoin::Bar;
#[cfg(feature = "sentinel")]
use crate::connection::sentinel::Sentinels;
use crate::connection::{load, within};
use crate::failure::is_of_a_replica;
use crate::failure::{Cause, Failed, timed_out};
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
        within(&*self.runtime, self.timeout, request).await
    }
}

pub(crate) struct Server {
    source: Source,
    role: Role,
    setup: Setup,
    state: Mutex<State>,
    /// When the last request was sent that was answered, in nanoseconds of [`Timestamp`].
    heard: AtomicU64,
    me: Weak<Self>,
}

#[derive(Clone)]
struct Up {
    connection: MultiplexedConnection,
    generation: u64,
    /// What is unique to the run of the server that is there.
    run: Option<Arc<str>>,
}

type Attempt = Shared<BoxFuture<'static, Result<Up, Cause>>>;

enum Line {
    Up(Up),
    Connecting(Attempt),
    Down,
}

struct State {
    /// Of the connection that is there or being made. What an older one says is not heard.
    generation: u64,
    line: Line,
    /// The connection that is being made has broken already.
    broken: bool,
    channels: BTreeSet<Vec<u8>>,
    /// The server was up for too short a time when it was last seen: until when it is not to be asked.
    bar: Option<Bar>,
    /// Attempts that failed in a row.
    failures: u32,
    retrying: bool,
    checking: bool,
    was_up: bool,
    /// It was told that the connection is gone, and not yet that there is one again.
    lost: bool,
    /// While a task looks whether what is listened on still answers. Dropped, it ends.
    probing: Option<oneshot::Sender<()>>,
    closed: bool,
}

impl Server {
    pub(crate) fn new(setup: Setup, source: Source, role: Role) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            source,
            role,
            setup,
            state: Mutex::new(State {
                generation: 0,
                line: Line::Down,
                broken: false,
                channels: BTreeSet::new(),
                bar: None,
                failures: 0,
                retrying: false,
                checking: false,
                was_up: false,
                lost: false,
                probing: None,
                closed: false,
            }),
            heard: AtomicU64::new(0),
            me: me.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on the connection, which is made if there is none.
    pub(crate) async fn ask<T, F: Future<Output = RedisResult<T>>>(
        &self,
        request: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, Failed> {
        let up = self.up().await.map_err(Failed::unsent)?;
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

    pub(crate) async fn subscribe(&self, channel: &[u8]) -> Result<(), Failed> {
        {
            // First written down: a connection that is made meanwhile subscribes by itself.
            let mut state = self.state();
            state.channels.insert(channel.to_vec());
            self.probe(&mut state);
        }
        let asked = self.ask(|mut c| async move { self.role.subscribe(&mut c, channel).await });
        let subscribed = self.setup.within(asked).await;
        #[cfg(feature = "cluster")]
        if subscribed.is_err() && self.role.moved().is_some() {
            // Whoever asked finds the place for it.
            self.state().channels.remove(channel);
        }
        subscribed
    }

    /// Takes the place of listening to that channel from this connection.
    #[cfg(feature = "cluster")]
    pub(crate) fn forget(&self, channel: &[u8]) {
        let mut state = self.state();
        state.channels.remove(channel);
        if let Line::Up(up) = &state.line {
            let generation = up.generation;
            drop(state);
            self.lost(generation);
        }
    }

    pub(crate) async fn unsubscribe(&self, channel: &[u8]) {
        self.state().channels.remove(channel);
        let asked = self.ask(|mut c| async move { self.role.unsubscribe(&mut c, channel).await });
        // Where it fails the subscription costs a message now and then, which nobody hears.
        let _ = self.setup.within(asked).await;
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.line = Line::Down;
        state.channels.clear();
        state.probing = None;
    }

    /// What is unique to the run of the server that is connected to, if it said that.
    pub(crate) fn run(&self) -> Option<Arc<str>> {
        match &self.state().line {
            Line::Up(up) => up.run.clone(),
            _ => None,
        }
    }

    async fn up(&self) -> Result<Up, Cause> {
        let attempt = {
            let mut state = self.state();
            if state.closed {
                return Err(gone().into());
            }
            match &state.line {
                Line::Up(up) => return Ok(up.clone()),
                Line::Connecting(attempt) => attempt.clone(),
                Line::Down => {
                    // At once, and not after a connection that is made for nothing: there are others who wait
                    // for their answer.
                    if let Some(cause) = state.bar.as_ref().and_then(Bar::stands) {
                        return Err(cause);
                    }
                    self.begin(&mut state)
                }
            }
        };
        attempt.await
    }

    /// Begins to connect.
    fn begin(&self, state: &mut State) -> Attempt {
        state.generation += 1;
        state.broken = false;
        let generation = state.generation;
        let (done, result) = oneshot::channel();
        let attempt = async move { result.await.unwrap_or_else(|_| Err(gone().into())) };
        let attempt: Attempt = attempt.boxed().shared();
        state.line = Line::Connecting(attempt.clone());
        if let Some(me) = self.me.upgrade() {
            let connecting = async move {
                let answer = me.connect(generation).await;
                me.connected(generation, &answer);
                let _ = done.send(answer.map_err(|refusal| match refusal {
                    Refusal::Cause(cause) => cause,
                    Refusal::Bar(bar) => bar.into(),
                }));
            };
            self.setup.runtime.spawn(connecting.boxed());
        }
        attempt
    }

    async fn connect(&self, generation: u64) -> Result<Up, Refusal> {
        let me = self.me.clone();
        let hear = move |push| {
            if let Some(me) = me.upgrade() {
                me.hear(generation, push);
            }
            Ok::<(), redis::aio::SendError>(())
        };
        // No time limit of the driver's: it would be kept by whichever runtime polls.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER)
            .set_push_sender(hear);
        let connecting = async {
            let client = match &self.source {
                Source::Server(client) => client.as_ref().clone(),
                #[cfg(feature = "sentinel")]
                Source::Sentinel(sentinels) => sentinels.master().await.map_err(Cause::Driver)?,
            };
            let connection = client.get_multiplexed_async_connection_with_config(&config);
            let mut connection = connection.await.map_err(Cause::Driver)?;
            let asked = connection.clone();
            let run = check::check(&self.setup.demands, move |command| {
                let mut connection = asked.clone();
                async move { Ok(command.query_async(&mut connection).await?) }
            });
            let run = run.await?.map(Arc::from);
            match self.load(&mut connection).await {
                // A server that refuses that says so where it is asked for a lock.
                Err(e) if e.is_unrecoverable_error() => return Err(Cause::Driver(e).into()),
                _ => {}
            }
            let channels: Vec<_> = self.state().channels.iter().cloned().collect();
            self.listen(&mut connection, channels)
                .await
                .map_err(Cause::Driver)?;
            Ok(Up {
                connection,
                generation,
                run,
            })
        };
        match select(pin!(connecting), self.setup.runtime.sleep(self.setup.timeout)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Cause::Driver(timed_out()).into()),
        }
    }

    /// Subscribes to what was subscribed to before.
    async fn listen(
        &self,
        connection: &mut MultiplexedConnection,
        channels: Vec<Vec<u8>>,
    ) -> RedisResult<()> {
        #[cfg(feature = "cluster")]
        if let Some(moved) = self.role.moved() {
            // Of several slots: one by one.
            for channel in channels {
                match self.role.subscribe(connection, &channel).await {
                    Err(e) if e.kind() == ErrorKind::Server(redis::ServerErrorKind::Moved) => {
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

    /// Gives the server the scripts that it does not have: a request must not take three round trips where
    /// one is counted with.
    async fn load(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let scripts = &self.setup.scripts;
        if scripts.is_empty() {
            return Ok(());
        }
        let mut there = redis::cmd("SCRIPT");
        there
            .arg("EXISTS")
            .arg(scripts.iter().map(|s| s.hash.as_str()).collect::<Vec<_>>());
        let there: Vec<bool> = there.query_async(connection).await?;
        for (script, there) in scripts.iter().zip(there) {
            if !there {
                load(script).exec_async(connection).await?;
            }
        }
        Ok(())
    }

    fn connected(&self, generation: u64, answer: &Result<Up, Refusal>) {
        let mut state = self.state();
        if state.closed || state.generation != generation {
            return;
        }
        state.bar = match answer {
            Err(Refusal::Bar(bar)) => Some(*bar),
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
                // Whoever opens a client asks by itself; nobody waits for its pushes yet.
                if state.was_up {
                    self.retry(&mut state);
                }
            }
        }
    }

    /// Connects again in a while, whether or not anybody asks: there are those who only listen.
    fn retry(&self, state: &mut State) {
        if std::mem::replace(&mut state.retrying, true) {
            return;
        }
        let longest = RETRY_MIN
            .saturating_mul(1 << state.failures.min(8))
            .min(RETRY_MAX);
        let mut random = [0];
        self.setup.runtime.fill_random(&mut random);
        let pause = longest / 2 + longest / 2 * u32::from(random[0]) / 255;
        let (sleep, me) = (self.setup.runtime.sleep(pause), self.me.clone());
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

    fn hear(&self, generation: u64, push: PushInfo) {
        if push.kind == PushKind::Disconnection {
            let mut state = self.state();
            if state.generation == generation && matches!(state.line, Line::Connecting(_)) {
                state.broken = true;
            }
            drop(state);
            return self.lost(generation);
        }
        #[cfg(feature = "cluster")]
        if push.kind == PushKind::SUnsubscribe && self.is_deaf_to(generation, &push) {
            return self.lost(generation);
        }
        if self.state().generation == generation {
            self.setup.pushes.take(push);
        }
    }

    /// Whether the node has ended a subscription by itself: its slot is no longer there. The driver may have
    /// taken that for an answer, so the connection is of no more use.
    #[cfg(feature = "cluster")]
    fn is_deaf_to(&self, generation: u64, push: &PushInfo) -> bool {
        let (Some(moved), Some(redis::Value::BulkString(channel))) = (self.role.moved(), push.data.first())
        else {
            return false;
        };
        let ended = {
            let mut state = self.state();
            state.generation == generation && state.channels.remove(channel)
        };
        if ended {
            moved(channel);
        }
        ended
    }

    /// That connection is of no more use.
    fn lost(&self, generation: u64) {
        let mut state = self.state();
        if state.closed || state.generation != generation || !matches!(state.line, Line::Up(_)) {
            return;
        }
        // From here on nobody hears it.
        state.lost = true;
        let attempt = self.begin(&mut state);
        drop(state);
        drop(attempt);
        self.setup.pushes.disconnected();
    }
}

fn gone() -> RedisError {
    RedisError::from((ErrorKind::Io, "the connection is gone"))
}
