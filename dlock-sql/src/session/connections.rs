//! The connections of one client: the shared one, which is made when it is needed, and those that wait.
//!
//! They are made with the options of the caller's pool, and are not of the pool: so a small pool is not used
//! up by locks, and nothing that the pool does with its connections (closing the idle ones, handing them on
//! with whatever they hold) happens to a session that holds a lock. There are one and as many as wait or were
//! let in after a wait, up to a limit; who finds none waits by asking once a second on the shared one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::spi::{LeaseKey, Push};
use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};

use super::board::{Board, Cancel, Seat, Step};
use super::connection::{Connection, Handle, Job, Kind, Timing};
use super::dialect::Server;
use super::keys::Key;

/// What the calls of one client share. With the last of it its connections end.
pub(super) struct Connections {
    pub(super) board: Arc<Board>,
    pub(super) runtime: Arc<dyn Runtime>,
    server: Arc<dyn Server>,
    timing: Timing,
    ids: AtomicU64,
    making: Mutex<Option<Making>>,
}

/// The shared connection that is being made just now, for all who wait for it.
type Making = Shared<oneshot::Receiver<Result<Arc<Handle>>>>;

impl Connections {
    /// Makes the shared connection, to see whether that can be done.
    pub(super) async fn open(
        server: Arc<dyn Server>,
        runtime: Arc<dyn Runtime>,
        timing: Timing,
        most_waiting: usize,
    ) -> Result<Arc<Self>> {
        let connections = Arc::new(Self {
            board: Arc::new(Board::new(most_waiting)),
            runtime,
            server,
            timing,
            ids: AtomicU64::new(1),
            making: Mutex::default(),
        });
        connections.shared().await?;
        Ok(connections)
    }

    pub(super) fn at(&self) -> &str {
        self.server.at()
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
        if let Some(shared) = self.board.shared() {
            return Ok(shared);
        }
        let making = {
            let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            // Between the look and the lock it may have been made.
            if let Some(shared) = self.board.shared() {
                return Ok(shared);
            }
            making.get_or_insert_with(|| self.begin_making()).clone()
        };
        match making.await {
            Ok(made) => made,
            Err(oneshot::Canceled) => {
                // The task was dropped, and with it whoever would have taken this away.
                *self.making.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Err(Error::new(
                    ErrorKind::Unavailable,
                    "the runtime that was given has been shut down",
                ))
            }
        }
    }

    fn begin_making(self: &Arc<Self>) -> Making {
        let (send, receive) = oneshot::channel();
        let connections = self.clone();
        let making = async move {
            let made = connections.make(Kind::Shared).await;
            let made = made.and_then(|shared| connections.board.install(shared.clone()).map(|()| shared));
            *connections.making.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let _ = send.send(made);
        };
        self.runtime.spawn(making.boxed());
        receive.shared()
    }

    /// A new connection, and its task. In a task of the given runtime, since the driver spawns on the one
    /// that is current.
    async fn make(&self, kind: Kind) -> Result<Arc<Handle>> {
        let asked = self.now();
        let mut spread = [0];
        self.runtime.fill_random(&mut spread);
        let connect = self.server.connect(spread[0]);
        let wire = match select(connect, self.runtime.sleep(self.timing.timeout)).await {
            Either::Left((wire, _)) => wire?,
            Either::Right(_) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} could not be connected to within {:?}",
                        self.at(),
                        self.timing.timeout
                    ),
                ));
            }
        };
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (board, runtime) = (self.board.clone(), self.runtime.clone());
        let (connection, handle) = Connection::new(wire, kind, id, asked, board, runtime, self.timing);
        self.runtime.spawn(connection.serve().boxed());
        Ok(handle)
    }

    /// Tells when it pays to ask again. It begins to wait when it is first polled: who only tries leaves
    /// nothing behind.
    pub(super) fn turn(
        self: &Arc<Self>,
        key: Key,
        lease: LeaseKey,
        expects: bool,
    ) -> BoxStream<'static, Push> {
        let connections = self.clone();
        let turn = async move {
            let (board, runtime) = (connections.board.clone(), connections.runtime.clone());
            let _seat = Seat::new(board, runtime, key, lease.clone());
            loop {
                let rung = match connections.board.step(&key, &lease, expects, connections.now()) {
                    Step::Ready => return Some(Push::Changed),
                    // The stream ends, and the engine asks again after a pause that grows.
                    Step::Failed => return None,
                    Step::Contend(connection, cancel) => {
                        connections.contend(connection, key, &lease, cancel);
                        continue;
                    }
                    Step::Stay(rung) => rung,
                    Step::Starved(rung) => {
                        rung.await;
                        return Some(Push::Changed);
                    }
                };
                rung.await;
            }
        };
        stream::once(turn).filter_map(|push| async { push }).boxed()
    }

    /// Waits on that connection or on a new one, in a task of its own: whoever wanted it may go away at any
    /// moment.
    fn contend(
        self: &Arc<Self>,
        connection: Option<Arc<Handle>>,
        key: Key,
        lease: &LeaseKey,
        cancel: Arc<Cancel>,
    ) {
        if let Some(connection) = connection {
            return self.wait_on(connection, key, lease, cancel);
        }
        let (connections, lease) = (self.clone(), lease.clone());
        let contending = async move {
            match connections.make(Kind::Waiting).await {
                Ok(connection) => {
                    connections.board.contends_on(&key, &lease, connection.id);
                    connections.wait_on(connection, key, &lease, cancel);
                }
                Err(e) => {
                    connections.board.not_made();
                    connections.board.withdrawn(&key, &lease, Some(e));
                }
            }
        };
        self.runtime.spawn(contending.boxed());
    }

    fn wait_on(&self, connection: Arc<Handle>, key: Key, lease: &LeaseKey, cancel: Arc<Cancel>) {
        let job = Job::Wait {
            key,
            lease: lease.clone(),
            cancel,
            connection: connection.clone(),
        };
        if connection.send(job).is_err() {
            // It has just ended. Where the table knows that already, it knows what to tell as well.
            let ended = Error::new(ErrorKind::Unavailable, "the connection to wait on has ended");
            self.board.withdrawn(&key, lease, Some(ended));
        }
    }
}

/// The connections end, each when it has done what it was asked. Blocks for nothing.
impl Drop for Connections {
    fn drop(&mut self) {
        self.board.close();
    }
}
