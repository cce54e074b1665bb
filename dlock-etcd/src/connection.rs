//! The present lease, and its successor.
//!
//! A client has one lease. When it ends another one is made, and no new client is needed. The users of the
//! backend are known by their streams of [signals](dlock_core::spi::Lock::signals): each engine has one as
//! long as it lives, and several may share the lease. When the last is gone no lock is believed in any more,
//! and the [upkeep](crate::upkeep) ends. A closed engine has released its own locks, and the last one revokes
//! the lease.
//!
//! What could break it, and why it does not:
//!
//! * *The connection breaks.* The next one has the same lease. Meanwhile requests fail as `Unavailable` after
//!   a moment, without being sent, and the engine asks again. Requests in flight are `Unknown`.
//! * *The lease ends meanwhile.* Until that is known the engine relies on the deadline of each lock, which is
//!   earlier. Then every lock is reported lost, and pending releases are moot, since the keys went with the
//!   lease.
//! * *A request is in flight when the lease ends.* A member refuses it. If it was granted in time, the engine
//!   refuses the grant: it checks first whether all was lost meanwhile.
//! * *The cluster is restored from a snapshot.* That needs a restart of its members, so every connection
//!   breaks; and on the next one the revision has gone back. Then the lease counts as ended, whatever is left
//!   of it. If others have written so much meanwhile that the revision is higher, each renewal still looks
//!   for the entries.
//! * *The backend is closed under an engine*, through another handle. Then the engine is told that all is
//!   lost before the lease is revoked. Its guards learn of it a moment later.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_compat::CompatExt as _;
use dlock_core::spi::{LostLeases, Signal, Tombstones};
use dlock_core::{Error, ErrorKind, LossReason, RequestId, Result, Runtime};
use event_listener::Event;
use futures::FutureExt as _;
use futures::channel::mpsc;
use futures::future::{Either, select};
use futures::stream::{BoxStream, StreamExt as _, pending};

use crate::connect::{Attached, Found, Leased, Settings};
use crate::session::Session;
use crate::upkeep::{keep, within};

/// How long a request waits for a connection that is being made.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long it is remembered that a request was ended, and of how many: for calls in this process that come
/// late. What the store may get late is forbidden there.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(24 * 3600), 1 << 14);

/// What the clones of a lock share.
pub(crate) struct Connection {
    pub(crate) settings: Settings,
    pub(crate) runtime: Arc<dyn Runtime>,
    ended: Mutex<Tombstones>,
    /// The ttl of the first lease.
    pub(crate) ttl: Duration,
    state: Mutex<State>,
    /// Told when there is a connection.
    changed: Event,
    closed: AtomicBool,
    /// The cluster was put back to an earlier state since this began.
    pub(crate) put_back: AtomicBool,
    /// How many lines in a row, up to the one that was joined last, were empty.
    pub(crate) empty_lines: AtomicU32,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// A task keeps it, or tries for one.
    kept: bool,
    /// Why there is none.
    failure: Option<Error>,
    signals: Vec<mpsc::UnboundedSender<Signal>>,
    /// How many use it.
    users: usize,
    /// One of several who use it was closed.
    closing: bool,
    /// The last user has gone, and there was no new user or request since.
    left: bool,
}

impl Connection {
    pub(crate) async fn open(settings: Settings, runtime: Arc<dyn Runtime>) -> Result<Arc<Self>> {
        let mut connection = Self {
            ended: Mutex::new(Tombstones::new(REMEMBERED.0, REMEMBERED.1)),
            ttl: settings.ttl,
            settings,
            state: Mutex::default(),
            changed: Event::new(),
            closed: AtomicBool::new(false),
            put_back: AtomicBool::new(false),
            empty_lines: AtomicU32::new(0),
            runtime,
        };
        let mut failed = None;
        for member in 0..connection.settings.members.len() {
            match connection.attach(None, None, member).await {
                Ok(begun) => {
                    let session = begun.0.session.clone();
                    connection.ttl = session.deadline.span();
                    connection.state().kept = true;
                    connection.state().session = Some(session);
                    let connection = Arc::new(connection);
                    connection.upkeep(Some(begun), member);
                    return Ok(connection);
                }
                Err((_, e)) => failed = failed.or(Some(e)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::InvalidInput, "no etcd member is named")))
    }

    fn upkeep(self: &Arc<Self>, begun: Option<(Leased, Attached)>, member: usize) {
        let keeping = keep(Arc::downgrade(self), self.runtime.clone(), begun, member);
        self.runtime.spawn(keeping.compat().boxed());
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

    /// Whether the lease is to be kept.
    pub(crate) fn is_used(&self) -> bool {
        self.check_open().is_ok() && !self.state().left
    }

    /// The lease that there is, connected or not.
    pub(crate) fn present(&self) -> Option<Arc<Session>> {
        self.state().session.clone()
    }

    /// A lease that is connected; waits a moment for it.
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
            // It may have come before the listener was there.
            if let Some(session) = self.connected()? {
                return Ok(session);
            }
            let timer = timer.get_or_insert_with(|| self.runtime.sleep(PATIENCE.min(self.settings.timeout)));
            if let Either::Right(_) = select(changed, timer).await {
                let why = self.state().failure.clone();
                return Err(why.unwrap_or_else(|| {
                    let message = format!("no etcd member at {} can be reached", self.settings.at);
                    Error::new(ErrorKind::Unavailable, message)
                }));
            }
        }
    }

    fn connected(self: &Arc<Self>) -> Result<Option<Arc<Session>>> {
        self.check_open()?;
        let mut state = self.state();
        if let Some(session) = &state.session {
            return Ok(session.is_connected().then(|| session.clone()));
        }
        state.left = false;
        if !std::mem::replace(&mut state.kept, true) {
            self.upkeep(None, 0);
        }
        Ok(None)
    }

    /// A stream of all later signals. As long as it lives the lease has a user.
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

    /// The connection broke.
    pub(crate) fn doubt(&self) {
        self.signal(&Signal::Doubt);
    }

    /// No connection could be made, for that reason.
    pub(crate) fn failed(&self, e: Error) {
        self.state().failure = Some(e);
    }

    /// There is a connection.
    pub(crate) fn install(&self, session: &Arc<Session>) {
        {
            let mut state = self.state();
            state.failure = None;
            state.session = Some(session.clone());
        }
        self.changed.notify(usize::MAX);
        self.signal(&Signal::Back);
    }

    /// That lease has ended, in that way.
    pub(crate) fn over(&self, session: &Arc<Session>, how: Found) {
        session.requests.shut();
        if how == Found::PutBack {
            self.put_back.store(true, Ordering::Release);
        }
        {
            let mut state = self.state();
            // Another one has taken its place, or it was closed here, when nothing was held.
            if !state.session.as_ref().is_some_and(|s| Arc::ptr_eq(s, session)) {
                return;
            }
            state.session = None;
        }
        self.signal(&Signal::Lost(LostLeases::All, LossReason::SessionLost));
    }

    /// Stops keeping the lease, unless it has a user again. Returns whether it stopped. Look and end are one
    /// step: a later user begins another one.
    pub(crate) fn end_unused(&self) -> bool {
        let is_closed = self.check_open().is_err();
        {
            let mut state = self.state();
            if !is_closed && !state.left {
                return false;
            }
            (state.session, state.kept) = (None, false);
        }
        self.changed.notify(usize::MAX);
        true
    }

    /// Closes one user's part, even if its stream still exists; the last user closes the connection.
    pub(crate) async fn close(&self) {
        {
            let mut state = self.state();
            if state.users > 1 {
                state.closing = true;
                return;
            }
        }
        self.close_now().await;
    }

    async fn close_now(&self) {
        self.closed.store(true, Ordering::Release);
        // First this: with the lease go its keys.
        self.signal(&Signal::Lost(LostLeases::All, LossReason::Closed));
        let session = self.state().session.take();
        if let Some(session) = session {
            session.requests.shut();
            if let Ok((link, _)) = session.link() {
                let mut leases = link.client.lease_client();
                let _ = within(&self.runtime, PATIENCE, leases.revoke(session.lease)).await;
                link.break_off();
            }
            session.leave_link();
        }
        self.changed.notify(usize::MAX);
    }

    /// Notes that a request was ended: an attempt of it that comes from here on is refused.
    pub(crate) fn bury(&self, id: RequestId) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.bury(id, self.runtime.now());
    }

    /// Refuses a request that was ended.
    pub(crate) fn check_buried(&self, id: RequestId) -> Result<()> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match ended.has(&id) {
            true => Err(Error::lost(LossReason::Refused)),
            false => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.state().session.take() {
            session.wake_upkeep();
        }
    }
}

/// Somebody who uses the lease, as long as this is there.
struct User(Arc<Connection>);

impl Drop for User {
    fn drop(&mut self) {
        let (session, closing) = {
            let mut state = self.0.state();
            state.users -= 1;
            state.left = state.users == 0;
            if !state.left {
                return;
            }
            (state.session.clone(), state.closing)
        };
        if closing {
            let connection = self.0.clone();
            let closing = async move { connection.close_now().await };
            self.0.runtime.spawn(closing.boxed());
        } else if let Some(session) = session {
            session.wake_upkeep();
        }
    }
}
