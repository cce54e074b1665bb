//! The connections of one client: the shared one, which is made when it is needed, and those that wait.
//!
//! They are made with the options of the caller's pool, and are not of the pool: so locks do not use up a
//! small pool, and nothing that the pool does with its connections (closing the idle ones, handing them on
//! with whatever they hold) happens to a session that holds a lock.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use dlock_core::{Result, Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::board::{Board, Making};
use super::config::Config;
use super::dialect::Server;
use super::failure::{runtime_ended, unavailable};
use super::handle::Handle;

/// What the calls and the connections of one client share.
pub(super) struct Connections {
    pub(super) board: Arc<Board>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) server: Arc<dyn Server>,
    pub(super) config: Config,
    pub(super) ids: AtomicU64,
}

impl Connections {
    pub(super) fn new(server: Arc<dyn Server>, runtime: Arc<dyn Runtime>, config: Config) -> Self {
        Self {
            board: Arc::new(Board::new(config.most_waiting)),
            runtime,
            server,
            config,
            ids: AtomicU64::new(1),
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
        let making = self.board.shared(|| self.begin_making())?;
        making
            .await
            .unwrap_or_else(|oneshot::Canceled| Err(runtime_ended()))
    }

    fn begin_making(self: &Arc<Self>) -> Making {
        let client = self.clone();
        let making = async move {
            let made = client.make(true).await;
            if made.is_ok() {
                client.board.back();
            }
            made
        };
        in_task(&self.runtime, making).shared()
    }
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

/// Connects in a task of the given runtime, since the driver spawns on the one that is current.
pub(super) fn in_task<T: Send + 'static>(
    runtime: &Arc<dyn Runtime>,
    connecting: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (send, receive) = oneshot::channel();
    runtime.spawn(connecting.map(|connected| drop(send.send(connected))).boxed());
    receive
}
