//! Several locks at once, all or none.
//!
//! They are acquired in the order of their names, however the caller lists them, so that two callers that
//! want the same locks never hold one each and wait for the other. (The order of a total order over
//! resources: E. W. Dijkstra, EWD 310, 1971.) If one cannot be acquired, those acquired so far are released
//! before the answer is returned. What is dropped half-way is released like any guard.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, join_all, select, select_all};

use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::guard::Guard;
use crate::lock::Lock;
use crate::options::LockOptions;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// Several locks that are acquired all together or not at all.
///
/// The locks may belong to different clients, and so to different backends.
///
/// # Examples
/// ```
/// # dlock_core::doc(|client| async move {
/// # use dlock_core as dlock;
/// use dlock::combinators::MultiLock;
/// let transfer = MultiLock::new([client.lock("account/7")?, client.lock("account/3")?])?;
/// let both = transfer.acquire().await?;
/// assert!(client.lock("account/3")?.try_acquire().await?.is_none());
/// both.release().await?;
/// # Ok(()) });
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    locks: Vec<Lock>,
}

impl MultiLock {
    /// Creates a multi-lock of these locks, listed in any order.
    ///
    /// # Errors
    /// `InvalidInput` if there is no lock, or if a lock is listed twice, since it would wait for itself.
    pub fn new(locks: impl IntoIterator<Item = Lock>) -> Result<Self> {
        let mut locks: Vec<Lock> = locks.into_iter().collect();
        if locks.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a multi-lock needs at least one lock",
            ));
        }
        // Stable: locks of the same name on two backends keep the caller's order, which must be the same
        // everywhere.
        locks.sort_by(|a, b| a.name().cmp(b.name()));
        for (i, lock) in locks.iter().enumerate() {
            let same = |other: &&Lock| other.name() == lock.name() && other.is_of_same_client(lock);
            if locks[..i].iter().find(same).is_some() {
                let message = "the lock is listed twice and would wait for itself: list it once";
                return Err(Error::new(ErrorKind::InvalidInput, message).with_name(lock.name()));
            }
        }
        Ok(Self { locks })
    }

    /// Acquires all locks if all are free. Returns `None` if one is not.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, none is held.
    ///
    /// # Errors
    /// As [`Lock::try_acquire`], of the first lock that fails.
    ///
    /// # Examples
    /// ```
    /// # dlock_core::doc(|client| async move {
    /// # use dlock_core as dlock;
    /// use dlock::combinators::MultiLock;
    /// let both = MultiLock::new([client.lock("a")?, client.lock("b")?])?;
    /// let other = client.lock("b")?.acquire().await?;
    /// assert!(both.try_acquire().await?.is_none());
    /// assert!(client.lock("a")?.try_acquire().await?.is_some());
    /// # drop(other);
    /// # Ok(()) });
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        let mut taken = MultiGuard {
            guards: Vec::with_capacity(self.locks.len()),
        };
        for lock in &self.locks {
            match lock.try_acquire().await {
                Ok(Some(guard)) => taken.guards.push(guard),
                Ok(None) => return self.give_back(taken, None).await.map(|()| None),
                Err(e) => {
                    self.give_back(taken, None).await?;
                    return Err(e);
                }
            }
        }
        self.all_valid(taken, None).await.map(Some)
    }

    /// Acquires all locks, waiting for each as long as its own wait limit says.
    ///
    /// # Cancel safety
    /// Cancel safe: dropped at any point, none is held or queued for.
    ///
    /// # Errors
    /// As [`Lock::acquire`], of the first lock that fails. `Lost` if a lock that was acquired first expired,
    /// without auto-renewal, before the last was acquired.
    pub async fn acquire(&self) -> Result<MultiGuard> {
        self.wait(None).await
    }

    /// Acquires all locks, waiting for `limit` in total at most.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<MultiGuard> {
        self.wait(Some(limit)).await
    }

    async fn wait(&self, limit: Option<Duration>) -> Result<MultiGuard> {
        let mut taken = MultiGuard {
            guards: Vec::with_capacity(self.locks.len()),
        };
        let runtime = self.locks[0].runtime();
        let all_by = limit.map(|limit| runtime.now() + limit);
        let mut until = all_by;
        for lock in &self.locks {
            // Each lock gets the time that those before it left, or its own wait limit.
            until = all_by.or_else(|| Some(runtime.now() + lock.wait_limit()?));
            let guard = match until {
                None => lock.acquire().await,
                Some(until) => lock.acquire_timeout(runtime.now().until(until)).await,
            };
            match guard {
                Ok(guard) => taken.guards.push(guard),
                Err(e) => {
                    self.give_back(taken, until).await?;
                    return Err(e);
                }
            }
        }
        self.all_valid(taken, until).await
    }

    /// Releases the locks acquired so far. A wait limit bounds that as well: releases that the store has not
    /// confirmed by then are left to the keeper, and it is not true that nothing is held.
    async fn give_back(&self, taken: MultiGuard, until: Option<Timestamp>) -> Result<()> {
        let runtime = self.locks[0].runtime();
        let timer = match until {
            Some(t) => runtime.sleep(runtime.now().until(t + LockOptions::WITHDRAWAL)),
            None => Box::pin(std::future::pending()),
        };
        match select(pin!(taken.release_all()), timer).await {
            Either::Left((errors, _)) => match errors.into_iter().find(Error::may_be_held) {
                Some(e) => Err(not_given_back().with_source(e)),
                None => Ok(()),
            },
            Either::Right(_) => Err(not_given_back()),
        }
    }

    /// The last lock may have taken so long that the lease of the first has expired.
    async fn all_valid(&self, taken: MultiGuard, until: Option<Timestamp>) -> Result<MultiGuard> {
        let lost = taken.guards.iter().find(|g| !g.is_valid());
        match lost.map(|g| Error::lost(g.loss().unwrap_or(LossReason::Expired)).with_name(g.name())) {
            None => Ok(taken),
            Some(e) => {
                self.give_back(taken, until).await?;
                Err(e)
            }
        }
    }
}

fn not_given_back() -> Error {
    let message = "not all locks were acquired, and the release of those acquired first is not confirmed: \
        the client continues it in the background";
    Error::new(ErrorKind::Unknown, message)
}

/// Several held locks, in the order of their names. Dropping it releases all of them in the background. From
/// [`MultiLock`].
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// Returns the guards, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Returns the fencing tokens, in the order of the names. Each is for the resource of its own lock.
    pub fn tokens(&self) -> impl Iterator<Item = Option<Token>> + '_ {
        self.guards.iter().map(Guard::token)
    }

    /// Returns how long *all* of them are held, unless they are renewed.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Returns whether all of them are valid now.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns a future that completes when one of them is lost.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static {
        let all: Vec<_> = self.guards.iter().map(|g| Box::pin(g.lost())).collect();
        async move { select_all(all).await.0 }
    }

    /// Releases all of them. A failure to release one does not keep the others from being released.
    ///
    /// # Cancel safety
    /// As [`Guard::release`], for each.
    ///
    /// # Errors
    /// The first error, after all releases were tried, but `Lost` before `Unknown`.
    pub async fn release(self) -> Result<()> {
        let errors = self.release_all().await.into_iter();
        match errors.min_by_key(|e| e.kind() != ErrorKind::Lost) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    async fn release_all(self) -> Vec<Error> {
        let answers = join_all(self.guards.into_iter().map(Guard::release)).await;
        answers.into_iter().filter_map(Result::err).collect()
    }
}
