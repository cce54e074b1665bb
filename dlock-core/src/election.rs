//! Leader election: of all that campaign for a name, the one that holds its exclusive lock leads.
//!
//! What could break it, and why it does not:
//!
//! * *Two leaders while a renewal hangs* (client-go does that). A leadership is a guard: it is believed by the
//!   clock, up to a deadline that is counted from before the last confirmed renewal was sent. The store gives
//!   the name to nobody before that.
//! * *Work that goes on after the loss.* [`Election::lead`] drops the future of the work at the deadline. What
//!   that future has handed to other tasks or servers is beyond its reach; a [gate](crate::Client::gate)
//!   refuses what those write with the token of a leader that was followed by another one.
//! * *A leader that was paused.* It cannot know until it runs again. Its guard looks at the clock then, and
//!   the gate knows its token.
//! * *An observer that falls behind*, or is told a snapshot that is older than a change it has seen: what does
//!   not have a larger token than the leader before is not told.

use std::fmt;
use std::future::ready;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt as _};

use crate::capabilities::Capability;
use crate::client::Client;
use crate::error::{ErrorKind, Result};
use crate::guard::{Guard, Held};
use crate::inspection::{Change, Holder, Inspection};
use crate::lock::Lock;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::request_id::RequestId;
use crate::token::Token;

/// How long who has stepped down stays out of the way where nobody waits in a queue: others look at least
/// that often.
const ASIDE: Duration = Duration::from_secs(1);

/// A handle to the election of that name: see [`Client::election`]. Holds nothing by itself; cheap to clone.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let election = client.election("scheduler")?.value("10.0.0.7:8080")?;
/// let leadership = election.campaign().await?;
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.value.as_deref(), Some("10.0.0.7:8080"));
/// assert_eq!(leader.token, leadership.token());
/// leadership.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Election {
    client: Client,
    lock: Lock,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// This term: never the same again. Shown for diagnosis; it is not a right to anything.
    pub id: RequestId,
    /// The fencing token of the term, larger than that of any term before. `None` only where the backend does
    /// not claim [`Capability::Fencing`].
    pub token: Option<Token>,
    /// What it [published](Election::value).
    pub value: Option<Arc<str>>,
}

impl Leader {
    fn of(holder: Holder) -> Option<Self> {
        holder.mode.is_exclusive().then_some(Self {
            id: holder.id,
            token: holder.token,
            value: holder.owner,
        })
    }

    fn among(now: Inspection) -> Option<Self> {
        now.holders.into_iter().find_map(Self::of)
    }
}

impl Election {
    pub(crate) fn new(client: Client, lock: Lock) -> Self {
        Self { client, lock }
    }

    /// What this candidate publishes when it leads, its address say: the owner label of its lock.
    ///
    /// # Errors
    /// `InvalidInput` if it is longer than the owner labels of the backend; `Unsupported` where it has none.
    pub fn value(self, value: impl Into<Arc<str>>) -> Result<Self> {
        self.options(LockOptions::new().owner_label(value.into()))
    }

    /// Campaigns and leads with these options: see [`Lock::options`]. The ttl is how long nobody leads after
    /// a leader has vanished.
    ///
    /// # Errors
    /// As [`Lock::options`].
    pub fn options(self, options: LockOptions) -> Result<Self> {
        let lock = self.lock.options(options)?;
        Ok(Self { lock, ..self })
    }

    /// The name of the election, which is that of its lock.
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// Waits until this candidate leads, for as long as [`LockOptions::wait_limit`] says.
    ///
    /// # Cancel safety
    /// Cancel safe, as [`Lock::acquire`] is: dropped, it is a candidate no more.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub async fn campaign(&self) -> Result<Leadership> {
        self.lock.acquire().await.map(|guard| self.won(guard))
    }

    /// [`campaign`](Self::campaign) with this wait limit.
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// As [`Lock::acquire_timeout`].
    pub async fn campaign_timeout(&self, limit: Duration) -> Result<Leadership> {
        let guard = self.lock.acquire_timeout(limit).await?;
        Ok(self.won(guard))
    }

    /// Leads if nobody leads or campaigns now.
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// As [`Lock::try_acquire`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        let guard = self.lock.try_acquire().await?;
        Ok(guard.map(|guard| self.won(guard)))
    }

    fn won(&self, guard: Guard) -> Leadership {
        Leadership {
            held: guard.held(),
            guard,
            election: self.clone(),
        }
    }

    /// Who leads now, as the store has it; `None` if nobody does. A leader that has vanished is shown until
    /// its ttl is over.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`Client::inspect`].
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.client.inspect(self.name().clone()).await.map(Leader::among)
    }

    /// The leaders, as a stream: first the one of now, if there is one, then each that follows, in the order
    /// of their tokens and none twice. Leaders whose terms were over before they could be told may be left
    /// out; the last one never is.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind. The stream may be dropped at any time.
    ///
    /// # Errors
    /// As [`Client::watch`]; an item is an error where a change could not be read.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// use futures::StreamExt;
    /// let election = client.election("scheduler")?;
    /// let mut leaders = election.observe().await?;
    /// let leadership = election.campaign().await?;
    /// let Some(leader) = leaders.next().await.transpose()? else { panic!() };
    /// assert_eq!(leader.token, leadership.token());
    /// # Ok(()) });
    /// ```
    pub async fn observe(&self) -> Result<BoxStream<'static, Result<Leader>>> {
        let changes = self.client.watch(self.name().clone()).await?;
        let mut last: Option<Leader> = None;
        let leaders = changes.filter_map(move |change| {
            let leader = match change {
                Err(e) => return ready(Some(Err(e))),
                Ok(Change::Snapshot { now, .. }) => Leader::among(now),
                Ok(Change::Granted(holder)) => Leader::of(holder),
                Ok(_) => None,
            };
            let is_news = |leader: &Leader| match &last {
                Some(last) if leader.token.is_some() => leader.token > last.token,
                Some(last) => leader.id != last.id,
                None => true,
            };
            let told = leader.filter(is_news);
            last = told.clone().or(last.take());
            ready(told.map(Ok))
        });
        Ok(leaders.boxed())
    }

    /// Campaigns, and runs `work` while this candidate leads; the work gets a [`Held`] to read the token and
    /// the deadline from. When the leadership is lost, the future of the work is dropped at the await where
    /// it is, and the candidate campaigns again, after a pause that grows with failures in a row. Ends with
    /// the value of the work, when that is through and has resigned.
    ///
    /// # Cancel safety
    /// Dropped while it campaigns, it is a candidate no more. Dropped while the work runs, the work is
    /// dropped and the leadership resigned.
    ///
    /// # Errors
    /// `Closed` when the client is closed; otherwise what trying again does not mend: `Unsupported`,
    /// `InvalidInput`, `PermissionDenied`, `BackendData`; `Timeout` if [`LockOptions::wait_limit`] is set and
    /// ran out.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let election = client.election("scheduler")?;
    /// let token = election.lead(|leadership| async move {
    ///     // Schedule, until there is nothing left or the leadership is lost.
    ///     leadership.token()
    /// }).await?;
    /// assert!(token.is_some());
    /// # Ok(()) });
    /// ```
    pub async fn lead<T, F>(&self, mut work: impl FnMut(Held) -> F) -> Result<T>
    where
        F: Future<Output = T>,
    {
        let mut failures = 0;
        loop {
            let mut has_led = false;
            let led = self.lock.with(|held| {
                has_led = true;
                work(held)
            });
            match led.await {
                Ok(value) => return Ok(value),
                Err(e) => match e.kind() {
                    // Of a client that was closed the next campaign says so.
                    ErrorKind::Lost if has_led => failures = 1,
                    ErrorKind::Timeout => return Err(e),
                    ErrorKind::Lost => failures += 1,
                    _ if e.is_retryable() => failures += 1,
                    _ => return Err(e),
                },
            }
            self.lock.back_off(failures).await;
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", self.name())
            .finish_non_exhaustive()
    }
}

/// This candidate leads. What there is to know of it is in its [`Held`]: token, deadline, loss.
///
/// Dropping it resigns in the background, as dropping a [`Guard`] releases.
pub struct Leadership {
    guard: Guard,
    held: Held,
    election: Election,
}

impl Leadership {
    /// Hands over, and tells how that went: whoever is next leads.
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// [`resign`](Self::resign), and stays aside until another candidate had the chance to lead, before it
    /// returns. Where the backend has no queue that takes a second.
    ///
    /// # Cancel safety
    /// Dropped at any point, it has resigned.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn step_down(self) -> Result<()> {
        let Self { guard, election, .. } = self;
        let resigned = guard.release().await;
        if !election.client.capabilities().has(Capability::Queue) {
            election.lock.runtime().sleep(ASIDE).await;
        }
        resigned
    }
}

impl Deref for Leadership {
    type Target = Held;
    fn deref(&self) -> &Held {
        &self.held
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.held).finish()
    }
}
