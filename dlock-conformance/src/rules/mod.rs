#![doc = include_str!("README.md")]

mod colliding;
mod cut_watch;
mod faulty;
mod late_replies;
mod late_requests;
mod lease_window;
mod names_apart;
mod partition;
mod probes;
mod s01_exclusion;
mod s01_processes;
mod s02_acquire;
mod s02_deadline;
mod s02_extremes;
mod s03_handover;
mod s03_lease;
mod s03_wall_clock;
mod s04_guards;
mod s04_release;
mod s05_auto;
mod s05_renew;
mod s06_faults;
mod s06_loss;
mod s06_refusals;
mod s07_fencing;
mod s07_readers;
mod s07_resource;
mod s07_restart;
mod s07_zombie;
mod s08_crowd;
mod s08_dead_head;
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
mod s12_operators;
mod s12_watch;
mod s13_labels;
mod s13_limits;
mod s13_names;
mod s14_independence;
mod s14_many_held;
mod s15_duplicates;
mod s15_replies;
mod s16_faults;
mod s16_nemesis;
mod s16_processes;
mod s16_server;
mod s17_contract;
mod s17_telling;
mod s18_quorum;
mod stale;
mod tokens;
mod traffic;
mod watching;

use crate::rule::Rule;

/// A section in several files is several of these, in the order of its numbers.
static SECTIONS: &[&[Rule]] = &[
    s01_exclusion::RULES,
    s02_acquire::RULES,
    s03_lease::RULES,
    s04_release::RULES,
    s05_renew::RULES,
    s06_loss::RULES,
    s07_fencing::RULES,
    s08_waking::RULES,
    s09_cancellation::RULES,
    s10_reentrancy::RULES,
    s11_shared::RULES,
    s11_policy::RULES,
    s11_convert::RULES,
    s11_admission::RULES,
    s12_watch::RULES,
    s13_names::RULES,
    s13_limits::RULES,
    s14_independence::RULES,
    s15_replies::RULES,
    s16_faults::RULES,
    s17_contract::RULES,
    s18_quorum::RULES,
];

/// Every rule that has a test, in the order of its numbers.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    SECTIONS.iter().flat_map(|section| section.iter())
}

/// The rule of that number, `3.02`.
pub fn find(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id == id)
}
