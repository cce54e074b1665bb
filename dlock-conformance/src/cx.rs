//! The context of a rule's body.

mod clients;
mod judging;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use dlock_core::{LockName, Runtime, Timestamp};
use futures::future::{Either, select};
use futures::pin_mut;

use crate::claims::{Claims, Need};
use crate::fail;
use crate::harness::{Clockwork, Harness};
use crate::history::{Asked, History};
use crate::lock::lock;
use crate::network::Network;
use crate::rng::Rng;
use crate::run_state::RunState;
use crate::shown::shown;
use crate::subject::{Ask, Subject};
use crate::task::Task;
use crate::verdict::Verdict;

/// The context of one run of one rule. Cheap to clone; tasks of the rule take a clone with them.
///
/// All time comes from here, so that the same body runs in real time and in a simulation.
#[derive(Clone)]
pub struct Cx(Arc<Inner>, Option<Arc<dyn Network>>);

struct Inner {
    rule: String,
    namespace: String,
    seed: u64,
    effort: Effort,
    rng: Mutex<Rng>,
    run: Arc<RunState>,
    /// A client could not be had.
    unconnected: AtomicBool,
    /// Weak: a task that outlives its rule must not drop the harness, and with it its own runtime.
    harness: Weak<dyn Harness>,
    conditions: Conditions,
    runtime: Arc<dyn Runtime>,
    clockwork: Arc<dyn Clockwork>,
    evidence: Mutex<BTreeMap<&'static str, u64>>,
    notes: Mutex<Vec<String>>,
    /// By what the history was judged.
    asked: Mutex<Vec<Asked>>,
    clients: Mutex<Vec<Arc<dyn Subject>>>,
    /// They end after the clients, which still send messages when they close.
    networks: Mutex<Vec<Arc<dyn Network>>>,
    history: History,
    /// What every client did, and faults of networks: drawn where a rule fails that keeps no history.
    trace: History,
}

/// The amount of work of rules with rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Minutes for everything, on a local server.
    #[default]
    Quick,
    /// The budgets of the catalogue.
    Full,
}

/// The conditions under which a rule runs.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Conditions {
    /// How late this machine was measured to be.
    pub late: Duration,
    /// Whether other rules run at the same time. Then [`Cx::within`] fails only on a hang, since the store is
    /// busy.
    pub beside_others: bool,
}

/// The reason why a rule about networks did not run.
pub(crate) const NO_SERVERS: &str =
    "it needs a proxy in front of the server, and the harness names no server address (Harness::servers)";

/// The factor by which operations may take longer beside other rules.
const BESIDE_OTHERS: u32 = 8;

/// What a run is made of.
pub(crate) struct Setup {
    pub(crate) rule: String,
    pub(crate) namespace: String,
    pub(crate) seed: u64,
    pub(crate) effort: Effort,
    pub(crate) harness: Arc<dyn Harness>,
    pub(crate) run: Arc<RunState>,
    pub(crate) conditions: Conditions,
}

impl Cx {
    pub(crate) fn new(setup: Setup) -> Self {
        let runtime = setup.harness.runtime();
        let inner = Inner {
            rule: setup.rule,
            namespace: setup.namespace,
            seed: setup.seed,
            effort: setup.effort,
            rng: Mutex::new(Rng::new(setup.seed)),
            run: setup.run,
            harness: Arc::downgrade(&setup.harness),
            conditions: setup.conditions,
            unconnected: AtomicBool::new(false),
            history: History::new(Arc::clone(&runtime)),
            trace: History::new(Arc::clone(&runtime)),
            runtime,
            clockwork: setup.harness.clockwork(),
            evidence: Mutex::default(),
            notes: Mutex::default(),
            asked: Mutex::default(),
            clients: Mutex::default(),
            networks: Mutex::default(),
        };
        Self(Arc::new(inner), None)
    }

    // --- names, seeds, claims ---

    /// The number of the rule that runs.
    pub fn rule(&self) -> &str {
        &self.0.rule
    }

    /// `dlc-<run>-<rule>-<n>`: unique to this run of this rule. Every name that the rule uses starts with it.
    pub fn namespace(&self) -> &str {
        &self.0.namespace
    }

    /// The name `dlc-<run>-<rule>-<n>/<suffix>`.
    pub fn name(&self, suffix: impl fmt::Display) -> LockName {
        self.name_bytes(suffix.to_string())
    }

    /// The same with a suffix of any bytes.
    pub fn name_bytes(&self, suffix: impl AsRef<[u8]>) -> LockName {
        let mut bytes = format!("{}/", self.0.namespace).into_bytes();
        bytes.extend_from_slice(suffix.as_ref());
        LockName::new(bytes).expect("the namespace is not empty")
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// A generator that depends on the seed and on how often this was called. Take one per task, in a fixed
    /// order.
    pub fn rng(&self) -> Rng {
        lock(&self.0.rng).fork()
    }

    /// How much work to do.
    pub fn effort(&self) -> Effort {
        self.0.effort
    }

    /// The number of rounds: `quick`, or `full` with the budgets of the catalogue.
    pub fn rounds(&self, quick: usize, full: usize) -> usize {
        match self.0.effort {
            Effort::Quick => quick,
            Effort::Full => full,
        }
    }

    /// What is claimed.
    pub fn claims(&self) -> &Claims {
        &self.0.run.claims
    }

    /// Whether that is claimed.
    pub(crate) fn has(&self, need: Need) -> bool {
        self.claims().has(need)
    }

    /// How late a timed promise may be: the claim, plus the measured lateness of this machine.
    pub fn slack(&self) -> Duration {
        self.0.run.claims.slack + self.0.conditions.late
    }

    /// The claimed maximum difference of the clocks of client and store after `d`.
    pub fn skew(&self, d: Duration) -> Duration {
        self.0.run.claims.skew.of(d)
    }

    /// A ttl that does not expire during the rule, within the claimed range.
    pub fn long_ttl(&self) -> Duration {
        self.ttl(Duration::from_secs(60))
    }

    /// A ttl short enough to wait for: 400 ms, or the minimum that the subject accepts.
    pub fn short_ttl(&self) -> Duration {
        self.ttl(Duration::from_millis(400))
    }

    /// A ttl that outlives the stalls of a busy machine, and that a rule can wait for: 2 s, within the
    /// claimed range.
    pub fn steady_ttl(&self) -> Duration {
        self.ttl(Duration::from_secs(2))
    }

    /// A ttl of a lease that is renewed and must not be lost: `wish`, or longer, since two thirds of it are
    /// left when a renewal is due. Half of the slack may be a stall of this machine, and half one of the
    /// store. A session keeps its own time, and its slack is that of its end.
    pub fn kept_ttl(&self, wish: Duration) -> Duration {
        match self.has(Need::Session) {
            true => self.ttl(wish),
            false => self.ttl(wish.max(self.slack() * 3 / 2)),
        }
    }

    /// The claimed ttl that is nearest to `wish`, rounded up to the granularity.
    pub fn ttl(&self, wish: Duration) -> Duration {
        let caps = &self.0.run.claims.capabilities;
        let grain = caps.ttl_granularity.as_nanos().max(1);
        let wish = wish.clamp(caps.min_ttl, caps.max_ttl.max(caps.min_ttl));
        let rounded = wish.as_nanos().div_ceil(grain) * grain;
        let rounded = Duration::from_nanos(u64::try_from(rounded).unwrap_or(u64::MAX));
        rounded.min(caps.max_ttl.max(caps.min_ttl))
    }

    /// Exclusive, with [`long_ttl`](Self::long_ttl), without auto-renewal.
    pub fn ask(&self) -> Ask {
        Ask::new(self.long_ttl())
    }

    // --- time: dropped, a wait leaves nothing behind, and drops the future that it was given ---

    /// The runtime that the subject runs on.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.runtime
    }

    /// Whether time is simulated.
    pub fn is_virtual(&self) -> bool {
        self.0.clockwork.is_virtual()
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.0.runtime.now()
    }

    /// Waits.
    pub async fn sleep(&self, duration: Duration) {
        self.0.runtime.sleep(duration).await;
    }

    /// Waits until that time. Returns at once if it is past.
    pub async fn sleep_until(&self, at: Timestamp) {
        let left = self.now().until(at);
        if !left.is_zero() {
            self.sleep(left).await;
        }
    }

    /// Lets other tasks run.
    pub async fn pause(&self) {
        self.sleep(Duration::from_micros(10)).await;
    }

    /// Blocks this thread while time passes: no task of a single-threaded executor runs.
    ///
    /// # Panics
    /// If other rules run, which would lose their locks: the rule is missing in `BLOCK_THE_RUNTIME`.
    pub fn stall(&self, duration: Duration) {
        assert!(
            !self.0.conditions.beside_others,
            "a rule that blocks the runtime runs alone"
        );
        self.0.clockwork.stall(duration);
    }

    /// The future's result, or `None` if `limit` passed first. In that case the future is dropped.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let sleep = self.0.runtime.sleep(limit);
        pin_mut!(future);
        match select(future, sleep).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// The future's result. The rule is broken if it takes longer than `limit` (eight times as long while
    /// other rules run, as with all rules that are not about time).
    ///
    /// # Errors
    /// [`Failure::Broken`](crate::Failure::Broken) with `what` and the limit.
    pub async fn within<T>(
        &self,
        limit: Duration,
        what: impl fmt::Display + Send,
        future: impl Future<Output = T>,
    ) -> Verdict<T> {
        let limit = match self.0.conditions.beside_others {
            true => limit.saturating_mul(BESIDE_OTHERS),
            false => limit,
        };
        match self.timeout(limit, future).await {
            Some(value) => Ok(value),
            None => fail!("{what}: not done after {limit:?}"),
        }
    }

    /// Runs a task beside the rule.
    pub fn spawn<T, F>(&self, future: F) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        Task::start(&*self.0.runtime, future)
    }
}

shown!(Cx, it => "Cx({}, seed {:#x})", it.namespace(), it.seed());
