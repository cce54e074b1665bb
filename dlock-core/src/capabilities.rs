//! What a backend claims.

use std::fmt;
use std::time::Duration;

use crate::token::Strength;

/// A feature that a backend may claim. What is claimed works; what is not claimed fails with `Unsupported`
/// before any I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Capability {
    /// `Mode::Shared { limit: None }`: readers.
    Shared,
    /// `Mode::Shared { limit: Some(n) }`: permits.
    Permits,
    /// A first-come-first-served queue in the store. Without it the engine polls, with jitter.
    Queue,
    /// Priorities in that queue.
    Priority,
    /// Each grant has a ttl of its own. Without it, as in session stores, the guard reports the effective
    /// ttl.
    PerGrantTtl,
    /// The [`Renew`](crate::spi::Renew) part.
    Renew,
    /// The [`Fencing`](crate::spi::Fencing) part: every grant carries a token.
    Fencing,
    /// A fence gate with check-and-write in one step.
    Gate,
    /// The token of a lease can be raised: [`Fencing::raise`](crate::spi::Fencing::raise).
    Raise,
    /// The watch stream of the [`Watch`](crate::spi::Watch) part.
    Watch,
    /// `inspect` of the [`Watch`](crate::spi::Watch) part.
    Inspect,
    /// `force_release` of the [`Watch`](crate::spi::Watch) part.
    ForceRelease,
    /// The names in use can be listed: [`Watch::list`](crate::spi::Watch::list).
    List,
    /// An exclusive hold can become a shared one in one step:
    /// [`RwLock::convert`](crate::spi::RwLock::convert).
    Downgrade,
    /// A shared hold can become an exclusive one, without deadlock:
    /// [`RwLock::convert`](crate::spi::RwLock::convert).
    Upgrade,
    /// A release can keep the name taken for a while: [`Release::KeepFor`](crate::spi::Release::KeepFor).
    MinimumHold,
    /// An owner label is stored with the lease and shown by `inspect`.
    OwnerLabel,
}

impl Capability {
    /// All capabilities, in declaration order.
    pub const ALL: &'static [Self] = &[
        Self::Shared,
        Self::Permits,
        Self::Queue,
        Self::Priority,
        Self::PerGrantTtl,
        Self::Renew,
        Self::Fencing,
        Self::Gate,
        Self::Raise,
        Self::Watch,
        Self::Inspect,
        Self::ForceRelease,
        Self::List,
        Self::Downgrade,
        Self::Upgrade,
        Self::MinimumHold,
        Self::OwnerLabel,
    ];
}

/// What ends the lease of a holder that vanished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Nature {
    /// Each lease has a time of its own and expires alone (Redis, SQL rows).
    Lease,
    /// All leases of a client depend on one session or connection and end with it (ZooKeeper, advisory
    /// locks).
    Session,
}

/// What a backend claims and its limits. Constant for the life of a client; from
/// [`Client::capabilities`](crate::Client::capabilities).
///
/// A backend builds it with [`Capabilities::new`] and the methods that follow:
///
/// ```
/// # use dlock_core as dlock;
/// use std::time::Duration;
/// use dlock::{Capabilities, Capability};
/// let caps = Capabilities::new("acme")
///     .with(Capability::PerGrantTtl)
///     .with_ttl(Duration::from_millis(10)..=Duration::from_secs(3600), Duration::from_millis(1));
/// assert!(caps.has(Capability::PerGrantTtl) && !caps.has(Capability::Queue));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Capabilities {
    /// The backend's short name, for messages and metrics: `memory`, `sqlite`, `redis`.
    pub backend: &'static str,
    /// What ends the lease of a vanished holder.
    pub nature: Nature,
    /// What the order of the tokens survives; `None` without [`Capability::Fencing`].
    pub strength: Option<Strength>,
    /// The smallest ttl that is accepted. In a session store, its session timeout.
    pub min_ttl: Duration,
    /// The largest ttl that is accepted.
    pub max_ttl: Duration,
    /// The store rounds a ttl *up* to a multiple of this.
    pub ttl_granularity: Duration,
    /// The longest name, in bytes; at least 1024.
    pub max_name_len: usize,
    /// The longest owner label, in bytes; 0 without [`Capability::OwnerLabel`].
    pub max_owner_len: usize,
    /// The largest number of names that one client may hold at once, if limited.
    pub max_held: Option<u64>,
    /// The largest number of waiters of one name, if limited.
    pub max_waiters: Option<u64>,
    /// `Some(bits)` if the store knows only a hash of the name, so that two names can be the same lock.
    pub name_hash_bits: Option<u32>,
    /// Whether setting the server's clock can end a lease early.
    pub clock_sensitive: bool,
    set: u64,
    /// What was taken back, and does not follow from a part either.
    taken_back: u64,
}

impl Capabilities {
    /// Creates the claims of a plain exclusive lock: [`Nature::Lease`], ttls from 10 ms to 24 h in steps of 1
    /// ms, names up to 1 KiB, and no capability.
    pub fn new(backend: &'static str) -> Self {
        Self {
            backend,
            nature: Nature::Lease,
            strength: None,
            min_ttl: Duration::from_millis(10),
            max_ttl: Duration::from_secs(24 * 3600),
            ttl_granularity: Duration::from_millis(1),
            max_name_len: 1024,
            max_owner_len: 0,
            max_held: None,
            max_waiters: None,
            name_hash_bits: None,
            clock_sensitive: false,
            set: 0,
            taken_back: 0,
        }
    }

    /// Claims one more capability. Fencing and owner labels have methods of their own.
    ///
    /// Capabilities that follow from a part of the backend need not be claimed: see
    /// [`capabilities_of`](crate::spi::capabilities_of).
    pub fn with(mut self, capability: Capability) -> Self {
        self.set |= 1 << capability as u8;
        self.taken_back &= !(1 << capability as u8);
        self
    }

    /// Claims all of these capabilities.
    pub fn with_all(self, capabilities: impl IntoIterator<Item = Capability>) -> Self {
        capabilities.into_iter().fold(self, Self::with)
    }

    /// Claims everything that does not follow from a part, with owner labels of up to 1 KiB. For a store of
    /// leases that has every feature.
    pub fn with_everything(self) -> Self {
        use Capability::{List, MinimumHold, PerGrantTtl, Permits, Priority, Queue, Raise, Shared, Upgrade};
        let sharing = [Shared, Permits, Upgrade];
        let all = self
            .with_all(sharing)
            .with_all([Queue, Priority, PerGrantTtl, Raise, MinimumHold, List]);
        all.with_owner_label(1024)
    }

    /// Withdraws a claim, also one that would follow from a part. For stores and wrappers that cannot keep
    /// it.
    pub fn without(mut self, capability: Capability) -> Self {
        self.set &= !(1 << capability as u8);
        self.taken_back |= 1 << capability as u8;
        match capability {
            Capability::Fencing => self.strength = None,
            Capability::OwnerLabel => self.max_owner_len = 0,
            _ => {}
        }
        self
    }

    /// Whether the claim was withdrawn, so that no part brings it back.
    pub(crate) fn took_back(&self, capability: Capability) -> bool {
        self.taken_back & (1 << capability as u8) != 0
    }

    /// Claims a capability that follows from a part if that part exists and the claim was not withdrawn;
    /// otherwise withdraws it.
    pub(crate) fn following(self, capability: Capability, part_is_there: bool) -> Self {
        match part_is_there && !self.took_back(capability) {
            true => self.with(capability),
            false => self.without(capability),
        }
    }

    /// Withdraws everything that is not claimed, so that equal claims compare as equal.
    pub(crate) fn settled(mut self) -> Self {
        self.taken_back = Capability::ALL
            .iter()
            .filter(|c| !self.has(**c))
            .fold(0, |set, c| set | 1 << *c as u8);
        self
    }

    /// Claims [`Capability::Fencing`] with this strength. A backend with a [`Fencing`](crate::spi::Fencing)
    /// part need not call this.
    pub fn with_fencing(mut self, strength: Strength) -> Self {
        self.strength = Some(strength);
        self.with(Capability::Fencing)
    }

    /// Claims [`Capability::OwnerLabel`] with labels of up to `max_len` bytes.
    pub fn with_owner_label(mut self, max_len: usize) -> Self {
        self.max_owner_len = max_len;
        self.with(Capability::OwnerLabel)
    }

    /// Sets the accepted range of ttls, and the granularity to which the store rounds a ttl up.
    pub fn with_ttl(mut self, range: std::ops::RangeInclusive<Duration>, granularity: Duration) -> Self {
        (self.min_ttl, self.max_ttl) = range.into_inner();
        self.ttl_granularity = granularity;
        self
    }

    /// Sets the longest name, in bytes.
    pub fn with_max_name_len(mut self, bytes: usize) -> Self {
        self.max_name_len = bytes;
        self
    }

    /// Sets what ends the lease of a vanished holder.
    pub fn with_nature(mut self, nature: Nature) -> Self {
        self.nature = nature;
        self
    }

    /// Returns whether this capability is claimed.
    pub fn has(&self, capability: Capability) -> bool {
        self.set & (1 << capability as u8) != 0
    }

    /// Returns the claimed capabilities, in declaration order.
    pub fn claimed(&self) -> impl Iterator<Item = Capability> + '_ {
        Capability::ALL.iter().copied().filter(|c| self.has(*c))
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capabilities")
            .field("backend", &self.backend)
            .field("nature", &self.nature)
            .field("claimed", &self.claimed().collect::<Vec<_>>())
            .field("strength", &self.strength)
            .field("ttl", &(self.min_ttl..=self.max_ttl))
            .field("ttl_granularity", &self.ttl_granularity)
            .field("max_name_len", &self.max_name_len)
            .field("max_owner_len", &self.max_owner_len)
            .field("max_held", &self.max_held)
            .field("max_waiters", &self.max_waiters)
            .field("name_hash_bits", &self.name_hash_bits)
            .field("clock_sensitive", &self.clock_sensitive)
            .finish()
    }
}
