//! The table by itself: a state machine without a clock.

mod cases;

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::inspection::Change;
use crate::spi::Queueing;
use crate::spi::Queueing::{Join, No};
use crate::spi::admission::{Entry, Lease};

const TTL: u64 = 1000;
const QUEUE_TTL: u64 = 100_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos((1_000_000 + ms) * 1_000_000)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn key(n: u64) -> LeaseKey {
    named("a", n)
}

fn named(name: &str, n: u64) -> LeaseKey {
    LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(u128::from(n % 3), n))
}

fn permit(n: u32) -> Mode {
    Mode::permit(NonZeroU32::new(n).unwrap())
}

/// A table, the time, and what the last call told others.
struct Bench {
    table: Table,
    now: Timestamp,
    told: News,
}

impl Bench {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        Self {
            table: Table::new(settings),
            now: at(0),
            told: News::default(),
        }
    }

    fn call<R>(&mut self, f: impl FnOnce(&mut Table, &mut Effects) -> R) -> R {
        let mut effects = Effects::of(self.now, true);
        let answer = f(&mut self.table, &mut effects);
        self.told = effects.into_news().map(|news| *news).unwrap_or_default();
        answer
    }

    fn ask(&mut self, n: u64, mode: Mode, queue: Queueing, priority: u8) -> Result<Asked> {
        let mut request = Acquire::new(key(n), ms(TTL))
            .with_mode(mode)
            .with_priority(priority);
        request.queue = queue;
        request.queue_ttl = ms(QUEUE_TTL);
        self.call(|t, fx| t.attempt(&request, fx))
    }

    fn join(&mut self, n: u64, mode: Mode) -> Asked {
        self.ask(n, mode, Join, 5).unwrap()
    }

    fn take(&mut self, n: u64, mode: Mode) -> Lease {
        match self.ask(n, mode, No, 5).unwrap() {
            Asked::Granted(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, n: u64) -> Released {
        self.call(|t, fx| t.release(&key(n), Release::Now, fx))
    }

    /// How long the lease lives then, if there is one.
    fn renew_for(&mut self, n: u64, ttl: u64) -> Option<Duration> {
        let item = RenewItem::lease(key(n), ms(ttl));
        match self.call(|t, fx| t.renew(fx.now, &item, fx)) {
            RenewOutcome::Renewed(renewal) => Some(renewal.expires_in),
            _ => None,
        }
    }

    fn renew(&mut self, n: u64) -> Option<Duration> {
        self.renew_for(n, TTL)
    }

    fn ask_again(&mut self, n: u64, queue_ttl: u64) -> RenewOutcome {
        let item = RenewItem::queued(key(n), ms(queue_ttl));
        self.call(|t, fx| t.renew(fx.now, &item, fx))
    }

    fn abandon(&mut self, n: u64) -> Abandoned {
        self.call(|t, fx| t.abandon(&key(n), fx))
    }

    fn convert(&mut self, n: u64, to: Mode) -> Result<Converted> {
        self.call(|t, fx| t.convert(fx.now, &key(n), to, fx))
    }

    fn inspect(&mut self) -> Inspection {
        self.call(|t, fx| t.inspect(&key(0).name, fx))
    }

    fn granted(&self) -> Vec<u64> {
        self.told.granted.iter().map(|g| g.key.id.sequence()).collect()
    }

    fn is_free(&mut self) -> bool {
        self.inspect() == Inspection::default()
    }
}

fn is_queued(asked: &Asked, ahead: u32) -> bool {
    matches!(asked, Asked::Queued(p) if p.ahead == ahead)
}
