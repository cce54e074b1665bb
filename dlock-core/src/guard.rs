//! What is held.

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

/// A held lock; [`Permit`] is a held permit of a semaphore.
///
/// A lease can end while a guard exists: its holder may have been paused or cut off for longer than its ttl.
/// So a guard knows its own [`deadline`](Self::deadline), [tells](Self::lost) when it is lost, at the
/// deadline at the latest, and carries a [fencing token](Self::token) by which a resource can refuse a holder
/// that does not know yet.
///
/// Dropping a guard releases the lock in the background; it neither blocks nor panics and needs no runtime,
/// on any thread. [`release`](Self::release) tells how it went.
///
/// A guard that is leaked, by [`std::mem::forget`] say, is held like any other: without renewal it lapses
/// with its ttl, with renewal it stays held until its client is closed or its process ends.
///
/// What happens in the background ends with the process: a program whose last act is to drop a guard leaves
/// the lock to its ttl. So let it end with [`release`](Self::release), or with
/// [`Client::close`](crate::Client::close), which waits for the releases that are under way.
pub struct Guard<C = ReadWrite> {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    /// Not 0 once `release` has taken over. A whole word: a guard is moved from future to future, and a byte
    /// with its padding is copied in pieces that the processor has to wait for.
    left: usize,
    class: PhantomData<fn() -> C>,
}

/// A held permit of a [`Semaphore`](crate::Semaphore): a guard that is not converted.
///
/// ```compile_fail
/// # async fn example(client: dlock_core::Client) -> dlock_core::Result<()> {
/// let permit = client.semaphore("licences", 2)?.acquire().await?;
/// permit.downgrade().await?; // no method of a permit
/// # Ok(()) }
/// ```
pub type Permit = Guard<Permits>;

/// How an upgrade went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub enum Upgrade {
    /// The guard is exclusive now, with a new token.
    Done,
    /// Others share the lock; the guard is as it was.
    Busy,
    /// Another holder is upgrading, and each would wait for the other; the guard is as it was. Release it,
    /// and acquire anew.
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

    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.lease.key.name
    }

    /// The acquisition: unguessable, and never the same again.
    pub fn id(&self) -> RequestId {
        self.lease.key.id
    }

    /// The fencing token; `None` only where the backend does not claim
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

    /// In which mode it is held.
    pub fn mode(&self) -> Mode {
        self.lease.mode()
    }

    /// The effective ttl, as the store last gave it.
    pub fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    /// Until when it may be believed, unless it is renewed; never beyond its maximum hold. Once it is over:
    /// [`Timestamp::ZERO`]. Counted from before the request was sent, less the drift margin, so that it is
    /// never later than the store's own.
    pub fn deadline(&self) -> Timestamp {
        self.lease.deadline().unwrap_or(Timestamp::ZERO)
    }

    /// How long it may be believed yet: from the clock, not from a flag. Zero once it is over.
    pub fn remaining(&self) -> Duration {
        self.engine.remaining(&self.lease)
    }

    /// Whether it may be believed now: from the clock, not from a flag. Once `false`, never `true` again.
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

    /// Why it was lost, if it was.
    pub fn loss(&self) -> Option<LossReason> {
        loss(&self.engine, &self.lease)
    }

    /// Completes when the lock is lost, at its deadline at the latest; at once if it is lost already; never
    /// after a release. After the machine was suspended it may take up to a second, since timers stand still
    /// in suspension; [`is_valid`](Self::is_valid) looks at the clock. Any number of these may be awaited
    /// anywhere; they keep nothing alive.
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

    /// What happens to it from now on, as a stream that ends with `Lost` or `Released`.
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

    /// What a body that runs under the lock may know of it.
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
        // The loss first: after a stall both may be ready, and a body whose lock is gone must not take one
        // more step.
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

    /// Starts the lease's life anew. Only needed without auto-renewal. A renewal is a reset, not an addition,
    /// and never shortens what was promised; it keeps the token.
    ///
    /// # Cancel safety
    /// Dropped at any point, the deadline is the old or the new one, and never beyond the store's.
    ///
    /// # Errors
    /// `Lost` if it had ended; `Unavailable` or `Unknown` if it could not be renewed and may be tried again
    /// until the deadline; `Unsupported`, `Closed`.
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

    /// Lets go, and tells how that went.
    ///
    /// When this returns `Ok`, the store has it as free (or, with a minimum hold, as nobody's). A guard that
    /// shares its lease with others of the same owner only counts down.
    ///
    /// # Cancel safety
    /// Dropped at any point, even before it is first polled, the lock is let go of all the same: nothing
    /// renews it, the release goes on in the background, and at the latest it lapses by its ttl.
    ///
    /// # Errors
    /// `Lost` if the hold had ended before, with the reason. `Unknown` if the store could not be asked: the
    /// client goes on with the release in the background, for as long as the store may have the hold, and
    /// [`events`](Self::events) tells how it ended.
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
            // Others of the same owner hold it yet, or let go of it at this moment; unless it is over. By the
            // clock: nobody may have looked.
            let is_over = self.engine.remaining(&self.lease).is_zero();
            return match self.lease.state() {
                LeaseState::Lost(reason) => Err(Error::lost(reason).with_name(self.name())),
                // Whoever looked before is about to say so.
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

    /// Turns an exclusive hold into a reader's, in one step: no writer comes in between, waiting readers come
    /// in at once. Keeps the token. Of a hold that is shared already it does nothing, unless an upgrade of it
    /// was dropped or not answered: then the store is told, and the token is the one that the store has.
    ///
    /// # Cancel safety
    /// Dropped at any point, the guard counts as a reader; the store may still have it as exclusive until
    /// this is called again.
    ///
    /// # Errors
    /// `Lost`, `Unsupported`, `Unavailable`, `Unknown`, `Closed`; `InvalidInput` while other guards of the
    /// same re-entrant owner count on the exclusive hold, or while others wait for a permit of the name,
    /// which then has no readers. `Unavailable` also while another task converts this same hold.
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

    /// Turns a shared hold into an exclusive one with a new token, if nobody else shares it. Never waits,
    /// never deadlocks; if it fails the shared hold stands. Of a hold that is exclusive already it does
    /// nothing. While another task converts this same hold, the answer is `Busy`.
    ///
    /// # Cancel safety
    /// Dropped at any point, the guard counts as shared; the store may have it as exclusive, and keep readers
    /// out, until [`downgrade`](Self::downgrade) is called, or this again.
    ///
    /// # Errors
    /// `Lost`, `Unsupported`, `Unavailable`, `Unknown`, `Closed`. Always `Unknown` once a downgrade of this
    /// hold was dropped or not answered: it may still arrive.
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

/// What a body that runs under a lock may know of it: everything but letting go. Cheap to clone; keeps
/// nothing alive.
#[derive(Clone)]
pub struct Held {
    core: Arc<Core>,
    lease: Arc<Lease>,
}

impl Held {
    /// The name of the lock.
    pub fn name(&self) -> &LockName {
        &self.lease.key.name
    }

    /// The fencing token: see [`Guard::token`].
    pub fn token(&self) -> Option<Token> {
        self.lease.token()
    }

    /// The effective ttl: see [`Guard::ttl`].
    pub fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    /// Until when it may be believed: see [`Guard::deadline`].
    pub fn deadline(&self) -> Timestamp {
        self.lease.deadline().unwrap_or(Timestamp::ZERO)
    }

    /// How long it may be believed yet: see [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.core.remaining(&self.lease)
    }

    /// Whether it may be believed now: see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Why it was lost, if it was.
    pub fn loss(&self) -> Option<LossReason> {
        loss(&self.core, &self.lease)
    }

    /// Completes when the lock is lost: see [`Guard::lost`].
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
    // The clock may know it before anybody has looked.
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
