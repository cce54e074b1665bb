//! Lost, and nobody was told.

use super::day::day;
use super::exhibit::End::{Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Lost, and the holder was not told",
    intro: "A lease is kept by renewing it. Renewal is a chain: each one schedules the next, for every kind \
        of hold, after every kind of error; one missing link, and a lock is gone under a task that works \
        on. What makes it a bug and not a mishap is that the task is not told.",
    exhibits: &[
        exhibit(
            "A failed renewal was the last one",
            ("Redisson", "redisson/redisson#775"),
            (day(2017, 2, 17), Closed),
            "renewal_not_rescheduled",
            "The next renewal was scheduled when one had succeeded. The first that failed, as during a \
                failover, ended the chain, and a lock that was to be held for ever vanished.",
        ),
        exhibit(
            "One failure, and never again",
            ("Redisson", "redisson/redisson#2515"),
            (day(2020, 1, 3), Mended(day(2020, 1, 5))),
            "stale_renewal_entry",
            "A renewal that failed left its entry in the table of renewals. The next lock of that name \
                found an entry there, took itself for renewed, and lapsed at work. Found again as #3712 and \
                #3714 in 2021, after a lock that had expired.",
        ),
        exhibit(
            "Only writers are renewed",
            ("Redisson", "redisson/redisson#1604"),
            (day(2018, 8, 24), Mended(day(2018, 9, 10))),
            "readers_not_renewed",
            "The watchdog extended the lock and not the entries of its readers. Readers that worked for \
                longer than half a minute learned at their unlock that they had not held it.",
        ),
        exhibit(
            "Downgraded, and no longer renewed",
            ("Redisson", "redisson/redisson#4217"),
            (day(2022, 4, 4), Mended(day(2022, 4, 21))),
            "downgrade_ends_renewal",
            "Write lock, read lock, write unlock: that unlock ended the renewal of both. The reader that \
                was left lapsed after half a minute.",
        ),
        exhibit(
            "It renews, mostly",
            ("Redisson", "redisson/redisson#5698"),
            (day(2024, 3, 20), Closed),
            "autorenew_stops_after_5",
            "Three pods take turns at a lock and hold it for five minutes each. Sometimes it was not \
                renewed for more than half a minute and lapsed, and two of them were subscribed to the same \
                channel.",
        ),
        exhibit(
            "The answer is not read",
            ("Redisson", "redisson/redisson#2037"),
            (day(2019, 4, 11), Mended(day(2019, 4, 16))),
            "lost_ignores_refusal",
            "The renewal of a lock that is gone answers so. The answer was not looked at, and the next \
                renewal scheduled: for ever, of nothing, with a holder that was not told. The mended one \
                stops.",
        ),
        exhibit(
            "The lease of the last time",
            ("Redisson", "redisson/redisson#4818"),
            (day(2023, 1, 26), Mended(day(2023, 1, 31))),
            "ttl_sticky_first",
            "An hour's lease, released; then the same object locks without one, and the store is told an \
                hour again. Whoever crashes in that moment leaves a lock for an hour.",
        ),
        exhibit(
            "Minutes late",
            ("Consul", "hashicorp/consul#18271"),
            (day(2023, 7, 25), Open(day(2023, 7, 25))),
            "lost_fires_late",
            "A holder that is cut off knows after two failed renewals that it cannot hold the lock any \
                more. The renewals' errors are logged; the loss is told by a query that blocks, and that \
                returns when the operating system gives up the connection. As #1843 in 2016: between half a \
                minute and five minutes, with the commands of two holders at work.",
        ),
        exhibit(
            "It is in the log",
            ("Redisson", "redisson/redisson#4698"),
            (day(2022, 11, 24), Open(day(2026, 8, 3))),
            "lost_needs_poll",
            "If renewing fails that is logged, and the program has no way to learn of it. A callback was \
                asked for in 2022; a proposed one was in review in August 2026.",
        ),
        exhibit(
            "The flag said yes",
            ("actor-ts", "pathosDev/actor-ts#937"),
            (day(2026, 8, 6), Open(day(2026, 8, 22))),
            "cached_valid_flag",
            "`checkAlive()` answered from a flag that the renewal timer sets. A pause that keeps the timer \
                from running keeps the flag as well: the question is answered with yes when it matters \
                most.",
        ),
    ],
};
