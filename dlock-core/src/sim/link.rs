//! A backend behind a faulty network.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};

use super::faults::{FaultPlan, Partition};
use super::node::SimRuntime;
use super::streams::{forward_changes, forward_pushes, push_channel};
use super::trouble::Trouble;
use super::wire::{Repeat, Reply, Wire};
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Access, Admission, FenceGate, FencedValue};
use crate::inspection::{Change, Inspection};
use crate::mode::Mode;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::{
    Abandoned, Acquire, Attempt, Converted, Fencing, LeaseKey, Lock, News, Page, Probe, Queueing, Raised,
    Release, Released, Renew, RenewItem, RenewOutcome, RwLock, Signal, Wake, Watch, capabilities_of,
};
use crate::timestamp::Timestamp;
use crate::token::{Strength, Token};

/// A backend as one client sees it over a network that delays, loses, repeats, reorders and holds back
/// messages.
///
/// Every call is a request and a reply. A request that was sent is executed by the server even if its future
/// is dropped. The answer's [`counted_from`](crate::spi::Grant::counted_from) is the send time on the
/// *client's* clock; that of a pushed grant is derived from the last answered request, as a networked driver
/// has to do it.
///
/// The backend behind it must run on the server's clock, so its own `counted_from` is a time of the server's.
pub struct Link {
    wire: Arc<Wire>,
    capabilities: Capabilities,
    pushes: bool,
}

impl Link {
    /// The backend on `server` as `client` sees it.
    pub fn new(
        backend: Arc<dyn Lock>,
        client: &SimRuntime,
        server: &SimRuntime,
        plan: FaultPlan,
    ) -> Arc<Self> {
        Self::between(backend, client, server, plan, true)
    }

    /// The same for a store that does not push: waiters look every 2 to 40 ms.
    pub fn polled(
        backend: Arc<dyn Lock>,
        client: &SimRuntime,
        server: &SimRuntime,
        plan: FaultPlan,
    ) -> Arc<Self> {
        Self::between(backend, client, server, plan, false)
    }

    fn between(
        backend: Arc<dyn Lock>,
        client: &SimRuntime,
        server: &SimRuntime,
        plan: FaultPlan,
        pushes: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            capabilities: capabilities_of(&*backend),
            wire: Wire::new(backend, client, server, plan),
            pushes,
        })
    }

    /// Sets the odds from now on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.wire.set_plan(plan);
    }

    /// Makes the link a black hole. Neither side notices.
    pub fn partition(&self, which: Partition) {
        self.wire.set_partition(Some(which));
    }

    /// Ends a partition.
    pub fn heal(&self) {
        self.wire.set_partition(None);
    }

    /// Holds back every message in flight, and those that are sent from now on.
    pub fn hold(&self) {
        self.wire.hold();
    }

    /// Delivers the messages that were held back.
    pub fn let_go(&self) {
        self.wire.let_go();
    }

    /// Breaks the connection: calls in flight end with `Unknown`, streams end, [`Signal::Doubt`] is raised,
    /// and until [`reconnect`](Self::reconnect) calls answer `Unavailable` without being sent. Requests on
    /// their way still arrive.
    pub fn cut(&self) {
        self.wire.cut();
    }

    /// Ends a cut, with [`Signal::Back`].
    pub fn reconnect(&self) {
        self.wire.reconnect();
    }

    /// Begins a trouble, until it [ends](Self::end). `struck` counts the messages that it hits. The caller
    /// chooses a number that names it.
    pub fn begin(&self, number: u64, trouble: Trouble, struck: Arc<AtomicU64>) {
        self.wire.begin(number, trouble, struck);
    }

    /// Ends the trouble of that number.
    pub fn end(&self, number: u64) {
        self.wire.end(number);
    }

    /// How many requests were sent so far, and how many replies have arrived.
    pub fn traffic(&self) -> (u64, u64) {
        self.wire.traffic()
    }
}

/// One execution of a request at the server.
type Run<T> = BoxFuture<'static, Result<T>>;

/// The part was there when this link handed out its own; capabilities are constant for the life of a backend.
const PART: &str = "the backend took a part back";

#[async_trait]
impl Lock for Link {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.wire.backend().renew().map(|_| self as _)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.wire.backend().rwlock().map(|_| self as _)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.wire.backend().fencing().map(|_| self as _)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        self.wire.backend().watch().map(|_| self as _)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let own = self.wire.observe();
        futures::stream::select(own, self.wire.backend().signals()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let (request, name) = (request.clone(), request.key.name.clone());
        let sent_at = crate::Runtime::now(&self.wire.client);
        // A refusal without queueing leaves nothing to undo, so nothing would refuse a later copy: a driver
        // must not resend such a request.
        let repeat = match request.queue {
            Queueing::No => Repeat::Never,
            Queueing::Join => Repeat::Allowed,
        };
        // Made before the request is sent: a push may overtake the reply.
        let (pushes, stream) = push_channel(&self.wire, sent_at);
        let reply = self
            .wire
            .call("attempt", repeat, {
                let wire = self.wire.clone();
                move |backend| {
                    let (request, wire, pushes) = (request.clone(), wire.clone(), pushes.clone());
                    Box::pin(async move {
                        let mut answer = backend.attempt(&request).await?;
                        if let Attempt::Queued(wait) | Attempt::Held(wait) = &mut answer
                            && let Wake::Push(stream) = &mut wait.wake
                        {
                            let stream = std::mem::replace(stream, futures::stream::pending().boxed());
                            forward_pushes(&wire, stream, pushes);
                        }
                        Ok::<_, Error>(answer)
                    })
                }
            })
            .await?;
        let mut answer = reply.value?;
        match &mut answer {
            Attempt::Granted(grant) => {
                grant.counted_from = reply.sent_at;
                let token = grant.token.map_or(0, Token::get);
                self.wire.world().record("grant", token);
            }
            Attempt::Queued(wait) | Attempt::Held(wait) => match &mut wait.wake {
                Wake::Push(_) if !self.pushes => {
                    let (wire, seen) = (self.wire.clone(), Mutex::default());
                    wait.wake = Wake::Poll {
                        probe: Arc::new(HolderProbe { wire, name, seen }),
                        min: Duration::from_millis(2),
                        max: Duration::from_millis(40),
                    };
                }
                Wake::Push(nothing) => *nothing = stream,
                Wake::Poll { probe, .. } => {
                    let (wire, inner) = (self.wire.clone(), probe.clone());
                    *probe = Arc::new(RemoteProbe { wire, inner });
                }
            },
        }
        Ok(answer)
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let lease = lease.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Released> {
            let lease = lease.clone();
            Box::pin(async move { backend.release(&lease, how).await })
        };
        self.wire.call("release", Repeat::Allowed, run).await?.value
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let keys: Arc<[LeaseKey]> = requests.into();
        let answer = self
            .wire
            .call("abandon", Repeat::Allowed, move |backend| {
                let keys = keys.clone();
                Box::pin(async move { backend.abandon(&keys).await })
            })
            .await;
        match answer {
            Ok(reply) => reply.value,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Closes this end. The server notices nothing, as a lease store does not: what was sent is still
    /// executed.
    async fn close(&self) -> Result<()> {
        self.wire.close();
        Ok(())
    }
}

#[async_trait]
impl Renew for Link {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let sent: Arc<[RenewItem]> = items.into();
        let answer = self
            .wire
            .call("renew", Repeat::Allowed, move |backend| {
                let items = sent.clone();
                Box::pin(async move { backend.renew().expect(PART).renew(&items).await })
            })
            .await;
        match answer {
            Ok(Reply { mut value, sent_at }) => {
                value.iter_mut().for_each(|outcome| count_from(outcome, sent_at));
                value
            }
            Err(error) => items
                .iter()
                .map(|_| RenewOutcome::Failed(error.clone()))
                .collect(),
        }
    }
}

fn count_from(outcome: &mut RenewOutcome, sent_at: Timestamp) {
    match outcome {
        RenewOutcome::Renewed(renewal) => renewal.counted_from = sent_at,
        RenewOutcome::Granted(grant) => grant.counted_from = sent_at,
        RenewOutcome::Queued { .. } | RenewOutcome::Gone | RenewOutcome::Failed(_) => {}
    }
}

#[async_trait]
impl RwLock for Link {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let lease = lease.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Converted> {
            let lease = lease.clone();
            Box::pin(async move { backend.rwlock().expect(PART).convert(&lease, to).await })
        };
        let reply = self.wire.call("convert", Repeat::Never, run).await?;
        let mut converted = reply.value?;
        if let Converted::Done(grant) = &mut converted {
            grant.counted_from = reply.sent_at;
        }
        Ok(converted)
    }
}

#[async_trait]
impl Fencing for Link {
    fn strength(&self) -> Strength {
        self.wire.backend().fencing().expect(PART).strength()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.wire.backend().fencing()?.gate().map(|_| self as _)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let lease = lease.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Raised> {
            let lease = lease.clone();
            Box::pin(async move { backend.fencing().expect(PART).raise(&lease, to).await })
        };
        self.wire.call("raise", Repeat::Allowed, run).await?.value
    }
}

fn gate_of(backend: &dyn Lock) -> &dyn FenceGate {
    backend.fencing().and_then(|f| f.gate()).expect(PART)
}

#[async_trait]
impl FenceGate for Link {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        let resource = resource.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Admission> {
            let resource = resource.clone();
            Box::pin(async move { gate_of(&*backend).admit(&resource, token, access).await })
        };
        self.wire.call("admit", Repeat::Allowed, run).await?.value
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let (resource, value): (_, Arc<[u8]>) = (resource.clone(), value.into());
        let run = move |backend: Arc<dyn Lock>| -> Run<Admission> {
            let (resource, value) = (resource.clone(), value.clone());
            Box::pin(async move { gate_of(&*backend).write(&resource, token, &value).await })
        };
        self.wire.call("write", Repeat::Never, run).await?.value
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        let resource = resource.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Option<FencedValue>> {
            let resource = resource.clone();
            Box::pin(async move { gate_of(&*backend).read(&resource).await })
        };
        self.wire.call("read", Repeat::Allowed, run).await?.value
    }
}

#[async_trait]
impl Watch for Link {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        let name = name.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<BoxStream<'static, Result<Change>>> {
            let name = name.clone();
            Box::pin(async move { backend.watch().expect(PART).watch(&name).await })
        };
        let stream = self.wire.call("watch", Repeat::Never, run).await?.value?;
        Ok(forward_changes(&self.wire, stream))
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        let name = name.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Inspection> {
            let name = name.clone();
            Box::pin(async move { backend.watch().expect(PART).inspect(&name).await })
        };
        self.wire.call("inspect", Repeat::Allowed, run).await?.value
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        let name = name.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<u32> {
            let name = name.clone();
            Box::pin(async move { backend.watch().expect(PART).force_release(&name).await })
        };
        // A second delivery would end the successor's lease.
        self.wire.call("force_release", Repeat::Never, run).await?.value
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let (prefix, from) = (prefix.to_vec(), from.map(<[u8]>::to_vec));
        let run = move |backend: Arc<dyn Lock>| -> Run<Page> {
            let (prefix, from) = (prefix.clone(), from.clone());
            Box::pin(async move { backend.watch().expect(PART).list(&prefix, from.as_deref()).await })
        };
        self.wire.call("list", Repeat::Allowed, run).await?.value
    }
}

/// The cheap question, asked over the network.
struct RemoteProbe {
    wire: Arc<Wire>,
    inner: Arc<dyn Probe>,
}

#[async_trait]
impl Probe for RemoteProbe {
    async fn look(&self) -> Result<News> {
        let probe = self.inner.clone();
        let run = move |_: Arc<dyn Lock>| -> Run<News> {
            let probe = probe.clone();
            Box::pin(async move { probe.look().await })
        };
        // A lost reply may have reported the change: then the answer is "perhaps".
        match self.wire.call("probe", Repeat::Never, run).await {
            Ok(reply) => reply.value,
            Err(e) if e.kind() == ErrorKind::Unknown => Ok(News::Changed),
            Err(e) => Err::<News, Error>(e),
        }
    }
}

/// For a store that does not push, and can be asked cheaply for its holders, as SQLite is.
struct HolderProbe {
    wire: Arc<Wire>,
    name: LockName,
    seen: Mutex<Vec<RequestId>>,
}

#[async_trait]
impl Probe for HolderProbe {
    async fn look(&self) -> Result<News> {
        let name = self.name.clone();
        let run = move |backend: Arc<dyn Lock>| -> Run<Inspection> {
            let name = name.clone();
            Box::pin(async move { backend.watch().expect(PART).inspect(&name).await })
        };
        let found = self.wire.call("probe", Repeat::Allowed, run).await?.value?;
        let holders: Vec<_> = found.holders.iter().map(|holder| holder.id).collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same = holders == std::mem::replace(&mut *seen, holders.clone());
        Ok(match holders {
            // A lease has expired, and no waiter was admitted.
            none if none.is_empty() => News::Changed,
            _ if same => News::Nothing,
            holders => News::Admitted(holders),
        })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("wire", &self.wire)
            .finish_non_exhaustive()
    }
}
