//! Clients whose gate is too lenient, or whose guards give up too early.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi;
use dlock_core::{
    Access, Admission, Capabilities, Election, FenceGate, FencedValue, LockName, LossReason, Result,
    Runtime as _, Timestamp, Token,
};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::simulated_machine::Machine;
use crate::subject::{Ask, Convert, Held, Observe, Reply, Subject};

pub(super) struct Spoiled {
    inner: Arc<dyn Subject>,
    machine: Arc<Machine>,
}

impl Spoiled {
    pub(super) fn new(inner: Arc<dyn Subject>, machine: Arc<Machine>) -> Self {
        Self { inner, machine }
    }

    fn wrap(&self, held: Box<dyn Held>, ask: &Ask) -> Box<dyn Held> {
        if !crate::switch::on("hair_trigger_loss") {
            return held;
        }
        Box::new(Frightened {
            held,
            machine: Arc::clone(&self.machine),
            from: self.machine.node.now(),
            limit: ask.ttl / 10,
        })
    }
}

impl Subject for Spoiled {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        async move {
            Ok(self
                .inner
                .try_acquire(name, ask)
                .await?
                .map(|held| self.wrap(held, ask)))
        }
        .boxed()
    }

    fn wait<'a>(
        &'a self,
        name: &'a LockName,
        ask: &'a Ask,
        limit: Option<Duration>,
    ) -> Reply<'a, Box<dyn Held>> {
        async move { Ok(self.wrap(self.inner.wait(name, ask, limit).await?, ask)) }.boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        match crate::switch::on("zombie_write_wins") {
            true => self.inner.gate().map(|_| self as _),
            false => self.inner.gate(),
        }
    }

    fn observe(&self) -> Option<&dyn Observe> {
        self.inner.observe()
    }

    fn close(&self) -> Reply<'_, ()> {
        self.inner.close()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        self.inner.backend()
    }

    fn election(&self, name: &LockName, ask: &Ask) -> Option<Result<Election>> {
        self.inner.election(name, ask)
    }

    fn vanish(&self) -> bool {
        self.inner.vanish()
    }
}

#[async_trait]
impl FenceGate for Spoiled {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        match self.inner.gate() {
            Some(gate) => gate.admit(resource, token, access).await,
            None => Ok(Admission::Admitted),
        }
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let Some(gate) = self.inner.gate() else {
            return Ok(Admission::Admitted);
        };
        match gate.write(resource, token, value).await? {
            Admission::Refused { highest } => gate.write(resource, highest, value).await,
            admitted => Ok(admitted),
        }
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        match self.inner.gate() {
            Some(gate) => gate.read(resource).await,
            None => Ok(None),
        }
    }
}

struct Frightened {
    held: Box<dyn Held>,
    machine: Arc<Machine>,
    from: Timestamp,
    limit: Duration,
}

impl Frightened {
    /// Rule 16.07. A gap in its timers is enough.
    fn is_frightened(&self) -> bool {
        let stops = self.machine.stops();
        let over = stops
            .iter()
            .filter_map(|stop| stop.until.map(|until| (until, until.since(stop.from))));
        let mut long = over.filter(|(_, took)| *took > self.limit);
        long.any(|(until, _)| until > self.from)
    }
}

impl Held for Frightened {
    fn id(&self) -> String {
        self.held.id()
    }

    fn token(&self) -> Option<Token> {
        self.held.token()
    }

    fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    fn deadline(&self) -> Timestamp {
        self.held.deadline()
    }

    fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    fn is_valid(&self) -> bool {
        !self.is_frightened() && self.held.is_valid()
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        self.held.lost()
    }

    fn loss(&self) -> Option<LossReason> {
        match self.is_frightened() {
            true => Some(LossReason::Expired),
            false => self.held.loss(),
        }
    }

    fn renew(&self) -> Reply<'_, ()> {
        self.held.renew()
    }

    fn release(&self) -> Reply<'_, ()> {
        self.held.release()
    }

    fn convert(&self) -> Option<&dyn Convert> {
        self.held.convert()
    }
}
