//! A held lock.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::engine::{Core, Engine, Lease, LeaseState, convert, drop_lease, release, renew};
use crate::error::{Error, LossReason, Result};
use crate::events::GuardEvents;
use crate::mode::{Mode, Permits, ReadWrite};
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::Converted;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// A held lock. [`Permit`] is a held permit of a semaphore.
///
/// A lease can end while its guard exists: the process may have been paused or cut off for longer than the
/// ttl. So a guard
///
/// * knows its own [`deadline`](Self::deadline),
/// * reports its [loss](Self::lost), at the deadline at the latest, and
/// * has a [fencing token](Self::token), with which a resource refuses a holder that does not know yet that
///   its lease has ended.
///
/// Dropping a guard releases the lock in the background. The drop neither blocks nor panics, and works on any
/// thread, with or without a runtime. [`release`](Self::release) also waits, and returns the outcome.
///
/// Background work ends with the process. If the last act of a program is to drop a guard, the lock stays
/// taken until its ttl. Call [`release`](Self::release) before, or [`Client::close`](crate::Client::close),
/// which waits for releases in progress.
///
/// A guard that is leaked, for example by [`std::mem::forget`], stays held: with auto-renewal until its
/// client is closed or its process ends, otherwise until its ttl.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let guard = client.lock("orders/42")?.acquire().await?;
/// if guard.is_valid() {
///     println!("held for {:?} more, with token {:?}", guard.remaining(), guard.token());
/// }
/// guard.release().await?;
/// # Ok(()) });
/// ```
pub struct Guard<C = ReadWrite> {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    /// Not 0 once `release` has taken over. A whole word: a guard is moved from future to future, and a byte
    /// with its padding is copied in pieces that the processor has to wait for.
    left: usize,
    class: PhantomData<fn() -> C>,
}

/// A held permit of a [`Semaphore`](crate::Semaphore): a guard that cannot be converted to another mode.
///
/// ```compile_fail
/// # async fn example(client: dlock_core::Client) -> dlock_core::Result<()> {
/// let permit = client.semaphore("licences", 2)?.acquire().await?;
/// permit.downgrade().await?; // no method of a permit
/// # Ok(()) }
/// ```
pub type Permit = Guard<Permits>;

/// The outcome of [`Guard::try_upgrade`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum Upgrade {
    /// The guard is exclusive now and has a new token.
    Done,
    /// Others share the lock. The guard is unchanged.
    Busy,
    /// Another holder is upgrading, and each would wait for the other. The guard is unchanged. Release it and
    /// acquire the lock again.
    WouldDeadlock,
}

impl<C> Guard<C> {
    pub(crate) fn new(engine: Arc<Engine>, lease: Arc<Lease>) -> Self {
        Self {
            engine,
            lease,
            left: 0,
            class: PhantomData,
        }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.lease.key.name
    }

    /// Returns the id of the acquisition, which is unguessable and never reused.
    pub fn id(&self) -> RequestId {
        self.lease.key.id
    }

    /// Returns the fencing token, or `None` if the backend does not claim
    /// [`Capability::Fencing`](crate::Capability::Fencing).
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let lock = client.lock("report")?;
    /// let first = lock.acquire().await?;
    /// let token = first.token();
    /// first.release().await?;
    /// assert!(lock.acquire().await?.token() > token);
    /// # Ok(()) });
    /// ```
    pub fn token(&self) -> Option<Token> {
        self.lease.token()
    }

    /// Returns the mode in which the lock is held.
    pub fn mode(&self) -> Mode {
        self.lease.mode()
    }

    /// Returns the effective ttl, as the store last reported it. A session store may report another ttl than
    /// the one that was asked for.
    pub fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    /// Returns the time until which the lock is held, unless it is renewed. Once the hold is over:
    /// [`Timestamp::ZERO`].
    ///
    /// The deadline is counted from before the request was sent, minus the drift margin, so it is never later
    /// than the store's own. It never exceeds the maximum hold.
    pub fn deadline(&self) -> Timestamp {
        self.lease.deadline().unwrap_or(Timestamp::ZERO)
    }

    /// Returns the time left until the deadline, read from the clock. Zero once the hold is over.
    pub fn remaining(&self) -> Duration {
        self.engine.remaining(&self.lease)
    }

    /// Returns whether the deadline is still ahead, read from the clock. Once `false`, it is never `true`
    /// again.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let guard = client.lock("job")?.acquire().await?;
    /// assert!(guard.is_valid());
    /// client.close().await?;
    /// assert!(!guard.is_valid());
    /// # Ok(()) });
    /// ```
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns why the lock was lost, or `None` if it was not.
    pub fn loss(&self) -> Option<LossReason> {
        loss(&self.engine, &self.lease)
    }

    /// Returns a future that completes when the lock is lost, at its deadline at the latest. If it is lost
    /// already, the future completes at once. After a release it never completes.
    ///
    /// After the machine was suspended, it may take up to a second, since timers stand still during
    /// suspension; [`is_valid`](Self::is_valid) reads the clock. Any number of these futures may exist, in
    /// any task. They do not keep the lock.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// let guard = client.lock("job")?.acquire().await?;
    /// let lost = guard.lost();
    /// client.force_release("job").await?;
    /// guard.renew().await.unwrap_err(); // learnt at the next renewal, which is automatic otherwise
    /// assert_eq!(lost.await, dlock::LossReason::Refused);
    /// # Ok(()) });
    /// ```
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + Sync + 'static {
        self.lease.clone().lost()
    }

    /// Returns a stream of what happens to the lock from now on. It ends with `Lost` or `Released`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use dlock::GuardEvent;
    /// use futures::StreamExt;
    /// let guard = client.lock("job")?.acquire().await?;
    /// let mut events = guard.events();
    /// guard.renew().await?;
    /// guard.release().await?;
    /// assert!(matches!(events.next().await, Some(GuardEvent::Renewed)));
    /// assert!(matches!(events.next().await, Some(GuardEvent::Released)));
    /// # Ok(()) });
    /// ```
    pub fn events(&self) -> GuardEvents {
        GuardEvents::new(self.lease.clone())
    }

    /// Returns a read-only view of this guard, for code that runs under the lock.
    pub fn held(&self) -> Held {
        Held {
            core: Arc::clone(&**self.engine),
            lease: self.lease.clone(),
        }
    }

    /// Runs that for as long as this may be believed; then it is dropped at the await where it is.
    pub(crate) async fn while_held<T>(&self, body: impl Future<Output = T>) -> Result<T, LossReason> {
        let mut lost = pin!(self.lost());
        let mut body = pin!(body);
        // The loss first: after a stall both may be ready, and a body whose lock is lost must not take
        // another step.
        poll_fn(|cx| {
            if !self.is_valid() {
                return lost.as_mut().poll(cx).map(Err);
            }
            if let Poll::Ready(value) = body.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            lost.as_mut().poll(cx).map(Err)
        })
        .await
    }

    /// Renews the lease. Needed only without auto-renewal.
    ///
    /// A renewal resets the remaining time to the ttl and keeps the token. It never shortens the remaining
    /// time.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, the deadline is the old or the new one, and never later than the
    /// store's.
    ///
    /// # Errors
    /// `Lost` if the hold has ended. `Unavailable` or `Unknown` if the renewal failed; it may be retried
    /// until the deadline. `Unsupported`, `Closed`.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use std::time::Duration;
    /// use dlock::{AutoRenew, LockOptions};
    /// let options = LockOptions::new().ttl(Duration::from_secs(10)).auto_renew(AutoRenew::Off);
    /// let guard = client.lock("batch")?.options(options)?.acquire().await?;
    /// let before = guard.deadline();
    /// guard.renew().await?;
    /// assert!(guard.deadline() > before);
    /// # Ok(()) });
    /// ```
    pub async fn renew(&self) -> Result<()> {
        renew(&self.engine, &self.lease).await
    }

    /// Releases the lock and returns the outcome.
    ///
    /// After `Ok` the lock is free in the store or, with a minimum hold, held by nobody. If other guards of
    /// the same re-entrant owner share the lease, this only decrements their count.
    ///
    /// # Cancel safety
    /// Dropped at any point, even before the first poll, the lock is still released: it is not renewed any
    /// more, the release continues in the background, and it expires with its ttl at the latest.
    ///
    /// # Errors
    /// `Lost` if the hold had ended before, with the reason. `Unknown` if the store did not confirm the
    /// release: the client continues it in the background, for as long as the store may have the hold, and
    /// [`events`](Self::events) reports how it ended.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use dlock::{ErrorKind, LossReason};
    /// let guard = client.lock("job")?.acquire().await?;
    /// client.close().await?;
    /// let e = guard.release().await.unwrap_err();
    /// assert_eq!((e.kind(), e.loss_reason()), (ErrorKind::Lost, Some(LossReason::Closed)));
    /// # Ok(()) });
    /// ```
    pub async fn release(mut self) -> Result<()> {
        // From here on the lease has one guard fewer: `Drop` must not count it a second time.
        self.left = 1;
        if !self.lease.leave() {
            // Other guards of the same owner still hold it, or are releasing it now, unless it is over. By
            // the clock, since nobody may have looked.
            let is_over = self.engine.remaining(&self.lease).is_zero();
            return match self.lease.state() {
                LeaseState::Lost(reason) => Err(Error::lost(reason).with_name(self.name())),
                // Another look has noticed the end and is about to record it.
                LeaseState::Held if is_over => Err(Error::lost(LossReason::Expired).with_name(self.name())),
                _ => Ok(()),
            };
        }
        release(&self.engine, &self.lease).await
    }
}

impl Guard {
    /// By the clock: nobody may have looked since the deadline.
    fn check_held(&self) -> Result<()> {
        match self.engine.remaining(&self.lease).is_zero() {
            true => {
                Err(Error::lost(self.lease.loss().unwrap_or(LossReason::Released)).with_name(self.name()))
            }
            false => Ok(()),
        }
    }

    /// Converts an exclusive hold into a reader's, in one step. No writer gets in between, and waiting
    /// readers are granted the lock at once. The token stays the same.
    ///
    /// If the hold is shared already, this does nothing, unless an earlier upgrade was dropped or not
    /// answered. In that case the store is asked, and the token becomes the one that the store has.
    ///
    /// # Cancel safety
    /// Dropped at any point, the guard counts as a reader. The store may still have it as exclusive until
    /// this is called again.
    ///
    /// # Errors
    /// `Lost`, `Unsupported`, `Unavailable`, `Unknown`, `Closed`. `InvalidInput` while other guards of the
    /// same re-entrant owner share the exclusive hold, or while others wait for a permit of the name, which
    /// then cannot have readers. `Unavailable` also while another task converts this same hold.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// let prices = client.rwlock("prices")?;
    /// let guard = prices.write().acquire().await?;
    /// guard.downgrade().await?;
    /// assert!(prices.read().try_acquire().await?.is_some());
    /// # Ok(()) });
    /// ```
    pub async fn downgrade(&self) -> Result<()> {
        if !self.lease.may_be_exclusive_in_store() {
            return self.check_held();
        }
        convert(&self.engine, &self.lease, Mode::READER).await.map(|_| ())
    }

    /// Converts a shared hold into an exclusive one with a new token, if nobody else shares the lock. Never
    /// waits and never deadlocks. If it fails, the shared hold is unchanged.
    ///
    /// If the hold is exclusive already, this does nothing. While another task converts this same hold, the
    /// answer is `Busy`.
    ///
    /// # Cancel safety
    /// Dropped at any point, the guard counts as shared. The store may have it as exclusive, and keep readers
    /// out, until [`downgrade`](Self::downgrade) or this is called again.
    ///
    /// # Errors
    /// `Lost`, `Unsupported`, `Unavailable`, `Unknown`, `Closed`. Always `Unknown` after a downgrade of this
    /// hold was dropped or not answered, since that downgrade may still arrive.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use dlock::Upgrade;
    /// let prices = client.rwlock("prices")?;
    /// let guard = prices.read().acquire().await?;
    /// match guard.try_upgrade().await? {
    ///     Upgrade::Done => println!("exclusive, with token {:?}", guard.token()),
    ///     _ => println!("others read too; still a reader"),
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn try_upgrade(&self) -> Result<Upgrade> {
        if self.mode().is_exclusive() {
            return self.check_held().map(|()| Upgrade::Done);
        }
        Ok(match convert(&self.engine, &self.lease, Mode::Exclusive).await? {
            Converted::Done(_) => Upgrade::Done,
            Converted::Busy => Upgrade::Busy,
            Converted::WouldDeadlock => Upgrade::WouldDeadlock,
        })
    }
}

/// Releases in the background: no I/O here, no blocking, no runtime (I2).
impl<C> Drop for Guard<C> {
    fn drop(&mut self) {
        if self.left == 0 && self.lease.leave() {
            drop_lease(&self.engine, &self.lease);
        }
    }
}

impl<C> fmt::Debug for Guard<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Guard", &self.engine, &self.lease, f)
    }
}

/// A read-only view of a held lock, for code that runs under it. Cheap to clone. It does not keep the lock:
/// the lock is released with its guard.
///
/// From [`Guard::held`], [`Lock::with`](crate::Lock::with) and [`Election::lead`](crate::Election::lead).
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// let steps = client.lock("import")?.with(async |held| {
///     let mut steps = 0;
///     while held.is_valid() && steps < 3 {
///         steps += 1; // one step of the work, with `held.token()` in each write
///     }
///     steps
/// }).await?;
/// assert_eq!(steps, 3);
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Held {
    core: Arc<Core>,
    lease: Arc<Lease>,
}

impl Held {
    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.lease.key.name
    }

    /// Returns the fencing token: see [`Guard::token`].
    pub fn token(&self) -> Option<Token> {
        self.lease.token()
    }

    /// Returns the effective ttl: see [`Guard::ttl`].
    pub fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    /// Returns the time until which the lock is held: see [`Guard::deadline`].
    pub fn deadline(&self) -> Timestamp {
        self.lease.deadline().unwrap_or(Timestamp::ZERO)
    }

    /// Returns the time left until the deadline: see [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.core.remaining(&self.lease)
    }

    /// Returns whether the deadline is still ahead: see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns why the lock was lost, or `None` if it was not.
    pub fn loss(&self) -> Option<LossReason> {
        loss(&self.core, &self.lease)
    }

    /// Returns a future that completes when the lock is lost: see [`Guard::lost`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + Sync + 'static {
        self.lease.clone().lost()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("Held", &self.core, &self.lease, f)
    }
}

fn loss(core: &Core, lease: &Arc<Lease>) -> Option<LossReason> {
    // By the clock: nobody may have looked since the deadline.
    let _ = core.remaining(lease);
    lease.loss()
}

fn debug(what: &str, core: &Core, lease: &Arc<Lease>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(what)
        .field("name", &lease.key.name)
        .field("mode", &lease.mode())
        .field("token", &lease.token())
        .field("remaining", &core.remaining(lease))
        .finish_non_exhaustive()
}
