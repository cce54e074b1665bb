use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::{Fencing, Renew, RwLock, Watch};
use crate::capabilities::Capabilities;
use crate::error::{LossReason, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The heart of a backend.
#[async_trait]
pub trait Lock: Send + Sync + 'static {
    /// What this backend claims. Constant for its life.
    fn capabilities(&self) -> &Capabilities;

    /// One of the other four traits, if claimed.
    fn part(&self, kind: PartKind) -> Option<Part<'_>>;

    /// What happens to the session or connection that leases depend on. Each call gives a stream of its own; it starts
    /// with what happens after the call. A backend with nothing to tell gives a stream that stays pending.
    fn signals(&self) -> BoxStream<'static, Signal>;

    /// Asks for the lock, once. Never waits for another holder.
    ///
    /// With [`Queueing::Join`] and [`Capability::Queue`](crate::Capability::Queue), a request that cannot be granted now
    /// is queued with a lease of its own ([`Acquire::queue_ttl`]).
    ///
    /// # Cancel safety
    /// Dropped, the request may be granted or queued, now or when a copy that is on its way arrives. The engine drops it when its caller
    /// does and at its time limit; it then abandons the key, or sends the same request again and is told of its own earlier grant.
    ///
    /// # Errors
    /// By the table in [`ErrorKind`](crate::ErrorKind). After `Unknown` (or when the future was dropped) the request may have
    /// taken effect, and the caller either sends it again or abandons it. An abandoned key answers `Lost`.
    async fn attempt(&self, request: &Acquire) -> Result<Attempt>;

    /// Ends the lease of that key, and of that key only, and admits whoever is next.
    ///
    /// # Cancel safety
    /// Dropped, the lease may have ended or not. The engine has stopped believing in it before, and its keeper sends the release
    /// again until it is answered or the lease has lapsed.
    ///
    /// # Errors
    /// As [`attempt`](Self::attempt). A lease that is gone is no error: [`Released::NotHeld`].
    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released>;

    /// Undoes requests of which the outcome is not known or not wanted any more: withdraws what is queued, releases
    /// what was granted, and leaves a tombstone against a late arrival. One answer per key, in order.
    ///
    /// # Cancel safety
    /// Dropped, each of the keys may be undone or not. The engine's keeper abandons them again until each is answered, or until
    /// nothing of them can be left.
    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>>;

    /// Closes the connection. Later calls answer `Closed`. Leases are not released by this, the engine has done that.
    ///
    /// # Cancel safety
    /// Dropped, the connection may be open yet; it is closed at the latest when the backend is dropped. The engine closes once, as the
    /// last thing that it does, and gives that its time limit.
    ///
    /// # Errors
    /// Whatever keeps the connection from being closed in order. The engine tells nobody.
    async fn close(&self) -> Result<()>;
}

impl dyn Lock {
    /// The [`Renew`] part, if there is one.
    pub fn renew_part(&self) -> Option<&dyn Renew> {
        match self.part(PartKind::Renew) {
            Some(Part::Renew(p)) => Some(p),
            _ => None,
        }
    }

    /// The [`RwLock`] part, if there is one.
    pub fn rwlock_part(&self) -> Option<&dyn RwLock> {
        match self.part(PartKind::RwLock) {
            Some(Part::RwLock(p)) => Some(p),
            _ => None,
        }
    }

    /// The [`Fencing`] part, if there is one.
    pub fn fencing_part(&self) -> Option<&dyn Fencing> {
        match self.part(PartKind::Fencing) {
            Some(Part::Fencing(p)) => Some(p),
            _ => None,
        }
    }

    /// The [`Watch`] part, if there is one.
    pub fn watch_part(&self) -> Option<&dyn Watch> {
        match self.part(PartKind::Watch) {
            Some(Part::Watch(p)) => Some(p),
            _ => None,
        }
    }
}

/// Names one of the four optional traits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartKind {
    /// [`RwLock`](super::RwLock)
    RwLock,
    /// [`Fencing`](super::Fencing)
    Fencing,
    /// [`Watch`](super::Watch)
    Watch,
    /// [`Renew`](super::Renew)
    Renew,
}

/// One of the four optional traits of a backend.
#[non_exhaustive]
#[allow(missing_debug_implementations)] // backends need not be Debug
pub enum Part<'a> {
    /// Downgrade and upgrade.
    RwLock(&'a dyn RwLock),
    /// Strength, gate, raise.
    Fencing(&'a dyn Fencing),
    /// Stream of changes, inspect, force_release.
    Watch(&'a dyn Watch),
    /// Batched renewal.
    Renew(&'a dyn Renew),
}

/// Who asks: unguessable and fresh for every acquisition.
///
/// 128 random bits per client and a counter. Never derived from host, process, thread, task or time, so two
/// containers with the same pid cannot be mistaken for one another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    client: [u64; 2],
    sequence: u64,
}

impl RequestId {
    /// The id number `sequence` of the client that drew those random bits.
    pub const fn new(client: u128, sequence: u64) -> Self {
        Self {
            client: [(client >> 64) as u64, client as u64],
            sequence,
        }
    }

    /// The random bits of the client.
    pub const fn client(&self) -> u128 {
        (self.client[0] as u128) << 64 | self.client[1] as u128
    }

    /// The number of the acquisition within the client.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Reads the form that `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (client, sequence) = text.split_once('-')?;
        if client.len() != 32 || sequence.len() != 16 {
            return None;
        }
        Some(Self::new(
            u128::from_str_radix(client, 16).ok()?,
            u64::from_str_radix(sequence, 16).ok()?,
        ))
    }
}

/// 32 hexadecimal digits of the client, a dash, 16 of the sequence.
impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:016x}{:016x}-{:016x}",
            self.client[0], self.client[1], self.sequence
        )
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({self})")
    }
}

/// Names one acquisition: first the request, then, if it is granted, the lease. Everything that is later said about it
/// (release, renew, abandon, convert) names this key and touches nothing else.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub struct LeaseKey {
    /// The lock.
    pub name: LockName,
    /// The acquisition.
    pub id: RequestId,
}

impl LeaseKey {
    /// The key of that acquisition of that lock.
    pub fn new(name: LockName, id: RequestId) -> Self {
        Self { name, id }
    }
}

/// Whether a request that cannot be granted now joins the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Queueing {
    /// Leaves nothing behind when it is not granted.
    No,
    /// Waits in the store's queue.
    Join,
}

/// A request for a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquire {
    /// Which lock, and the fresh id of this acquisition.
    pub key: LeaseKey,
    /// In which mode.
    pub mode: Mode,
    /// "Free at most this long after I vanish." Within the declared range; rounded up to the granularity.
    pub ttl: Duration,
    /// What to do when it cannot be granted now.
    pub queue: Queueing,
    /// How long the queue entry lives without being renewed.
    pub queue_ttl: Duration,
    /// 1 (last) to 10 (first) in the queue; ties by arrival. 5 unless asked for. Other than 5 needs
    /// [`Capability::Priority`](crate::Capability::Priority).
    pub priority: u8,
    /// Shown by `inspect`.
    pub owner: Option<Arc<str>>,
    /// Whoever asks waits for it if it is not granted now. A backend may then answer [`Attempt::Held`] without having asked its store, where that is what it would most likely
    /// hear, and its [`Wait`] tells at once that it is free if it is. It may as well take no notice.
    pub waits: bool,
}

impl Acquire {
    /// The priority of a request that does not ask for one.
    pub const DEFAULT_PRIORITY: u8 = 5;

    /// An exclusive request that does not queue.
    pub fn new(key: LeaseKey, ttl: Duration) -> Self {
        Self {
            key,
            mode: Mode::Exclusive,
            ttl,
            queue: Queueing::No,
            queue_ttl: ttl,
            priority: Self::DEFAULT_PRIORITY,
            owner: None,
            waits: false,
        }
    }

    /// Asks in that mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Joins the queue with an entry that lives that long without renewal.
    #[must_use]
    pub fn with_queue(mut self, queue_ttl: Duration) -> Self {
        self.queue = Queueing::Join;
        self.queue_ttl = queue_ttl;
        self
    }

    /// Asks with that priority.
    #[must_use]
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Labels the lease.
    #[must_use]
    pub fn with_owner(mut self, owner: Arc<str>) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Tells that whoever asks waits for it.
    #[must_use]
    pub fn that_waits(mut self) -> Self {
        self.waits = true;
        self
    }
}

/// The answer to one attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt {
    /// It is held now.
    Granted(Grant),
    /// It is in the store's queue under its key, and stays there until it is granted, abandoned, or its queue lease ends.
    Queued(Wait),
    /// Somebody else holds it, or waits before us; nothing of this request is left in the store.
    Held(Wait),
}

/// A lease as the store gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Of which request.
    pub key: LeaseKey,
    /// The fencing token; `None` only without [`Capability::Fencing`](crate::Capability::Fencing).
    pub token: Option<Token>,
    /// A time on the client's clock that is not after the store began to count `expires_in`: the send time of the request.
    pub counted_from: Timestamp,
    /// How long the store keeps the lease, from `counted_from`. For a recognised retry this is what *remains*.
    pub expires_in: Duration,
    /// The lease is a short claim window that the first renewal turns into a full one. The engine does that.
    pub provisional: bool,
}

impl Grant {
    /// A full (not provisional) grant.
    pub fn new(key: LeaseKey, token: Option<Token>, counted_from: Timestamp, expires_in: Duration) -> Self {
        Self {
            key,
            token,
            counted_from,
            expires_in,
            provisional: false,
        }
    }

    /// Marks it as a claim window that must be confirmed by a renewal.
    #[must_use]
    pub fn provisional(mut self) -> Self {
        self.provisional = true;
        self
    }
}

/// How a waiter learns that it is time to act.
#[non_exhaustive]
pub struct Wait {
    /// Pushed by the store, or to be polled.
    pub wake: Wake,
    /// When something is known to run out (a holder's lease, say), so that asking again at that time pays.
    pub recheck_in: Option<Duration>,
    /// How many waiters are ahead, where the store says so for free.
    pub ahead: Option<u32>,
}

impl Wait {
    /// A wait that is woken in that way.
    pub fn new(wake: Wake) -> Self {
        Self {
            wake,
            recheck_in: None,
            ahead: None,
        }
    }

    /// Says when asking again pays at the latest.
    #[must_use]
    pub fn recheck_in(mut self, d: Duration) -> Self {
        self.recheck_in = Some(d);
        self
    }

    /// Says how many waiters are ahead.
    #[must_use]
    pub fn ahead(mut self, n: u32) -> Self {
        self.ahead = Some(n);
        self
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wake = match self.wake {
            Wake::Push(_) => "push",
            Wake::Poll { .. } => "poll",
        };
        f.debug_struct("Wait")
            .field("wake", &wake)
            .field("recheck_in", &self.recheck_in)
            .field("ahead", &self.ahead)
            .finish()
    }
}

/// How the store wakes a waiter.
#[non_exhaustive]
#[allow(missing_debug_implementations)] // streams and probes are opaque
pub enum Wake {
    /// The store tells. A backend registers the request *before* it is sent: a push may overtake the reply. Dropping
    /// the stream is not withdrawing. The end of the stream means that pushes cannot be relied on: the engine asks again.
    Push(BoxStream<'static, Push>),
    /// The engine looks. The *timing* is the engine's, between these bounds and with jitter: it keeps one poller per
    /// client and name.
    Poll {
        /// The cheap question.
        probe: Arc<dyn Probe>,
        /// Never sooner than this after the last look.
        min: Duration,
        /// Never later than this after the last look.
        max: Duration,
    },
}

impl Wake {
    /// The engine asks in full each time: for a store where that is as cheap as any question.
    pub fn poll_in_full(min: Duration, max: Duration) -> Self {
        /// Always says that it may pay.
        struct InFull;

        #[async_trait]
        impl Probe for InFull {
            async fn look(&self) -> Result<News> {
                Ok(News::Changed)
            }
        }

        Self::Poll {
            probe: Arc::new(InFull),
            min,
            max,
        }
    }
}

/// A cheap "is there any news since I last asked?", shared by all waiters of one name in one client.
///
/// The first look counts from the attempt that answered with it: what happened between the two is news. Others that wait for the name have
/// a probe of their own, which is asked once; from then on the first one speaks for all.
#[async_trait]
pub trait Probe: Send + Sync + 'static {
    /// Whether it pays to ask in full, and for whom. When in doubt, [`News::Changed`].
    ///
    /// # Cancel safety
    /// Only reads. The engine takes a look that failed or was not answered for [`News::Changed`], so what a dropped look has seen need
    /// not be seen again.
    ///
    /// # Errors
    /// As [`Lock::attempt`].
    async fn look(&self) -> Result<News>;
}

/// What a look at a name has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// Nothing for anybody who waits. The next look may take longer to come.
    Nothing,
    /// The holders are others than before, and of the requests that wait in the store's queue these were admitted. The engine asks for
    /// them alone (and for those that are not queued, which nobody can admit): however many wait, a hand-over costs one question.
    /// Those of other clients may be among them; it may be empty.
    Admitted(Vec<RequestId>),
    /// Something changed. Whom it concerns shows only when they ask in full: the first few in line do, and when one of them
    /// is granted, the next few.
    Changed,
}

/// What a store pushes to a waiter.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Push {
    /// The queued request is granted.
    Granted(Grant),
    /// Something changed: ask again.
    Changed,
}

/// How a lease is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// At once.
    Now,
    /// Not before that long from now: the minimum hold ("locked at least for"). The holder is gone, the name
    /// stays taken; the store never makes it longer than this. Needs [`Capability::MinimumHold`](crate::Capability::MinimumHold).
    KeepFor(Duration),
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// The lease has ended by this call (or by an earlier delivery of it).
    Released,
    /// There was no such lease any more.
    NotHeld,
}

/// The answer to an abandon.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abandoned {
    /// There was nothing; a tombstone is left.
    Nothing,
    /// A queue entry was withdrawn.
    Withdrawn,
    /// It had been granted, with that token, and is released now.
    WasGranted(Option<Token>),
}

/// What happens to the session or connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Signal {
    /// Whether leases still stand is not known: the connection broke, the session is suspended. The engine renews at once.
    Doubt,
    /// These leases have ended.
    Lost(LostLeases, LossReason),
    /// Reconnected. The engine renews and asks again for its waiters at once.
    Back,
}

/// Which leases a signal is about.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LostLeases {
    /// Every lease of this client.
    All,
    /// These.
    These(Vec<LeaseKey>),
    /// Every one of which this is true: see [`LostLeases::of`].
    Where(LeasesWhere),
}

impl LostLeases {
    /// Every lease whose key that says so of: for a backend that has some of the names elsewhere, and does not know by heart who holds
    /// what. The engine asks it as often as it likes, of leases that are held, owed, or on their way; so it must answer quickly, and always the same. Should
    /// it panic, that counts as lost.
    pub fn of(is_lost: impl Fn(&LeaseKey) -> bool + Send + Sync + 'static) -> Self {
        Self::Where(LeasesWhere(Arc::new(is_lost)))
    }

    /// Whether that lease is among them.
    pub fn contains(&self, key: &LeaseKey) -> bool {
        match self {
            Self::All => true,
            Self::These(keys) => keys.contains(key),
            Self::Where(is_lost) => catch_unwind(AssertUnwindSafe(|| (is_lost.0)(key))).unwrap_or(true),
        }
    }
}

/// What tells lost leases from others.
#[derive(Clone)]
pub struct LeasesWhere(Arc<dyn Fn(&LeaseKey) -> bool + Send + Sync>);

impl fmt::Debug for LeasesWhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeasesWhere(..)")
    }
}
