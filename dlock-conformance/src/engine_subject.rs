//! A backend of `dlock`, as a subject: through the engine, as its users meet it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::combinators::Namespaced;
use dlock_core::spi;
use dlock_core::{
    AutoRenew, Capabilities, Capability, Change, Client, FenceGate, Guard, Inspection, Lock, LockName,
    LockOptions, LossReason, Mode, Owner, Result, Semaphore, Timestamp, Token, Upgrade,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

use crate::subject::{Ask, AutoRenewal, Convert, Held, Observe, Reply, Subject, Upgraded};

/// A [`Client`] as a [`Subject`].
pub struct EngineSubject {
    client: Client,
    owners: Mutex<HashMap<u32, Owner>>,
}

impl EngineSubject {
    /// That client. One per call of [`Harness::connect`](crate::Harness::connect), each with a connection of its own.
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
        let options = options(ask);
        if let Mode::Shared { limit: Some(n) } = ask.mode {
            return Ok(Handle::Permits(
                self.client.semaphore(name, n.get())?.options(options)?,
            ));
        }
        let lock = match ask.mode {
            Mode::Shared { .. } => self.client.rwlock(name)?.read().clone(),
            _ => self.client.lock(name)?,
        };
        let lock = lock.options(options)?;
        Ok(Handle::Lock(match ask.reentrant {
            Some(owner) => lock.reentrant(&self.owner(owner))?,
            None => lock,
        }))
    }

    fn owner(&self, number: u32) -> Owner {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners
            .entry(number)
            .or_insert_with(|| self.client.owner())
            .clone()
    }
}

fn options(ask: &Ask) -> LockOptions {
    let mut options =
        LockOptions::new()
            .ttl(ask.ttl)
            .priority(ask.priority)
            .auto_renew(match ask.auto_renew {
                AutoRenewal::Off => AutoRenew::Off,
                AutoRenewal::On => AutoRenew::On,
                AutoRenewal::Every(every) => AutoRenew::Every(every),
            });
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

impl Handle {
    async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self {
            Self::Lock(lock) => lock.try_acquire().await,
            Self::Permits(permits) => permits.try_acquire().await,
        }
    }

    async fn acquire(&self) -> Result<Guard> {
        match self {
            Self::Lock(lock) => lock.acquire().await,
            Self::Permits(permits) => permits.acquire().await,
        }
    }

    async fn acquire_timeout(&self, limit: Duration) -> Result<Guard> {
        match self {
            Self::Lock(lock) => lock.acquire_timeout(limit).await,
            Self::Permits(permits) => permits.acquire_timeout(limit).await,
        }
    }
}

fn boxed(guard: Guard) -> Box<dyn Held> {
    Box::new(guard)
}

impl Subject for EngineSubject {
    fn capabilities(&self) -> Capabilities {
        self.client.capabilities().clone()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        async move { Ok(self.handle(name, ask)?.try_acquire().await?.map(boxed)) }.boxed()
    }

    fn acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Box<dyn Held>> {
        async move { Ok(boxed(self.handle(name, ask)?.acquire().await?)) }.boxed()
    }

    fn acquire_timeout<'a>(
        &'a self,
        name: &'a LockName,
        ask: &'a Ask,
        limit: Duration,
    ) -> Reply<'a, Box<dyn Held>> {
        async move { Ok(boxed(self.handle(name, ask)?.acquire_timeout(limit).await?)) }.boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.client.gate().ok()
    }

    fn observe(&self) -> Option<&dyn Observe> {
        let caps = self.client.capabilities();
        let any = [Capability::Watch, Capability::Inspect, Capability::ForceRelease];
        any.into_iter().any(|c| caps.has(c)).then_some(self as _)
    }

    fn close(&self) -> Reply<'_, ()> {
        self.client.close().boxed()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        Some(self.client.backend())
    }

    fn in_namespace(&self, namespace: &str) -> Option<Result<Arc<dyn Subject>>> {
        let (outer, bug) = (Arc::clone(self.client.backend()), self.client.bug());
        let inside = Namespaced::planted(outer, namespace, bug).and_then(|backend| {
            let builder = Client::builder(Arc::new(backend), Arc::clone(self.client.runtime()));
            Ok(Arc::new(Self::new(builder.planted(bug).build()?)) as Arc<dyn Subject>)
        });
        Some(inside)
    }

    fn printed(&self) -> Option<String> {
        Some(format!("{self:#?}"))
    }

    fn vanish(&self) -> bool {
        self.client.vanish();
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
}

impl Held for Guard {
    fn id(&self) -> String {
        Guard::id(self).to_string()
    }

    fn token(&self) -> Option<Token> {
        Guard::token(self)
    }

    fn ttl(&self) -> Duration {
        Guard::ttl(self)
    }

    fn deadline(&self) -> Timestamp {
        Guard::deadline(self)
    }

    fn remaining(&self) -> Duration {
        Guard::remaining(self)
    }

    fn is_valid(&self) -> bool {
        Guard::is_valid(self)
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        Guard::lost(self).boxed()
    }

    fn loss(&self) -> Option<LossReason> {
        Guard::loss(self)
    }

    fn renew(&self) -> Reply<'_, ()> {
        Guard::renew(self).boxed()
    }

    fn release(&self) -> Reply<'_, ()> {
        Guard::release(self).boxed()
    }

    fn convert(&self) -> Option<&dyn Convert> {
        Some(self)
    }
}

impl Convert for Guard {
    fn downgrade(&self) -> Reply<'_, ()> {
        Guard::downgrade(self).boxed()
    }

    fn try_upgrade(&self) -> Reply<'_, Upgraded> {
        async move {
            Ok(match Guard::try_upgrade(self).await? {
                Upgrade::Done => Upgraded::Done,
                Upgrade::WouldDeadlock => Upgraded::WouldDeadlock,
                _ => Upgraded::Busy,
            })
        }
        .boxed()
    }
}

impl fmt::Debug for EngineSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineSubject").field(&self.client).finish()
    }
}
