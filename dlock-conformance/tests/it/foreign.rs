//! Libraries with nothing but a lock, a try, an unlock and an extension: what they do right passes, and what
//! fails is their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Ask, Claims, Clockwork, Cx, Foreign, Harness, Kind, Library, Need, Options, Reply, Report, Subject, run,
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
    /// It is granted whoever has it.
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

    /// Whether it was held yet by whoever has that guard; until when it is now.
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

struct World {
    world: Simulated,
    table: Table,
    fault: Fault,
}

impl World {
    fn report(fault: Fault) -> Report {
        let (world, table) = (Simulated::new(1), Table::default());
        run(World { world, table, fault }, &Options::default())
    }
}

impl Harness for World {
    fn claims(&self) -> Claims {
        let can = Capabilities::new("polling").with_all([Capability::Renew, Capability::PerGrantTtl]);
        let claims = Claims::foreign("polling", "1.0", can).claim(Need::OutlivesConnection);
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
        let subject = Foreign::new(library, self.claims().capabilities, self.runtime());
        ready(Ok(Arc::new(subject) as Arc<dyn Subject>)).boxed()
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.world.clockwork()
    }
}

/// The rules that failed or could not be told, with what was seen.
fn red(report: &Report) -> Vec<String> {
    let red = report.rules.iter().filter(|rule| rule.outcome.is_red());
    red.map(|rule| format!("{}: {}", rule.id, rule.outcome.text()))
        .collect()
}

#[test]
fn a_library_that_does_what_it_claims_fails_in_nothing() {
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
fn a_client_that_is_closed_drops_its_guards() {
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
fn what_fails_is_the_fault_of_the_library() {
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
