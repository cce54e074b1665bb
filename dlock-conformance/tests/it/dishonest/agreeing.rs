//! A subject without a store, that says yes to all that it is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock_conformance::{Ask, Convert, Held, Reply, Subject, Upgraded};
use dlock_core::{Capabilities, LockName, LossReason, Result, Runtime, Timestamp, Token};
use futures::FutureExt;
use futures::future::BoxFuture;

/// The next number, whatever it is for.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What it does when it is called, before it is polled.
type Act = Arc<dyn Fn() + Send + Sync>;

pub(crate) struct Agreeing {
    capabilities: Capabilities,
    runtime: Arc<dyn Runtime>,
    act: Act,
}

impl Agreeing {
    pub(crate) fn new(capabilities: Capabilities, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            capabilities,
            runtime,
            act: Arc::new(|| {}),
        }
    }

    pub(crate) fn acting(mut self, act: impl Fn() + Send + Sync + 'static) -> Self {
        self.act = Arc::new(act);
        self
    }

    fn grant(&self, ask: &Ask) -> Box<dyn Held> {
        Box::new(Granted {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            ttl: ask.ttl,
            deadline: self.runtime.now() + ask.ttl,
            runtime: Arc::clone(&self.runtime),
            act: Arc::clone(&self.act),
        })
    }
}

impl Subject for Agreeing {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, _: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        (self.act)();
        async move { Ok(Some(self.grant(ask))) }.boxed()
    }

    fn wait<'a>(&'a self, _: &'a LockName, ask: &'a Ask, _: Option<Duration>) -> Reply<'a, Box<dyn Held>> {
        (self.act)();
        async move { Ok(self.grant(ask)) }.boxed()
    }

    fn close(&self) -> Reply<'_, ()> {
        async { Ok(()) }.boxed()
    }
}

struct Granted {
    number: u64,
    ttl: Duration,
    deadline: Timestamp,
    runtime: Arc<dyn Runtime>,
    act: Act,
}

impl Held for Granted {
    fn id(&self) -> String {
        self.number.to_string()
    }
    fn token(&self) -> Option<Token> {
        Token::new(self.number)
    }
    fn ttl(&self) -> Duration {
        self.ttl
    }
    fn deadline(&self) -> Timestamp {
        self.deadline
    }
    fn remaining(&self) -> Duration {
        self.deadline.since(self.runtime.now())
    }
    fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }
    fn lost(&self) -> BoxFuture<'static, LossReason> {
        futures::future::pending().boxed()
    }
    fn loss(&self) -> Option<LossReason> {
        (!self.is_valid()).then_some(LossReason::Expired)
    }
    fn renew(&self) -> Reply<'_, ()> {
        (self.act)();
        async { Result::Ok(()) }.boxed()
    }
    fn release(&self) -> Reply<'_, ()> {
        (self.act)();
        async { Result::Ok(()) }.boxed()
    }
    fn convert(&self) -> Option<&dyn Convert> {
        Some(self)
    }
}

impl Convert for Granted {
    fn downgrade(&self) -> Reply<'_, ()> {
        async { Result::Ok(()) }.boxed()
    }
    fn try_upgrade(&self) -> Reply<'_, Upgraded> {
        async { Result::Ok(Upgraded::Done) }.boxed()
    }
}
