//! The messages between one client and the server.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::{mpsc, oneshot};
use futures::future::{BoxFuture, Either, FutureExt, Shared, select};

use super::faults::{FaultPlan, Partition};
use super::node::SimRuntime;
use super::rng::SimRng;
use super::trouble::{Trouble, Troubles, Way};
use super::world::{World, lock};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::spi::{Lock, Signal};
use crate::timestamp::Timestamp;

/// Ends for all waiters when its sender is dropped.
pub(super) type Ending = Shared<oneshot::Receiver<()>>;

/// One client's connection.
pub(super) struct Wire {
    pub(super) client: SimRuntime,
    pub(super) server: SimRuntime,
    /// The network itself: never stopped, on true time.
    network: SimRuntime,
    backend: Arc<dyn Lock>,
    state: Mutex<State>,
    /// Requests that were sent, replies that arrived.
    traffic: (AtomicU64, AtomicU64),
}

struct State {
    rng: SimRng,
    plan: FaultPlan,
    partition: Option<Partition>,
    /// Messages in flight do not arrive before this ends.
    hold: Option<(oneshot::Sender<()>, Ending)>,
    troubles: Troubles,
    /// Ends when the connection is cut. A new one is made at once; while `down`, nothing is sent.
    connection: (oneshot::Sender<()>, Ending),
    /// How many were cut before it: no reply comes over another one than its request went.
    cuts: u64,
    down: bool,
    closed: bool,
    /// Send time of an answered request on the client's clock, and the server's clock when it was executed.
    anchor: Option<(Timestamp, Timestamp)>,
    observers: Vec<mpsc::UnboundedSender<Signal>>,
}

/// What a call brings back.
pub(super) struct Reply<T> {
    pub(super) value: T,
    /// When the request was sent, on the client's clock: the `counted_from` of whatever is granted by it.
    pub(super) sent_at: Timestamp,
}

/// Whether a request may be delivered more than once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    Allowed,
    /// `convert` names no state to convert from, so an old copy that arrives late would undo a newer one. No
    /// backend delivers it twice.
    Never,
}

type Answer<T> = Arc<Mutex<Option<oneshot::Sender<(T, Timestamp)>>>>;
type Execute<T> = Arc<dyn Fn(Arc<dyn Lock>) -> BoxFuture<'static, T> + Send + Sync>;

pub(super) fn ending() -> (oneshot::Sender<()>, Ending) {
    let (sender, receiver) = oneshot::channel();
    (sender, receiver.shared())
}

/// An anchor older than this says too little about the drift since.
const ANCHOR_LIFE: Duration = Duration::from_secs(10);

impl Wire {
    pub(super) fn new(
        backend: Arc<dyn Lock>,
        client: &SimRuntime,
        server: &SimRuntime,
        plan: FaultPlan,
    ) -> Arc<Self> {
        let world = client.world();
        Arc::new(Self {
            client: client.clone(),
            server: server.clone(),
            network: SimRuntime::new(world, "network", Duration::ZERO, 0),
            backend,
            state: Mutex::new(State {
                rng: world.rng("link"),
                plan,
                partition: None,
                hold: None,
                troubles: Troubles::default(),
                connection: ending(),
                cuts: 0,
                down: false,
                closed: false,
                anchor: None,
                observers: Vec::new(),
            }),
            traffic: Default::default(),
        })
    }

    pub(super) fn world(&self) -> &Arc<World> {
        self.client.world()
    }

    pub(super) fn backend(&self) -> &Arc<dyn Lock> {
        &self.backend
    }

    /// Sends a request and waits for its reply. Once this is polled, the request is on its way, and dropping
    /// the future does not call it back.
    pub(super) async fn call<T, F>(
        self: &Arc<Self>,
        what: &'static str,
        repeat: Repeat,
        run: F,
    ) -> Result<Reply<T>>
    where
        T: Send + 'static,
        F: Fn(Arc<dyn Lock>) -> BoxFuture<'static, T> + Send + Sync + 'static,
    {
        let sent_at = self.client.now();
        let (reply, cut, bound) = self.send(what, repeat, Arc::new(run))?;
        let reply = async {
            match reply.await {
                Ok(reply) => reply,
                // Every copy of the request, or its reply, got lost. The client cannot know that.
                Err(oneshot::Canceled) => pending().await,
            }
        };
        let bound = async {
            match bound {
                Some(bound) => self.client.sleep(bound).await,
                None => pending().await,
            }
        };
        let why = match select(Box::pin(reply), select(cut, Box::pin(bound))).await {
            Either::Left(((value, executed_at), _)) => {
                self.remember_anchor(sent_at, executed_at);
                return Ok(Reply { value, sent_at });
            }
            Either::Right((Either::Left(_), _)) => "the connection broke before the reply",
            Either::Right((Either::Right(_), _)) => "no reply within the bound of a call",
        };
        self.world()
            .note(|| format!("{} {what}: {why}", self.client.node_name()));
        Err(Error::new(ErrorKind::Unknown, why))
    }

    #[allow(clippy::type_complexity)] // three things that are taken apart by the only caller
    fn send<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        repeat: Repeat,
        run: Execute<T>,
    ) -> Result<(oneshot::Receiver<(T, Timestamp)>, Ending, Option<Duration>)> {
        let (sender, reply) = oneshot::channel();
        let mut transits = Vec::new();
        let (cut, bound) = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(Error::new(ErrorKind::Closed, "the link is closed"));
            }
            if state.down {
                let cause = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                return Err(Error::new(ErrorKind::Unavailable, "the server is away").with_source(cause));
            }
            let State {
                rng, plan, troubles, ..
            } = &mut *state;
            let lost = rng.chance(plan.drop_request);
            let twice = rng.chance(plan.duplicate) && repeat == Repeat::Allowed;
            if !lost {
                transits.push(plan.transit(rng));
            }
            if twice {
                transits.push(plan.transit(rng));
            }
            if repeat == Repeat::Allowed
                && let Some(by) = troubles.duplicates()
            {
                let later = by.mul_f64(rng.below(1_000) as f64 / 1_000.0);
                transits.push(plan.transit(rng) + later);
            }
            let bound = (!rng.chance(plan.hang)).then_some(plan.call_bound);
            (state.connection.1.clone(), bound)
        };
        self.traffic.0.fetch_add(1, Ordering::Relaxed);
        self.world().record(what, transits.len() as u64);
        self.world().note(|| {
            format!(
                "{} {what}: sent {}x {transits:?}",
                self.client.node_name(),
                transits.len()
            )
        });
        let answer: Answer<T> = Arc::new(Mutex::new(Some(sender)));
        for transit in transits {
            let (wire, run, answer) = (self.clone(), run.clone(), answer.clone());
            self.network
                .spawn(async move { wire.deliver(what, transit, run, answer).await }.boxed());
        }
        Ok((reply, cut, bound))
    }

    /// Carries one copy of a request to the server.
    async fn deliver<T: Send + 'static>(
        self: Arc<Self>,
        what: &'static str,
        transit: Duration,
        run: Execute<T>,
        answer: Answer<T>,
    ) {
        let kept = lock(&self.state).troubles.keeps();
        if let Some(ending) = kept {
            self.break_off();
            let _ = ending.await;
        } else if !self.cross(transit, Way::Request).await {
            return;
        }
        // In a task of the server's, on its clock: it runs to its end whatever becomes of the caller.
        let server = self.server.clone();
        server.spawn(
            async move {
                let executed_at = self.server.now();
                self.world().record("execute", executed_at.as_nanos());
                self.world()
                    .note(|| format!("{} {what}: executed", self.client.node_name()));
                let value = run(self.backend.clone()).await;
                let network = self.network.clone();
                network.spawn(async move { self.answer(value, executed_at, answer).await }.boxed());
            }
            .boxed(),
        );
    }

    /// Carries a reply back. The first one to arrive is the one.
    async fn answer<T>(self: Arc<Self>, value: T, executed_at: Timestamp, answer: Answer<T>) {
        let swallowed = lock(&self.state).troubles.swallows();
        if swallowed {
            return self.break_off();
        }
        let cuts = lock(&self.state).cuts;
        let Some(transit) = self.roll(|plan| plan.drop_reply) else {
            return;
        };
        if self.cross(transit, Way::Reply).await
            && cuts == lock(&self.state).cuts
            && let Some(sender) = lock(&answer).take()
        {
            self.traffic.1.fetch_add(1, Ordering::Relaxed);
            // An error says that the caller is gone, which is its right.
            let _ = sender.send((value, executed_at));
        }
    }

    /// Carries a push to the client; `false` if it got lost.
    pub(super) async fn push(&self) -> bool {
        match self.roll(|plan| plan.drop_push) {
            Some(transit) => self.cross(transit, Way::Reply).await,
            None => false,
        }
    }

    /// Carries an item of an ordered stream, which is late in a partition but never lost.
    pub(super) async fn stream_item(&self) {
        let transit = self.roll(|_| 0.0).unwrap_or_default();
        self.network.sleep(transit).await;
        while lock(&self.state).partition.is_some_and(Partition::stops_replies) {
            self.network.sleep(Duration::from_millis(10)).await;
        }
        self.wait_while_held().await;
        self.wait_for_troubles(Way::Reply).await;
    }

    /// How long a message takes that is lost with such odds; `None` if it is.
    fn roll(&self, odds: impl FnOnce(&FaultPlan) -> f64) -> Option<Duration> {
        let mut state = lock(&self.state);
        let State { rng, plan, .. } = &mut *state;
        let lost = rng.chance(odds(plan));
        let transit = plan.transit(rng);
        (!lost).then_some(transit)
    }

    /// Whether a message gets through: not if the direction is a black hole when it sets out or when it would
    /// arrive.
    async fn cross(&self, transit: Duration, way: Way) -> bool {
        let open = || !lock(&self.state).partition.is_some_and(|p| way.is_stopped_by(p));
        if !open() {
            return false;
        }
        let delay = lock(&self.state).troubles.delay(way);
        self.network.sleep(transit + delay).await;
        self.wait_while_held().await;
        self.wait_for_troubles(way).await;
        open() && !lock(&self.state).troubles.loses(way)
    }

    async fn wait_while_held(&self) {
        loop {
            let Some(hold) = lock(&self.state).hold.as_ref().map(|(_, e)| e.clone()) else {
                return;
            };
            let _ = hold.await;
        }
    }

    async fn wait_for_troubles(&self, way: Way) {
        loop {
            let Some(ending) = lock(&self.state).troubles.holds(way) else {
                return;
            };
            let _ = ending.await;
        }
    }

    fn remember_anchor(&self, sent_at: Timestamp, executed_at: Timestamp) {
        let mut state = lock(&self.state);
        if state.anchor.is_none_or(|(sent, _)| sent <= sent_at) {
            state.anchor = Some((sent_at, executed_at));
        }
    }

    /// A time on the client's clock that is not after the server's clock showed the second one.
    pub(super) fn anchor(&self) -> Option<(Timestamp, Timestamp)> {
        let now = self.client.now();
        lock(&self.state)
            .anchor
            .filter(|(sent, _)| now.since(*sent) < ANCHOR_LIFE)
    }

    /// Ends when the connection of now is cut.
    pub(super) fn connection(&self) -> Ending {
        lock(&self.state).connection.1.clone()
    }

    pub(super) fn set_plan(&self, plan: FaultPlan) {
        lock(&self.state).plan = plan;
    }

    pub(super) fn set_partition(&self, partition: Option<Partition>) {
        self.world().record("partition", partition.is_some().into());
        self.world()
            .note(|| format!("{} partition: {partition:?}", self.client.node_name()));
        lock(&self.state).partition = partition;
    }

    pub(super) fn begin(&self, id: u64, trouble: Trouble, struck: Arc<AtomicU64>) {
        self.world().record("trouble", id);
        self.world()
            .note(|| format!("{} {trouble:?}", self.client.node_name()));
        lock(&self.state).troubles.begin(id, trouble, struck);
    }

    pub(super) fn end(&self, id: u64) {
        self.world().record("trouble over", id);
        let ended = lock(&self.state).troubles.end(id);
        drop(ended);
    }

    /// Requests that were sent, replies that arrived.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (
            self.traffic.0.load(Ordering::Relaxed),
            self.traffic.1.load(Ordering::Relaxed),
        )
    }

    /// The connection breaks, and a new one is made at once.
    fn break_off(&self) {
        self.cut();
        self.reconnect();
    }

    pub(super) fn hold(&self) {
        self.world().record("hold", 1);
        lock(&self.state).hold.get_or_insert_with(ending);
    }

    pub(super) fn let_go(&self) {
        self.world().record("hold", 0);
        // Dropped after the mutex is unlocked: dropping the sender wakes waiters.
        let held = lock(&self.state).hold.take();
        drop(held);
    }

    pub(super) fn cut(&self) {
        self.world().record("cut", 1);
        self.world().note(|| format!("{} cut", self.client.node_name()));
        let old = {
            let mut state = lock(&self.state);
            state.down = true;
            state.cuts += 1;
            state.anchor = None;
            std::mem::replace(&mut state.connection, ending())
        };
        drop(old);
        self.signal(&Signal::Doubt);
    }

    pub(super) fn reconnect(&self) {
        let was_down = std::mem::take(&mut lock(&self.state).down);
        if was_down {
            self.world().record("cut", 0);
            self.world().note(|| format!("{} back", self.client.node_name()));
            self.signal(&Signal::Back);
        }
    }

    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        // Streams end with their senders.
        let observers = std::mem::take(&mut state.observers);
        drop(state);
        drop(observers);
    }

    pub(super) fn signal(&self, signal: &Signal) {
        let observers = {
            let mut state = lock(&self.state);
            state.observers.retain(|o| !o.is_closed());
            state.observers.clone()
        };
        for observer in observers {
            let _ = observer.unbounded_send(signal.clone());
        }
    }

    pub(super) fn observe(&self) -> mpsc::UnboundedReceiver<Signal> {
        let (sender, receiver) = mpsc::unbounded();
        lock(&self.state).observers.push(sender);
        receiver
    }
}

impl FaultPlan {
    fn transit(&self, rng: &mut SimRng) -> Duration {
        let (slow, usual) = (rng.chance(self.slow), rng.duration(self.delay.clone()));
        if slow {
            rng.duration(self.slow_delay.clone())
        } else {
            usual
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Wire")
            .field("client", &self.client)
            .field("partition", &state.partition)
            .field("down", &state.down)
            .finish_non_exhaustive()
    }
}
