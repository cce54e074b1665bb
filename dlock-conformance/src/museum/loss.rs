//! Lost, and nobody was told.

use super::day::day;
use super::{End, Exhibit, Hall};

pub(super) const HALL: Hall = Hall {
    title: "Lost, and the holder was not told",
    intro: "A lease is kept by renewing it. Renewal is a chain: each one schedules the next, for every kind \
        of hold, after every kind of \
            error; one missing link, and a lock is gone under a task that works on. What makes it a bug and \
            not a mishap is that \
            the task is not told.",
    exhibits: &[
        Exhibit {
            title: "A failed renewal was the last one",
            project: "Redisson",
            issue: "redisson/redisson#775",
            since: day(2017, 2, 17),
            end: End::Closed,
            story: "The next renewal was scheduled when one had succeeded. The first that failed, as during \
                a failover, ended the chain, \
                    and a lock that was to be held for ever vanished.",
            bug: "renewal_not_rescheduled",
        },
        Exhibit {
            title: "One failure, and never again",
            project: "Redisson",
            issue: "redisson/redisson#2515",
            since: day(2020, 1, 3),
            end: End::Mended(day(2020, 1, 5)),
            story: "A renewal that failed left its entry in the table of renewals. The next lock of that \
                name found an entry there, took \
                    itself for renewed, and lapsed at work. Found again as #3712 and #3714 in 2021, after a \
                    lock that had expired.",
            bug: "stale_renewal_entry",
        },
        Exhibit {
            title: "Only writers are renewed",
            project: "Redisson",
            issue: "redisson/redisson#1604",
            since: day(2018, 8, 24),
            end: End::Mended(day(2018, 9, 10)),
            story: "The watchdog extended the lock and not the entries of its readers. Readers that worked \
                for longer than half a minute \
                    learned at their unlock that they had not held it.",
            bug: "readers_not_renewed",
        },
        Exhibit {
            title: "Downgraded, and no longer renewed",
            project: "Redisson",
            issue: "redisson/redisson#4217",
            since: day(2022, 4, 4),
            end: End::Mended(day(2022, 4, 21)),
            story: "Write lock, read lock, write unlock: that unlock ended the renewal of both. The reader \
                that was left lapsed after half \
                    a minute.",
            bug: "downgrade_ends_renewal",
        },
        Exhibit {
            title: "It renews, mostly",
            project: "Redisson",
            issue: "redisson/redisson#5698",
            since: day(2024, 3, 20),
            end: End::Closed,
            story: "Three pods take turns at a lock and hold it for five minutes each. Sometimes it was not \
                renewed for more \
                    than half a minute and lapsed, and two of them were subscribed to the same channel.",
            bug: "autorenew_stops_after_5",
        },
        Exhibit {
            title: "The answer is not read",
            project: "Redisson",
            issue: "redisson/redisson#2037",
            since: day(2019, 4, 11),
            end: End::Mended(day(2019, 4, 16)),
            story: "The renewal of a lock that is gone answers so. The answer was not looked at, and the \
                next renewal scheduled: \
                    for ever, of nothing, with a holder that was not told. The mended one stops.",
            bug: "lost_ignores_refusal",
        },
        Exhibit {
            title: "The lease of the last time",
            project: "Redisson",
            issue: "redisson/redisson#4818",
            since: day(2023, 1, 26),
            end: End::Mended(day(2023, 1, 31)),
            story: "An hour's lease, released; then the same object locks without one, and the store is \
                told an hour again. Whoever \
                    crashes in that moment leaves a lock for an hour.",
            bug: "ttl_sticky_first",
        },
        Exhibit {
            title: "Minutes late",
            project: "Consul",
            issue: "hashicorp/consul#18271",
            since: day(2023, 7, 25),
            end: End::Open(day(2023, 7, 25)),
            story: "A holder that is cut off knows after two failed renewals that it cannot hold the lock \
                any more. The \
                    renewals' errors are logged; the loss is told by a query that blocks, and that returns \
                    when the operating \
                    system gives up the connection. As #1843 in 2016: between half a minute and five \
                    minutes, with the commands \
                    of two holders at work.",
            bug: "lost_fires_late",
        },
        Exhibit {
            title: "It is in the log",
            project: "Redisson",
            issue: "redisson/redisson#4698",
            since: day(2022, 11, 24),
            end: End::Open(day(2026, 8, 3)),
            story: "If renewing fails that is logged, and the program has no way to learn of it. A callback \
                was asked for in \
                    2022; a proposed one was in review in August 2026.",
            bug: "lost_needs_poll",
        },
        Exhibit {
            title: "The flag said yes",
            project: "actor-ts",
            issue: "pathosDev/actor-ts#937",
            since: day(2026, 8, 6),
            end: End::Open(day(2026, 8, 22)),
            story: "`checkAlive()` answered from a flag that the renewal timer sets. A pause that keeps the \
                timer from running keeps the flag \
                    as well: the question is answered with yes when it matters most.",
            bug: "cached_valid_flag",
        },
    ],
};
