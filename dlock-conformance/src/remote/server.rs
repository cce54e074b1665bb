//! The server: the memory store, a socket, and switches for what can happen to it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::memory::{Sizes, Survives};
use dlock_core::spi::{Attempt, Lock, Wake, capabilities_of};
use dlock_core::{Capabilities, Error, ErrorKind, FenceGate, Memory, Result, Runtime};
use futures::channel::mpsc;
use futures::future::{AbortHandle, AbortRegistration, Abortable};
use futures::io::{AsyncReadExt, AsyncWriteExt};
use futures::stream;
use futures::{FutureExt, Stream, StreamExt};
use smol::Async;

use super::codec::{Wire, decode};
use super::frame::{Answer, Request, frame, kind, read_frame};
use crate::hooks::{Hooks, MemoryHooks, WallClock};
use crate::lock::lock;

/// So many changes are sent of which the client has not said that somebody took them. The others wait in the
/// store, which bounds them: sockets and the client's memory would not.
const WINDOW: usize = 32;

/// How often it tries to listen at its address again: a socket may take a moment to be closed.
const TRIES: u32 = 50;

/// A lock server on a port of this machine, on a thread of its own. It ends when this is dropped.
pub struct RemoteServer {
    address: SocketAddr,
    state: Arc<State>,
    hooks: MemoryHooks,
}

struct State {
    runtime: Arc<dyn Runtime>,
    wall: Arc<WallClock>,
    store: Memory,
    /// What is to be ended in a crash: the listener and the connections.
    tasks: Mutex<HashMap<u64, AbortHandle>>,
    /// Told with the end of each.
    ended: Condvar,
    next: AtomicU64,
    slow: Mutex<Duration>,
    /// How many of the next requests are dropped.
    drops: AtomicU64,
}

impl RemoteServer {
    /// Starts one, on a runtime on which nothing of the test's runs.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn start(runtime: Arc<dyn Runtime>) -> io::Result<Self> {
        let wall = Arc::new(WallClock::new(runtime.clone()));
        let clock = wall.clone();
        let store = Memory::builder(runtime.clone()).with_clock(Arc::new(move || clock.now()));
        let state = Arc::new(State {
            runtime,
            store: store.build(),
            wall,
            tasks: Mutex::default(),
            ended: Condvar::new(),
            next: AtomicU64::new(0),
            slow: Mutex::default(),
            drops: AtomicU64::new(0),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        state.listen(listener)?;
        let hooks = MemoryHooks::new(state.store.clone()).clock(state.wall.clone());
        let restarted = state.clone();
        Ok(Self {
            address,
            hooks: hooks.restarted(move |memory| restarted.clone().start_again(address, memory).boxed()),
            state,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its store claims, and that it goes by a clock that can be set.
    pub fn capabilities(&self) -> Capabilities {
        let mut capabilities = capabilities_of(&*self.state.store.connect());
        capabilities.clock_sensitive = true;
        capabilities
    }

    /// What its store keeps at the moment.
    pub fn sizes(&self) -> Sizes {
        self.state.store.sizes()
    }

    /// Stops it at once, as by a power cut. Its store keeps that; nobody listens until
    /// [`restart`](Self::restart).
    ///
    /// Blocks until its sockets are closed: not to be called on its own runtime.
    pub fn crash(&self, memory: Survives) {
        self.state.crash(memory);
    }

    /// Starts it again, at the same address.
    ///
    /// # Errors
    /// Those of the socket; it has one while it has not crashed.
    pub fn restart(&self) -> io::Result<()> {
        self.state.restart(self.address)
    }

    /// From now on, it thinks that long about each request before it carries it out.
    pub fn slow(&self, by: Duration) {
        *lock(&self.state.slow) = by;
    }

    /// The next requests, that many, are not carried out, and not answered either.
    pub fn drop_requests(&self, how_many: u64) {
        self.state.drops.store(how_many, Ordering::Relaxed);
    }

    /// Sets its clock: that far ahead of this machine's. It is an hour ahead at first.
    pub fn set_clock_ahead(&self, by: Duration) {
        self.state.wall.set_ahead(by);
    }

    /// What can be done to it, for the rules that need hands at a server. Its restart is to be polled on
    /// another runtime than its own: it blocks until the sockets are closed.
    pub fn hooks(&self) -> &dyn Hooks {
        &self.hooks
    }
}

impl Drop for RemoteServer {
    fn drop(&mut self) {
        self.state.abort_all();
    }
}

impl State {
    fn crash(&self, memory: Survives) {
        self.end_all();
        self.store.crash(memory);
    }

    fn restart(self: &Arc<Self>, address: SocketAddr) -> io::Result<()> {
        self.listen(TcpListener::bind(address)?)
    }

    async fn start_again(self: Arc<Self>, address: SocketAddr, memory: Survives) -> Result<()> {
        self.crash(memory);
        for n in 1.. {
            match self.restart(address) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && n < TRIES => {
                    smol::Timer::after(Duration::from_millis(10)).await;
                }
                Err(e) => {
                    let why = "the server cannot listen again";
                    return Err(Error::new(ErrorKind::Unavailable, why).with_source(e));
                }
                Ok(()) => break,
            }
        }
        Ok(())
    }

    fn abort_all(&self) {
        lock(&self.tasks).values().for_each(AbortHandle::abort);
    }

    /// Returns when all have ended, with their sockets closed: before that nobody else can listen at the
    /// address.
    fn end_all(&self) {
        let mut tasks = lock(&self.tasks);
        while !tasks.is_empty() {
            // Each time: the listener may have begun to serve somebody before it heard of its end.
            tasks.values().for_each(AbortHandle::abort);
            tasks = self.ended.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs it until the server crashes or ends.
    fn run(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let (abort, registration) = AbortHandle::new_pair();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.tasks).insert(number, abort);
        let state = self.clone();
        self.runtime.spawn(
            async move {
                // What it owns, its socket too, is dropped with this statement, and so before the end is
                // told.
                let _ = Abortable::new(task, registration).await;
                lock(&state.tasks).remove(&number);
                state.ended.notify_all();
            }
            .boxed(),
        );
    }

    fn listen(self: &Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let listener = Async::new(listener)?;
        let state = self.clone();
        self.run(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let serving = state.clone().serve(socket);
                state.run(serving);
            }
        });
        Ok(())
    }

    /// One client's connection.
    async fn serve(self: Arc<Self>, socket: Async<TcpStream>) {
        if socket.get_ref().set_nodelay(true).is_err() {
            return;
        }
        let (mut reader, mut writer) = socket.split();
        let (out, mut frames) = mpsc::unbounded::<Vec<u8>>();
        let link = self.store.connect();
        let peer = Arc::new(Peer {
            out,
            streams: Mutex::default(),
            takers: Mutex::default(),
        });
        let write = async move {
            while let Some(bytes) = frames.next().await {
                if writer.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        let read = async move {
            while let Ok(frame) = read_frame(&mut reader).await {
                let taken = self
                    .drops
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                if taken.is_ok() {
                    continue;
                }
                let Some(request) = decode::<Request>(&frame.body) else {
                    return;
                };
                let (state, link, peer) = (self.clone(), link.clone(), peer.clone());
                // In the order in which they came: the word that it is not wanted any more may be carried out
                // before the watch.
                let entered = matches!(request, Request::Watch(_)).then(|| peer.enter(frame.number));
                // In a task of its own: it is carried out whatever becomes of the connection.
                self.runtime.spawn(
                    async move {
                        let slow = *lock(&state.slow);
                        if !slow.is_zero() {
                            state.runtime.sleep(slow).await;
                        }
                        peer.carry_out(&state, &*link, frame.number, request, entered)
                            .await;
                    }
                    .boxed(),
                );
            }
        };
        futures::pin_mut!(write, read);
        futures::future::select(write, read).await;
    }
}

/// One client, as the server sees it.
struct Peer {
    out: mpsc::UnboundedSender<Vec<u8>>,
    /// What is told to it without being asked, by the number of the request that began it.
    streams: Mutex<HashMap<u64, AbortHandle>>,
    /// For each watch, how the client's word that it has taken a change reaches the task that sends them.
    takers: Mutex<HashMap<u64, mpsc::UnboundedSender<()>>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        lock(&self.streams).values().for_each(AbortHandle::abort);
    }
}

impl Peer {
    /// To a connection that has gone meanwhile, nothing is said.
    fn say(&self, number: u64, what: u8, body: &impl Wire) {
        let _ = self.out.unbounded_send(frame(number, what, body));
    }

    async fn carry_out(
        &self,
        state: &State,
        store: &dyn Lock,
        number: u64,
        request: Request,
        entered: Option<AbortRegistration>,
    ) {
        macro_rules! answer {
            ($value:expr) => {
                self.say(number, kind::REPLY, &$value)
            };
        }
        /// What a part of the store answers, if it has that part.
        macro_rules! of {
            ($part:expr, |$name:ident| $call:expr) => {
                match $part {
                    Some($name) => $call.await,
                    None => Err(lacking()),
                }
            };
        }
        match request {
            Request::Attempt(acquire) => {
                let mut pushes = None;
                let answer = store.attempt(&acquire).await.and_then(|attempt| match attempt {
                    Attempt::Granted(grant) => Ok(Answer::Granted(grant)),
                    Attempt::Queued(wait) => {
                        if let Wake::Push(stream) = wait.wake {
                            pushes = Some(stream);
                        }
                        Ok(Answer::Queued(wait.recheck_in, wait.ahead))
                    }
                    Attempt::Held(wait) => Ok(Answer::Held(wait.recheck_in, wait.ahead)),
                    _ => Err(lacking()),
                });
                answer!(answer);
                if let Some(pushes) = pushes {
                    self.forward(state, number, kind::PUSH, pushes.map(drop), self.enter(number));
                }
            }
            Request::Release(key, how) => answer!(store.release(&key, how).await),
            Request::Abandon(keys) => answer!(Result::Ok(store.abandon(&keys).await)),
            Request::Renew(items) => answer!(match store.renew() {
                Some(part) => Ok(part.renew(&items).await),
                None => Err(lacking()),
            }),
            Request::Convert(key, to) => answer!(of!(store.rwlock(), |part| part.convert(&key, to))),
            Request::Raise(key, token) => answer!(of!(store.fencing(), |part| part.raise(&key, token))),
            Request::Admit(name, token, access) => {
                answer!(of!(gate(store), |gate| gate.admit(&name, token, access)))
            }
            Request::Write(name, token, value) => {
                answer!(of!(gate(store), |gate| gate.write(&name, token, &value.0)))
            }
            Request::Read(name) => answer!(of!(gate(store), |gate| gate.read(&name))),
            Request::Watch(name) => {
                let watching = match store.watch() {
                    Some(part) => part.watch(&name).await,
                    None => Err(lacking()),
                };
                match watching {
                    Ok(changes) => {
                        answer!(Ok(()));
                        let (taker, taken) = mpsc::unbounded();
                        lock(&self.takers).insert(number, taker);
                        let Some(entered) = entered.filter(|entered| !entered.handle().is_aborted()) else {
                            lock(&self.takers).remove(&number);
                            return;
                        };
                        let window = stream::repeat(()).take(WINDOW).chain(taken);
                        let changes = window.zip(changes).map(|((), change)| change);
                        self.forward(state, number, kind::CHANGE, changes, entered);
                    }
                    Err(error) => answer!(Result::<()>::Err(error)),
                }
            }
            Request::Unwatch(watch) => {
                let stream = lock(&self.streams).remove(&watch);
                stream.iter().for_each(AbortHandle::abort);
                lock(&self.takers).remove(&watch);
                answer!(Result::Ok(()));
            }
            Request::Taken(watch) => {
                if let Some(taker) = lock(&self.takers).get(&watch) {
                    let _ = taker.unbounded_send(());
                }
            }
            Request::Inspect(name) => answer!(of!(store.watch(), |part| part.inspect(&name))),
            Request::ForceRelease(name) => answer!(of!(store.watch(), |part| part.force_release(&name))),
        }
    }

    /// From here on the stream of that number can be ended.
    fn enter(&self, number: u64) -> AbortRegistration {
        let (abort, registration) = AbortHandle::new_pair();
        let mut streams = lock(&self.streams);
        streams.retain(|_, stream| !stream.is_aborted());
        streams.insert(number, abort);
        registration
    }

    /// Sends what a stream gives, until it ends or the connection does.
    fn forward<T: Wire + Send>(
        &self,
        state: &State,
        number: u64,
        what: u8,
        stream: impl Stream<Item = T> + Send + 'static,
        entered: AbortRegistration,
    ) {
        let out = self.out.clone();
        let forward = async move {
            futures::pin_mut!(stream);
            while let Some(item) = stream.next().await {
                if out.unbounded_send(frame(number, what, &item)).is_err() {
                    return;
                }
            }
            let _ = out.unbounded_send(frame(number, kind::END, &()));
        };
        let forward = Abortable::new(forward, entered).map(drop);
        state.runtime.spawn(forward.boxed());
    }
}

fn gate(store: &dyn Lock) -> Option<&dyn FenceGate> {
    store.fencing()?.gate()
}

fn lacking() -> Error {
    Error::new(ErrorKind::Unsupported, "the store does not offer that")
}

impl fmt::Debug for RemoteServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
