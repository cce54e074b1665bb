//! Bugs that are planted as they were, beside the one by which their rule is proved.

use dlock_core::saboteur::Bug;

use crate::rule::Detection;

/// A planted bug of which a rule is not the owner, and which it must catch all the same.
#[derive(Clone, Copy, Debug)]
pub struct Rebuilt {
    /// Which; its rule is [`Bug::rule`].
    pub bug: Bug,
    /// How surely the rule must catch it.
    pub detection: Detection,
    /// Which other rules it may trip.
    pub blast: &'static [&'static str],
}

/// What is said of that bug, if it is a rebuilt one.
pub fn of(bug: Bug) -> Option<&'static Rebuilt> {
    REBUILT.iter().find(|rebuilt| rebuilt.bug == bug)
}

const fn always(bug: Bug, blast: &'static [&'static str]) -> Rebuilt {
    Rebuilt {
        bug,
        detection: Detection::Deterministic,
        blast,
    }
}

const fn by_chance(bug: Bug, blast: &'static [&'static str]) -> Rebuilt {
    Rebuilt {
        bug,
        detection: Detection::Stochastic,
        blast,
    }
}

/// All of them, in the order of their rules.
pub static REBUILT: &[Rebuilt] = &[
    always(
        Bug::OwnerIsPoolConnection,
        &[
            "1.01", "1.02", "1.03", "1.04", "8.09", "10.03", "10.06", "11.01", "11.09", "11.13", "11.15",
            "12.02", "14.04",
        ],
    ),
    always(Bug::UnlockRetryFreesRelock, &["15.06"]),
    always(Bug::ReadersNotRenewed, &[]),
    always(Bug::DowngradeEndsRenewal, &[]),
    always(Bug::StaleRenewalEntry, &[]),
    always(
        Bug::HeldAfterLoss,
        &["3.12", "4.02", "6.02", "7.04", "10.04", "16.13"],
    ),
    always(Bug::RenewalNotRescheduled, &[]),
    by_chance(
        Bug::TokenRandom,
        &[
            "1.01", "1.02", "3.12", "4.11", "7.03", "7.04", "7.05", "7.06", "7.07", "7.08", "7.09", "7.10",
            "7.11", "7.12", "7.14", "7.15", "10.02", "11.02", "11.11", "12.01", "12.02", "12.03", "12.06",
            "12.07", "12.08", "12.09", "12.11", "14.02", "14.05", "15.04", "15.06", "16.06", "16.11",
            "16.12", "18.03",
        ],
    ),
    always(
        Bug::TokenKeptOnRetake,
        &[
            "1.01", "1.02", "7.03", "7.06", "7.07", "7.09", "7.11", "7.12", "7.14", "11.02", "14.02",
            "14.05", "16.12", "18.03",
        ],
    ),
    always(Bug::QueueTimeoutsDrift, &[]),
    always(Bug::LastLeaseForAll, &[]),
    always(Bug::RenewsEveryReader, &[]),
    always(Bug::ReadUnlockIgnoresOwner, &["12.11"]),
    always(
        Bug::WaitsOnDeletedKey,
        &[
            "7.11", "8.05", "8.08", "11.02", "11.03", "11.06", "11.07", "11.10",
        ],
    ),
    always(
        Bug::SecondLockDropsFirst,
        &[
            "2.10", "4.07", "4.12", "5.09", "5.14", "6.05", "7.16", "9.04", "9.05", "9.07", "9.08", "13.03",
            "13.04", "13.05", "13.06", "13.07", "13.08", "13.09", "13.12", "13.15", "14.01", "14.02",
            "14.04", "14.06", "14.07", "16.13",
        ],
    ),
    always(Bug::CleanupTriedOnce, &["15.01"]),
];
