//! The session of now, and the one after it.
//!
//! A client has one session. When it is over another one is made, and nobody needs a new client. Who uses the backend is known by the streams of
//! [signals](dlock_core::spi::Lock::signals): each engine has one as long as it lives. When the last is gone nobody believes in a lock any more: a session without
//! requests is closed at once, and one with requests when it would have lapsed by itself. The driver would keep it for ever.
//!
//! Several engines may share the backend, and with it the session. One of them that is closed has released what was its own, and the session is closed with the last of them.
//!
//! What could break it, and why it does not:
//!
//! * *The connection breaks.* The driver makes another one, to any server of the ensemble, for the same session. Requests are not sent meanwhile, since the driver
//!   would keep them back for as long as that takes: they fail as `Unavailable` after a moment, and the engine asks again.
//! * *The session ends meanwhile.* The driver says so when it has a connection again. Until then the engine goes by the deadline of each lease, which is earlier than
//!   any server's. Then every lease is told as lost, and what was owed is moot, since the nodes went with their session.
//! * *A request is on its way when the session ends.* It belongs to that session: a server refuses it. Its grant, if it was answered in time, is refused by the
//!   engine, which asks before it believes in a grant whether all was lost meanwhile.
//! * *Somebody closes the backend under an engine*, by a handle of his own. Then the engine is told that all is lost before the session is closed. What it tells its guards comes a moment later;
//!   whoever does that does it to himself.
//! * *The servers are away for long.* The next session is tried for with pauses up to two seconds, for as long as there is anybody to use it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dlock_core::spi::{LostLeases, Signal};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Runtime, Timestamp};
use event_listener::Event;
use futures::channel::{mpsc, oneshot};
use futures::future::{Either, select};
use futures::{FutureExt as _, StreamExt as _};
use zookeeper_client::{
    Client, Connector, CreateMode, CreateOptions, Error as Zk, SessionState, StateWatcher,
};

use crate::acl::Rights;
use crate::entries::whereabouts;
use crate::failure::{Effect, told};
use crate::forced;
use crate::paths::Paths;
use crate::session::{Mark, Session};
use crate::tombstones::Tombstones;

/// How long a request waits for a connection that is being made.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between tries for a session.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What takes longer to fail, for each time that a server is asked, was no refusal.
const SLOW: Duration = Duration::from_millis(200);

/// How many lines are known at a time.
const LINES_KNOWN: usize = 4096;

/// What does not change.
pub(crate) struct Settings {
    pub(crate) paths: Paths,
    pub(crate) rights: Rights,
    /// Lines are plain nodes from the beginning.
    pub(crate) plain: bool,
    /// For messages.
    pub(crate) at: Arc<str>,
    /// As the driver takes it.
    pub(crate) servers: String,
    pub(crate) session_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) login: Option<(String, String)>,
    #[cfg(feature = "sasl")]
    pub(crate) sasl: Option<(String, String)>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
}

/// What the clones of a lock share.
pub(crate) struct Connection {
    pub(crate) settings: Settings,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) tombstones: Tombstones,
    /// The timeout of the first session.
    pub(crate) session_timeout: Duration,
    /// Lines that were there a while ago.
    lines: Mutex<HashSet<String>>,
    state: Mutex<State>,
    /// Told when there is a session, or a connection for it.
    changed: Event,
    closed: AtomicBool,
    /// See [`plain`](crate::plain).
    pub(crate) plain: AtomicBool,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// A task tries for one.
    making: bool,
    /// Why there is none.
    failure: Option<Error>,
    signals: Vec<mpsc::UnboundedSender<Signal>>,
    /// One of several who use it was closed.
    closing: bool,
    /// The last of those who used it has gone, and nobody has come or asked since.
    left: bool,
}

impl Connection {
    pub(crate) async fn open(settings: Settings, runtime: Arc<dyn Runtime>) -> Result<Arc<Self>> {
        let (session, states) = make(&settings, &runtime).await?;
        let session = Arc::new(session);
        let connection = Arc::new(Self {
            plain: AtomicBool::new(settings.plain),
            settings,
            tombstones: Tombstones::default(),
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
                return Err(why.unwrap_or_else(|| told(Zk::ConnectionLoss, Effect::None, &self.settings.at)));
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
                self.begin_making(&mut state);
                Ok(None)
            }
        }
    }

    // ---- signals ----

    /// A stream of what happens from now on. As long as it lives somebody uses the session.
    pub(crate) fn signals(self: &Arc<Self>) -> Signals {
        let (send, receive) = mpsc::unbounded();
        {
            let mut state = self.state();
            state.signals.push(send);
            state.left = false;
        }
        Signals {
            receive,
            connection: self.clone(),
        }
    }

    fn signal(&self, signal: &Signal) {
        let mut state = self.state();
        state.signals.retain(|s| s.unbounded_send(signal.clone()).is_ok());
    }

    /// Says that these were ended by somebody else.
    pub(crate) fn lost(&self, keys: Vec<dlock_core::spi::LeaseKey>) {
        if !keys.is_empty() {
            self.signal(&Signal::Lost(LostLeases::These(keys), LossReason::Refused));
        }
    }

    fn is_used(&self) -> bool {
        let mut state = self.state();
        state.signals.retain(|s| !s.is_closed());
        !state.signals.is_empty()
    }

    // ---- the life of sessions ----

    /// Looks after a session until it is over.
    fn tend(self: &Arc<Self>, session: Arc<Session>, mut states: StateWatcher) {
        let weak = Arc::downgrade(self);
        let listening = forced::listen(weak.clone(), session.clone());
        self.runtime.spawn(listening.boxed());
        if self.is_plain() {
            self.sweep(&session);
        }
        let tending = async move {
            loop {
                let state = states.changed().await;
                let Some(connection) = weak.upgrade() else {
                    return session.end();
                };
                match state {
                    SessionState::Disconnected => connection.signal(&Signal::Doubt),
                    SessionState::SyncConnected => {
                        connection.changed.notify(usize::MAX);
                        connection.signal(&Signal::Back);
                    }
                    SessionState::ConnectedReadOnly => {}
                    _ => return connection.over(&session, state),
                }
            }
        };
        self.runtime.spawn(tending.boxed());
    }

    /// That session has ended.
    fn over(self: &Arc<Self>, session: &Arc<Session>, how: SessionState) {
        session.end();
        {
            let mut state = self.state();
            // Another one has taken its place, or it was closed here, when nothing was held.
            if !state.session.as_ref().is_some_and(|s| Arc::ptr_eq(s, session)) {
                return;
            }
            state.session = None;
            state.failure = (how == SessionState::AuthFailed)
                .then(|| told(Zk::AuthFailed, Effect::None, &self.settings.at));
        }
        self.signal(&Signal::Lost(LostLeases::All, LossReason::SessionLost));
        if self.is_used() {
            self.begin_making(&mut self.state());
        }
    }

    fn begin_making(self: &Arc<Self>, state: &mut State) {
        if state.making || state.session.is_some() || self.check_open().is_err() {
            return;
        }
        state.making = true;
        let making = keep_making(Arc::downgrade(self), self.runtime.clone());
        self.runtime.spawn(making.boxed());
    }

    fn install(self: &Arc<Self>, session: Session, states: StateWatcher) {
        let session = Arc::new(session);
        {
            let mut state = self.state();
            state.making = false;
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
            loop {
                let Some(connection) = weak.upgrade() else {
                    return;
                };
                match connection.take_unused(runtime.now()) {
                    Unused::Taken(session) => return session.end(),
                    Unused::Not => return,
                    Unused::Until(left) => {
                        drop(connection);
                        runtime.sleep(left).await;
                    }
                }
            }
        };
        self.runtime.spawn(retiring.boxed());
    }

    /// Takes the session away, if nobody uses it and nothing is asked for in it, or it has lapsed. In one step: whoever begins to use it is seen, or finds none.
    fn take_unused(&self, now: Timestamp) -> Unused {
        let mut state = self.state();
        state.signals.retain(|s| !s.is_closed());
        let Some(session) = state.session.as_ref().filter(|_| state.signals.is_empty()) else {
            return Unused::Not;
        };
        let left = now.until(session.life.lapses());
        match left.is_zero() || session.shut_if_idle() {
            true => state.session.take().map_or(Unused::Not, Unused::Taken),
            false => Unused::Until(left),
        }
    }

    /// Whoever closes it uses it no more, though his stream may be there yet: it is closed with the last one.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state();
            state.signals.retain(|s| !s.is_closed());
            if state.signals.len() > 1 {
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

    // ---- what every request needs ----

    /// Whether a line was there a while ago. If it has gone since, whoever joins it is told.
    pub(crate) fn knows(&self, line: &str) -> bool {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(line)
    }

    pub(crate) fn learn(&self, line: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= LINES_KNOWN {
            lines.clear();
        }
        lines.insert(line.to_owned());
    }

    /// That line was removed.
    pub(crate) fn unlearn(&self, line: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.remove(line);
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

    pub(crate) fn is_buried(&self, id: RequestId) -> bool {
        self.tombstones.has(id)
    }
}

/// What is to become of a session that nobody used just now.
enum Unused {
    Taken(Arc<Session>),
    /// When it would have gone without us.
    Until(Duration),
    /// It is used again, or it has gone.
    Not,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.state().session.take() {
            session.end();
        }
    }
}

/// Tries until there is a session, or nobody who needs one.
async fn keep_making(connection: Weak<Connection>, runtime: Arc<dyn Runtime>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        {
            let Some(connection) = connection.upgrade() else {
                return;
            };
            match make(&connection.settings, &runtime).await {
                Ok((session, states)) => return connection.install(session, states),
                Err(e) => {
                    let mut state = connection.state();
                    state.failure = Some(e);
                    state.signals.retain(|s| !s.is_closed());
                    if state.signals.is_empty() || connection.check_open().is_err() {
                        // Whoever asks next begins anew.
                        state.making = false;
                        return;
                    }
                }
            }
        }
        runtime.sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Makes a session. The driver spawns on the runtime that is current, so it is connected in a task of the one that was given.
async fn make(settings: &Settings, runtime: &Arc<dyn Runtime>) -> Result<(Session, StateWatcher)> {
    let connector = settings.connector();
    let servers = settings.servers.clone();
    let (mut send, receive) = oneshot::channel();
    let asked = runtime.now();
    let on = runtime.clone();
    let connecting = async move {
        let connected = {
            let connect = std::pin::pin!(connect(&connector, &servers, &*on));
            match select(connect, send.cancellation()).await {
                Either::Left((connected, _)) => connected,
                Either::Right(_) => return,
            }
        };
        // If nobody wants it any more it is dropped, and so closed.
        let _ = send.send(connected);
    };
    runtime.spawn(connecting.boxed());
    let told = |e| told(e, Effect::None, &settings.at);
    let made = async {
        let Ok(connected) = receive.await else {
            // The task was dropped: its runtime has ended.
            let message = "the runtime that was given has been shut down";
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        let client = connected.map_err(told)?;
        let states = client.state_watcher();
        let mark = mark(settings, &client).await.map_err(told)?;
        let (at, root) = (settings.at.clone(), settings.paths.ours().to_owned());
        Ok((
            Session::new(client, asked, runtime.clone(), at, root, mark),
            states,
        ))
    };
    match select(std::pin::pin!(made), runtime.sleep(settings.timeout)).await {
        Either::Left((made, _)) => made,
        // With it goes the session, if there is one by now.
        Either::Right(_) => Err(told(Zk::Timeout)),
    }
}

/// Asks each server as often as it is named, see [`servers`](crate::address::Address::servers), and all again if they do not refuse, but take long.
async fn connect(connector: &Connector, servers: &str, runtime: &dyn Runtime) -> Result<Client, Zk> {
    let slow = SLOW * servers.split(',').count() as u32;
    loop {
        let from = runtime.now();
        match connector.clone().connect(servers).await {
            Err(Zk::NoHosts) if runtime.now().since(from) >= slow => {}
            connected => return connected,
        }
    }
}

/// Makes the node that shows whether the session is there, which operators can read as well. What is in the way of a lock is in its way, too, and so is said at once.
async fn mark(settings: &Settings, client: &Client) -> Result<Mark, Zk> {
    let paths = &settings.paths;
    let path = paths.session(client.session_id().0);
    let options = settings.rights.node(CreateMode::Ephemeral);
    let data = format!("dlock {}", whereabouts()).into_bytes();
    for _ in 0..2 {
        match client.create(&path, &data, &options).await {
            Ok(_) | Err(Zk::NodeExists) => {
                // What a renewal does: an access list that does not allow it is found out here, and not by losing locks.
                client.set_data(&path, &data, None).await?;
                return Ok(Mark { path, data });
            }
            Err(Zk::NoNode) => {
                let options = settings.rights.node(CreateMode::Persistent);
                client.mkdir(&paths.sessions(), &options).await?;
            }
            Err(e) => return Err(e),
        }
    }
    Err(Zk::NoNode)
}

impl Settings {
    fn connector(&self) -> Connector {
        let connector = Client::connector()
            .with_session_timeout(self.session_timeout)
            .with_fail_eagerly();
        #[cfg(feature = "tls")]
        let connector = match &self.tls {
            Some(tls) => connector.with_tls(tls.clone()),
            None => connector,
        };
        #[cfg(feature = "sasl")]
        if let Some((user, password)) = &self.sasl {
            let login = zookeeper_client::SaslOptions::digest_md5(user.clone(), password.clone());
            return connector.with_sasl(login);
        }
        match &self.login {
            Some((user, password)) => connector.with_auth("digest", format!("{user}:{password}").as_bytes()),
            None => connector,
        }
    }
}

/// The stream of signals of one engine.
pub(crate) struct Signals {
    receive: mpsc::UnboundedReceiver<Signal>,
    connection: Arc<Connection>,
}

impl futures::Stream for Signals {
    type Item = Signal;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Signal>> {
        // It never ends: the sender stays as long as this does.
        match self.receive.poll_next_unpin(cx) {
            std::task::Poll::Ready(Some(signal)) => std::task::Poll::Ready(Some(signal)),
            _ => std::task::Poll::Pending,
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.receive.close();
        let was_closed = {
            let mut state = self.connection.state();
            state.signals.retain(|s| !s.is_closed());
            state.left = state.signals.is_empty();
            if !state.left {
                return;
            }
            state.closing
        };
        match was_closed {
            true => self.connection.close_now(),
            false => self.connection.retire(),
        }
    }
}
