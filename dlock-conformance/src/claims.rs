//! What a harness claims about its subject, in one value.

mod limits;

use std::time::Duration;

use dlock_core::{Capabilities, Capability, Nature, Owner, Strength};
use serde::{Deserialize, Serialize};

use self::limits::{USUAL_ROUND_TRIPS, USUAL_STARVATION};
use crate::hooks::Restart;
use crate::policy::{Merging, RwPolicy};
use crate::setters::setters;

/// What a rule needs of the subject. A rule whose needs are not claimed is *Unsupported*. The rules of
/// section 17 check that the subject then refuses. "Withdrawn" is what [`Claims::without`] says of a need.
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
    /// Guards with auto-renewal.
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
    /// Raised tokens, of a `dlock` backend: a quorum needs them from its members.
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
    /// Listing holders and counting waiters.
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
    /// A hold outlives the connection on which it was acquired. Withdrawn: a connection holds the locks, and
    /// they are lost with it.
    OutlivesConnection,
    /// A maximum hold, after which the guard is lost.
    MaximumHold,
    /// Readers' grants carry tokens too. Claimed with `Fence` and `Shared`; withdrawn: "reads are unfenced".
    FencedReads,
    /// Holds survive a restart of the store, or their holders learn of the loss before another client is
    /// granted. Claimed with [`Claims::survives`].
    SurvivesRestart,
    /// Histories are legal when another server of the store takes over. Claimed with [`Claims::claim`].
    SafeFailover,
    /// The space for the tokens of unused names is bounded. Withdrawn: every name ever used leaves something
    /// behind.
    BoundedTokens,
    /// The number of waiters that one release wakes does not grow with the number of waiters. Withdrawn: each
    /// waiter polls.
    BoundedWakes,
    /// An unused name leaves nothing in the store permanently, however its use ended. Withdrawn: it does.
    ForgetsNames,
    /// A dropped guard frees its name within [`Claims::drop_prompt`], while its client and runtime live.
    /// Withdrawn: the name stays held until the ttl ends.
    DropFrees,
    /// No waiter waits much longer than the others: [`Claims::starvation_factor`]. Withdrawn: some may.
    BoundedWaits,
    /// A network lies between client and store, and can fail. Withdrawn: the store is a file, or memory.
    Network,
    /// Other processes reach the same store. Withdrawn: the store lives in one process.
    Processes,
    /// A wait takes a limit, at which it ends with nothing held and nothing queued. Withdrawn: a caller ends
    /// a wait by dropping it.
    WaitLimit,
    /// A dropped acquire leaves its name free within [`Claims::cancel_prompt`]. Withdrawn: the name may stay
    /// held until the ttl or the session ends.
    CancelFrees,
    /// A request for a lock that arrives after its caller gave up takes nothing. Withdrawn: the name may stay
    /// held until the ttl or the session ends.
    LateTakesNothing,
    /// Operations and dropped guards work on every thread, with or without an entered runtime. Withdrawn:
    /// they may panic without one.
    AnyExecutor,
    /// There is a limit on the holds of a client or on the waiters of a name, and a request beyond it fails
    /// at once.
    Limits,
    /// Programs can share a store in separate `dlock` namespaces. Not claimed for libraries with their own
    /// engine.
    Namespaces,
    /// `dlock` elections. Not claimed for libraries with their own engine.
    Election,
    /// It is a `dlock` backend, of which requests can be made one by one. Not claimed for libraries with
    /// their own engine.
    Requests,
    /// Clients connect with a password or a similar secret. Withdrawn: there is none.
    Secrets,
    /// A client works on the runtime that it is given ([`Harness::connect_on`](crate::Harness::connect_on)),
    /// and ends with it. Withdrawn: calls run in the caller's task, on whichever runtime that is.
    GivenRuntime,
    /// Each grant, renewal, loss and release is one event of `tracing`, of a name that ends with `.acquired`,
    /// `.renewed`, `.lost` or `.released`, with the fields `lock` and `id` (as the name and the guard show
    /// them), and `token` where there is one. The engine of `dlock-core` emits them with its feature
    /// `tracing`, which the kit enables. Claimed with [`Claims::claim`].
    Events,
    /// A majority of several independent servers decides. Claimed with [`Claims::quorum`].
    Quorum,
}

impl Need {
    /// How it is claimed, and how the claim is withdrawn.
    pub(crate) fn claimed(self) -> String {
        let plain = Claims::new("", "", Capabilities::new(""));
        let less = format!("to claim less, {}", self.withdrawn());
        match self {
            Self::SurvivesRestart => "claimed only by `.survives(..)`".to_owned(),
            Self::Quorum => "claimed only by `.quorum(..)`".to_owned(),
            Self::Lease => format!("claimed by the nature `Lease`; {less}"),
            _ if USUAL.contains(&self) && plain.has(self) => format!(
                "claimed by `Claims::new`, with `Claims::foreign` only by `.claim(Need::{self:?})`; {less}"
            ),
            _ if plain.has(self) => format!("claimed by default; {less}"),
            _ if plain.without.contains(&self) && plain.could(self) => {
                format!("claimed only by `.claim(Need::{self:?})`")
            }
            _ => format!("declared in `Capabilities`; {less}"),
        }
    }

    /// What to do to claim less.
    fn withdrawn(self) -> String {
        match self {
            Self::SurvivesRestart => "leave out `.survives(..)`".to_owned(),
            Self::Quorum => "leave out `.quorum(..)`".to_owned(),
            Self::Lease => "call `.with_nature(Nature::Session)`, if locks end with a connection".to_owned(),
            Self::Session => "give `Capabilities` another nature".to_owned(),
            _ if self.is_carried() => "leave it out there".to_owned(),
            _ => format!("call `.without(Need::{self:?})`"),
        }
    }
}

/// Needs that are part of what [`Capabilities`] declare to users of the store. A declared capability is not
/// refused, so if it were withdrawn only here it would be neither tested nor refused.
impl Need {
    fn is_carried(self) -> bool {
        self.capability().is_some() || matches!(self, Self::Lease | Self::FenceDurable | Self::Session)
    }

    fn capability(self) -> Option<Capability> {
        Some(match self {
            Self::Renew => Capability::Renew,
            Self::PerGrantTtl => Capability::PerGrantTtl,
            Self::Fence => Capability::Fencing,
            Self::Resource => Capability::Gate,
            Self::Fair => Capability::Queue,
            Self::Priority => Capability::Priority,
            Self::Raise => Capability::Raise,
            Self::Shared => Capability::Shared,
            Self::Permits => Capability::Permits,
            Self::Downgrade => Capability::Downgrade,
            Self::Upgrade => Capability::Upgrade,
            Self::Watch => Capability::Watch,
            Self::Inspect => Capability::Inspect,
            Self::ForceRelease => Capability::ForceRelease,
            Self::List => Capability::List,
            Self::MinimumHold => Capability::MinimumHold,
            Self::OwnerLabel => Capability::OwnerLabel,
            _ => return None,
        })
    }
}

/// How far two clocks may drift apart: a fraction of the measured time, and a fixed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skew {
    /// Parts per million.
    pub ppm: u32,
    /// The fixed part.
    pub fixed: Duration,
}

impl Skew {
    /// The maximum difference of two clocks after `d`.
    pub fn of(self, d: Duration) -> Duration {
        d.mul_f64(f64::from(self.ppm) / 1e6) + self.fixed
    }
}

/// A rule that is known to fail, and why. Every report shows it, and it never counts as a pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Waiver {
    /// The number of the rule.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// Where it is discussed.
    pub link: String,
}

/// Whose engine waits, renews and reports losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The engine of `dlock-core`. Rules of the engine layer are listed as inherited, and not credited to the
    /// backend.
    Inherited,
    /// The subject's own.
    Own,
}

/// What every profile rests on.
pub(crate) const BASIS: [Need; 3] = [Need::Lock, Need::Try, Need::Wait];

/// Needs that [`Capabilities`] do not express, and few subjects have.
const UNUSUAL: &[Need] = &[Need::Reentrant, Need::SafeFailover, Need::Events];

/// Needs that they do not express either, and `dlock` backends have.
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
    /// How late a timed promise may be.
    pub slack: Duration,
    /// The maximum duration of an operation that does not wait for another client.
    pub op_bound: Duration,
    /// How long an operation tries while the store does not answer, before it gives up.
    pub give_up: Duration,
    /// The time from a release to the next waiter's grant, in 99 of 100 cases.
    pub wake_p99: Duration,
    /// The time from cancelling an operation until the name is free of it.
    pub cancel_prompt: Duration,
    /// The time from dropping a guard until the name is free, while its client and runtime live.
    pub drop_prompt: Duration,
    /// The longest built-in time limit. An unbounded wait must outlive three times as long.
    pub largest_default: Duration,
    /// How many times the mean wait the longest wait may take among equals.
    pub starvation_factor: u32,
    /// The time within which the waiter with the lowest priority is granted, however many with a higher one
    /// arrive. `None`: priorities are strict, and it is granted when no waiter with a higher priority is
    /// left.
    pub ageing: Option<Duration>,
    /// How far the clocks of client and store may drift apart.
    pub skew: Skew,
    /// The maximum number of round trips to acquire a free lock and release it.
    pub round_trips: u32,
    /// How many levels of a re-entrant lock one owner can hold.
    pub reentry_depth: u32,
    /// Which waiters go first: readers or writers.
    pub rw: RwPolicy,
    /// How a watcher learns of changes that are not reported one by one.
    pub merging: Merging,
    /// How many unread changes a watcher can have before a snapshot replaces them.
    pub watch_backlog: u32,
    /// The restarts of the store that holds survive, if any.
    pub restart: Option<Restart>,
    /// The number of servers of which a majority decides, if it is a quorum.
    pub members: Option<usize>,
    /// Whose engine it is.
    pub engine: Engine,
    /// The rules that are known to fail.
    pub waivers: Vec<Waiver>,
    without: Vec<Need>,
    /// By name, whether or not that is possible.
    claimed: Vec<Need>,
}

impl Claims {
    /// The claims of a product that does what its capabilities say, within these bounds: slack 250 ms,
    /// operations 2 s and without an answer 11 s (twice the time limit of a request, and a little), hand-over
    /// 100 ms, cancellation and dropped guards 500 ms, no hidden time limit above 5 s, no wait longer than
    /// ten times the mean, strict priorities, skew 1 % + 2 ms, two round trips for an acquire and its
    /// release. Readers and writers are granted in the order of the queue if there is one, and in any order
    /// if not. A watcher sees where changes are missing, and can have at most 1024 unread ones.
    ///
    /// The product is a `dlock` backend, with the engine of `dlock-core` above it. Re-entrant acquires, a
    /// safe failover and events are claimed with [`claim`](Self::claim).
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
            claimed: Vec::new(),
        }
    }

    /// The claims of a library with its own engine, within the same bounds: what its capabilities say, and an
    /// exclusive lock with a try and a wait. It claims nothing that capabilities do not express, such as
    /// auto-renewal, a loss signal or a maximum hold: use [`claim`](Self::claim) for these. Its locks are
    /// leases if that is the nature of its capabilities.
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

    /// The needs of every profile that are not claimed here: an exclusive lock, a try, a wait.
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
        ageing: Duration => Some(ageing),
    }

    /// How far the clocks of client and store may drift apart.
    pub fn skew(mut self, ppm: u32, fixed: Duration) -> Self {
        self.skew = Skew { ppm, fixed };
        self
    }

    /// Claims a need that [`Capabilities`] do not express and that is not claimed by default. Needs that they
    /// do express are declared there. Needs with a value (`SurvivesRestart`, `Quorum`) have their own
    /// methods.
    pub fn claim(mut self, need: Need) -> Self {
        self.without.retain(|other| *other != need);
        self.claimed.push(need);
        self
    }

    /// Withdraws a claim.
    ///
    /// Without `Lock`, `Try` or `Wait` no profile can be proven: the other rules run, and the run ends with
    /// exit code 4.
    pub fn without(mut self, need: Need) -> Self {
        self.claimed.retain(|other| *other != need);
        self.without.push(need);
        self
    }

    /// Claims that such a restart of the store (and a gentler one) ends no hold, or that the holder learns of
    /// the loss before another client is granted.
    pub fn survives(mut self, restart: Restart) -> Self {
        self.restart = Some(restart);
        self
    }

    /// Claims that a majority of this many independent servers decides.
    /// [`Harness::servers`](crate::Harness::servers) must name exactly these servers, in order. Each client
    /// connects to all of them, and keeps working when a minority is unreachable.
    pub fn quorum(mut self, members: usize) -> Self {
        self.members = Some(members);
        self
    }

    /// Waives a rule. The report shows it, and it never counts as a pass.
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

    /// Whether that is claimed unless it is withdrawn.
    fn could(&self, need: Need) -> bool {
        let caps = &self.capabilities;
        match need {
            Need::SurvivesRestart => self.restart.is_some(),
            Need::Quorum => self.members.is_some(),
            Need::Limits => caps.max_held.is_some() || caps.max_waiters.is_some(),
            Need::Namespaces | Need::Election | Need::Requests => self.engine == Engine::Inherited,
            Need::FencedReads => caps.has(Capability::Fencing) && caps.has(Capability::Shared),
            Need::AutoRenew => caps.has(Capability::Renew),
            Need::FenceDurable => caps.strength.is_some_and(|s| s >= Strength::AcrossRestart),
            Need::RwOrder => caps.has(Capability::Shared) && self.rw != RwPolicy::Any,
            Need::WriterPreference => caps.has(Capability::Shared) && self.rw.serves_writers(),
            Need::Session => caps.nature == Nature::Session,
            other => other.capability().is_none_or(|capability| caps.has(capability)),
        }
    }

    /// The waiver of that rule, if there is one.
    pub fn waiver(&self, rule: &str) -> Option<&Waiver> {
        self.waivers.iter().find(|w| w.rule == rule)
    }
}
