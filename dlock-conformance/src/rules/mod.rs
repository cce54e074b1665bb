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

static FILES: &[&[&Rule]] = &[
    s12_cuts::RULES,
    late_replies::RULES,
    late_requests::RULES,
    together::RULES,
    s01_exclusion::RULES,
    s02_acquire::RULES,
    s02_extremes::RULES,
    s03_handover::RULES,
    s03_lease::RULES,
    s04_release::RULES,
    s05_auto::RULES,
    s05_renew::RULES,
    s06_faults::RULES,
    s06_loss::RULES,
    s07_fencing::RULES,
    s07_resource::RULES,
    s07_restart::RULES,
    s08_queue::RULES,
    s08_waking::RULES,
    s09_cancellation::RULES,
    s09_contract::RULES,
    s09_runtime::RULES,
    s10_reentrancy::RULES,
    s11_admission::RULES,
    s11_convert::RULES,
    s11_policy::RULES,
    s11_shared::RULES,
    s12_cost::RULES,
    s12_listing::RULES,
    s12_operators::RULES,
    s12_watch::RULES,
    s13_limits::RULES,
    s13_names::RULES,
    s14_independence::RULES,
    s15_replies::RULES,
    s16_faults::RULES,
    s16_nemesis::RULES,
    s16_processes::RULES,
    s16_server::RULES,
    s16_session::RULES,
    s17_contract::RULES,
    s17_telling::RULES,
    s18_quorum::RULES,
    s19_election::RULES,
    traffic::RULES,
];

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
