//! Leader election: a lock whose holder is the leader and publishes a value.
//!
//! It is built from the lock, the watch stream and the guard, and keeps on every backend what these keep
//! there: see `docs/election.md`.

use std::fmt;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use crate::capabilities::Capability;
use crate::client::Client;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::events::GuardEvents;
use crate::guard::{Guard, Held};
use crate::inspection::{Change, Holder, Inspection};
use crate::lock::Lock;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::timestamp::Timestamp;

/// Where a store has no queue, a former leader leaves the name alone for that long: most candidates ask again
/// sooner.
const HOLD_BACK: Duration = Duration::from_millis(500);

/// What lasts that long counts as a success, and what comes after it begins with a short pause again.
const LASTING: Duration = Duration::from_secs(1);

/// A handle to an election. Its candidates [campaign](Self::campaign), and at most one of them leads at a
/// time, across all clients. Cheap to clone and to keep. From [`Client::election`](crate::Client::election).
///
/// An election is the exclusive lock of the same name. The leader holds that lock, and its value is the
/// lock's owner label.
#[derive(Clone)]
pub struct Election {
    client: Client,
    lock: Lock,
}

impl Election {
    pub(crate) fn new(client: Client, lock: Lock) -> Self {
        Self { client, lock }
    }

    /// Returns this election with a value, such as the candidate's address, that the candidate publishes
    /// while it leads.
    ///
    /// # Errors
    /// `InvalidInput` if the value is longer than [`max_owner_len`](crate::Capabilities::max_owner_len)
    /// bytes; `Unsupported` if the backend does not claim [`Capability::OwnerLabel`].
    pub fn value(self, value: impl Into<Arc<str>>) -> Result<Self> {
        self.options(LockOptions::new().owner_label(value))
    }

    /// Returns this election with `options` for its leases.
    ///
    /// After a leader has crashed, nobody leads for up to the ttl; a leader that is paused or cut off for
    /// longer loses the leadership. A maximum hold rotates the leadership. With a minimum hold the next
    /// leader waits for it, and until then the last one is still shown as the leader.
    ///
    /// # Errors
    /// As [`Lock::options`].
    pub fn options(self, options: LockOptions) -> Result<Self> {
        let lock = self.lock.options(options)?;
        Ok(Self { lock, ..self })
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// Waits until this candidate leads, for [`LockOptions::wait_limit`] at most. By default it waits as long
    /// as needed.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the candidate has left the election.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let election = client.election("scheduler")?.value("10.0.0.7:8080")?;
    /// let leadership = election.campaign().await?;
    /// println!("this is the leader, with token {:?}", leadership.token());
    /// leadership.resign().await?;
    /// # Ok(()) });
    /// ```
    pub async fn campaign(&self) -> Result<Leadership> {
        self.campaign_within(self.lock.wait_limit()).await
    }

    async fn campaign_within(&self, limit: Option<Duration>) -> Result<Leadership> {
        let guard = self.lock.wait(limit).await?;
        Ok(Leadership {
            held: guard.held(),
            engine: Arc::clone(self.client.engine()),
            guard,
        })
    }

    /// Reads who leads now, with value and token. `None` if nobody does. The answer may be outdated when it
    /// arrives.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`Client::inspect`](crate::Client::inspect).
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let election = client.election("scheduler")?.value("10.0.0.7:8080")?;
    /// assert!(election.leader().await?.is_none());
    /// let leadership = election.campaign().await?;
    /// let leader = election.leader().await?.expect("somebody leads");
    /// assert_eq!((leader.owner.as_deref(), leader.token), (Some("10.0.0.7:8080"), leadership.token()));
    /// # Ok(()) });
    /// ```
    pub async fn leader(&self) -> Result<Option<Holder>> {
        self.client.inspect(self.name()).await.map(leader_of)
    }

    /// Observes the leaders as a stream: the present leader, if there is one, and then each later one. Their
    /// tokens grow. No leader is reported twice, or after a newer one.
    ///
    /// The stream does not report that nobody leads. If the backend polls for changes, a leader that came and
    /// went between two polls may be missing. A candidate that was granted the lock and died before it
    /// learned of it may be reported. While the store cannot be reached, the stream is silent; afterwards it
    /// continues. If a store has lost its data, tokens included, the leader of that time may be missing; the
    /// next one is reported.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind. The stream may be dropped at any time.
    ///
    /// # Errors
    /// As [`Client::watch`](crate::Client::watch). Errors that may pass do not end the stream; any other
    /// error is its last item.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// use futures::StreamExt;
    /// let election = client.election("scheduler")?.value("10.0.0.7:8080")?;
    /// let leadership = election.campaign().await?;
    /// let mut leaders = election.observe().await?;
    /// let leader = leaders.next().await.transpose()?.expect("somebody leads");
    /// assert_eq!((leader.owner.as_deref(), leader.token), (Some("10.0.0.7:8080"), leadership.token()));
    /// # Ok(()) });
    /// ```
    pub async fn observe(&self) -> Result<BoxStream<'static, Result<Holder>>> {
        let observer = Observer {
            changes: self.client.watch(self.name()).await?,
            began: self.client.engine().now(),
            election: self.clone(),
            last: None,
            failures: 0,
            is_over: false,
        };
        Ok(stream::unfold(observer, Observer::next).boxed())
    }

    /// Campaigns, runs `work` while this candidate leads, and campaigns again, until `work` ends it.
    ///
    /// * `work` is called for each leadership, with a [`Held`] that has the token and the deadline.
    /// * *When the leadership is lost*, the future of `work` is dropped at the await where it is suspended,
    ///   at the deadline at the latest. This cannot end work that computes or blocks, or whose awaits are
    ///   always ready, nor a process that is stopped. Such work checks [`Held::is_valid`] and sends the token
    ///   with each write.
    /// * `Continue(())` resigns, lets another candidate go first, as [`Leadership::step_down`] does, and
    ///   campaigns again.
    /// * `Break(value)` resigns and returns `value`, even if the leadership was over by then.
    ///
    /// Errors that may pass, such as a store that is away, are retried after 12 to 800 ms, with growing
    /// pauses; so is a leadership that lasted less than a second. The wait limit of the options is ignored.
    /// `work` runs in the calling task.
    ///
    /// # Cancel safety
    /// Dropped while it campaigns, it leaves nothing behind. Dropped while `work` runs, `work` is dropped
    /// first, and then the leadership is resigned in the background. Dropped while it resigns, the value is
    /// lost.
    ///
    /// # Errors
    /// `Closed` when the client is closed; `InvalidInput`, `Unsupported`, `PermissionDenied`, `BackendData`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// use std::ops::ControlFlow;
    /// let election = client.election("scheduler")?;
    /// let done: u32 = election.lead(async |leadership| {
    ///     println!("this is the leader, with token {:?}", leadership.token());
    ///     ControlFlow::Break(17)
    /// }).await?;
    /// assert_eq!(done, 17);
    /// # Ok(()) });
    /// ```
    ///
    /// In a task of its own, with a future for each leadership that owns what it needs:
    ///
    /// ```no_run
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// # use std::ops::ControlFlow;
    /// # async fn schedule(_: dlock::Client, _: dlock::Held) -> ControlFlow<()> { ControlFlow::Break(()) }
    /// let election = client.election("scheduler")?;
    /// let leading = tokio::spawn(async move {
    ///     election.lead(|leadership| schedule(client.clone(), leadership)).await
    /// });
    /// # leading.await.expect("it does not panic")?;
    /// # Ok(()) });
    /// ```
    pub async fn lead<T, F>(&self, mut work: impl FnMut(Held) -> F) -> Result<T>
    where
        F: Future<Output = ControlFlow<T>>,
    {
        let engine = self.client.engine();
        let mut failures = 0;
        loop {
            let mut pause = Duration::ZERO;
            match self.campaign_within(None).await {
                Ok(leadership) => {
                    let began = engine.now();
                    let work = work(leadership.held());
                    match leadership.guard.while_held(work).await {
                        // If this fails, the release continues in the background, or the lease expires.
                        Ok(ControlFlow::Break(value)) => {
                            let _ = leadership.resign().await;
                            return Ok(value);
                        }
                        Ok(ControlFlow::Continue(())) => {
                            let _ = leadership.resign().await;
                        }
                        Err(_) => drop(leadership),
                    }
                    pause = hold_back(engine);
                    if began.until(engine.now()) >= LASTING {
                        failures = 0;
                    }
                }
                Err(e) if may_pass(&e) => {}
                Err(e) => return Err(e),
            }
            failures += 1;
            engine.pause(pause.max(engine.backoff(failures))).await?;
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

/// The leadership of an [`Election`]. It dereferences to [`Held`], which has the token, the deadline and the
/// loss. Dropping it resigns in the background.
///
/// No two leaderships are valid at once, and each has a larger token than those before it, within the bounds
/// of what a [`Guard`] promises.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let leadership = client.election("scheduler")?.campaign().await?;
/// while leadership.is_valid() {
///     // ... one step of the leader's work, with `leadership.token()` in each write ...
/// #   break;
/// }
/// leadership.step_down().await?; // lets another candidate go first
/// # Ok(()) });
/// ```
#[must_use = "dropped, it is resigned"]
pub struct Leadership {
    guard: Guard,
    held: Held,
    engine: Arc<Engine>,
}

impl Leadership {
    /// Returns a read-only view of the leadership, for code that runs under it. It does not keep the
    /// leadership.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// Returns a stream of what happens to the leadership from now on: see [`Guard::events`].
    pub fn events(&self) -> GuardEvents {
        self.guard.events()
    }

    /// Renews the lease: see [`Guard::renew`]. Needed only without auto-renewal.
    ///
    /// # Cancel safety
    /// As [`Guard::renew`].
    ///
    /// # Errors
    /// As [`Guard::renew`].
    pub async fn renew(&self) -> Result<()> {
        self.guard.renew().await
    }

    /// Resigns and returns the outcome. The next candidate leads at once, unless there is a minimum hold.
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// Resigns and lets another candidate go first. When it returns, waiting candidates of the same priority
    /// come before this one, should it campaign again.
    ///
    /// If the store has a queue, this holds at once. Otherwise the call waits for half a second, which gives
    /// the others a chance but no guarantee.
    ///
    /// # Cancel safety
    /// As [`Guard::release`]. Dropped after the release, the others have less time.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn step_down(self) -> Result<()> {
        let Self { guard, engine, .. } = self;
        guard.release().await?;
        // A client that is closed meanwhile does not campaign again.
        let _ = engine.pause(hold_back(&engine)).await;
        Ok(())
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

/// What is told of the leaders of one election.
struct Observer {
    election: Election,
    changes: BoxStream<'static, Result<Change>>,
    /// When they began.
    began: Timestamp,
    last: Option<Holder>,
    failures: u32,
    is_over: bool,
}

impl Observer {
    async fn next(mut self) -> Option<(Result<Holder>, Self)> {
        while !self.is_over {
            let e = match self.changes.next().await {
                Some(Ok(change)) => match self.leader_after(change) {
                    Some(leader) => {
                        self.last = Some(leader.clone());
                        return Some((Ok(leader), self));
                    }
                    None => continue,
                },
                Some(Err(e)) => Some(e),
                None => None,
            };
            let again = match e.filter(|e| !may_pass(e)) {
                Some(e) => Err(e),
                None => self.watch_anew().await,
            };
            if let Err(e) = again {
                self.is_over = true;
                return Some((Err(e), self));
            }
        }
        None
    }

    async fn watch_anew(&mut self) -> Result<()> {
        let Election { client, lock } = &self.election;
        let engine = client.engine();
        if self.began.until(engine.now()) >= LASTING {
            self.failures = 0;
        }
        loop {
            self.failures += 1;
            engine.pause(engine.backoff(self.failures)).await?;
            match client.watch(lock.name()).await {
                Ok(changes) => {
                    (self.changes, self.began) = (changes, engine.now());
                    return Ok(());
                }
                Err(e) if may_pass(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The leader that this change tells of, if it is another one. A connection that is new may be to a
    /// server that is behind the last one: what it shows first does not count if it is older. Each grant
    /// after that is news, though the store has lost its tokens.
    fn leader_after(&self, change: Change) -> Option<Holder> {
        let (leader, oldest) = match change {
            Change::Snapshot { now, .. } => (leader_of(now)?, self.last.as_ref().and_then(|last| last.token)),
            Change::Granted(holder) => (Some(holder).filter(leads)?, None),
            _ => return None,
        };
        let is_told = self.last.as_ref().is_some_and(|last| last.id == leader.id);
        (!is_told && leader.token >= oldest).then_some(leader)
    }
}

/// How long a former leader leaves the name to others.
fn hold_back(engine: &Engine) -> Duration {
    match engine.caps.has(Capability::Queue) {
        true => Duration::ZERO,
        false => HOLD_BACK,
    }
}

/// A loss ends a leadership, and not the wish to lead.
fn may_pass(e: &Error) -> bool {
    e.is_retryable() || e.kind() == ErrorKind::Lost
}

fn leader_of(now: Inspection) -> Option<Holder> {
    now.holders.into_iter().find(leads)
}

/// Readers of a lock of that name lead nobody.
fn leads(holder: &Holder) -> bool {
    holder.mode.is_exclusive()
}
