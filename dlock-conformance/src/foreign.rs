//! A lock library that is not a `dlock` backend, as a subject. A lock, a try and an unlock are enough.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dlock_core::spi::{Acquire, LeaseKey};
use dlock_core::{
    Capabilities, Capability, Error, ErrorKind, FenceGate, LockName, LossReason, Nature, RequestId, Result,
    Runtime, Timestamp, Token,
};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, FutureExt, Shared, select};

use crate::lock::lock;
use crate::subject::{Ask, AutoRenewal, Granted, Held, Reply, Subject};

/// A lock library as its users know it, with an exclusive lock and little else.
///
/// Errors are those of [`ErrorKind`]: `Unavailable` if the operation had no effect, `Unknown` if that is not
/// known. An adapter adds no retry, no timeout and no check of its own, since the library is under test.
pub trait Library: Send + Sync + 'static {
    /// The guard of a holder. It is dropped where a user would drop it.
    type Guard: Send + 'static;

    /// Takes the lock if it is free now.
    fn try_lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Option<Self::Guard>>;

    /// Waits for the lock.
    fn lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Self::Guard>;

    /// Waits for the lock for at most that long. The inner result is `None` if it was not free in time.
    /// Returns `None`, the default, if the library has no such wait; otherwise claim
    /// [`Need::WaitLimit`](crate::Need::WaitLimit).
    fn lock_timeout<'a>(
        &'a self,
        _name: &'a LockName,
        _ttl: Duration,
        _limit: Duration,
    ) -> Option<Reply<'a, Option<Self::Guard>>> {
        None
    }

    /// Ends the hold. Returns whether it was still held, or `true` if the library does not say.
    fn unlock(&self, guard: Self::Guard) -> Reply<'_, bool>;

    /// Extends the hold to that long from now. Returns whether it was still held. Not supported unless the
    /// capabilities have [`Capability::Renew`].
    fn extend<'a>(&'a self, _guard: &'a mut Self::Guard, _ttl: Duration) -> Reply<'a, bool> {
        async { Err(unsupported("it extends no lock")) }.boxed()
    }

    /// The remaining time that the library reports right after a grant or an extension, if it reports one. A
    /// holder believes in the ttl, or in this time if it is shorter.
    fn validity(&self, _guard: &Self::Guard) -> Option<Duration> {
        None
    }

    /// The fencing token, where there are any.
    fn token(&self, _guard: &Self::Guard) -> Option<Token> {
        None
    }

    /// The resource that checks tokens, where there is one. Declare [`Capability::Gate`] as well.
    fn gate(&self) -> Option<&dyn FenceGate> {
        None
    }
}

fn unsupported(message: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

/// A [`Library`] as a [`Subject`].
///
/// It replaces missing features as a careful user of the library would. A wait ends at its limit by dropping
/// its future, unless there is [`Library::lock_timeout`]. A client is closed by dropping its guards. A holder
/// believes in its lock by the clock: from before the call for a try and an extension, and from the return
/// for a wait, since the time of the grant is not known, but never longer than the library reports. It
/// refuses what the capabilities do not declare.
///
/// Its claims start with [`Claims::foreign`](crate::Claims::foreign).
pub struct Foreign<L: Library> {
    library: Arc<L>,
    capabilities: Capabilities,
    runtime: Arc<dyn Runtime>,
    closing: Closing,
    closed: Shared<oneshot::Receiver<LossReason>>,
    held: Mutex<Vec<Weak<Slot<L>>>>,
}

/// Where the guard is until it is spent.
type Slot<L> = futures::lock::Mutex<Option<<L as Library>::Guard>>;

type Closing = Arc<Mutex<Option<oneshot::Sender<LossReason>>>>;

/// Names grants, over all clients of this process.
static GRANTS: AtomicU64 = AtomicU64::new(0);

impl<L: Library> Foreign<L> {
    /// One client of that library.
    pub fn new(library: L, capabilities: Capabilities, runtime: Arc<dyn Runtime>) -> Self {
        let (closing, closed) = oneshot::channel();
        Self {
            library: Arc::new(library),
            capabilities,
            runtime,
            closing: Arc::new(Mutex::new(Some(closing))),
            closed: closed.shared(),
            held: Mutex::default(),
        }
    }

    fn check(&self, name: &LockName, ask: &Ask) -> Result<()> {
        let mut request = Acquire::new(LeaseKey::new(name.clone(), RequestId::new(0, 0)), ask.ttl)
            .with_mode(ask.mode)
            .with_priority(ask.priority);
        request.owner.clone_from(&ask.label);
        self.capabilities.check(&request)?;
        let more = ask.auto_renew != AutoRenewal::Off
            || ask.max_hold.is_some()
            || ask.min_hold.is_some()
            || ask.reentrant.is_some();
        match more {
            true => Err(unsupported("the foreign lock offers only a lock with a ttl").with_name(name)),
            false => Ok(()),
        }
    }

    /// The answer of the library, unless the client is closed first.
    async fn unless_closed<T>(&self, asking: Reply<'_, T>) -> Result<T> {
        match select(self.closed.clone(), asking).await {
            Either::Left(_) => Err(Error::new(ErrorKind::Closed, "the client was closed")),
            Either::Right((answer, _)) => answer,
        }
    }

    fn held(&self, guard: L::Guard, name: &LockName, ask: &Ask, from: Timestamp) -> Box<dyn Held> {
        let ttl = match self.capabilities.nature {
            Nature::Lease => ask.ttl,
            // It is held until its session ends.
            _ => self.capabilities.max_ttl,
        };
        let (end, ended) = oneshot::channel();
        let deadline = deadline(&*self.library, &guard, from + ttl, self.runtime.now());
        let token = self.library.token(&guard);
        let guard = Arc::new(Slot::<L>::new(Some(guard)));
        let mut all = lock(&self.held);
        all.retain(|slot| slot.strong_count() > 0);
        all.push(Arc::downgrade(&guard));
        Box::new(Hold {
            id: format!(
                "{}-{}",
                std::process::id(),
                GRANTS.fetch_add(1, Ordering::Relaxed)
            ),
            name: name.clone(),
            token,
            library: Arc::clone(&self.library),
            guard,
            can_renew: self.capabilities.has(Capability::Renew),
            belief: Arc::new(Belief {
                runtime: Arc::clone(&self.runtime),
                ttl,
                deadline: Mutex::new(deadline),
                expired: AtomicBool::new(false),
                ended: ended.shared(),
                closed: self.closed.clone(),
                _closing: Arc::clone(&self.closing),
            }),
            end: Mutex::new(Some(end)),
        })
    }
}

impl<L: Library> fmt::Debug for Foreign<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").finish_non_exhaustive()
    }
}

impl<L: Library> Subject for Foreign<L> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        async move {
            self.check(name, ask)?;
            let asked = self.runtime.now();
            let guard = self.unless_closed(self.library.try_lock(name, ask.ttl)).await?;
            Ok(guard.map(|guard| self.held(guard, name, ask, asked)))
        }
        .boxed()
    }

    fn wait<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Option<Duration>) -> Granted<'a> {
        async move {
            self.check(name, ask)?;
            let lock = || self.unless_closed(self.library.lock(name, ask.ttl));
            let asking = limit.and_then(|limit| self.library.lock_timeout(name, ask.ttl, limit));
            let guard = match (asking, limit) {
                (Some(asking), _) => self.unless_closed(asking).await?,
                (None, Some(limit)) => match select(pin!(lock()), self.runtime.sleep(limit)).await {
                    Either::Left((answer, _)) => Some(answer?),
                    Either::Right(_) => None,
                },
                (None, None) => Some(lock().await?),
            };
            match guard {
                Some(guard) => Ok(self.held(guard, name, ask, self.runtime.now())),
                None => Err(Error::new(ErrorKind::Timeout, "it was not free in time").with_name(name)),
            }
        }
        .boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.library.gate()
    }

    fn close(&self) -> Reply<'_, ()> {
        if let Some(closing) = lock(&self.closing).take() {
            let _ = closing.send(LossReason::Closed);
        }
        let held = std::mem::take(&mut *lock(&self.held));
        for slot in held.iter().filter_map(Weak::upgrade) {
            // One that is being used ends with that.
            slot.try_lock().map(|mut guard| guard.take());
        }
        async { Ok(()) }.boxed()
    }
}

/// Until when a holder believes in a new guard: no longer than the library says.
fn deadline<L: Library>(library: &L, guard: &L::Guard, by_ttl: Timestamp, now: Timestamp) -> Timestamp {
    let told = library.validity(guard).map(|left| now + left);
    told.map_or(by_ttl, |told| told.min(by_ttl))
}

/// What a holder believes.
struct Belief {
    runtime: Arc<dyn Runtime>,
    ttl: Duration,
    deadline: Mutex<Timestamp>,
    /// It has passed its deadline once, and a later extension does not revive it.
    expired: AtomicBool,
    ended: Shared<oneshot::Receiver<LossReason>>,
    closed: Shared<oneshot::Receiver<LossReason>>,
    /// A client that is dropped is not closed.
    _closing: Closing,
}

impl Belief {
    fn remaining(&self) -> Duration {
        let left = lock(&self.deadline).since(self.runtime.now());
        if left.is_zero() {
            self.expired.store(true, Ordering::Release);
        }
        left
    }

    fn loss(&self) -> Option<LossReason> {
        let told = |by: &Shared<_>| by.clone().now_or_never();
        match told(&self.ended).or_else(|| told(&self.closed)) {
            Some(Ok(why)) => Some(why),
            _ => (self.remaining().is_zero() || self.expired.load(Ordering::Acquire))
                .then_some(LossReason::Expired),
        }
    }

    async fn lost(&self) -> LossReason {
        loop {
            if let Some(why) = self.loss() {
                return why;
            }
            // It is dropped with an answer: that is what ends it.
            let told = select(self.ended.clone(), self.closed.clone());
            let _ = select(told, self.runtime.sleep(self.remaining())).await;
        }
    }
}

struct Hold<L: Library> {
    id: String,
    name: LockName,
    token: Option<Token>,
    library: Arc<L>,
    guard: Arc<Slot<L>>,
    can_renew: bool,
    belief: Arc<Belief>,
    end: Mutex<Option<oneshot::Sender<LossReason>>>,
}

impl<L: Library> Hold<L> {
    fn ends(&self, why: LossReason) {
        if let Some(end) = lock(&self.end).take() {
            let _ = end.send(why);
        }
    }

    fn lost(&self, why: LossReason) -> Error {
        Error::lost(self.belief.loss().unwrap_or(why)).with_name(&self.name)
    }
}

impl<L: Library> Held for Hold<L> {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn token(&self) -> Option<Token> {
        self.token
    }

    fn ttl(&self) -> Duration {
        self.belief.ttl
    }

    fn deadline(&self) -> Timestamp {
        *lock(&self.belief.deadline)
    }

    fn remaining(&self) -> Duration {
        match self.belief.loss() {
            Some(_) => Duration::ZERO,
            None => self.belief.remaining(),
        }
    }

    fn is_valid(&self) -> bool {
        self.belief.loss().is_none()
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        let belief = Arc::clone(&self.belief);
        async move { belief.lost().await }.boxed()
    }

    fn loss(&self) -> Option<LossReason> {
        self.belief.loss()
    }

    fn renew(&self) -> Reply<'_, ()> {
        async move {
            if !self.can_renew {
                return Err(unsupported("it extends no lock").with_name(&self.name));
            }
            let mut slot = self.guard.lock().await;
            let Some(guard) = slot.as_mut() else {
                return Err(self.lost(LossReason::Released));
            };
            let asked = self.belief.runtime.now();
            if !self.library.extend(guard, self.belief.ttl).await? {
                self.ends(LossReason::Refused);
                return Err(self.lost(LossReason::Refused));
            }
            let now = self.belief.runtime.now();
            *lock(&self.belief.deadline) = deadline(&*self.library, guard, asked + self.belief.ttl, now);
            Ok(())
        }
        .boxed()
    }

    fn release(&self) -> Reply<'_, ()> {
        async move {
            let Some(guard) = self.guard.lock().await.take() else {
                return Err(self.lost(LossReason::Released));
            };
            let was_held = self.library.unlock(guard).await;
            let believed = self.belief.loss();
            self.ends(LossReason::Released);
            match was_held? {
                true => Ok(()),
                false => Err(Error::lost(believed.unwrap_or(LossReason::Refused)).with_name(&self.name)),
            }
        }
        .boxed()
    }
}

impl<L: Library> Drop for Hold<L> {
    fn drop(&mut self) {
        self.ends(LossReason::Released);
    }
}
