//! What a harness claims about its subject, in one value.

mod limits;

use std::time::Duration;

use dlock_core::{Capabilities, Capability, Nature, Owner, Strength};
use serde::{Deserialize, Serialize};

use self::limits::{USUAL_ROUND_TRIPS, USUAL_STARVATION};
use crate::hooks::Restart;
use crate::policy::{Merging, RwPolicy};

/// What a rule needs of the subject. A rule whose needs are not claimed is *Unsupported*, after the honesty
/// rules have seen that the subject refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Need {
    /// An exclusive lock.
    Lock,
    /// `try_acquire`.
    Try,
    /// Waiting acquires.
    Wait,
    /// Leases that lapse.
    Lease,
    /// A ttl of its own for each grant.
    PerGrantTtl,
    /// Manual renewal.
    Renew,
    /// Guards that renew themselves.
    AutoRenew,
    /// The loss signal.
    LossSignal,
    /// Fencing tokens.
    Fence,
    /// Tokens that increase across a restart of the store.
    FenceDurable,
    /// A fenced resource with check-and-write in one step.
    Resource,
    /// A first-come-first-served queue.
    Fair,
    /// Priorities.
    Priority,
    /// Raised tokens, of a backend of `dlock`: what a quorum asks of its members.
    Raise,
    /// Re-entrant acquires. Claimed with [`Claims::claim`].
    Reentrant,
    /// Readers.
    Shared,
    /// Readers, and a promise of who goes first: an [`RwPolicy`] other than `Any`.
    RwOrder,
    /// Readers that wait while a writer waits: `RwPolicy::InLine` or `WritersFirst`.
    WriterPreference,
    /// Permits.
    Permits,
    /// Exclusive to shared in one step.
    Downgrade,
    /// Shared to exclusive.
    Upgrade,
    /// The watch stream.
    Watch,
    /// Who holds and who waits.
    Inspect,
    /// `force_release`.
    ForceRelease,
    /// The names in use can be listed.
    List,
    /// A minimum hold.
    MinimumHold,
    /// Owner labels.
    OwnerLabel,
    /// Leases hang on a session.
    Session,
    /// A hold outlives the connection on which it was asked for. Taken back with [`Claims::without`] it says
    /// that a connection holds the locks, and that they are lost with it.
    OutlivesConnection,
    /// A longest hold, after which the guard is lost.
    MaximumHold,
    /// Readers' grants carry tokens too. Claimed with `Fence` and `Shared`; taken back with
    /// [`Claims::without`] it says "reads are unfenced".
    FencedReads,
    /// Holds survive a restart of the store, or nobody else is granted before their holders have been told of
    /// the loss. Claimed with [`Claims::survives`].
    SurvivesRestart,
    /// Histories are legal when another server of the store takes over. Claimed with
    /// [`Claims::claim`].
    SafeFailover,
    /// What is kept for the tokens of names that nobody uses any more is bounded. Taken back with
    /// [`Claims::without`] it says that every name that was ever used leaves something behind.
    BoundedTokens,
    /// How many of those who wait one release wakes does not grow with their number. Taken back with
    /// [`Claims::without`] it says that each of them looks for itself.
    BoundedWakes,
    /// A name that nobody uses any more leaves nothing in the store for good, whichever way it fell out of
    /// use. Taken back with [`Claims::without`] it says that it does.
    ForgetsNames,
    /// A guard that is dropped frees its name within [`Claims::drop_prompt`], while its client and runtime
    /// live. Taken back with [`Claims::without`] it says that the name stays taken until the ttl ends.
    DropFrees,
    /// No waiter waits much longer than the others: [`Claims::starvation_factor`]. Taken back with
    /// [`Claims::without`] it says that some may.
    BoundedWaits,
    /// A network lies between client and store, and can fail. Taken back with [`Claims::without`] it says
    /// that there is none: the store is a file, or memory.
    Network,
    /// Other processes reach the same store. Taken back with [`Claims::without`] it says that it lives in
    /// one.
    Processes,
    /// A wait takes a limit of its own, at which it ends with nothing held and nothing queued. Taken back
    /// with [`Claims::without`] it says that whoever does not wait any longer drops the wait.
    WaitLimit,
    /// An acquire that is dropped leaves its name free within [`Claims::cancel_prompt`]. Taken back with
    /// [`Claims::without`] it says that the name may stay taken until the ttl ends, or the session.
    CancelFrees,
    /// A request for a lock that arrives when nobody waits for its answer any more takes nothing. Taken back
    /// with [`Claims::without`] it says that the name may stay taken until the ttl ends, or the session.
    LateTakesNothing,
    /// Operations and dropped guards work on every thread, whether a runtime is entered there or not. Taken
    /// back with [`Claims::without`] it says that they may panic where there is none.
    AnyExecutor,
    /// There is a limit to what one client may hold, or to how many may wait for a name, and who meets it is
    /// told so at once.
    Limits,
    /// A store can be shared by programs in namespaces of their own, of `dlock`'s: not claimed by libraries
    /// with an engine of their own.
    Namespaces,
    /// Elections, of `dlock`'s: not claimed by libraries with an engine of their own.
    Election,
    /// Whoever connects has a password, or something like it. Taken back with [`Claims::without`] it says
    /// that nobody has.
    Secrets,
    /// A client works on a runtime that it is given ([`Harness::connect_on`](crate::Harness::connect_on)),
    /// and ends with it. Taken back with [`Claims::without`] it says that its calls run in the tasks of its
    /// users, on whichever runtime these are.
    GivenRuntime,
    /// Each grant, renewal, loss and release is one event of `tracing`, of a name that ends with `.acquired`,
    /// `.renewed`, `.lost` or `.released`, with the fields `lock` and `id` (as the name and the guard show
    /// them), and `token` where there is one. The engine of `dlock-core` tells so under its feature
    /// `tracing`, which the kit turns on. Claimed with [`Claims::claim`].
    Events,
    /// A majority of several independent servers decides. Claimed with [`Claims::quorum`].
    Quorum,
}

impl Need {
    /// What claims it, and what takes it back.
    pub(crate) fn claimed(self) -> String {
        let plain = Claims::new("", "", Capabilities::new(""));
        match self {
            Self::SurvivesRestart => "claimed only by `.survives(..)`".to_owned(),
            Self::Quorum => "claimed only by `.quorum(..)`".to_owned(),
            _ if plain.has(self) => format!("claimed until `.without(Need::{self:?})` takes it back"),
            _ if plain.claim(self).has(self) => format!("claimed only by `.claim(Need::{self:?})`"),
            _ => format!(
                "declared in `Capabilities`; taken back there, or this alone by `.without(Need::{self:?})`"
            ),
        }
    }
}

/// How far two clocks may drift apart: a part of the time measured, and a fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skew {
    /// Parts per million.
    pub ppm: u32,
    /// The fixed part.
    pub fixed: Duration,
}

impl Skew {
    /// How much two clocks may differ after `d`.
    pub fn of(self, d: Duration) -> Duration {
        d.mul_f64(f64::from(self.ppm) / 1e6) + self.fixed
    }
}

/// A rule that is known not to hold, and why. Shown in every report; never a pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiver {
    /// The number of the rule.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// Where it is discussed.
    pub link: String,
}

/// Whose engine does the waiting, renewing and losing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// That of `dlock-core`: rules of the engine layer are listed as inherited, and not credited to the
    /// backend.
    Inherited,
    /// The subject's own.
    Own,
}

/// What every profile rests on.
pub(crate) const BASIS: [Need; 3] = [Need::Lock, Need::Try, Need::Wait];

/// What [`Capabilities`] do not carry, and few have.
const UNUSUAL: &[Need] = &[Need::Reentrant, Need::SafeFailover, Need::Events];

/// What they do not carry either, and backends of `dlock` have.
const USUAL: &[Need] = &[
    Need::AutoRenew,
    Need::LossSignal,
    Need::MaximumHold,
    Need::OutlivesConnection,
    Need::BoundedTokens,
    Need::BoundedWakes,
    Need::BoundedWaits,
    Need::DropFrees,
    Need::ForgetsNames,
    Need::Secrets,
    Need::WaitLimit,
    Need::CancelFrees,
    Need::LateTakesNothing,
    Need::AnyExecutor,
    Need::GivenRuntime,
    Need::Limits,
];

/// What a harness claims: capabilities, bounds, waivers.
///
/// ```
/// use std::time::Duration;
/// use dlock_core::Capabilities;
/// use dlock_conformance::{Claims, Need};
/// let claims = Claims::new("acme-lock", "1.2.0", Capabilities::new("acme"))
///     .wake_p99(Duration::from_millis(50))
///     .slack(Duration::from_millis(100))
///     .waive("16.12", "single node only", "https://acme.example/issue/7");
/// assert!(claims.has(Need::Wait) && !claims.has(Need::Fence));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use]
pub struct Claims {
    /// The product under test.
    pub product: String,
    /// Its version.
    pub version: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// By how much a timed promise may be late.
    pub slack: Duration,
    /// How long an operation that waits for nobody takes at most.
    pub op_bound: Duration,
    /// How long an operation goes on while the store does not answer, until it gives up.
    pub give_up: Duration,
    /// From a release to the next waiter's grant, 99 of 100 times.
    pub wake_p99: Duration,
    /// From cancelling an operation to the name being free of it.
    pub cancel_prompt: Duration,
    /// From dropping a guard to the name being free, while its client and runtime live.
    pub drop_prompt: Duration,
    /// The longest time limit of its own, which nobody asked for: an unbounded wait must outlive it three
    /// times.
    pub largest_default: Duration,
    /// How many times the mean wait the longest one may take among equals.
    pub starvation_factor: u32,
    /// Within which time the least urgent waiter is served however many more urgent ones come; `None`:
    /// priorities are strict, and it is served when nobody more urgent waits.
    pub ageing: Option<Duration>,
    /// How far the clocks of client and store may drift apart.
    pub skew: Skew,
    /// How many times a client speaks to the server and waits for it at most, from the acquire of a lock that
    /// is free to the end of its release.
    pub round_trips: u32,
    /// How often one owner can hold a re-entrant lock at once.
    pub reentry_depth: u32,
    /// Who goes first among readers and writers that wait.
    pub rw: RwPolicy,
    /// What becomes of changes that a watcher is not told one by one.
    pub merging: Merging,
    /// How many changes wait for a watcher that does not take them, before a snapshot takes their place.
    pub watch_backlog: u32,
    /// Which restarts of the store holds survive, if any.
    pub restart: Option<Restart>,
    /// Of how many servers a majority decides, if it is a quorum.
    pub members: Option<usize>,
    /// Whose engine it is.
    pub engine: Engine,
    /// Which rules are known not to hold.
    pub waivers: Vec<Waiver>,
    without: Vec<Need>,
}

/// A method for each of these fields that sets it.
macro_rules! setters {
    ($($field:ident: $type:ty),+ $(,)?) => {$(
        #[doc = concat!("Sets the field `", stringify!($field), "`, which says what it is.")]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )+};
}

impl Claims {
    /// The claims of a product that does what its capabilities say, within: slack 250 ms, operations 2 s and
    /// without an answer 11 s (twice the time limit of a request, and a little), hand-over 100 ms,
    /// cancellation and dropped guards 500 ms, no hidden time limit above 5 s, no wait longer than ten times
    /// the mean, strict priorities, skew 1 % + 2 ms, two round trips for an acquire and its release. Readers
    /// and writers are served in line if there is a queue, in any order if not; a watcher is told where
    /// changes are missing, and at most 1024 wait for it.
    ///
    /// It is a backend of `dlock`, with the engine of `dlock-core` above it. Re-entrant acquires, a safe
    /// failover and events are claimed with [`claim`](Self::claim).
    pub fn new(product: impl Into<String>, version: impl Into<String>, capabilities: Capabilities) -> Self {
        Self {
            reentry_depth: Owner::MAX_DEPTH,
            round_trips: USUAL_ROUND_TRIPS,
            rw: match capabilities.has(Capability::Queue) {
                true => RwPolicy::InLine,
                false => RwPolicy::Any,
            },
            merging: Merging::Marked,
            watch_backlog: 1024,
            product: product.into(),
            version: version.into(),
            capabilities,
            slack: Duration::from_millis(250),
            op_bound: Duration::from_secs(2),
            give_up: Duration::from_secs(11),
            wake_p99: Duration::from_millis(100),
            cancel_prompt: Duration::from_millis(500),
            drop_prompt: Duration::from_millis(500),
            largest_default: Duration::from_secs(5),
            starvation_factor: USUAL_STARVATION,
            ageing: None,
            skew: Skew {
                ppm: 10_000,
                fixed: Duration::from_millis(2),
            },
            restart: None,
            members: None,
            engine: Engine::Inherited,
            waivers: Vec::new(),
            without: UNUSUAL.to_vec(),
        }
    }

    /// The claims of a library that waits, renews and loses by itself, within the same bounds: what its
    /// capabilities say, and a lock that excludes, is tried for and waited for. Of all that capabilities do
    /// not carry it claims nothing, unless by [`claim`](Self::claim): not that guards renew themselves, nor
    /// that they tell of a loss, nor that a hold ends after a longest time. Its locks are leases if that is
    /// the nature of its capabilities.
    pub fn foreign(
        product: impl Into<String>,
        version: impl Into<String>,
        capabilities: Capabilities,
    ) -> Self {
        let mut without = [UNUSUAL, USUAL].concat();
        if capabilities.nature != Nature::Lease {
            without.push(Need::Lease);
        }
        Self {
            engine: Engine::Own,
            without,
            ..Self::new(product, version, capabilities)
        }
    }

    /// What every profile rests on and is not claimed here: an exclusive lock, a try, a wait.
    pub fn missing_basis(&self) -> Vec<Need> {
        BASIS.into_iter().filter(|need| !self.has(*need)).collect()
    }

    setters! {
        slack: Duration,
        op_bound: Duration,
        give_up: Duration,
        wake_p99: Duration,
        cancel_prompt: Duration,
        drop_prompt: Duration,
        largest_default: Duration,
        starvation_factor: u32,
        round_trips: u32,
        reentry_depth: u32,
        rw: RwPolicy,
        merging: Merging,
        watch_backlog: u32,
    }

    /// Within which time the least urgent waiter is served whoever comes.
    pub fn ageing(mut self, bound: Duration) -> Self {
        self.ageing = Some(bound);
        self
    }

    /// How far the clocks of client and store may drift apart.
    pub fn skew(mut self, ppm: u32, fixed: Duration) -> Self {
        self.skew = Skew { ppm, fixed };
        self
    }

    /// Claims what [`Capabilities`] does not carry and is not claimed by itself. What they do carry, or takes
    /// a number (`SurvivesRestart`, `Quorum`), is claimed there and by a method of its own.
    pub fn claim(mut self, need: Need) -> Self {
        self.without.retain(|other| *other != need);
        self
    }

    /// Takes back a claim.
    ///
    /// Without `Lock`, `Try` or `Wait` there is no profile to earn: the other rules run, and the run ends
    /// with exit code 4.
    pub fn without(mut self, need: Need) -> Self {
        self.without.push(need);
        self
    }

    /// Claims that such a restart of the store (and a gentler one) ends no hold, or that nobody else is
    /// granted before its holder has been told.
    pub fn survives(mut self, restart: Restart) -> Self {
        self.restart = Some(restart);
        self
    }

    /// Claims that a majority of so many independent servers decides. They are what
    /// [`Harness::servers`](crate::Harness::servers) names, in that order and no others; each client connects
    /// to all of them, and goes on when some of them are away.
    pub fn quorum(mut self, members: usize) -> Self {
        self.members = Some(members);
        self
    }

    /// Waives a rule. The report shows it; it is never a pass.
    pub fn waive(
        mut self,
        rule: impl Into<String>,
        reason: impl Into<String>,
        link: impl Into<String>,
    ) -> Self {
        self.waivers.push(Waiver {
            rule: rule.into(),
            reason: reason.into(),
            link: link.into(),
        });
        self
    }

    /// Whether that is claimed.
    pub fn has(&self, need: Need) -> bool {
        !self.without.contains(&need) && self.could(need)
    }

    /// Whether that is claimed unless it is taken back.
    fn could(&self, need: Need) -> bool {
        let caps = &self.capabilities;
        match need {
            Need::Lock | Need::Try | Need::Wait | Need::Lease | Need::LossSignal | Need::Reentrant => true,
            Need::MaximumHold | Need::BoundedTokens | Need::BoundedWakes | Need::SafeFailover => true,
            Need::BoundedWaits | Need::DropFrees | Need::ForgetsNames | Need::Secrets | Need::Events => true,
            Need::OutlivesConnection | Need::Network | Need::Processes => true,
            Need::WaitLimit | Need::CancelFrees | Need::LateTakesNothing | Need::AnyExecutor => true,
            Need::GivenRuntime => true,
            Need::SurvivesRestart => self.restart.is_some(),
            Need::Quorum => self.members.is_some(),
            Need::Limits => caps.max_held.is_some() || caps.max_waiters.is_some(),
            Need::Namespaces | Need::Election => self.engine == Engine::Inherited,
            Need::FencedReads => caps.has(Capability::Fencing) && caps.has(Capability::Shared),
            Need::AutoRenew | Need::Renew => caps.has(Capability::Renew),
            Need::PerGrantTtl => caps.has(Capability::PerGrantTtl),
            Need::Fence => caps.has(Capability::Fencing),
            Need::FenceDurable => caps.strength.is_some_and(|s| s >= Strength::AcrossRestart),
            Need::Resource => caps.has(Capability::Gate),
            Need::Fair => caps.has(Capability::Queue),
            Need::Priority => caps.has(Capability::Priority),
            Need::Raise => caps.has(Capability::Raise),
            Need::Shared => caps.has(Capability::Shared),
            Need::RwOrder => caps.has(Capability::Shared) && self.rw != RwPolicy::Any,
            Need::WriterPreference => caps.has(Capability::Shared) && self.rw.serves_writers(),
            Need::Permits => caps.has(Capability::Permits),
            Need::Downgrade => caps.has(Capability::Downgrade),
            Need::Upgrade => caps.has(Capability::Upgrade),
            Need::Watch => caps.has(Capability::Watch),
            Need::Inspect => caps.has(Capability::Inspect),
            Need::ForceRelease => caps.has(Capability::ForceRelease),
            Need::List => caps.has(Capability::List),
            Need::MinimumHold => caps.has(Capability::MinimumHold),
            Need::OwnerLabel => caps.has(Capability::OwnerLabel),
            Need::Session => caps.nature == Nature::Session,
        }
    }

    /// The waiver of that rule, if there is one.
    pub fn waiver(&self, rule: &str) -> Option<&Waiver> {
        self.waivers.iter().find(|w| w.rule == rule)
    }
}
