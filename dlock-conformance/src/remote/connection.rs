//! One connection of a client: the calls that wait for their replies, and two tasks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dlock_core::spi::Push;
use dlock_core::{Change, Error, ErrorKind, Result, Runtime};
use futures::channel::{mpsc, oneshot};
use futures::io::{AsyncReadExt, AsyncWriteExt};
use futures::{FutureExt, StreamExt};
use smol::net::TcpStream;

use super::codec::decode;
use super::frame::{Request, frame, kind, read_frame};
use crate::lock::lock;

/// Bounded by the server, which sends no more than a window of changes ahead of what was taken.
type Changes = mpsc::UnboundedSender<Result<Change>>;

/// What the server says without being asked, and who hears it.
pub(super) enum Listener {
    Pushes(mpsc::UnboundedSender<Push>),
    Changes(Changes),
}

#[derive(Default)]
struct Pending {
    broken: bool,
    calls: HashMap<u64, oneshot::Sender<Vec<u8>>>,
    listeners: HashMap<u64, Listener>,
}

pub(super) struct Connection {
    out: mpsc::UnboundedSender<Vec<u8>>,
    pending: Mutex<Pending>,
    next: AtomicU64,
}

impl Connection {
    /// Starts its tasks. `broken` is called once, when it has ended.
    pub(super) fn start(
        socket: TcpStream,
        runtime: &dyn Runtime,
        broken: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Arc<Self> {
        let (out, mut frames) = mpsc::unbounded::<Vec<u8>>();
        let connection = Arc::new(Self {
            out,
            pending: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let (mut reader, mut writer) = socket.split();
        runtime.spawn(
            async move {
                while let Some(bytes) = frames.next().await {
                    if writer.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
                // Closed from this side: the reader hears of it from the server.
                let _ = writer.close().await;
            }
            .boxed(),
        );
        let own = connection.clone();
        runtime.spawn(
            async move {
                while let Ok(frame) = read_frame(&mut reader).await {
                    own.arrived(frame.number, frame.kind, frame.body);
                }
                own.end();
                broken(&own);
            }
            .boxed(),
        );
        connection
    }

    /// Puts a request on its way. What listens is entered before: a push may overtake the reply.
    ///
    /// Fails only if nothing was sent.
    pub(super) fn send(
        &self,
        request: &Request,
        listener: Option<Listener>,
    ) -> Result<(u64, oneshot::Receiver<Vec<u8>>)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        let mut pending = lock(&self.pending);
        if pending.broken {
            return Err(broken());
        }
        pending.calls.insert(number, sender);
        pending.listeners.extend(listener.map(|l| (number, l)));
        // Under the lock, so that no end comes between. A writer that has gone makes the reader end, which
        // answers this call.
        let _ = self.out.unbounded_send(frame(number, kind::REQUEST, request));
        Ok((number, reply))
    }

    /// Puts something on its way that has no reply. To a broken connection nothing is said.
    pub(super) fn tell(&self, request: &Request) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let _ = self.out.unbounded_send(frame(number, kind::REQUEST, request));
    }

    /// Nobody listens to what that request entered.
    pub(super) fn forget(&self, number: u64) {
        let gone = lock(&self.pending).listeners.remove(&number);
        drop(gone);
    }

    fn arrived(&self, number: u64, what: u8, body: Vec<u8>) {
        let mut pending = lock(&self.pending);
        match what {
            kind::REPLY => {
                let call = pending.calls.remove(&number);
                drop(pending);
                // Somebody who has gone is told nothing.
                let _ = call.map(|call| call.send(body));
            }
            kind::PUSH | kind::CHANGE => {
                let heard = match pending.listeners.get(&number) {
                    Some(Listener::Pushes(to)) => to.unbounded_send(Push::Changed).is_ok(),
                    Some(Listener::Changes(to)) => {
                        let change = decode(&body).unwrap_or_else(|| Err(strange()));
                        to.unbounded_send(change).is_ok()
                    }
                    None => true,
                };
                if !heard {
                    pending.listeners.remove(&number);
                }
            }
            _ => {
                let ended = pending.listeners.remove(&number);
                drop(pending);
                drop(ended);
            }
        }
    }

    /// Calls end without a reply, streams of pushes end, streams of changes end with an error.
    fn end(&self) {
        let pending = std::mem::replace(
            &mut *lock(&self.pending),
            Pending {
                broken: true,
                ..Pending::default()
            },
        );
        for listener in pending.listeners.into_values() {
            if let Listener::Changes(to) = listener {
                let _ = to.unbounded_send(Err(broken()));
            }
        }
    }

    /// Ends it from this side.
    pub(super) fn close(&self) {
        self.end();
        self.out.close_channel();
    }

    pub(super) fn is_broken(&self) -> bool {
        lock(&self.pending).broken
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to the server broke")
}

pub(super) fn strange() -> Error {
    Error::new(
        ErrorKind::BackendData,
        "the server said something that this client does not understand",
    )
}
