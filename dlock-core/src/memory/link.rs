use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::channel::mpsc;
use futures::stream::{BoxStream, StreamExt};

use super::gate::MemoryGate;
use super::shared::{Anchor, Listener, Shared, State};
use super::table::{Effects, foreign};
use super::watch::Changes;
use crate::capabilities::{Capabilities, Capability};
use crate::error::{Error, ErrorKind, Result};
use crate::gate::FenceGate;
use crate::inspection::{Change, Inspection};
use crate::mode::Mode;
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::spi::admission::Asked;
use crate::spi::{
    Abandoned, Acquire, Attempt, Converted, Fencing, Grant, LeaseKey, Lock, News, Probe, Push, Queueing,
    Raised, Release, Released, Renew, RenewItem, RenewKind, RenewOutcome, RwLock, Signal, Wake, Watch,
};
use crate::timestamp::Timestamp;
use crate::token::{Strength, Token};

/// One client's connection to a [`Memory`](super::Memory) store.
///
/// Each call reads the client's clock first, then takes the store's mutex once. No call ever waits for
/// anything else, so dropping its future has no effect: it has either not begun or is done.
pub struct MemoryLink {
    pub(super) shared: Arc<Shared>,
    pub(super) runtime: Arc<dyn Runtime>,
    /// Whether the clock of the runtime is the store's: then it is read once per call.
    same_clock: bool,
    pub(super) id: u64,
    pub(super) closed: Arc<AtomicBool>,
    gate: MemoryGate,
}

impl MemoryLink {
    pub(super) fn new(shared: Arc<Shared>, runtime: Arc<dyn Runtime>) -> Self {
        let closed = Arc::new(AtomicBool::new(false));
        Self {
            same_clock: shared.same_clock(&runtime),
            id: shared.next_link(),
            gate: MemoryGate::new(shared.clone(), closed.clone()),
            shared,
            runtime,
            closed,
        }
    }

    /// The fence gate, with its check-and-write closure.
    pub fn memory_gate(&self) -> &MemoryGate {
        &self.gate
    }

    /// The client's time before the store is asked, and the same as the store's time if there is only one
    /// clock.
    pub(super) fn sent(&self) -> (Timestamp, Option<Timestamp>) {
        let sent = self.runtime.now();
        (sent, self.same_clock.then_some(sent))
    }

    /// Runs one call of the store, with the client's time of before.
    fn call<R>(&self, call: impl FnOnce(&mut State, Timestamp, &mut Effects) -> R) -> R {
        let (sent, known) = self.sent();
        self.shared
            .run(known, |state, effects| call(state, sent, effects))
    }

    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the link to the store is closed"));
        }
        Ok(())
    }

    fn has(&self, capability: Capability) -> bool {
        self.shared.caps.has(capability)
    }

    fn need(&self, capability: Capability) -> Result<()> {
        if self.has(capability) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("this store does not declare {capability:?}"),
        ))
    }

    /// Everything that can be wrong with a request, before anything is touched.
    fn check(&self, request: &Acquire) -> Result<()> {
        self.open()?;
        self.shared.caps.check(request)?;
        match request.queue == Queueing::Join && request.queue_ttl.is_zero() {
            true => Err(invalid("a queue entry needs a ttl")),
            false => Ok(()),
        }
    }

    /// Without the token, if this store is to have none.
    fn shown(&self, mut grant: Grant) -> Grant {
        if !self.has(Capability::Fencing) {
            grant.token = None;
        }
        grant
    }

    /// Enters a listener before the answer leaves: no grant falls between the two.
    pub(super) fn listen(
        &self,
        state: &mut State,
        key: &LeaseKey,
        sent: Timestamp,
        now: Timestamp,
    ) -> BoxStream<'static, Push> {
        let (sender, receiver) = mpsc::unbounded();
        let listeners = state.waiters.entry(key.clone()).or_default();
        // A copy of the request whose reply was lost must not end the stream of the one that was answered.
        listeners.retain(|l| !l.sender.is_closed());
        listeners.push(Listener {
            link: self.id,
            sender,
            anchor: self.anchor(sent, now),
        });
        receiver.boxed()
    }

    fn anchor(&self, sent: Timestamp, now: Timestamp) -> Anchor {
        if self.same_clock {
            Anchor::Same
        } else {
            Anchor::Pair(sent, now)
        }
    }

    /// One attempt, in one step of the store.
    pub(super) fn ask(&self, request: &Acquire) -> Result<Attempt> {
        self.check(request)?;
        self.call(|state, sent, effects| {
            Ok(match state.table.attempt(request, effects)? {
                Asked::Granted(lease) => Attempt::Granted(self.shown(lease.grant(request.key.clone(), sent))),
                Asked::Queued(place) => {
                    let pushes = self.listen(state, &request.key, sent, effects.now);
                    Attempt::Queued(place.wait(Wake::Push(pushes)))
                }
                Asked::Held(place) => {
                    let seen = state.table.fingerprint(&request.key.name, effects);
                    Attempt::Held(place.wait(self.probe(request, seen.unwrap_or(0))))
                }
            })
        })
    }

    fn probe(&self, request: &Acquire, seen: u64) -> Wake {
        let probe = NameProbe {
            shared: self.shared.clone(),
            name: request.key.name.clone(),
            seen: AtomicU64::new(seen),
        };
        Wake::Poll {
            probe: Arc::new(probe),
            min: Duration::from_millis(1),
            max: Duration::from_secs(1),
        }
    }

    fn renew_one(&self, item: &RenewItem) -> RenewOutcome {
        let checked = self.open().and_then(|()| match item.kind {
            RenewKind::Lease => self.shared.caps.check_ttl(item.ttl),
            RenewKind::Queued if item.ttl.is_zero() => Err(invalid("a queue entry needs a ttl")),
            RenewKind::Queued => Ok(()),
        });
        if let Err(error) = checked {
            return RenewOutcome::Failed(error.with_name(&item.key.name));
        }
        self.call(|state, sent, effects| {
            let outcome = state.table.renew(sent, item, effects);
            match outcome {
                RenewOutcome::Granted(grant) => RenewOutcome::Granted(self.shown(grant)),
                RenewOutcome::Queued { .. } => {
                    for listener in state.waiters.get_mut(&item.key).into_iter().flatten() {
                        listener.anchor = self.anchor(sent, effects.now);
                    }
                    outcome
                }
                _ => outcome,
            }
        })
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

#[async_trait]
impl Lock for MemoryLink {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.caps
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.has(Capability::Renew).then_some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        let any = [Capability::Downgrade, Capability::Upgrade];
        any.into_iter().any(|c| self.has(c)).then_some(self)
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
        let mut state = self.shared.lock();
        state.signals.retain(|s| !s.is_closed());
        state.signals.push(sender);
        receiver.boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.ask(request)
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.open()?;
        if let Release::KeepFor(rest) = how {
            self.need(Capability::MinimumHold)?;
            if rest > self.shared.caps.max_ttl {
                return Err(invalid("the minimum hold is longer than the largest ttl").with_name(&lease.name));
            }
        }
        Ok(self.call(|state, _, effects| state.table.release(lease, how, effects)))
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let abandon = |key: &LeaseKey| {
            self.open()?;
            let mut abandoned = self.call(|state, _, effects| state.table.abandon(key, effects));
            if let Abandoned::WasGranted(token) = &mut abandoned {
                *token = token.filter(|_| self.shared.caps.has(Capability::Fencing));
            }
            Ok(abandoned)
        };
        requests.iter().map(abandon).collect()
    }

    async fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (ended, wakers) = {
            let mut state = self.shared.lock();
            let mut ended = Vec::new();
            state.waiters.retain(|_, listeners| {
                ended.extend(listeners.extract_if(.., |l| l.link == self.id));
                !listeners.is_empty()
            });
            let mine = state
                .watchers
                .values_mut()
                .flatten()
                .filter(|w| w.link == self.id);
            let wakers: Vec<_> = mine.filter_map(|w| w.waker.take()).collect();
            (ended, wakers)
        };
        // Outside the mutex: a waker may run code that calls the store.
        drop(ended);
        wakers.into_iter().for_each(std::task::Waker::wake);
        Ok(())
    }
}

#[async_trait]
impl RwLock for MemoryLink {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        self.open()?;
        self.shared.caps.check_mode(to)?;
        self.need(if to.is_exclusive() {
            Capability::Upgrade
        } else {
            Capability::Downgrade
        })?;
        self.call(|state, sent, effects| {
            Ok(match state.table.convert(sent, lease, to, effects)? {
                Converted::Done(grant) => Converted::Done(self.shown(grant)),
                not_done => not_done,
            })
        })
    }
}

#[async_trait]
impl Fencing for MemoryLink {
    fn strength(&self) -> Strength {
        self.shared.caps.strength.unwrap_or(Strength::WhileStateSurvives)
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.shared
            .caps
            .has(Capability::Gate)
            .then_some(&self.gate as &dyn FenceGate)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        self.open()?;
        self.need(Capability::Raise)?;
        self.call(|state, _, effects| state.table.raise(lease, to, effects))
    }
}

#[async_trait]
impl Watch for MemoryLink {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.open()?;
        self.need(Capability::Watch)?;
        self.shared.caps.check_name(name)?;
        let (shared, runtime, closed) = (self.shared.clone(), self.runtime.clone(), self.closed.clone());
        Ok(Changes::new(shared, runtime, closed, self.id, name.clone()).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.open()?;
        self.need(Capability::Inspect)?;
        self.shared.caps.check_name(name)?;
        self.call(|state, _, effects| {
            if state.table.spoiled(name).is_some() {
                return Err(foreign(name));
            }
            Ok(state.table.inspect(name, effects))
        })
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.open()?;
        self.need(Capability::ForceRelease)?;
        self.shared.caps.check_name(name)?;
        Ok(self.call(|state, _, effects| state.table.force_release(name, effects)))
    }
}

#[async_trait]
impl Renew for MemoryLink {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        items.iter().map(|item| self.renew_one(item)).collect()
    }
}

impl fmt::Debug for MemoryLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLink")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Whether the holders of a name have changed since it was last asked.
struct NameProbe {
    shared: Arc<Shared>,
    name: LockName,
    seen: AtomicU64,
}

#[async_trait]
impl Probe for NameProbe {
    async fn look(&self) -> Result<News> {
        let holders = self.shared.run(None, |state, effects| {
            state.table.fingerprint(&self.name, effects)
        });
        Ok(match holders {
            Some(holders) if self.seen.swap(holders, Ordering::AcqRel) == holders => News::Nothing,
            // A free name, for one: there is always something to ask for.
            _ => News::Changed,
        })
    }
}
