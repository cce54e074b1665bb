//! The present session, and its successor.
//!
//! A client has one session. When it ends another one is made, and no new client is needed. The users of the
//! backend are known by their streams of [signals](dlock_core::spi::Lock::signals): each engine has one as
//! long as it lives, and several may share the session. When the last is gone no lock is believed in any
//! more: a session without requests is closed at once, and one with requests when it would have expired. The
//! driver would keep it for ever. A closed engine has released its own locks, and the last one closes the
//! session.
//!
//! What could break it, and why it does not:
//!
//! * *The connection breaks.* The driver makes another one, to any server of the ensemble, for the same
//!   session. Requests are not sent meanwhile, since the driver would hold them back until then: they fail as
//!   `Unavailable` after a moment, and the engine asks again.
//! * *The session ends meanwhile.* The driver says so when it has a connection again. Until then the engine
//!   relies on the deadline of each lease, which is earlier than any server's. Then every lease is reported
//!   lost, and pending releases are moot, since the nodes went with their session.
//! * *A request is in flight when the session ends.* A server refuses it. If it was granted in time, the
//!   engine refuses the grant: it checks first whether all was lost meanwhile.
//! * *The backend is closed under an engine*, through another handle. Then the engine is told that all is
//!   lost before the session is closed. Its guards learn of it a moment later.
//! * *The servers are away for long.* The client tries for the next session, with pauses up to two seconds,
//!   as long as it has a user.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, LostLeases, Signal, Tombstones};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Runtime, Timestamp};
use event_listener::Event;
use futures::channel::mpsc;
use futures::future::{Either, select};
use futures::stream::{BoxStream, pending};
use futures::{FutureExt as _, StreamExt as _};
use zookeeper_client::{Client, CreateMode, CreateOptions, Error as Zk, SessionState, StateWatcher};

use crate::connect::{Settings, connect};
use crate::failure::told;
use crate::force_release;
use crate::session::Session;

/// How long a request waits for a connection that is being made.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between tries for a session.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How many lines are known at a time.
const LINES_KNOWN: usize = 4096;

/// How long it is remembered that a request was abandoned, and of how many. What a session asks is done in
/// the order in which it was asked, so what comes late is a call in this process.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(24 * 3600), 1 << 14);

/// What the clones of a lock share.
pub(crate) struct Connection {
    pub(crate) settings: Settings,
    pub(crate) runtime: Arc<dyn Runtime>,
    abandoned: Mutex<Tombstones>,
    /// The timeout of the first session.
    pub(crate) session_timeout: Duration,
    /// Lines that were there a while ago.
    lines: Mutex<HashSet<String>>,
    state: Mutex<State>,
    /// Told when there is a session, or a connection for it.
    changed: Event,
    closed: AtomicBool,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// A task tries for one.
    connecting: bool,
    /// Why there is none.
    failure: Option<Error>,
    signals: Vec<mpsc::UnboundedSender<Signal>>,
    /// How many use the session.
    users: usize,
    /// One of several who use it was closed.
    closing: bool,
    /// The last user has gone, and there was no new user or request since.
    left: bool,
}

impl Connection {
    pub(crate) async fn open(settings: Settings, runtime: Arc<dyn Runtime>) -> Result<Arc<Self>> {
        let (session, states) = connect(&settings, &runtime).await?;
        let session = Arc::new(session);
        let connection = Arc::new(Self {
            settings,
            abandoned: Mutex::new(Tombstones::new(REMEMBERED.0, REMEMBERED.1)),
            lines: Mutex::default(),
            session_timeout: session.timeout,
            state: Mutex::new(State {
                session: Some(session.clone()),
                ..State::default()
            }),
            changed: Event::new(),
            closed: AtomicBool::new(false),
            runtime,
        });
        connection.tend(session, states);
        Ok(connection)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "the client was closed")),
            false => Ok(()),
        }
    }

    /// The session that there is, connected or not.
    pub(crate) fn present(&self) -> Option<Arc<Session>> {
        self.state().session.clone()
    }

    /// A session that is connected; waits a moment for it.
    ///
    /// # Errors
    /// `Closed`, or why there is none: nothing was sent.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let mut timer = None;
        loop {
            if let Some(session) = self.connected()? {
                return Ok(session);
            }
            let changed = self.changed.listen();
            // Between the look and the ear.
            if let Some(session) = self.connected()? {
                return Ok(session);
            }
            let timer = timer.get_or_insert_with(|| self.runtime.sleep(PATIENCE.min(self.settings.timeout)));
            if let Either::Right(_) = select(changed, timer).await {
                let why = self.state().failure.clone();
                return Err(why
                    .unwrap_or_else(|| told(Zk::ConnectionLoss, ErrorKind::Unavailable, &self.settings.at)));
            }
        }
    }

    fn connected(self: &Arc<Self>) -> Result<Option<Arc<Session>>> {
        self.check_open()?;
        let mut state = self.state();
        match &state.session {
            Some(session) => Ok(session.is_connected().then(|| session.clone())),
            None => {
                state.left = false;
                self.begin_connecting(&mut state);
                Ok(None)
            }
        }
    }

    /// A stream of all later signals. As long as it lives the session has a user.
    pub(crate) fn signals(self: &Arc<Self>) -> BoxStream<'static, Signal> {
        let (send, receive) = mpsc::unbounded();
        {
            let mut state = self.state();
            state.signals.retain(|s| !s.is_closed());
            state.signals.push(send);
            state.users += 1;
            state.left = false;
        }
        let user = User(self.clone());
        let signals = receive.chain(pending()).map(move |signal| {
            let _ = &user;
            signal
        });
        signals.boxed()
    }

    fn signal(&self, signal: &Signal) {
        let mut state = self.state();
        state.signals.retain(|s| s.unbounded_send(signal.clone()).is_ok());
    }

    /// Reports that another has ended these.
    pub(crate) fn lost(&self, keys: Vec<LeaseKey>) {
        if !keys.is_empty() {
            self.signal(&Signal::Lost(LostLeases::These(keys), LossReason::Refused));
        }
    }

    /// Looks after a session until it is over.
    fn tend(self: &Arc<Self>, session: Arc<Session>, mut states: StateWatcher) {
        let weak = Arc::downgrade(self);
        let listening = force_release::listen(weak.clone(), session.clone());
        self.runtime.spawn(listening.boxed());
        let tending = async move {
            loop {
                let state = states.changed().await;
                // It has ended the session.
                let Some(connection) = weak.upgrade() else {
                    return;
                };
                match state {
                    SessionState::Disconnected => connection.signal(&Signal::Doubt),
                    SessionState::SyncConnected => {
                        connection.changed.notify(usize::MAX);
                        connection.signal(&Signal::Back);
                    }
                    SessionState::ConnectedReadOnly => {}
                    _ => return connection.over(&session),
                }
            }
        };
        self.runtime.spawn(tending.boxed());
    }

    /// That session has ended.
    fn over(self: &Arc<Self>, session: &Arc<Session>) {
        session.end();
        {
            let mut state = self.state();
            // Another one has taken its place, or it was closed here, when nothing was held.
            if !state.session.as_ref().is_some_and(|s| Arc::ptr_eq(s, session)) {
                return;
            }
            state.session = None;
        }
        self.signal(&Signal::Lost(LostLeases::All, LossReason::SessionLost));
        let mut state = self.state();
        if state.users > 0 {
            self.begin_connecting(&mut state);
        }
    }

    fn begin_connecting(self: &Arc<Self>, state: &mut State) {
        if state.connecting || state.session.is_some() {
            return;
        }
        state.connecting = true;
        let connecting = keep_connecting(Arc::downgrade(self), self.runtime.clone());
        self.runtime.spawn(connecting.boxed());
    }

    fn install(self: &Arc<Self>, session: Session, states: StateWatcher) {
        let session = Arc::new(session);
        {
            let mut state = self.state();
            state.connecting = false;
            if self.check_open().is_err() {
                return session.end();
            }
            state.failure = None;
            state.session = Some(session.clone());
        }
        self.tend(session, states);
        self.changed.notify(usize::MAX);
        self.signal(&Signal::Back);
        // Who had it made may have gone meanwhile, and then found none to retire.
        if self.state().left {
            self.retire();
        }
    }

    /// Nobody uses it any more: what is left of the session goes when it would have gone without us.
    fn retire(self: &Arc<Self>) {
        let (weak, runtime) = (Arc::downgrade(self), self.runtime.clone());
        let retiring = async move {
            while let Some(left) = weak.upgrade().and_then(|c| c.end_unused(runtime.now())) {
                runtime.sleep(left).await;
            }
        };
        self.runtime.spawn(retiring.boxed());
    }

    /// Ends the session, if it has no user and no requests, or has expired; for how long it is to be kept
    /// otherwise. In one step: a new user is seen, or finds no session.
    fn end_unused(&self, now: Timestamp) -> Option<Duration> {
        let mut state = self.state();
        let session = state.session.clone().filter(|_| state.users == 0)?;
        let left = now.until(session.deadline.lapses());
        if !left.is_zero() && !session.requests.shut_if_idle() {
            return Some(left);
        }
        state.session = None;
        drop(state);
        session.end();
        None
    }

    /// Closes one user's part, even if its stream still exists; the last user closes the session.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state();
            if state.users > 1 {
                state.closing = true;
                return;
            }
        }
        self.close_now();
    }

    fn close_now(&self) {
        self.closed.store(true, Ordering::Release);
        // First this: with the session go its nodes.
        self.signal(&Signal::Lost(LostLeases::All, LossReason::Closed));
        let session = self.state().session.take();
        if let Some(session) = session {
            session.end();
        }
        self.changed.notify(usize::MAX);
    }

    fn lines(&self) -> MutexGuard<'_, HashSet<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a queue existed a while ago. If it has gone since, joining it reports that.
    pub(crate) fn knows(&self, line: &str) -> bool {
        self.lines().contains(line)
    }

    pub(crate) fn learn(&self, line: &str) {
        let mut lines = self.lines();
        if lines.len() >= LINES_KNOWN {
            lines.clear();
        }
        lines.insert(line.to_owned());
    }

    /// For a node of that kind.
    pub(crate) fn node(&self, mode: CreateMode) -> CreateOptions<'_> {
        self.settings.rights.node(mode)
    }

    /// Makes that directory, and whatever is missing above it.
    pub(crate) async fn make_directory(&self, client: &Client, path: &str) -> Result<(), Zk> {
        if path.is_empty() {
            return Ok(());
        }
        client.mkdir(path, &self.node(CreateMode::Persistent)).await
    }

    /// Notes that a request was abandoned: an attempt of it that comes from here on is refused.
    pub(crate) fn bury(&self, id: RequestId) {
        let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        abandoned.bury(id, self.runtime.now());
    }

    /// Refuses a request that was abandoned.
    pub(crate) fn check_buried(&self, id: RequestId) -> Result<()> {
        let abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        match abandoned.has(&id) {
            true => Err(Error::lost(LossReason::Refused)),
            false => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.state().session.take() {
            session.end();
        }
    }
}

/// Tries until there is a session, or no user.
async fn keep_connecting(connection: Weak<Connection>, runtime: Arc<dyn Runtime>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        {
            let Some(connection) = connection.upgrade() else {
                return;
            };
            match connect(&connection.settings, &runtime).await {
                Ok((session, states)) => return connection.install(session, states),
                Err(e) => {
                    let mut state = connection.state();
                    state.failure = Some(e);
                    if state.users == 0 || connection.check_open().is_err() {
                        // The next request begins anew.
                        state.connecting = false;
                        return;
                    }
                }
            }
        }
        runtime.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Somebody who uses the session, as long as this is there.
struct User(Arc<Connection>);

impl Drop for User {
    fn drop(&mut self) {
        let was_closed = {
            let mut state = self.0.state();
            state.users -= 1;
            state.left = state.users == 0;
            if !state.left {
                return;
            }
            state.closing
        };
        match was_closed {
            true => self.0.close_now(),
            false => self.0.retire(),
        }
    }
}
