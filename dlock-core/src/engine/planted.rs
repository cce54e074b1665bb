//! What a planted bug of the engine needs beyond an `if`.

use std::future::ready;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _};

use super::core::Core;
use super::lease::Lease;
use crate::error::Result;
use crate::inspection::Change;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::{AutoRenew, Terms};
use crate::saboteur::Bug;
use crate::spi::{Grant, LeaseKey, Released, Renew, RenewItem, RenewOutcome};

/// Rule 9.01: the keeper was told of the lease before there was a guard, and renews it for nobody.
pub(super) fn keep_renewing(core: &Core, key: &LeaseKey, mode: Mode, options: &Terms) {
    let now = core.now();
    let options = Arc::new(Terms {
        auto_renew: AutoRenew::On,
        ..options.clone()
    });
    let grant = Grant::new(key.clone(), None, now, options.ttl);
    // Refused by a client that closes: then it is not renewed.
    let _ = core.hold(
        &Lease::new(grant, mode, options, now, false, core.caps.nature),
        core.heard(),
    );
}

/// Rule 12.05: what breaks the stream is swallowed, and there it stands.
pub(crate) fn without_errors(
    changes: BoxStream<'static, Result<Change>>,
) -> BoxStream<'static, Result<Change>> {
    let told = changes.take_while(|change| ready(change.is_ok()));
    told.chain(stream::pending()).boxed()
}

/// Rule 4.04: a release that is tried again frees whatever is there.
pub(super) async fn release_blindly(core: &Core, name: &LockName) -> Result<Released> {
    match core.backend.watch() {
        Some(part) => part.force_release(name).await.map(|_| Released::Released),
        None => Ok(Released::NotHeld),
    }
}

/// Rule 5.14: renewals one after the other.
pub(super) async fn one_by_one(part: &dyn Renew, items: &[RenewItem]) -> Vec<RenewOutcome> {
    let mut outcomes = Vec::new();
    for item in items {
        outcomes.extend(part.renew(std::slice::from_ref(item)).await);
    }
    outcomes
}

/// Rule 9.04: a renewal whose answer nobody took is taken for done, and for one that adds a ttl.
pub(super) struct Assumed<'a> {
    core: &'a Core,
    lease: &'a Lease,
    answered: bool,
}

impl<'a> Assumed<'a> {
    pub(super) fn new(core: &'a Core, lease: &'a Lease) -> Self {
        Self {
            core,
            lease,
            answered: false,
        }
    }

    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Assumed<'_> {
    fn drop(&mut self) {
        if !self.answered
            && let Some(deadline) = self.lease.deadline()
        {
            self.lease.confirm(self.core.now(), deadline, self.lease.span());
        }
    }
}

impl Core {
    /// Rule 5.09: what was lost leaves an entry behind.
    #[cfg(dlock_saboteur)]
    pub(super) fn note_lost(&self, lease: &Lease) {
        let lost = self.lost.lock();
        lost.unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(lease.key.name.clone());
    }

    /// Rule 5.09: whether it did.
    pub(super) fn has_lost(&self, name: &LockName) -> bool {
        #[cfg(dlock_saboteur)]
        {
            let lost = self.lost.lock();
            lost.unwrap_or_else(std::sync::PoisonError::into_inner)
                .contains(name)
        }
        #[cfg(not(dlock_saboteur))]
        {
            let _ = name;
            false
        }
    }

    /// Rule 5.09: a kind of lease that nobody thought of renewing.
    pub(super) fn skips_renewal(&self, lease: &Lease) -> bool {
        self.bug.is(Bug::ReadersNotRenewed) && !lease.mode().is_exclusive()
            || self.bug.is(Bug::StaleRenewalEntry) && self.has_lost(&lease.key.name)
    }
}
