//! Libraries with nothing but a lock, a try, an unlock and an extension: what they do right passes, and what
//! fails is their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Ask, Claims, Clockwork, Cx, Foreign, Harness, Kind, Lent, Library, Loan, Need, Options, Reply, Report,
    Subject, run,
};
use dlock_core::{Capabilities, Capability, LockName, Result, Runtime, Timestamp};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

/// Who holds a name until when.
type Table = Arc<Mutex<HashMap<LockName, (u64, Timestamp)>>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// An unlock does not look whose lock it is.
    UnlocksAnybody,
    /// Nor does an extension.
    ExtendsAnybody,
    /// A lock lasts a second longer than was asked for.
    Outlasts,
    /// It is granted while another holds it.
    Grants,
    /// It says that a lock lasts half as long as it does. That is no fault.
    SaysLess,
    /// Its wait takes a limit. That is no fault.
    TakesALimit,
}

/// A lock library over a table of holders that nothing is told of.
struct Polling {
    table: Table,
    runtime: Arc<dyn Runtime>,
    fault: Fault,
    /// Each guard has a share of it.
    guards: Arc<()>,
}

struct Guard(
    LockName,
    u64,
    #[expect(dead_code, reason = "it is counted")] Arc<()>,
);

impl Polling {
    fn take(&self, name: &LockName, ttl: Duration) -> Option<Guard> {
        let mut table = self.table.lock().unwrap();
        let now = self.runtime.now();
        let last = table.get(name).copied();
        if last.is_some_and(|(_, until)| until > now) && self.fault != Fault::Grants {
            return None;
        }
        let holder = last.map_or(1, |(holder, _)| holder + 1);
        let more = Duration::from_secs(u64::from(self.fault == Fault::Outlasts));
        table.insert(name.clone(), (holder, now + ttl + more));
        Some(Guard(name.clone(), holder, Arc::clone(&self.guards)))
    }

    /// Whether the holder of that guard held it yet; until when it does now.
    fn set(&self, guard: &Guard, until: Timestamp, careless: Fault) -> bool {
        let mut table = self.table.lock().unwrap();
        let (holder, end) = table.get_mut(&guard.0).unwrap();
        let is_held = (*holder == guard.1 && *end > self.runtime.now()) || self.fault == careless;
        if is_held {
            *end = until;
        }
        is_held
    }
}

impl Library for Polling {
    type Guard = Guard;

    fn try_lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Option<Guard>> {
        ready(Ok(self.take(name, ttl))).boxed()
    }

    fn lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Guard> {
        async move {
            loop {
                match self.take(name, ttl) {
                    Some(guard) => return Ok(guard),
                    None => self.runtime.sleep(Duration::from_millis(5)).await,
                }
            }
        }
        .boxed()
    }

    fn lock_timeout<'a>(
        &'a self,
        name: &'a LockName,
        ttl: Duration,
        limit: Duration,
    ) -> Option<Reply<'a, Option<Guard>>> {
        let waiting = async move {
            let end = self.runtime.now() + limit;
            loop {
                let guard = self.take(name, ttl);
                if guard.is_some() || self.runtime.now() >= end {
                    return Ok(guard);
                }
                let left = end.since(self.runtime.now());
                self.runtime.sleep(left.min(Duration::from_millis(5))).await;
            }
        };
        (self.fault == Fault::TakesALimit).then(|| waiting.boxed())
    }

    fn validity(&self, guard: &Guard) -> Option<Duration> {
        let (_, until) = self.table.lock().unwrap()[&guard.0];
        (self.fault == Fault::SaysLess).then(|| until.since(self.runtime.now()) / 2)
    }

    fn unlock(&self, guard: Guard) -> Reply<'_, bool> {
        ready(Ok(self.set(&guard, self.runtime.now(), Fault::UnlocksAnybody))).boxed()
    }

    fn extend<'a>(&'a self, guard: &'a mut Guard, ttl: Duration) -> Reply<'a, bool> {
        ready(Ok(self.set(
            guard,
            self.runtime.now() + ttl,
            Fault::ExtendsAnybody,
        )))
        .boxed()
    }
}

impl Polling {
    fn new(runtime: Arc<dyn Runtime>, fault: Fault) -> Self {
        Self {
            table: Table::default(),
            runtime,
            fault,
            guards: Arc::default(),
        }
    }
}

/// The same library with closures for guards.
struct Lending(Arc<Polling>);

impl Lending {
    /// Lends the lock to the closure; a try if it does not wait. Whether it was held to the end.
    async fn using(
        library: Arc<Polling>,
        name: LockName,
        ttl: Duration,
        waits: bool,
        closure: BoxFuture<'static, ()>,
    ) -> Result<bool> {
        let guard = match waits {
            true => Some(library.lock(&name, ttl).await?),
            false => library.try_lock(&name, ttl).await?,
        };
        let Some(guard) = guard else { return Ok(false) };
        closure.await;
        library.unlock(guard).await
    }

    fn lend<'a>(&'a self, name: &LockName, ttl: Duration, waits: bool) -> Reply<'a, Option<Lent>> {
        let (library, name) = (Arc::clone(&self.0), name.clone());
        let call = move |loan: Loan| Self::using(library, name, ttl, waits, loan.held().boxed()).boxed();
        Lent::take(&*self.0.runtime, call).boxed()
    }
}

impl Library for Lending {
    type Guard = Lent;

    fn try_lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Option<Lent>> {
        self.lend(name, ttl, false)
    }

    fn lock<'a>(&'a self, name: &'a LockName, ttl: Duration) -> Reply<'a, Lent> {
        let lent = self.lend(name, ttl, true);
        lent.map(|lent| lent.map(|lent| lent.expect("a wait is not refused")))
            .boxed()
    }

    fn unlock(&self, guard: Lent) -> Reply<'_, bool> {
        guard.give_back().boxed()
    }
}

struct World {
    world: Simulated,
    table: Table,
    fault: Fault,
    lends: bool,
}

impl World {
    fn report(fault: Fault) -> Report {
        Self::report_of(fault, false)
    }

    fn report_of(fault: Fault, lends: bool) -> Report {
        let (world, table) = (Simulated::new(1), Table::default());
        let world = World {
            world,
            table,
            fault,
            lends,
        };
        run(world, &Options::default())
    }
}

impl Harness for World {
    fn claims(&self) -> Claims {
        let mut can = Capabilities::new("polling").with(Capability::PerGrantTtl);
        if !self.lends {
            can = can.with(Capability::Renew);
        }
        let mut claims = Claims::foreign("polling", "1.0", can).claim(Need::OutlivesConnection);
        if self.lends {
            claims = claims.claim(Need::DropFrees);
        }
        match self.fault {
            Fault::TakesALimit => claims.claim(Need::WaitLimit),
            _ => claims,
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.world.runtime()
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        let library = Polling {
            table: Arc::clone(&self.table),
            runtime: self.runtime(),
            fault: self.fault,
            guards: Arc::default(),
        };
        let (can, runtime) = (self.claims().capabilities, self.runtime());
        let subject: Arc<dyn Subject> = match self.lends {
            true => Arc::new(Foreign::new(Lending(Arc::new(library)), can, runtime)),
            false => Arc::new(Foreign::new(library, can, runtime)),
        };
        ready(Ok(subject)).boxed()
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.world.clockwork()
    }
}

/// The rules that failed or were not decided, with what was seen.
fn red(report: &Report) -> Vec<String> {
    let red = report.rules.iter().filter(|rule| rule.outcome.is_red());
    red.map(|rule| format!("{}: {}", rule.id, rule.outcome.text()))
        .collect()
}

#[test]
fn a_library_that_keeps_its_claims_passes() {
    for (fault, limits) in [(Fault::None, 0), (Fault::TakesALimit, 3)] {
        let report = World::report(fault);
        assert_eq!(red(&report), Vec::<String>::new());
        assert!(report.count(Kind::Pass) > 50, "{}", report.summary());
        let rules = report.rules.iter().filter(|rule| {
            ["2.05", "2.06", "2.07"].contains(&&*rule.id) && rule.outcome.kind() == Kind::Pass
        });
        assert_eq!(rules.count(), limits);
    }
}

#[test]
fn a_library_that_lends_to_closures_is_judged_as_well() {
    let report = World::report_of(Fault::None, true);
    assert_eq!(red(&report), Vec::<String>::new());
    assert!(report.count(Kind::Pass) > 50, "{}", report.summary());
    for (fault, rule) in [(Fault::UnlocksAnybody, "3.06"), (Fault::Grants, "1.01")] {
        let seen = red(&World::report_of(fault, true));
        assert!(seen.iter().any(|line| line.starts_with(rule)), "{seen:#?}");
    }
}

#[test]
fn a_holder_believes_no_longer_than_the_library_says() {
    let world = Simulated::new(1);
    let (runtime, name) = (world.runtime(), LockName::new("n").unwrap());
    let can = Capabilities::new("polling").with_all([Capability::Renew, Capability::PerGrantTtl]);
    let client = Foreign::new(Polling::new(world.runtime(), Fault::SaysLess), can, runtime);
    let ttl = Duration::from_secs(10);
    let held = client
        .acquire(&name, &Ask::new(ttl))
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(held.ttl(), ttl);
    assert_eq!(held.remaining(), ttl / 2);
    held.renew().now_or_never().unwrap().unwrap();
    assert_eq!(held.remaining(), ttl / 2);
}

#[test]
fn a_closed_client_drops_its_guards() {
    let world = Simulated::new(1);
    let (library, name) = (
        Polling::new(world.runtime(), Fault::None),
        LockName::new("n").unwrap(),
    );
    let guards = Arc::clone(&library.guards);
    let client = Foreign::new(library, Capabilities::new("polling"), world.runtime());
    let ask = Ask::new(Duration::from_secs(10));
    let held = client.acquire(&name, &ask).now_or_never().unwrap().unwrap();
    client.close().now_or_never().unwrap().unwrap();
    assert_eq!(Arc::strong_count(&guards), 2, "the library has one, and the test");
    assert!(!held.is_valid());
}

#[test]
fn a_failure_is_blamed_on_the_library() {
    for (fault, rule) in [
        (Fault::UnlocksAnybody, "3.06"),
        (Fault::ExtendsAnybody, "5.03"),
        (Fault::Outlasts, "3.01"),
        (Fault::Grants, "1.01"),
    ] {
        let seen = red(&World::report(fault));
        assert!(
            seen.iter().any(|line| line.starts_with(rule)),
            "{fault:?}: {seen:#?}"
        );
    }
}
