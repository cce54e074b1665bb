//! A lock that is held if a majority of independent stores grants it, with tokens that increase whichever
//! majority that is.
//!
//! *"Distributed Locks with Redis" (the Redlock algorithm), S. Sanfilippo; what it lacked is in "How to do
//! distributed locking", M. Kleppmann, 2016: a fencing token. Writing back what was read before it is
//! returned is from "Sharing Memory Robustly in Message-Passing Systems", H. Attiya, A. Bar-Noy and D. Dolev,
//! 1995.*
//!
//! | file | idea |
//! |---|---|
//! | `votes.rs` | when grants of members make a grant of the quorum, and with which token: decisions only |
//! | `attempt.rs` | one attempt: sent to all members, raised, won or given back |
//! | `renew.rs`, `convert.rs`, `release.rs` | later operations, whose answers are counted in `tally.rs` |
//! | `calls.rs` | requests to several members at once, and which answers are waited for |
//! | `rounds.rs` | the members' keys of a request, and which members may have something of it |
//! | `debts.rs` | undoing in the background |
//! | `wait.rs` | when it pays to ask again |
//! | `claims.rs` | what a quorum can claim, given its members |
//! | `tests.rs` | the exhaustive check of the tokens |
//!
//! Of N members, M = N/2 + 1 are a majority: any two have a member in common. *A holds* means that A has a
//! lease at M members.
//!
//! # Exclusion
//!
//! A's validity ends when the M-th longest of its leases does, counted from before the *first* request was
//! sent, less the drift margin that the engine takes off. Until then M members keep A's lease, by their own
//! clocks, each of which may drift against A's by that margin; no two members' clocks are ever compared. B
//! needs a lease at M members, so at one of A's: not before A's is over. A renewal extends that only where M
//! of all N members renewed (with M' of the *acquired* ones, three of five would shrink to two, and the other
//! three are free for B). Readers and writers likewise: the member in common refuses. Permits cannot be had
//! so: with two permits, A at members 1 and 2, B at 2 and 3, C at 1 and 3, each member has two holders, and
//! there are three.
//!
//! # Tokens
//!
//! Members have counters of their own. A takes the largest of its M tokens, T, and has it *raised* on those
//! whose own is smaller; a member does that only while it has A's lease, and raises its counter to T with it.
//! Only then is the grant returned. So for each of A's M members there is a moment at which A's lease stood
//! there and the counter was at least T, and the token minted for that lease was at most T.
//!
//! Take two grants, A's with T, B's with U, at least one of them exclusive. They have a member in common, and
//! there their leases do not overlap. If A's was first, then the counter was at T or more when B's was
//! minted: B's own token there is above T (not below, if B is a reader), and U is not below that. If B's was
//! first, the same holds with the roles exchanged. So the tokens of writers are *distinct*, and tokens are
//! ordered as the leases were at *every* member that they share. If A's grant was returned before B asked,
//! A's lease was first there, and **T < U**. If they overlap, at most one is valid at any time, and the one
//! that is valid later has the larger token: when B's grant is returned, and its M leases stand, one of them
//! is at a member where A's was confirmed before.
//!
//! What each piece is for; the check in `tests.rs` fails without any one of them:
//!
//! * *the raise*: without it A's T at members 1 and 2 may come from 2 alone; B at 1 and 3 gets the same or
//!   less.
//! * *only while A's lease stands there*: a raise that arrives late, after B's lease was minted and over,
//!   counts for A and not against B.
//! * *members remember their counters*: a member that forgot may be the only one that A and B share.
//!
//! # What members may lose
//!
//! **Leases** (a restart without persistence): B may be granted while A is valid, since the member that both
//! need has forgotten A. The tokens are in order all the same, and a gate refuses A from B's first write on.
//! For exclusion as well, a member that lost its leases stays away for the longest ttl and the drift margin:
//! *delayed restart*. The member has to do that, since nothing here knows what it lost: the Redis backend
//! does (`rejoin_after`).
//!
//! **Counters** (its data): then tokens may repeat and fall, *and a delayed restart does not help*: A's T was
//! known to members 1 and 2; 2 forgot it; then a grant by 2 and 3 meets no member that knows T, however long
//! A is gone. So the declared [`Strength`] is that of the weakest member, and never more than
//! [`Strength::AcrossRestart`], even if a member's tokens survive the loss of data, since that relies on the
//! clocks of several machines. A member whose data is lost for good is a new member.
//!
//! # Interleavings
//!
//! | what happens | why it does no harm |
//! |---|---|
//! | **A member answers late**, after the attempt is decided | its answer is received in the background. In a won round, the late lease counts at renewals and is released with the others; in a lost round it is abandoned |
//! | **It never answers** | the end of the round sends it an *abandon*, whose tombstone stops a request that arrives later |
//! | **A member grants after its abandon**, its tombstone gone | one member has a lease under a key that is never used again; it expires |
//! | **The attempt is repeated** (its future was dropped, or `Unknown`) | the members' key stays the same: those that granted recognise it and answer the remaining life, with the same token if one was returned. A round that was given back is never continued |
//! | **A copy of an earlier request is granted again**, after its lease expired | the raise answers with the token of the lease that is there *now*; if that is larger, the token is chosen again. And the life that was counted is over, so the engine refuses the grant |
//! | **Some were raised, then it fails** | counters are higher than necessary; nobody got that token |
//! | **The reply to a raise is lost** | that member does not count; without a majority the round stays open (`Unknown`), and a repetition raises again |
//! | **The lease is over before the raise** | the member refuses, and does not count. Without a majority the round is given back, and the engine starts again |
//! | **A release is lost at some members** | a majority decides that it is released; the others are too few to keep anybody out, and are abandoned in the background |
//! | **A release is answered late**, after it was repeated | the answer counts whenever it comes, and if the second release finds nothing, the first one ended the lease: slowness is no loss |
//! | **A renewal reaches a minority** | the deadline does not move. The renewed leases are released with the hold, or expire |
//! | **Answers come in another order than they were given** | a member that once granted counts as a possible holder, whatever it answers later, until it has answered a release or an abandon |
//! | **A member has lost the lease** | it counts as gone in each renewal; with N − M + 1 of these the hold is lost, and the rest is given back |
//! | **A member answers `Unknown`** | it is not counted, but it may hold: an attempt that would have a majority with it is `Unknown`, and any other is given back there, too |
//! | **Several clients ask at once, and each gets some members** | all but one give back at once: see `Asking::insists`. Waiters retry with jitter |
//! | **The client dies** | its leases expire, each by its member's clock |
//! | **Clocks of members drift, or one is stepped** | each is compared only with the client's, within the margin. Ending a hold early takes a majority of stepped clocks |
//! | **A writer becomes a reader** | see `convert.rs`, also for why upgrades are not claimed |
//!
//! # What is not promised
//!
//! Nothing checks that all processes list the same members: majorities of different lists may not overlap.
//! The same holds if two entries lead to one store. Replacing a member while locks are held or tokens matter
//! is a loss of that member's data.

mod attempt;
mod calls;
mod claims;
mod convert;
mod debts;
mod release;
mod renew;
mod rounds;
mod shared;
mod tally;
#[cfg(test)]
mod tests;
mod votes;
mod wait;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::future;
use futures::stream::{BoxStream, StreamExt as _, select_all};

use self::debts::Debts;
use self::rounds::Rounds;
use self::shared::{Member, Shared};
use crate::capabilities::{Capabilities, Capability};
use crate::combinators::diagnosis::of_each;
use crate::diagnosis::Finding;
use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::runtime::Runtime;
use crate::spi::{
    Abandoned, Acquire, Attempt, Converted, Fencing, LeaseKey, Lock, Release, Released, Renew, RenewItem,
    RenewOutcome, RwLock, Signal,
};
use crate::token::Strength;

/// A lock over several independent stores. It is held if a majority of them grants it, and its fencing tokens
/// increase whichever majority that is.
///
/// It is for stores that fail independently and do not replicate before they answer: three or five of them
/// keep a lock while one or two are away. An odd number is best. A single store that replicates before it
/// answers costs less and promises more.
///
/// # What must hold
///
/// * **All processes list the same members**, in the same order, and each member is a separate store. Two
///   processes that disagree can both hold a lock. The order decides who wins a race that each has half won.
/// * **A member does not forget.** One that comes back without its *leases* may admit a second holder until
///   the ttl of those leases is over: keep it away for that long (`rejoin_after` of the Redis backend). One
///   that comes back without its *counters* breaks the order of the tokens for good.
///   [`Capabilities::strength`] declares this: the weakest member's, and at most [`Strength::AcrossRestart`].
/// * The runtime is the one of the members and the client: all times are read from its clock.
///
/// # Capabilities
///
/// Exclusive locks and readers, renewal, downgrade, minimum hold and owner labels (shown by each member's
/// `inspect`), as far as *every* member has them. Tokens, if every member claims [`Capability::Raise`], which
/// a quorum does not; otherwise the quorum is unfenced and says so. The ttl is at least 50 ms. Permits,
/// queues, priorities, upgrades, the watch part and a fence gate are not claimed: check the tokens at a gate
/// where the resource is.
///
/// # Cost and failures
///
/// An acquire sends one request to each member, and one more to each member of the majority whose counter has
/// to be raised. A release sends one request to each. A waiter asks the members that refused it whether
/// anything has changed, every 10 to 100 ms.
///
/// A majority decides without waiting for the others. While it is undecided, each member has `patience`, or a
/// quarter of the ttl if that is less, and an eighth of the ttl for a renewal. A member that did not answer
/// in that time is still asked like the others, but not waited for until it has answered. With fewer than a
/// majority within reach, requests fail with `Unavailable` or `Unknown`, and a hold is lost at its deadline.
///
/// # Examples
/// ```
/// # dlock_core::doc(|_| async {
/// # use dlock_core as dlock;
/// use std::sync::Arc;
/// use std::time::Duration;
/// use dlock::combinators::Quorum;
/// use dlock::{Client, Memory, runtime};
/// let runtime = runtime::own_thread()?;
/// let stores: Vec<_> = (0..3).map(|_| Memory::new(runtime.clone())).collect();
/// let members = stores.iter().map(Memory::connect).collect();
/// let quorum = Quorum::new(members, runtime.clone(), Duration::from_secs(1))?;
/// let client = Client::builder(Arc::new(quorum), runtime).build()?;
/// let first = client.lock("stock/42")?.acquire().await?;
/// let token = first.token();
/// first.release().await?;
/// assert!(client.lock("stock/42")?.acquire().await?.token() > token);
/// # Ok(()) });
/// ```
pub struct Quorum {
    shared: Arc<Shared>,
}

impl Quorum {
    /// The minimum ttl, whatever the members accept. A grant takes two exchanges with the members, whose time
    /// counts against the ttl.
    pub const MIN_TTL: Duration = claims::MIN_TTL;

    /// Creates a quorum of these members, of which a majority decides.
    ///
    /// `patience` is how long a member that does not answer is waited for at most. It must be well below the
    /// client's operation timeout; a fifth of that is a good choice.
    ///
    /// # Errors
    /// `InvalidInput` if there is no member, if one is listed twice, if `patience` is zero, or if the members
    /// cannot form one backend: leases mixed with sessions, or ranges of ttl that do not overlap above 50 ms.
    pub fn new(members: Vec<Arc<dyn Lock>>, runtime: Arc<dyn Runtime>, patience: Duration) -> Result<Self> {
        let bad = |message| Err(Error::new(ErrorKind::InvalidInput, message));
        for (n, member) in members.iter().enumerate() {
            if members[..n].iter().any(|other| Arc::ptr_eq(other, member)) {
                return bad("one member is listed twice: it would have two votes");
            }
        }
        if patience.is_zero() {
            return bad("`patience` must be more than zero");
        }
        let capabilities = claims::claims(&members)?;
        let mut client = [0; 16];
        runtime.fill_random(&mut client);
        let member = |backend| Member {
            backend,
            silent: AtomicBool::new(false),
            debts: Debts::default(),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                majority: votes::majority(members.len()),
                fenced: capabilities.has(Capability::Fencing),
                rounds: Mutex::new(Rounds::new(capabilities.nature)),
                capabilities,
                members: members.into_iter().map(member).collect(),
                runtime,
                patience,
                client: u128::from_le_bytes(client),
                sequence: AtomicU64::new(1),
                lingering: AtomicUsize::new(0),
                closed: AtomicBool::new(false),
                dropped: AtomicBool::new(false),
            }),
        })
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.shared.members.len()
    }

    /// The members' key of a request, for the judge of simulated runs.
    #[cfg(feature = "sim")]
    pub(crate) fn inside(&self, key: &LeaseKey) -> Option<LeaseKey> {
        Some(self.shared.rounds().held(key)?.inside.clone())
    }

    /// Returns the number of members that is a majority: more than half.
    pub fn majority(&self) -> usize {
        self.shared.majority
    }
}

impl Drop for Quorum {
    fn drop(&mut self) {
        self.shared.dropped.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = |member: &Member| member.backend.capabilities().backend;
        f.debug_struct("Quorum")
            .field(
                "members",
                &self.shared.members.iter().map(backend).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Lock for Quorum {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.shared.capabilities.has(Capability::Renew).then_some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.shared
            .capabilities
            .has(Capability::Downgrade)
            .then_some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.shared.fenced.then_some(self)
    }

    /// A loss at one member is a doubt for the quorum: the engine renews, and a majority decides.
    fn signals(&self) -> BoxStream<'static, Signal> {
        let of_one = |member: &Member| {
            member.backend.signals().map(|signal| match signal {
                Signal::Lost(..) => Signal::Doubt,
                other => other,
            })
        };
        select_all(self.shared.members.iter().map(of_one)).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        attempt::attempt(&self.shared, request).await
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        release::release(&self.shared, lease, how).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        release::abandon(&self.shared, requests).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let Shared {
            members,
            runtime,
            patience,
            ..
        } = &*self.shared;
        let members = members.iter().enumerate();
        let members = members.map(|(n, member)| (format!("member {}", n + 1), &*member.backend));
        Ok(of_each(members, &**runtime, *patience).await)
    }

    async fn close(&self) -> Result<()> {
        if self.shared.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.shared.settle().await;
        // Closes all, even if one fails, and returns the first error.
        let closing = self.shared.members.iter().map(|member| member.backend.close());
        future::join_all(closing).await.into_iter().collect()
    }
}

#[async_trait]
impl Renew for Quorum {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        renew::renew(&self.shared, items).await
    }
}

#[async_trait]
impl RwLock for Quorum {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        convert::downgrade(&self.shared, lease, to).await
    }
}

#[async_trait]
impl Fencing for Quorum {
    fn strength(&self) -> Strength {
        // Only called where grants have tokens, which have a strength.
        self.shared
            .capabilities
            .strength
            .unwrap_or(Strength::WhileStateSurvives)
    }
}
