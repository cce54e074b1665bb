//! What the body of a rule is given.

mod apart;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dlock_core::{Capability, LockName, Nature, Runtime, Timestamp};
use futures::future::{Either, select};
use futures::pin_mut;

use crate::agent;
use crate::checker::{self, Check, Judgement};
use crate::claims::Claims;
use crate::harness::{Clockwork, Harness};
use crate::history::{Asked, Ends, Event, History, Lane, Model};
use crate::network::Network;
use crate::proxy::{ProxyNetwork, ServerAddress};
use crate::report::timeline;
use crate::rng::Rng;
use crate::rule::Rule;
use crate::run_state::RunState;
use crate::subject::{Ask, Held, Subject};
use crate::task::Task;
use crate::verdict::{Failure, Seen, Verdict};
use crate::{ensure, fail};

/// The context of one run of one rule. Cheap to clone; tasks of the rule take a clone with them.
///
/// All time comes from here, so that the same body runs in real time and in a simulation.
#[derive(Clone)]
pub struct Cx(Arc<Inner>, Option<Arc<dyn Network>>);

struct Inner {
    rule: &'static Rule,
    namespace: String,
    seed: u64,
    effort: Effort,
    rng: Mutex<Rng>,
    run: Arc<RunState>,
    /// A client could not be had.
    unconnected: AtomicBool,
    /// Weak: a task that outlives its rule must not be the one that ends the harness, and with it its own runtime.
    harness: Weak<dyn Harness>,
    runtime: Arc<dyn Runtime>,
    clockwork: Arc<dyn Clockwork>,
    conditions: Conditions,
    evidence: Mutex<BTreeMap<&'static str, u64>>,
    notes: Mutex<Vec<String>>,
    /// By what the history was judged.
    asked: Mutex<Vec<Asked>>,
    clients: Mutex<Vec<Arc<dyn Subject>>>,
    /// They end after the clients, which have something to say yet when they close.
    networks: Mutex<Vec<Arc<dyn Network>>>,
    history: History,
}

/// How much work rules with rounds do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Minutes for everything, on a local server.
    #[default]
    Quick,
    /// The budgets of the catalogue.
    Full,
}

/// What a rule has to put up with.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Conditions {
    /// How late this machine was measured to be.
    pub late: Duration,
    /// Whether other rules run at the same time. Then only a hang is a failure of [`Cx::within`]: the store has others to serve.
    pub beside_others: bool,
}

/// Why a rule about networks did not run.
pub(crate) const NO_SERVERS: &str =
    "it needs a proxy before the server, and the harness names no server address (Harness::servers)";

/// How much longer something may take beside other rules.
const BESIDE_OTHERS: u32 = 8;

/// What a run is made of.
pub(crate) struct Setup {
    pub(crate) rule: &'static Rule,
    pub(crate) namespace: String,
    pub(crate) seed: u64,
    pub(crate) effort: Effort,
    pub(crate) harness: Arc<dyn Harness>,
    pub(crate) run: Arc<RunState>,
    pub(crate) conditions: Conditions,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cx {
    pub(crate) fn new(setup: Setup) -> Self {
        let runtime = setup.harness.runtime();
        let clockwork = setup.harness.clockwork();
        let inner = Inner {
            rule: setup.rule,
            namespace: setup.namespace,
            seed: setup.seed,
            effort: setup.effort,
            rng: Mutex::new(Rng::new(setup.seed)),
            run: setup.run,
            unconnected: AtomicBool::new(false),
            harness: Arc::downgrade(&setup.harness),
            history: History::new(Arc::clone(&runtime)),
            runtime,
            clockwork,
            conditions: setup.conditions,
            evidence: Mutex::default(),
            notes: Mutex::default(),
            asked: Mutex::default(),
            clients: Mutex::default(),
            networks: Mutex::default(),
        };
        Self(Arc::new(inner), None)
    }

    // --- names, seeds, claims ---

    /// The rule that runs.
    pub fn rule(&self) -> &'static Rule {
        self.0.rule
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

    /// A generator that depends on the seed and on how often this was called. Take one per task, in a fixed order.
    pub fn rng(&self) -> Rng {
        lock(&self.0.rng).fork()
    }

    /// How much work to do.
    pub fn effort(&self) -> Effort {
        self.0.effort
    }

    /// How many rounds: `quick`, or `full` where the catalogue's budget is asked for.
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

    /// By how much a timed promise may be late: the claim, and how late this machine was measured to be.
    pub fn slack(&self) -> Duration {
        self.0.run.claims.slack + self.0.conditions.late
    }

    /// How far the clocks of client and store may differ after `d`, by the claim.
    pub fn skew(&self, d: Duration) -> Duration {
        self.0.run.claims.skew.of(d)
    }

    /// A ttl that will not run out during the rule, within the claimed range.
    pub fn long_ttl(&self) -> Duration {
        self.ttl(Duration::from_secs(60))
    }

    /// A ttl that is worth waiting for: 400 ms, or the least that the subject accepts.
    pub fn short_ttl(&self) -> Duration {
        self.ttl(Duration::from_millis(400))
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

    // --- time ---

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
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind.
    pub async fn sleep(&self, duration: Duration) {
        self.0.runtime.sleep(duration).await;
    }

    /// Waits until that time; not at all if it is past.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind.
    pub async fn sleep_until(&self, at: Timestamp) {
        let left = self.now().until(at);
        if !left.is_zero() {
            self.sleep(left).await;
        }
    }

    /// Lets other tasks run.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind.
    pub async fn pause(&self) {
        self.sleep(Duration::from_micros(10)).await;
    }

    /// Time passes while this thread is blocked: no task of a single-threaded executor runs.
    pub fn stall(&self, duration: Duration) {
        self.0.clockwork.stall(duration);
    }

    /// The future's result, or `None` if `limit` passed first; the future is dropped then.
    ///
    /// # Cancel safety
    /// Dropped, it drops the future that it was given.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let sleep = self.0.runtime.sleep(limit);
        pin_mut!(future);
        match select(future, sleep).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// The future's result; broken if it takes longer than `limit` (eight times as long beside other rules, as those that are
    /// not about time run).
    ///
    /// # Cancel safety
    /// Dropped, it drops the future that it was given.
    ///
    /// # Errors
    /// [`Failure::Broken`] with `what` and the limit.
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

    // --- the subject ---

    pub(crate) fn harness(&self) -> Verdict<Arc<dyn Harness>> {
        let gone = || Failure::NotRun("the harness is gone: a task outlived its run".to_owned());
        self.0.harness.upgrade().ok_or_else(gone)
    }

    /// A new, independent client. It is closed when the rule has ended.
    ///
    /// # Cancel safety
    /// Dropped, it drops the future of the harness; no client is handed out.
    ///
    /// # Errors
    /// If it cannot be had: [`Failure::NotRun`] as long as nothing in the run has connected, since without a connection nothing is
    /// said about the rule, and [`Failure::Kit`] from then on: the store has died meanwhile, or the harness chooses its rules.
    pub async fn connect(&self) -> Verdict<Arc<dyn Subject>> {
        let harness = self.harness()?;
        match harness.connect(self).await {
            Ok(connected) => {
                self.0.run.connects();
                if lock(&self.0.clients).iter().any(|c| Arc::ptr_eq(c, &connected)) {
                    return Err(Failure::Kit(
                        "the harness gave a client that it had given before: `Harness::connect` is to make a new one, which shares nothing"
                            .to_owned(),
                    ));
                }
                lock(&self.0.clients).push(Arc::clone(&connected));
                Ok(connected)
            }
            Err(e) => {
                self.0.unconnected.store(true, Ordering::Relaxed);
                let why = format!("the harness could not connect: {e} ({:?})", e.kind());
                Err(if self.0.run.has_connected() {
                    Failure::Kit(format!("{why}; it did before in this run"))
                } else {
                    Failure::NotRun(why)
                })
            }
        }
    }

    /// A client whose store cannot be reached, or the error of connecting there; `None` if the harness cannot give one.
    ///
    /// # Cancel safety
    /// Dropped, it drops the future of the harness; no client is handed out.
    pub async fn connect_nowhere(&self) -> Option<dlock_core::Result<Arc<dyn Subject>>> {
        let harness = self.0.harness.upgrade()?;
        let connected = harness.connect_nowhere(self)?.await;
        if let Ok(client) = &connected {
            lock(&self.0.clients).push(Arc::clone(client));
        }
        Some(connected)
    }

    /// How many records the store keeps, or the error of counting them; `None` if the harness cannot count.
    ///
    /// # Cancel safety
    /// Dropped, it drops the future of the harness.
    pub async fn footprint(&self) -> Option<dlock_core::Result<u64>> {
        let harness = self.0.harness.upgrade()?;
        let counted = harness.footprint(self)?.await;
        Some(counted)
    }

    // --- networks ---

    /// A new network to the servers: clients that connect [over](Self::connect_over) it suffer its faults, and nobody else does.
    ///
    /// # Errors
    /// [`Failure::NotRun`] if the harness names no servers; [`Failure::Kit`] if a proxy cannot be started.
    pub fn network(&self) -> Verdict<Arc<dyn Network>> {
        let harness = self.harness()?;
        match harness.network(self) {
            Ok(Some(network)) => {
                lock(&self.0.networks).push(Arc::clone(&network));
                Ok(network)
            }
            Ok(None) => Err(Failure::NotRun(NO_SERVERS.to_owned())),
            Err(e) => Err(Failure::Kit(format!("a proxy could not be started: {e}"))),
        }
    }

    /// A new client, as by [`connect`](Self::connect), over that network.
    ///
    /// # Cancel safety
    /// As [`connect`](Self::connect).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_over(&self, network: &Arc<dyn Network>) -> Verdict<Arc<dyn Subject>> {
        Self(Arc::clone(&self.0), Some(Arc::clone(network)))
            .connect()
            .await
    }

    /// For a harness: where a client that connects now finds the n-th of [`Harness::servers`]: there, or at the proxy before it.
    /// `None` if it names no such server.
    pub fn addr(&self, n: usize) -> Option<ServerAddress> {
        match self.route::<ProxyNetwork>() {
            Some(proxies) => proxies.addresses().get(n).cloned(),
            None => self.0.harness.upgrade()?.servers().into_iter().nth(n),
        }
    }

    /// For a harness with [networks of its own](Harness::network): the one over which the client is to connect.
    pub fn route<T: Network>(&self) -> Option<&T> {
        let network: &dyn Any = &**self.1.as_ref()?;
        network.downcast_ref()
    }

    pub(crate) fn take_networks(&self) -> Vec<Arc<dyn Network>> {
        std::mem::take(&mut lock(&self.0.networks))
    }

    /// What a child process is told to find the same store, if it can.
    pub(crate) fn hand_over(&self) -> Option<String> {
        self.0.harness.upgrade()?.hand_over()
    }

    /// A simulated process, if the harness simulates any.
    pub(crate) fn process(&self) -> Option<Arc<dyn agent::Process>> {
        self.0.harness.upgrade()?.process()
    }

    /// Tries, and breaks the rule unless the name is held by somebody else.
    ///
    /// # Cancel safety
    /// As [`Subject::try_acquire`]: that is what is dropped.
    ///
    /// # Errors
    /// [`Failure::Broken`] if it was granted, or failed.
    pub async fn expect_held(
        &self,
        client: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        when: impl fmt::Display + Send,
    ) -> Verdict {
        let granted = client
            .try_acquire(name, ask)
            .await
            .seen(format_args!("{when}: try_acquire"))?;
        ensure!(
            granted.is_none(),
            "{when}: `{name}` was granted although it is held"
        );
        Ok(())
    }

    /// Tries, and breaks the rule unless it is granted at once.
    ///
    /// # Cancel safety
    /// As [`Subject::try_acquire`]: that is what is dropped.
    ///
    /// # Errors
    /// [`Failure::Broken`] if it was refused, or failed.
    pub async fn expect_free(
        &self,
        client: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        when: impl fmt::Display + Send,
    ) -> Verdict<Box<dyn Held>> {
        match client
            .try_acquire(name, ask)
            .await
            .seen(format_args!("{when}: try_acquire"))?
        {
            Some(held) => Ok(held),
            None => fail!("{when}: `{name}` was refused although nobody holds it"),
        }
    }

    /// Tries again and again until it is granted, and breaks the rule if that is not by `by`.
    ///
    /// # Cancel safety
    /// As [`Subject::try_acquire`]: that is what is dropped.
    ///
    /// # Errors
    /// [`Failure::Broken`] if it was not granted in time, or an attempt failed.
    pub async fn free_by(
        &self,
        client: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        by: Timestamp,
        when: impl fmt::Display + Send,
    ) -> Verdict<Box<dyn Held>> {
        let from = self.now();
        loop {
            let asked = self.now();
            if let Some(held) = client
                .try_acquire(name, ask)
                .await
                .seen(format_args!("{when}: try_acquire"))?
            {
                return Ok(held);
            }
            ensure!(
                asked < by,
                "{when}: `{name}` is still refused {:?} after it was first asked for, {:?} past the bound",
                from.until(asked),
                by.until(asked)
            );
            self.sleep(Duration::from_millis(2)).await;
        }
    }

    // --- histories ---

    /// The history of this run.
    pub fn history(&self) -> &History {
        &self.0.history
    }

    /// A lane of the history that works through that client. One per task: a lane does one thing at a time.
    pub fn lane(&self, client: &Arc<dyn Subject>) -> Lane {
        Lane::new(self.0.history.clone(), Arc::clone(client))
    }

    /// How the history is read, by the claims: leases (that a fault may end, for a session store), tokens if fencing is claimed.
    pub fn model(&self) -> Model {
        let caps = &self.0.run.claims.capabilities;
        Model {
            ends: match caps.nature {
                Nature::Lease => Ends::Lease,
                _ => Ends::LeaseOrFault,
            },
            skew: self.0.run.claims.skew,
            fenced: caps.has(Capability::Fencing),
        }
    }

    /// Judges the history by the checkers of [`Check::Exclusion`].
    ///
    /// # Errors
    /// `Broken` with one sentence and a timeline of the least of the history that is illegal still; `Inconclusive` if the search ran
    /// out of budget; `Kit` if it is no history or the checkers contradict each other.
    pub fn check_history(&self) -> Verdict {
        self.check_history_as(&self.model())
    }

    /// The same, read in another way.
    ///
    /// # Errors
    /// As [`check_history`](Self::check_history).
    pub fn check_history_as(&self, model: &Model) -> Verdict {
        self.judge(model, Check::Exclusion)
    }

    /// Judges the history by other checkers: the order of a queue, what watchers were told, and so on.
    ///
    /// # Errors
    /// As [`check_history`](Self::check_history).
    pub fn check(&self, check: Check) -> Verdict {
        self.judge(&self.model(), check)
    }

    fn judge(&self, model: &Model, check: Check) -> Verdict {
        let events = self.0.history.events();
        let judgement = check.judge(&events, model, checker::wgl::BUDGET);
        lock(&self.0.asked).push(Asked { model: *model, check });
        match judgement.map_err(Failure::Kit)? {
            Judgement::Legal => Ok(()),
            Judgement::Unknown(why) => Err(Failure::Inconclusive(why)),
            Judgement::Illegal(violation) => {
                fail!("{violation}\n{}", timeline::of(&violation, &events, model))
            }
        }
    }

    // --- what was seen ---

    /// Counts something that the run must have seen for a pass to mean anything.
    pub fn evidence(&self, counter: &'static str) {
        self.evidence_by(counter, 1);
    }

    /// Counts `n` of them.
    pub fn evidence_by(&self, counter: &'static str, n: u64) {
        *lock(&self.0.evidence).entry(counter).or_default() += n;
    }

    /// Adds a line to the report of this run: a measured number, say.
    pub fn note(&self, line: impl fmt::Display) {
        lock(&self.0.notes).push(line.to_string());
    }

    /// Whether a client could not be had.
    pub(crate) fn is_unconnected(&self) -> bool {
        self.0.unconnected.load(Ordering::Relaxed)
    }

    pub(crate) fn take_evidence(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut lock(&self.0.evidence))
    }

    pub(crate) fn take_history(&self) -> Vec<Event> {
        self.0.history.events()
    }

    /// What the history says of a run that failed before it was judged.
    pub(crate) fn afterthought(&self) -> String {
        let events = self.0.history.events();
        if events.is_empty() || !lock(&self.0.asked).is_empty() {
            return String::new();
        }
        let model = self.model();
        match Check::Exclusion.judge(&events, &model, checker::wgl::BUDGET / 10) {
            Ok(Judgement::Illegal(violation)) => {
                let drawing = timeline::of(&violation, &events, &model);
                format!("\nits history is illegal by itself: {violation}\n{drawing}")
            }
            _ => format!("\nwhat happened last:\n{}", timeline::latest(&events, &model)),
        }
    }

    /// What the history was judged by, or is to be judged by where the rule did not come to it.
    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        let asked = std::mem::take(&mut *lock(&self.0.asked));
        if !asked.is_empty() {
            return asked;
        }
        vec![Asked {
            model: self.model(),
            check: Check::Exclusion,
        }]
    }

    pub(crate) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0.notes))
    }

    pub(crate) fn take_clients(&self) -> Vec<Arc<dyn Subject>> {
        std::mem::take(&mut lock(&self.0.clients))
    }
}

impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cx")
            .field("rule", &self.0.rule)
            .field("namespace", &self.0.namespace)
            .field("seed", &self.0.seed)
            .finish_non_exhaustive()
    }
}
