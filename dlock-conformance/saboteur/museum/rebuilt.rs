//! Real bugs with a planted bug of their own, beside the one that proves their rule.

use crate::Detection;

/// A planted bug, and the rule that must catch it.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// Its name.
    pub bug: &'static str,
    /// The number of the rule.
    pub rule: &'static str,
    /// How reliably the rule must catch it.
    pub detection: Detection,
}

/// The entry of that bug, if it is a rebuilt one.
pub fn of(bug: &str) -> Option<&'static Planted> {
    REBUILT.iter().find(|rebuilt| rebuilt.bug == bug)
}

const fn always(rule: &'static str, bug: &'static str) -> Planted {
    Planted {
        bug,
        rule,
        detection: Detection::Deterministic,
    }
}

/// All of them, in the order of their rules.
pub static REBUILT: &[Planted] = &[
    always("1.07", "owner_is_pool_connection"),
    always("4.04", "unlock_retry_frees_relock"),
    always("5.09", "readers_not_renewed"),
    always("5.09", "downgrade_ends_renewal"),
    always("5.09", "stale_renewal_entry"),
    always("5.09", "held_after_loss"),
    always("5.11", "renewal_not_rescheduled"),
    Planted {
        bug: "token_random",
        rule: "7.02",
        detection: Detection::Stochastic,
    },
    always("7.04", "token_kept_on_retake"),
    always("8.06", "queue_timeouts_drift"),
    always("11.04", "last_lease_for_all"),
    always("11.04", "renews_every_reader"),
    always("11.05", "read_unlock_ignores_owner"),
    always("11.09", "waits_on_deleted_key"),
    always("13.02", "second_lock_drops_first"),
    always("15.08", "cleanup_tried_once"),
];

/// Bugs in what surrounds the store and the engine. They are wrappers in the kit itself.
pub const WRAPPERS: [&str; 16] = [
    "client_walltime_deadline",
    "dead_head_blocks",
    "double_release_frees_next",
    "full_store_keeps_holders",
    "hair_trigger_loss",
    "kill_leaks",
    "no_reconnect",
    "no_recover_after_heal",
    "no_recovery",
    "owner_from_pid_time",
    "partition_blocks_all",
    "process_local_lock",
    "renew_recreates",
    "resume_thinks_valid",
    "server_walltime",
    "zombie_write_wins",
];
