#![doc = include_str!("README.md")]

mod colliding;
mod faulty;
mod late_replies;
mod late_requests;
mod prelude;
mod probes;
mod s01_exclusion;
mod s02_acquire;
mod s02_extremes;
mod s03_handover;
mod s03_lease;
mod s04_release;
mod s05_auto;
mod s05_renew;
mod s06_faults;
mod s06_loss;
mod s07_fencing;
mod s07_resource;
mod s07_restart;
mod s08_queue;
mod s08_waking;
mod s09_cancellation;
mod s09_contract;
mod s09_runtime;
mod s10_reentrancy;
mod s11_admission;
mod s11_convert;
mod s11_policy;
mod s11_shared;
mod s12_cost;
mod s12_cuts;
mod s12_listing;
mod s12_operators;
mod s12_watch;
mod s13_limits;
mod s13_names;
mod s14_independence;
mod s15_replies;
mod s16_faults;
mod s16_nemesis;
mod s16_processes;
mod s16_server;
mod s16_session;
mod s17_contract;
mod s17_telling;
mod s18_quorum;
mod s19_election;
mod stale;
mod steps;
mod together;
mod traffic;
mod watching;

use std::sync::LazyLock;

use crate::rule::{Rule, order};

macro_rules! files {
    ($($file:ident),* $(,)?) => {
        static FILES: &[&[&Rule]] = &[$($file::RULES),*];
    };
}

files! {
    late_replies, late_requests, s01_exclusion, s02_acquire, s02_extremes, s03_handover, s03_lease,
    s04_release, s05_auto, s05_renew, s06_faults, s06_loss, s07_fencing, s07_resource, s07_restart,
    s08_queue, s08_waking, s09_cancellation, s09_contract, s09_runtime, s10_reentrancy, s11_admission,
    s11_convert, s11_policy, s11_shared, s12_cost, s12_cuts, s12_listing, s12_operators, s12_watch,
    s13_limits, s13_names, s14_independence, s15_replies, s16_faults, s16_nemesis, s16_processes,
    s16_server, s16_session, s17_contract, s17_telling, s18_quorum, s19_election, together, traffic,
}

static IN_ORDER: LazyLock<Vec<&Rule>> = LazyLock::new(|| {
    let mut all = FILES.concat();
    all.sort_by_key(|rule| order(rule.id));
    all
});

/// Every rule that has a test, in the order of its numbers.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    IN_ORDER.iter().copied()
}

/// The rule of that number, `3.02`.
pub fn find(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id == id)
}
