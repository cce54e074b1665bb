//! The driver.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Fencing, LeaseKey, Lock, Raised, Release, Released, Renew,
    RenewItem, RenewOutcome, RwLock, Signal, Wait, Wake, Watch,
};
use dlock_core::{
    Access, Admission, Capabilities, Capability, Change, Error, ErrorKind, FenceGate, FencedValue,
    Inspection, LockName, Mode, Result, Runtime, Strength, Timestamp, Token,
};
use futures::StreamExt;
use futures::channel::{mpsc, oneshot};
use futures::stream::BoxStream;
use smol::net::TcpStream;

use super::codec::{Bytes, Wire, decode};
use super::connection::{Connection, Listener, strange};
use super::frame::{Answer, Request};
use crate::lock::lock;

/// A client of a [`RemoteServer`](super::RemoteServer). Connects with its first call.
pub struct RemoteLock {
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    runtime: Arc<dyn Runtime>,
    connection: Mutex<Option<Arc<Connection>>>,
    /// One call connects, the others wait for it.
    connecting: futures::lock::Mutex<()>,
    /// It has been connected before.
    known: AtomicBool,
    closed: AtomicBool,
    observers: Mutex<Vec<mpsc::UnboundedSender<Signal>>>,
}

/// A reply, and when its request was sent.
struct Reply<T> {
    value: T,
    sent_at: Timestamp,
    number: u64,
    connection: Arc<Connection>,
}

impl RemoteLock {
    /// A client of the server at that address, of which the capabilities are known.
    pub fn new(address: SocketAddr, capabilities: Capabilities, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            capabilities,
            shared: Arc::new(Shared {
                address,
                runtime,
                connection: Mutex::default(),
                connecting: futures::lock::Mutex::default(),
                known: AtomicBool::new(false),
                closed: AtomicBool::new(false),
                observers: Mutex::default(),
            }),
        }
    }

    async fn call<T: Wire>(&self, request: Request, listener: Option<Listener>) -> Result<Reply<T>> {
        let connection = self.shared.connected().await?;
        let sent_at = self.shared.runtime.now();
        let (number, reply) = connection.send(&request, listener)?;
        let value = self.heard(reply).await?;
        Ok(Reply {
            value,
            sent_at,
            number,
            connection,
        })
    }

    async fn heard<T: Wire>(&self, reply: oneshot::Receiver<Vec<u8>>) -> Result<T> {
        let Ok(body) = reply.await else {
            let (kind, why) = match self.shared.closed.load(Ordering::Acquire) {
                true => (ErrorKind::Closed, "the client was closed before the reply"),
                false => (ErrorKind::Unknown, "the connection broke before the reply"),
            };
            return Err(Error::new(kind, why));
        };
        decode::<Result<T>>(&body).unwrap_or_else(|| Err(strange()))
    }

    async fn ask<T: Wire>(&self, request: Request) -> Result<T> {
        self.call(request, None).await.map(|reply| reply.value)
    }

    fn has(&self, capability: Capability) -> bool {
        self.capabilities.has(capability)
    }
}

impl Shared {
    fn current(&self) -> Result<Option<Arc<Connection>>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the client is closed"));
        }
        Ok(lock(&self.connection).clone().filter(|c| !c.is_broken()))
    }

    /// The connection of now, or a new one.
    async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>> {
        if let Some(connection) = self.current()? {
            return Ok(connection);
        }
        let _alone = self.connecting.lock().await;
        if let Some(connection) = self.current()? {
            return Ok(connection);
        }
        let away = |e| Error::new(ErrorKind::Unavailable, "the server cannot be reached").with_source(e);
        let socket = TcpStream::connect(self.address).await.map_err(away)?;
        socket.set_nodelay(true).map_err(away)?;
        let shared: Weak<Self> = Arc::downgrade(self);
        let connection = Connection::start(socket, &*self.runtime, move |_| {
            if let Some(shared) = shared.upgrade() {
                shared.tell(&Signal::Doubt);
            }
        });
        *lock(&self.connection) = Some(connection.clone());
        // Closed meanwhile: whoever closed it has not seen this one.
        if self.closed.load(Ordering::Acquire) {
            connection.close();
            return Err(Error::new(ErrorKind::Closed, "the client is closed"));
        }
        if self.known.swap(true, Ordering::AcqRel) {
            self.tell(&Signal::Back);
        }
        Ok(connection)
    }

    fn tell(&self, signal: &Signal) {
        lock(&self.observers).retain(|o| o.unbounded_send(signal.clone()).is_ok());
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let connection = lock(&self.connection).take();
        if let Some(connection) = connection {
            connection.close();
        }
        lock(&self.observers).clear();
    }
}

impl Drop for RemoteLock {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[async_trait]
impl Lock for RemoteLock {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.has(Capability::Renew).then_some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.has(Capability::Downgrade).then_some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.has(Capability::Fencing).then_some(self)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        let any = [Capability::Watch, Capability::Inspect, Capability::ForceRelease];
        any.into_iter().any(|c| self.has(c)).then_some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let (sender, receiver) = mpsc::unbounded();
        lock(&self.shared.observers).push(sender);
        receiver.boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let (sender, pushes) = mpsc::unbounded();
        let listener = Some(Listener::Pushes(sender));
        let reply = self
            .call::<Answer>(Request::Attempt(request.clone()), listener)
            .await?;
        let (wake, recheck_in, ahead, queued) = match reply.value {
            Answer::Granted(mut grant) => {
                reply.connection.forget(reply.number);
                grant.counted_from = reply.sent_at;
                return Ok(Attempt::Granted(grant));
            }
            // A push says only that it pays to ask: a grant that is pushed has no request of its own from
            // whose sending its life could be counted, the answer to the question has.
            Answer::Queued(recheck_in, ahead) => (Wake::Push(pushes.boxed()), recheck_in, ahead, true),
            Answer::Held(recheck_in, ahead) => {
                reply.connection.forget(reply.number);
                let wake = Wake::poll_in_full(Duration::from_millis(2), Duration::from_millis(200));
                (wake, recheck_in, ahead, false)
            }
        };
        let mut wait = Wait::new(wake);
        (wait.recheck_in, wait.ahead) = (recheck_in, ahead);
        Ok(match queued {
            true => Attempt::Queued(wait),
            false => Attempt::Held(wait),
        })
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.ask(Request::Release(lease.clone(), how)).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        match self.ask(Request::Abandon(requests.to_vec())).await {
            Ok(answers) => answers,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn close(&self) -> Result<()> {
        self.shared.close();
        Ok(())
    }
}

#[async_trait]
impl Renew for RemoteLock {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        match self
            .call::<Vec<RenewOutcome>>(Request::Renew(items.to_vec()), None)
            .await
        {
            Ok(mut reply) => {
                for outcome in &mut reply.value {
                    match outcome {
                        RenewOutcome::Renewed(renewal) => renewal.counted_from = reply.sent_at,
                        RenewOutcome::Granted(grant) => grant.counted_from = reply.sent_at,
                        _ => {}
                    }
                }
                reply.value
            }
            Err(error) => items
                .iter()
                .map(|_| RenewOutcome::Failed(error.clone()))
                .collect(),
        }
    }
}

#[async_trait]
impl RwLock for RemoteLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let mut reply = self.call(Request::Convert(lease.clone(), to), None).await?;
        if let Converted::Done(grant) = &mut reply.value {
            grant.counted_from = reply.sent_at;
        }
        Ok(reply.value)
    }
}

#[async_trait]
impl Fencing for RemoteLock {
    fn strength(&self) -> Strength {
        // The part is handed out only with tokens, and these have a strength.
        self.capabilities.strength.unwrap_or(Strength::WhileStateSurvives)
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.capabilities.has(Capability::Gate).then_some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        self.ask(Request::Raise(lease.clone(), to)).await
    }
}

#[async_trait]
impl FenceGate for RemoteLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.ask(Request::Admit(resource.clone(), token, access)).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let value = Bytes(value.to_vec());
        self.ask(Request::Write(resource.clone(), token, value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.ask(Request::Read(resource.clone())).await
    }
}

/// A watch that the server is to end when nobody wants it any more.
struct Watching {
    connection: Arc<Connection>,
    number: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.connection.forget(self.number);
        // A connection that is broken has ended it already.
        let _ = self.connection.send(&Request::Unwatch(self.number), None);
    }
}

#[async_trait]
impl Watch for RemoteLock {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        let (sender, changes) = mpsc::unbounded();
        let listener = Some(Listener::Changes(sender));
        let connection = self.shared.connected().await?;
        let (number, reply) = connection.send(&Request::Watch(name.clone()), listener)?;
        // Before the reply: a watch that is dropped while it is on its way is to be ended as well.
        let watching = Watching { connection, number };
        self.heard::<()>(reply).await?;
        let changes = changes.map(move |change| {
            watching.connection.tell(&Request::Taken(watching.number));
            change
        });
        Ok(changes.boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.ask(Request::Inspect(name.clone())).await
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.ask(Request::ForceRelease(name.clone())).await
    }
}

impl fmt::Debug for RemoteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteLock")
            .field("address", &self.shared.address)
            .finish_non_exhaustive()
    }
}
