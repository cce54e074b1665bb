//! What the store says by itself about connections and leases.

use super::Keeper;
use crate::capabilities::Nature;
use crate::engine::lease::Lease;
use crate::engine::timers::Entry;
use crate::spi::{LostLeases, Signal};

impl Keeper {
    pub(super) fn signalled(&mut self, signal: Signal) {
        let core = self.core.clone();
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
            if let Signal::Lost(what, _) = &signal {
                core.note_loss(&mut state, what, &leases);
                if session && matches!(what, LostLeases::All) {
                    for job in &jobs {
                        state.timers.remove(&job.place);
                    }
                }
            }
        }
        match signal {
            Signal::Lost(what, reason) => {
                let is_lost = |lease: &Lease| match &what {
                    LostLeases::All => true,
                    LostLeases::These(keys) => keys.contains(&lease.key),
                };
                for lease in leases.iter().filter(|l| is_lost(l)) {
                    core.lose(lease, reason, !session);
                }
                if matches!(what, LostLeases::All) {
                    // Their entries in the queue went with the leases.
                    waiters.iter().for_each(|waiter| core.hasten(waiter));
                    if session {
                        // With the session went everything that was owed to it.
                        jobs.extend(std::mem::take(&mut self.releases));
                        jobs.iter().for_each(|job| self.paid(job, None));
                    }
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
        }
    }
}
