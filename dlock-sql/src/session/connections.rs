//! The connections of one client: the shared one, which is made when it is needed, and those that wait.
//!
//! They are made with the options of the caller's pool, and are not of the pool: so locks do not use up a
//! small pool, and nothing that the pool does with its connections (closing the idle ones, handing them on
//! with whatever they hold) happens to a session that holds a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::{Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};

use super::board::Board;
use super::connection::{Connection, Kind};
use super::dialect::{Server, Settings};
use super::failure::{shut_down, unavailable};
use super::handle::Handle;

/// What the calls and the connections of one client share.
pub(super) struct Connections {
    pub(super) board: Arc<Board>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) server: Arc<dyn Server>,
    pub(super) settings: Settings,
    ids: AtomicU64,
    making: Mutex<Option<Making>>,
}

/// The shared connection that is being made just now, for all who wait for it.
type Making = Shared<oneshot::Receiver<Result<Arc<Handle>>>>;

impl Connections {
    pub(super) fn new(server: Arc<dyn Server>, runtime: Arc<dyn Runtime>, settings: Settings) -> Self {
        Self {
            board: Arc::new(Board::new(settings.most_waiting)),
            runtime,
            server,
            settings,
            ids: AtomicU64::new(1),
            making: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// The shared connection. Where there is none, it is made, once for all who ask meanwhile.
    ///
    /// # Errors
    /// Why there is none: nothing was sent.
    pub(super) async fn shared(self: &Arc<Self>) -> Result<Arc<Handle>> {
        self.board.check_open()?;
        let making = {
            // One that was made is installed before this is empty again.
            let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(shared) = self.board.shared() {
                return Ok(shared);
            }
            making.get_or_insert_with(|| self.begin_making()).clone()
        };
        making.await.unwrap_or_else(|oneshot::Canceled| {
            // The task was dropped, and with it whoever would have taken this away.
            self.set_making(None);
            Err(shut_down())
        })
    }

    fn begin_making(self: &Arc<Self>) -> Making {
        let (send, receive) = oneshot::channel();
        let connections = self.clone();
        let making = async move {
            let made = connections.make(Kind::Shared).await;
            let made = made.and_then(|shared| connections.board.install(shared.clone()).map(|()| shared));
            connections.set_making(None);
            let _ = send.send(made);
        };
        self.runtime.spawn(making.boxed());
        receive.shared()
    }

    fn set_making(&self, making: Option<Making>) {
        *self.making.lock().unwrap_or_else(PoisonError::into_inner) = making;
    }

    /// A new connection, and its task. To be called in a task of the given runtime, since the driver spawns
    /// on the one that is current.
    pub(super) async fn make(self: &Arc<Self>, kind: Kind) -> Result<Arc<Handle>> {
        let (asked, limit) = (self.now(), self.settings.timeout);
        let mut spread = [0];
        self.runtime.fill_random(&mut spread);
        let connect = self.server.connect(spread[0]);
        let Either::Left((session, _)) = select(connect, self.runtime.sleep(limit)).await else {
            let at = &self.server.site().at;
            return Err(unavailable(format!(
                "{at} could not be connected to within {limit:?}"
            )));
        };
        let session = session.map_err(|failed| failed.error)?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (connection, handle) = Connection::new(self.clone(), session, kind, id, asked);
        self.runtime.spawn(connection.serve().boxed());
        Ok(handle)
    }
}
