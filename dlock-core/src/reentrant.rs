//! Re-entry by an explicit owner.
//!
//! Counted in this client alone, without asking the store. The first acquire of an owner is made under an
//! async mutex of (name, owner), so that a second one that comes while it is on its way waits for *it*, not
//! for the lock that it is about to hold. Losing the lease loses it at every level: a re-entry of a lost
//! lease fails as long as one of its guards is there.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures::future::{Either, select};
use futures::lock::Mutex as AsyncMutex;

use crate::engine::{Ask, Engine, Entered, Lease, Patience, acquire};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::guard::Guard;
use crate::name::LockName;
use crate::observe;

/// The owner of re-entrant locks: this value and its clones, within one client. From
/// [`Client::owner`](crate::Client::owner), for [`Lock::reentrant`](crate::Lock::reentrant).
#[derive(Clone, Debug)]
pub struct Owner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Weak<Engine>,
    slots: Mutex<HashMap<LockName, Arc<Slot>>>,
}

/// What the owner holds of one name.
type Slot = AsyncMutex<Option<Weak<Lease>>>;

impl Owner {
    /// How many times one owner can hold one lock at once. Further acquires fail with `LimitReached`.
    pub const MAX_DEPTH: u32 = 1000;

    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self(Arc::new(Inner {
            engine: Arc::downgrade(engine),
            slots: Mutex::default(),
        }))
    }

    pub(crate) fn check(&self, engine: &Arc<Engine>) -> Result<()> {
        if std::ptr::eq(self.0.engine.as_ptr(), Arc::as_ptr(engine)) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidInput,
            "this owner belongs to another client: make one with `Client::owner`",
        ))
    }

    fn slot(&self, name: &LockName) -> Arc<Slot> {
        let mut slots = self.0.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() > 64 {
            // Names that this owner released: no acquire uses the slot, and its lease is gone.
            slots.retain(|_, slot| {
                Arc::strong_count(slot) > 1
                    || slot
                        .try_lock()
                        .is_none_or(|s| s.as_ref().is_some_and(|l| l.strong_count() > 0))
            });
        }
        slots.entry(name.clone()).or_default().clone()
    }

    pub(crate) async fn acquire<C>(
        &self,
        engine: &Arc<Engine>,
        ask: &Ask,
        patience: Patience,
    ) -> Result<Option<Guard<C>>> {
        let named = |e: Error| e.with_name(&ask.name);
        let started = engine.now();
        let slot = self.slot(&ask.name);
        let mut held = match patience {
            Patience::Try => match slot.try_lock() {
                Some(held) => held,
                None => return Ok(None),
            },
            Patience::Wait(None) => slot.lock().await,
            Patience::Wait(Some(limit)) => match select(slot.lock(), engine.runtime.sleep(limit)).await {
                Either::Left((held, _)) => held,
                Either::Right(_) => {
                    let message = "the lock was not free within the wait limit: another acquire of this \
                        owner waits for it";
                    return Err(named(Error::new(ErrorKind::Timeout, message)));
                }
            },
        };
        if let Some(lease) = held.as_ref().and_then(Weak::upgrade) {
            match lease.enter(Self::MAX_DEPTH) {
                Entered::Yes => {
                    let guard = Guard::new(engine.clone(), lease.clone());
                    // Checked after entering, so that the end of a lease is not missed.
                    return match engine.remaining(&lease) {
                        Duration::ZERO => {
                            Err(named(Error::lost(lease.loss().unwrap_or(LossReason::Released))))
                        }
                        _ if lease.mode_when_entered().is_exclusive() => Ok(Some(guard)),
                        _ => {
                            let message = "this owner has downgraded its hold: upgrade or release it \
                                before acquiring the lock again";
                            Err(named(Error::new(ErrorKind::InvalidInput, message)))
                        }
                    };
                }
                Entered::LimitReached => {
                    let message = format!(
                        "this owner holds the lock {} times already, which is the maximum",
                        Self::MAX_DEPTH
                    );
                    return Err(named(Error::new(ErrorKind::LimitReached, message)));
                }
                Entered::Gone => {}
            }
        }
        let patience = match patience {
            Patience::Wait(Some(limit)) => {
                Patience::Wait(Some(limit.saturating_sub(engine.now().since(started))))
            }
            other => other,
        };
        // The guard is created before anything is observed: if an observer panics, the guard releases the
        // lock.
        let acquired = async {
            let Some(lease) = acquire(engine, ask, patience).await? else {
                return Ok(None);
            };
            *held = Some(Arc::downgrade(&lease));
            Ok(Some(Guard::new(engine.clone(), lease)))
        };
        let now = || engine.now();
        observe::acquiring(engine.caps.backend, &ask.name, ask.mode, now, pin!(acquired)).await
    }
}
