//! Leader election: a lock whose holder leads, and tells a value of its own to those who look.
//!
//! Everything here is made of the lock, the watch stream and the guard, so it holds on every backend what
//! these hold there: see `docs/election.md`.

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

/// Where a store has no queue, whoever led leaves the name alone for that long: most who wait there ask again
/// sooner.
const HOLD_BACK: Duration = Duration::from_millis(500);

/// What lasts that long counts as a success, and what comes after it begins with a short pause again.
const LASTING: Duration = Duration::from_secs(1);

/// A handle to an election: those who [campaign](Self::campaign) in it lead one at a time, wherever they are.
/// Cheap to clone and to keep. See [`Client::election`](crate::Client::election).
///
/// It is the exclusive lock of the same name, seen by those who want to lead for as long as they live. Who
/// leads holds the lock, and its value is the lock's owner label.
#[derive(Clone)]
pub struct Election {
    client: Client,
    lock: Lock,
}

impl Election {
    pub(crate) fn new(client: Client, lock: Lock) -> Self {
        Self { client, lock }
    }

    /// The same election, in which this candidate publishes that value while it leads: its address, say.
    ///
    /// # Errors
    /// `InvalidInput` if it is longer than [`max_owner_len`](crate::Capabilities::max_owner_len) bytes;
    /// `Unsupported` where the backend keeps no owner label.
    pub fn value(self, value: impl Into<Arc<str>>) -> Result<Self> {
        self.options(LockOptions::new().owner_label(value))
    }

    /// The same election, with leases of these options. The ttl is what a leader that crashed costs, and how
    /// long one may be paused or cut off and still lead; with a maximum hold the leadership goes round. With
    /// a minimum hold the next one has to wait for it, and until then the last one is shown as the leader.
    ///
    /// # Errors
    /// As [`Lock::options`].
    pub fn options(self, options: LockOptions) -> Result<Self> {
        let lock = self.lock.options(options)?;
        Ok(Self { lock, ..self })
    }

    /// The name of the election.
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// Waits until this candidate leads, for as long as [`LockOptions::wait_limit`] says: for ever unless
    /// set.
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

    /// Who leads now, with which value and token; `None` if nobody does. By the time that this is read it may
    /// be another one.
    ///
    /// # Cancel safety
    /// Cancel safe: it only reads.
    ///
    /// # Errors
    /// As [`Client::inspect`](crate::Client::inspect).
    pub async fn leader(&self) -> Result<Option<Holder>> {
        self.client.inspect(self.name()).await.map(leader_of)
    }

    /// The leaders, as a stream: first the one of now, if there is one, then each that comes after it. Their
    /// tokens grow; none is told twice, and none that a newer one has followed.
    ///
    /// It does not tell that there is no leader, and where the backend has to look for changes, a leader who
    /// came and went between two looks may be missing. A candidate whom the store let in, and who did not
    /// live to hear of it, may be told. While the store cannot be reached the stream tells nothing; it
    /// watches anew when the store is back. When a store has lost its data, and its tokens with them, the
    /// leader of then may be missing, and the next one is told.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left behind. The stream may be dropped at any time.
    ///
    /// # Errors
    /// As [`Client::watch`](crate::Client::watch). What may pass by itself does not end the stream; any other
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

    /// Campaigns, runs `work` while this candidate leads, and campaigns again, until the work ends it:
    ///
    /// * `work` is called anew for each leadership, and gets a [`Held`] to read the token and deadline from.
    /// * *When the leadership is lost*, its future is dropped at the await where it waits, at the deadline at
    ///   the latest. Work that computes or blocks, or whose awaits are ready each time, is not ended by this,
    ///   nor is a process that stands still: let it look at [`Held::is_valid`], and give each write the
    ///   token.
    /// * `Continue(())` resigns, and lets another candidate go first, as [`Leadership::step_down`] does.
    /// * `Break(value)` resigns, and ends with that value, also if the leadership was over by then.
    ///
    /// What may pass by itself, such as a store that is away, is tried again after 12 to 800 ms, the longer
    /// the more often; so it is after a leadership that has not lasted a second. The wait limit of the
    /// options does not count. It runs in the calling task.
    ///
    /// # Cancel safety
    /// Dropped while it campaigns, it leaves nothing. Dropped while the work runs, the work is dropped and
    /// then the leadership resigned, in the background. Dropped while it resigns, the value is lost.
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
                        // What the store is not told now it is told in the background, or it lapses.
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

/// The leadership of an [`Election`], for as long as its lease goes. It derefs to [`Held`]: token, deadline,
/// and whether and why it is lost.
///
/// No two are valid at once, and each has a larger token than those before it: what a guard promises, and
/// within the same bounds. Dropped, it is resigned in the background.
#[must_use = "dropped, it is resigned"]
pub struct Leadership {
    guard: Guard,
    held: Held,
    engine: Arc<Engine>,
}

impl Leadership {
    /// What work that is done as the leader may know of it; keeps nothing alive.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// What happens to it from now on: see [`Guard::events`].
    pub fn events(&self) -> GuardEvents {
        self.guard.events()
    }

    /// Starts its lease anew: see [`Guard::renew`]. Only needed without auto-renewal.
    ///
    /// # Cancel safety
    /// As [`Guard::renew`].
    ///
    /// # Errors
    /// As [`Guard::renew`].
    pub async fn renew(&self) -> Result<()> {
        self.guard.renew().await
    }

    /// Lets go, and tells how that went: the next candidate leads at once, unless there is a minimum hold.
    ///
    /// # Cancel safety
    /// As [`Guard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<()> {
        self.guard.release().await
    }

    /// Lets go, and lets another candidate go first: when it returns, those of the same priority who were
    /// waiting come before this one, should it campaign again. Where the store has a queue, that is so at
    /// once. Elsewhere it comes back half a second later, which is a chance and no promise.
    ///
    /// # Cancel safety
    /// As [`Guard::release`]; dropped after that, the others have less time.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn step_down(self) -> Result<()> {
        let Self { guard, engine, .. } = self;
        guard.release().await?;
        // A client that is closed meanwhile campaigns no more.
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

/// How long whoever led leaves the name to others.
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
