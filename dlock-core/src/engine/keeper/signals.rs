//! The signals of the store about connections and leases.
//!
//! A signal may be late: when it is read here, the backend may have another session with leases and
//! obligations of its own, and it is not known here which session a lease belongs to. So every lease that a
//! loss hits is also given back. A lease of the ended session is unknown to the store, which costs a request.
//! A lease of the next session would otherwise be kept, without a holder, for as long as the process lives.
//! Obligations stay.

use std::sync::Arc;

use super::Keeper;
use crate::capabilities::Nature;
use crate::engine::jobs::{Duty, Job};
use crate::engine::timers::Entry;
use crate::spi::{LostLeases, Released, Signal};

impl Keeper {
    pub(super) fn signalled(&mut self, signal: Signal) {
        let core = self.core.clone();
        if matches!(signal, Signal::Changed) {
            return core.hasten_looks();
        }
        let session = core.caps.nature == Nature::Session;
        let mut leases = Vec::new();
        let mut waiters = Vec::new();
        let mut jobs = Vec::new();
        {
            let mut state = core.state();
            for entry in state.timers.entries() {
                match entry {
                    Entry::Lease(lease) => leases.push(lease.clone()),
                    Entry::Waiter(waiter) => waiters.push(waiter.clone()),
                    Entry::Job(job) => jobs.push(job.clone()),
                    Entry::Poller(_) | Entry::Limit(_) => {}
                }
            }
            match &signal {
                Signal::Lost(what, _) => core.note_loss(&mut state, what, &leases),
                Signal::Doubt => core.note_doubt(&mut state),
                Signal::Back | Signal::Changed => {}
            }
        }
        match signal {
            Signal::Lost(what, reason) => {
                for lease in leases.iter().filter(|l| what.contains(&l.key)) {
                    core.lose(lease, reason, true);
                }
                if matches!(what, LostLeases::These(_)) {
                    return;
                }
                // Their queue entries ended with the leases.
                let are_lost = waiters.iter().filter(|w| what.contains(&w.key));
                are_lost.for_each(|waiter| core.hasten(waiter));
                if session {
                    // Callers that wait for the outcome of a release need not wait for the store.
                    let owed = jobs.iter().chain(&self.releases);
                    owed.filter(|job| what.contains(&job.key))
                        .for_each(|job| tell_of_loss(self, job));
                }
            }
            Signal::Doubt | Signal::Back => {
                let now = core.now();
                for lease in &leases {
                    if lease.options.renew_period(lease.span()).is_some() {
                        lease.renew_at(now);
                        core.reschedule(lease);
                    }
                }
                waiters.iter().for_each(|waiter| core.hasten(waiter));
            }
            Signal::Changed => {}
        }
    }
}

fn tell_of_loss(keeper: &Keeper, job: &Arc<Job>) {
    if let Duty::Release(Some(lease)) = &job.duty {
        keeper.core.settle(lease, Released::NotHeld);
    }
}
