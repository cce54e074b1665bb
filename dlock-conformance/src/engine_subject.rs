//! A `dlock` backend as a subject: through the engine, as its users use it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dlock_core::combinators::Namespaced;
use dlock_core::runtime::yield_now;
use dlock_core::spi::{self, LeaseKey, Release, Released};
use dlock_core::{
    AutoRenew, Capabilities, Capability, Change, Client, Election, Error, ErrorKind, FenceGate, Gate, Guard,
    Inspection, Lock, LockName, LockOptions, LossReason, Mode, Owner, ReadWrite, Result, Semaphore,
    Timestamp, Token, Upgrade,
};
use futures::channel::oneshot;
use futures::future::{BoxFuture, Either, Shared, select};
use futures::stream::BoxStream;
use futures::{FutureExt, TryStreamExt};

use crate::lock::lock;
use crate::subject::{Ask, AutoRenewal, Convert, Granted, Held, Observe, Reply, Subject, Upgraded};

/// A [`Client`] as a [`Subject`].
#[derive(Debug)]
pub struct EngineSubject {
    client: Client,
    owners: Mutex<HashMap<u32, Owner>>,
}

impl EngineSubject {
    /// That client. One per call of [`Harness::connect`](crate::Harness::connect), each with a connection of
    /// its own.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            owners: Mutex::default(),
        }
    }

    /// The client itself, for rules of the layer below.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn handle(&self, name: &LockName, ask: &Ask) -> Result<Handle> {
        let lock = match ask.mode {
            Mode::Shared { limit: Some(n) } => {
                let permits = self.client.semaphore(name, n.get())?;
                return Ok(Handle::Permits(permits.options(options(ask))?));
            }
            Mode::Shared { .. } => self.client.rwlock(name)?.read().clone(),
            _ => self.client.lock(name)?,
        };
        let lock = lock.options(options(ask))?;
        Ok(Handle::Lock(match ask.reentrant {
            Some(owner) => lock.reentrant(&self.owner(owner))?,
            None => lock,
        }))
    }

    fn hold<C: 'static>(&self, guard: Guard<C>, ask: &Ask, convert: Conversion<C>) -> Box<dyn Held> {
        let (renewals, released) = oneshot::channel();
        Box::new(Hold {
            client: self.client.clone(),
            held: guard.held(),
            key: LeaseKey::new(guard.name().clone(), guard.id()),
            is_reentrant: ask.reentrant.is_some(),
            unknown: AtomicBool::new(false),
            guard: Mutex::new(Some(Arc::new(guard))),
            renewals: Mutex::new(Some(renewals)),
            released: released.shared(),
            convert,
        })
    }

    fn owner(&self, number: u32) -> Owner {
        let mut owners = lock(&self.owners);
        let owner = owners.entry(number).or_insert_with(|| self.client.owner());
        owner.clone()
    }
}

fn options(ask: &Ask) -> LockOptions {
    let auto_renew = match ask.auto_renew {
        AutoRenewal::Off => AutoRenew::Off,
        AutoRenewal::On => AutoRenew::On,
        AutoRenewal::Every(every) => AutoRenew::Every(every),
    };
    let mut options = LockOptions::new()
        .ttl(ask.ttl)
        .priority(ask.priority)
        .auto_renew(auto_renew);
    if let Some(label) = &ask.label {
        options = options.owner_label(label.clone());
    }
    if let Some(limit) = ask.max_hold {
        options = options.max_hold(limit);
    }
    if let Some(least) = ask.min_hold {
        options = options.min_hold(least);
    }
    options
}

/// The two handles of the user API with the same three methods.
enum Handle {
    Lock(Lock),
    Permits(Semaphore),
}

/// The part of a hold that converts it, where it has one.
type Conversion<C> = fn(&Hold<C>) -> Option<&dyn Convert>;

/// A guard for rules, which can release twice. The types forbid that to users, but the store may see a second
/// release as a copy of a message. So the second one is sent to the store.
struct Hold<C = ReadWrite> {
    client: Client,
    /// `None` once it was released. Shared by the calls that are under way.
    guard: Mutex<Option<Arc<Guard<C>>>>,
    /// Dropped on release: a renewal in flight is cancelled, like a user's renewal whose future is dropped.
    /// Its message may still arrive.
    renewals: Mutex<Option<oneshot::Sender<()>>>,
    released: Shared<oneshot::Receiver<()>>,
    convert: Conversion<C>,
    held: dlock_core::Held,
    key: LeaseKey,
    /// Its lease has other guards: a second release of one of them must not reach the store.
    is_reentrant: bool,
    /// Whether the answer to the release was `Unknown`.
    unknown: AtomicBool,
}

impl<C> Hold<C> {
    fn guard(&self) -> Option<Arc<Guard<C>>> {
        self.slot().clone()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Guard<C>>>> {
        lock(&self.guard)
    }

    fn gone(&self) -> Error {
        Error::lost(self.held.loss().unwrap_or(LossReason::Released)).with_name(&self.key.name)
    }

    async fn release_once(&self, mut guard: Arc<Guard<C>>) -> Result<()> {
        // A cancelled renewal drops it at once. A conversion completes first, as its type requires.
        yield_now().await;
        let guard = loop {
            match Arc::try_unwrap(guard) {
                Ok(guard) => break guard,
                Err(shared) => guard = shared,
            }
            self.client.runtime().sleep(Duration::from_millis(1)).await;
        };
        let answer = guard.release().await;
        let unknown = answer.as_ref().is_err_and(Error::may_be_held);
        self.unknown.store(unknown, Ordering::Relaxed);
        answer
    }

    async fn release_again(&self) -> Result<()> {
        if self.is_reentrant {
            return Err(self.gone());
        }
        if crate::switch::on("double_release_frees_next") {
            return self.client.force_release(&self.key.name).await.map(|_| ());
        }
        let released = self.client.backend().release(&self.key, Release::Now);
        let answer = match select(released, self.client.runtime().sleep(AGAIN)).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(Error::new(ErrorKind::Unknown, "the store did not answer")),
        };
        match answer {
            Ok(Released::Released) if self.unknown.swap(false, Ordering::Relaxed) => Ok(()),
            Ok(_) => Err(self.gone()),
            Err(e) => Err(Error::new(ErrorKind::Unknown, "the release was not answered").with_source(e)),
        }
    }

    async fn renew_after_release(&self) -> Result<()> {
        if crate::switch::on("renew_recreates") {
            let taken = self.client.lock(&self.key.name)?.try_acquire().await?;
            std::mem::forget(taken.ok_or_else(|| self.gone())?);
            return Ok(());
        }
        Err(self.gone())
    }
}

/// How long a second release waits for its answer.
const AGAIN: Duration = Duration::from_secs(5);

impl Subject for EngineSubject {
    fn capabilities(&self) -> Capabilities {
        self.client.capabilities().clone()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        async move {
            Ok(match self.handle(name, ask)? {
                Handle::Lock(lock) => {
                    let guard = lock.try_acquire().await?;
                    guard.map(|guard| self.hold(guard, ask, |hold| Some(hold)))
                }
                Handle::Permits(permits) => {
                    let permit = permits.try_acquire().await?;
                    permit.map(|permit| self.hold(permit, ask, |_| None))
                }
            })
        }
        .boxed()
    }

    fn wait<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Option<Duration>) -> Granted<'a> {
        async move {
            let lock = |guard| self.hold(guard, ask, |hold: &Hold| Some(hold));
            let permit = |permit| self.hold(permit, ask, |_| None);
            Ok(match (self.handle(name, ask)?, limit) {
                (Handle::Lock(handle), None) => lock(handle.acquire().await?),
                (Handle::Lock(handle), Some(limit)) => lock(handle.acquire_timeout(limit).await?),
                (Handle::Permits(handle), None) => permit(handle.acquire().await?),
                (Handle::Permits(handle), Some(limit)) => permit(handle.acquire_timeout(limit).await?),
            })
        }
        .boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.client.gate().ok().map(Gate::as_dyn)
    }

    fn observe(&self) -> Option<&dyn Observe> {
        use Capability::{ForceRelease, Inspect, List, Watch};
        let caps = self.client.capabilities();
        let observes = [Watch, Inspect, ForceRelease, List].iter().any(|c| caps.has(*c));
        observes.then_some(self as _)
    }

    fn close(&self) -> Reply<'_, ()> {
        self.client.close().boxed()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        Some(self.client.backend())
    }

    fn election(&self, name: &LockName, ask: &Ask) -> Option<Result<Election>> {
        let election = self.client.election(name);
        Some(election.and_then(|election| election.options(options(ask))))
    }

    fn in_namespace(&self, namespace: &str) -> Option<Result<Arc<dyn Subject>>> {
        let inside = Namespaced::new(Arc::clone(self.client.backend()), namespace).and_then(|backend| {
            let builder = Client::builder(Arc::new(backend), Arc::clone(self.client.runtime()));
            Ok(Arc::new(Self::new(builder.build()?)) as Arc<dyn Subject>)
        });
        Some(inside)
    }

    fn printed(&self) -> Option<String> {
        Some(format!("{self:#?}"))
    }

    fn vanish(&self) -> bool {
        self.client.abort();
        true
    }
}

impl Observe for EngineSubject {
    fn watch<'a>(&'a self, name: &'a LockName) -> Reply<'a, BoxStream<'static, Result<Change>>> {
        self.client.watch(name).boxed()
    }

    fn inspect<'a>(&'a self, name: &'a LockName) -> Reply<'a, Inspection> {
        self.client.inspect(name).boxed()
    }

    fn force_release<'a>(&'a self, name: &'a LockName) -> Reply<'a, u32> {
        self.client.force_release(name).boxed()
    }

    fn list<'a>(&'a self, prefix: &'a [u8]) -> Reply<'a, Vec<LockName>> {
        async move { self.client.list(prefix)?.try_collect().await }.boxed()
    }
}

impl<C: 'static> Held for Hold<C> {
    fn id(&self) -> String {
        self.key.id.to_string()
    }

    fn token(&self) -> Option<Token> {
        self.held.token()
    }

    fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    fn deadline(&self) -> Timestamp {
        self.guard().map_or(Timestamp::ZERO, |guard| guard.deadline())
    }

    fn remaining(&self) -> Duration {
        self.guard().map_or(Duration::ZERO, |guard| guard.remaining())
    }

    fn is_valid(&self) -> bool {
        self.guard().is_some_and(|guard| guard.is_valid())
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        match self.guard() {
            Some(guard) => guard.lost().boxed(),
            None => self.held.lost().boxed(),
        }
    }

    fn loss(&self) -> Option<LossReason> {
        self.held.loss()
    }

    fn renew(&self) -> Reply<'_, ()> {
        async move {
            match self.guard() {
                Some(guard) => {
                    let renewal = pin!(guard.renew());
                    match select(renewal, self.released.clone()).await {
                        Either::Left((answer, _)) => answer,
                        Either::Right(_) => Err(self.gone()),
                    }
                }
                None => self.renew_after_release().await,
            }
        }
        .boxed()
    }

    fn release(&self) -> Reply<'_, ()> {
        async move {
            let guard = self.slot().take();
            drop(lock(&self.renewals).take());
            match guard {
                Some(guard) => self.release_once(guard).await,
                None => self.release_again().await,
            }
        }
        .boxed()
    }

    fn convert(&self) -> Option<&dyn Convert> {
        (self.convert)(self)
    }
}

impl Convert for Hold {
    fn downgrade(&self) -> Reply<'_, ()> {
        async move { self.guard().ok_or_else(|| self.gone())?.downgrade().await }.boxed()
    }

    fn try_upgrade(&self) -> Reply<'_, Upgraded> {
        async move {
            let guard = self.guard().ok_or_else(|| self.gone())?;
            Ok(match guard.try_upgrade().await? {
                Upgrade::Done => Upgraded::Done,
                Upgrade::WouldDeadlock => Upgraded::WouldDeadlock,
                _ => Upgraded::Busy,
            })
        }
        .boxed()
    }
}
