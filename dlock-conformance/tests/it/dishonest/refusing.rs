//! A subject that claims everything and refuses one thing.

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::{Ask, AutoRenewal, Convert, Held, Need, Observe, Reply, Subject, Upgraded};
use dlock_core::spi;
use dlock_core::{
    Access, Admission, Capabilities, Change, Error, ErrorKind, FenceGate, FencedValue, Inspection, LockName,
    LossReason, Mode, Result, Timestamp, Token,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub(super) struct Refusing {
    pub(super) inner: Arc<dyn Subject>,
    /// What it refuses; everything, if that is none.
    pub(super) what: Option<Need>,
}

fn refused<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, "not here"))
}

impl Refusing {
    fn refuses(&self, need: Need) -> bool {
        self.what.is_none_or(|what| what == need)
    }

    fn refuses_ask(&self, how: Need, ask: &Ask) -> bool {
        let asked = [
            (Need::Lock, true),
            (how, true),
            (Need::Shared, matches!(ask.mode, Mode::Shared { limit: None })),
            (Need::Permits, matches!(ask.mode, Mode::Shared { limit: Some(_) })),
            (Need::Reentrant, ask.reentrant.is_some()),
            (Need::Priority, ask.priority != 5),
            (Need::MaximumHold, ask.max_hold.is_some()),
            (Need::MinimumHold, ask.min_hold.is_some()),
            (Need::OwnerLabel, ask.label.is_some()),
            (Need::AutoRenew, ask.auto_renew != AutoRenewal::Off),
        ];
        asked.into_iter().any(|(need, asked)| asked && self.refuses(need))
    }

    fn held(&self, inner: Box<dyn Held>) -> Box<dyn Held> {
        Box::new(RefusingHeld {
            inner,
            what: self.what,
        })
    }
}

impl Subject for Refusing {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        async move {
            if self.refuses_ask(Need::Try, ask) {
                return refused();
            }
            let held = self.inner.try_acquire(name, ask).await?;
            Ok(held.map(|held| self.held(held)))
        }
        .boxed()
    }

    fn wait<'a>(
        &'a self,
        name: &'a LockName,
        ask: &'a Ask,
        limit: Option<Duration>,
    ) -> Reply<'a, Box<dyn Held>> {
        async move {
            if self.refuses_ask(Need::Wait, ask) {
                return refused();
            }
            Ok(self.held(self.inner.wait(name, ask, limit).await?))
        }
        .boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        match self.refuses(Need::Resource) {
            true => Some(self),
            false => self.inner.gate(),
        }
    }

    fn observe(&self) -> Option<&dyn Observe> {
        Some(self)
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        self.inner.backend()
    }

    fn vanish(&self) -> bool {
        self.inner.vanish()
    }
}

#[async_trait::async_trait]
impl FenceGate for Refusing {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        match self.inner.gate() {
            Some(gate) if !self.refuses(Need::Resource) => gate.admit(resource, token, access).await,
            _ => refused(),
        }
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        match self.inner.gate() {
            Some(gate) if !self.refuses(Need::Resource) => gate.write(resource, token, value).await,
            _ => refused(),
        }
    }

    async fn read(&self, _: &LockName) -> Result<Option<FencedValue>> {
        refused()
    }
}

impl Observe for Refusing {
    fn watch<'a>(&'a self, name: &'a LockName) -> Reply<'a, BoxStream<'static, Result<Change>>> {
        match self.inner.observe() {
            Some(observe) if !self.refuses(Need::Watch) => observe.watch(name),
            _ => async { refused() }.boxed(),
        }
    }

    fn inspect<'a>(&'a self, name: &'a LockName) -> Reply<'a, Inspection> {
        match self.inner.observe() {
            Some(observe) if !self.refuses(Need::Inspect) => observe.inspect(name),
            _ => async { refused() }.boxed(),
        }
    }

    fn force_release<'a>(&'a self, name: &'a LockName) -> Reply<'a, u32> {
        match self.inner.observe() {
            Some(observe) if !self.refuses(Need::ForceRelease) => observe.force_release(name),
            _ => async { refused() }.boxed(),
        }
    }

    fn list<'a>(&'a self, prefix: &'a [u8]) -> Reply<'a, Vec<LockName>> {
        match self.inner.observe() {
            Some(observe) if !self.refuses(Need::List) => observe.list(prefix),
            _ => async { refused() }.boxed(),
        }
    }
}

struct RefusingHeld {
    inner: Box<dyn Held>,
    what: Option<Need>,
}

impl RefusingHeld {
    fn refuses(&self, need: Need) -> bool {
        self.what.is_none_or(|what| what == need)
    }
}

impl Held for RefusingHeld {
    fn id(&self) -> String {
        self.inner.id()
    }
    fn token(&self) -> Option<Token> {
        self.inner.token().filter(|_| !self.refuses(Need::Fence))
    }
    fn ttl(&self) -> Duration {
        self.inner.ttl()
    }
    fn deadline(&self) -> Timestamp {
        self.inner.deadline()
    }
    fn remaining(&self) -> Duration {
        self.inner.remaining()
    }
    fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }
    fn lost(&self) -> BoxFuture<'static, LossReason> {
        match self.refuses(Need::LossSignal) {
            true => futures::future::pending().boxed(),
            false => self.inner.lost(),
        }
    }
    fn loss(&self) -> Option<LossReason> {
        self.inner.loss().filter(|_| !self.refuses(Need::LossSignal))
    }
    fn renew(&self) -> Reply<'_, ()> {
        match self.refuses(Need::Renew) {
            true => async { refused() }.boxed(),
            false => self.inner.renew(),
        }
    }
    fn release(&self) -> Reply<'_, ()> {
        self.inner.release()
    }
    fn convert(&self) -> Option<&dyn Convert> {
        Some(self)
    }
}

impl Convert for RefusingHeld {
    fn downgrade(&self) -> Reply<'_, ()> {
        match self.inner.convert() {
            Some(convert) if !self.refuses(Need::Downgrade) => convert.downgrade(),
            _ => async { refused() }.boxed(),
        }
    }
    fn try_upgrade(&self) -> Reply<'_, Upgraded> {
        match self.inner.convert() {
            Some(convert) if !self.refuses(Need::Upgrade) => convert.try_upgrade(),
            _ => async { refused() }.boxed(),
        }
    }
}
