//! What clients do in rules that keep no history: enough to draw it when such a rule fails, and to say which
//! call hangs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Capabilities, Election, FenceGate, LockName, LossReason, Result, Timestamp, Token, spi};
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};

use super::event::{Event, EventKind, Op};
use super::lane::{Lane, Recorded};
use super::recorder::History;
use crate::forward::forward;
use crate::lock::lock;
use crate::subject::{Ask, AutoRenewal, Convert, Granted, Held, Observe, Reply, Subject};

/// A client whose calls are written down. It asks its guards nothing by itself: a look at a guard may be what
/// a rule is about.
pub(crate) struct Traced {
    client: Arc<dyn Subject>,
    trace: History,
    /// Those of earlier calls. One that nobody else has is free.
    lanes: Mutex<Vec<Arc<Lane>>>,
}

impl Traced {
    pub(crate) fn new(client: Arc<dyn Subject>, trace: History) -> Self {
        Self {
            client,
            trace,
            lanes: Mutex::default(),
        }
    }

    fn lane(&self) -> Arc<Lane> {
        let mut lanes = lock(&self.lanes);
        if let Some(free) = lanes.iter().find(|lane| Arc::strong_count(lane) == 1) {
            return Arc::clone(free);
        }
        let lane = Arc::new(Lane::new(self.trace.clone(), Arc::clone(&self.client)));
        lanes.push(Arc::clone(&lane));
        lane
    }

    /// The call of the client is made before the future is first polled, as without this.
    fn acquiring<'a>(
        &self,
        op: Op,
        name: &'a LockName,
        ask: &'a Ask,
        call: impl Future<Output = Result<Option<Box<dyn Held>>>> + Send + 'a,
    ) -> Reply<'a, Option<Box<dyn Held>>> {
        let lane = self.lane();
        async move {
            let Some(held) = lane.asking(op, name, ask, call).await? else {
                return Ok(None);
            };
            if ask.auto_renew != AutoRenewal::Off {
                lane.point(EventKind::GrantedBeliefUntil, &held, Some(Duration::MAX));
            }
            let ended = AtomicBool::new(false);
            let held: Box<dyn Held> = Box::new(TracedHeld {
                held: Some(held),
                lane,
                ended,
            });
            Ok(Some(held))
        }
        .boxed()
    }
}

impl Subject for Traced {
    forward! {
        self => self.client;
        fn capabilities(&self) -> Capabilities;
        fn gate(&self) -> Option<&dyn FenceGate>;
        fn observe(&self) -> Option<&dyn Observe>;
        fn close(&self) -> Reply<'_, ()>;
        fn backend(&self) -> Option<&Arc<dyn spi::Lock>>;
        fn election(&self, name: &LockName, ask: &Ask) -> Option<Result<Election>>;
        fn in_namespace(&self, namespace: &str) -> Option<Result<Arc<dyn Subject>>>;
        fn printed(&self) -> Option<String>;
        fn vanish(&self) -> bool;
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        self.acquiring(Op::Try, name, ask, self.client.try_acquire(name, ask))
    }

    fn wait<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Option<Duration>) -> Granted<'a> {
        let call = self.client.wait(name, ask, limit).map_ok(Some);
        let granted = |held: Option<_>| held.expect("a wait that answers Ok answers a guard");
        let answer = self.acquiring(Op::Acquire, name, ask, call);
        answer.map_ok(granted).boxed()
    }
}

struct TracedHeld {
    /// Until it is dropped.
    held: Option<Recorded>,
    lane: Arc<Lane>,
    /// Its end was asked for.
    ended: AtomicBool,
}

impl TracedHeld {
    fn held(&self) -> &Recorded {
        self.held.as_ref().expect("it is not dropped")
    }
}

impl Held for TracedHeld {
    forward! {
        self => self.held();
        fn id(&self) -> String;
        fn token(&self) -> Option<Token>;
        fn ttl(&self) -> Duration;
        fn deadline(&self) -> Timestamp;
        fn remaining(&self) -> Duration;
        fn is_valid(&self) -> bool;
        fn loss(&self) -> Option<LossReason>;
        fn convert(&self) -> Option<&dyn Convert>;
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        let (told, lost) = (
            self.lane.event_of(EventKind::Lost, self.held()),
            self.held().lost(),
        );
        let trace = self.lane.history.clone();
        async move {
            let why = lost.await;
            trace.record(Event {
                note: Some(format!("{why:?}")),
                ..told
            });
            why
        }
        .boxed()
    }

    fn renew(&self) -> Reply<'_, ()> {
        self.lane
            .answering(Op::Renew, self.held(), self.held().renew())
            .boxed()
    }

    fn release(&self) -> Reply<'_, ()> {
        self.ended.store(true, Ordering::Relaxed);
        self.lane
            .answering(Op::Release, self.held(), self.held().release())
            .boxed()
    }
}

impl Drop for TracedHeld {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        match self.ended.load(Ordering::Relaxed) {
            true => drop(held),
            false => self.lane.drop_guard(held),
        }
    }
}
