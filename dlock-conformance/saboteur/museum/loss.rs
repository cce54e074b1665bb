//! Lost, and nobody was told.

use super::day::day;
use super::exhibit::End::{Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Lost, and the holder was not told",
    intro: "A holder keeps its lease by renewing it. Renewals are a chain: each one schedules the next, for \
        every kind of hold and after every kind of error. If one link is missing, a task works on without \
        its lock. What makes it a bug and not an accident is that the task gets no signal.",
    exhibits: &[
        exhibit(
            "A failed renewal was the last one",
            ("Redisson", "redisson/redisson#775"),
            (day(2017, 2, 17), Closed),
            "renewal_not_rescheduled",
            "A renewal was scheduled only when the one before it had succeeded. The first failure, for \
                example during a failover, ended the chain, and a lock that should be held for ever \
                vanished.",
        ),
        exhibit(
            "One failure, and never again",
            ("Redisson", "redisson/redisson#2515"),
            (day(2020, 1, 3), Mended(day(2020, 1, 5))),
            "stale_renewal_entry",
            "A failed renewal left its entry in the table of renewals. The next lock of that name found the \
                entry, assumed that it was being renewed, and lapsed during its work. Reported again in \
                2021 as #3712 and #3714, after a lock that had expired.",
        ),
        exhibit(
            "Only writers are renewed",
            ("Redisson", "redisson/redisson#1604"),
            (day(2018, 8, 24), Mended(day(2018, 9, 10))),
            "readers_not_renewed",
            "The watchdog extended the lock but not the entries of its readers. Readers that worked for \
                longer than half a minute learned at their unlock that they no longer held it.",
        ),
        exhibit(
            "Downgraded, and no longer renewed",
            ("Redisson", "redisson/redisson#4217"),
            (day(2022, 4, 4), Mended(day(2022, 4, 21))),
            "downgrade_ends_renewal",
            "A thread took the write lock, then the read lock, then released the write lock. That unlock \
                ended the renewal of both. The remaining read lock lapsed after half a minute.",
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
            "The renewal of a lock that is gone says so in its answer. The answer was not checked, and the \
                next renewal was scheduled: for ever, for a lock that did not exist, and without a signal \
                to the holder. The fixed version stops.",
        ),
        exhibit(
            "The previous lease",
            ("Redisson", "redisson/redisson#4818"),
            (day(2023, 1, 26), Mended(day(2023, 1, 31))),
            "ttl_sticky_first",
            "An object locks with a lease of an hour and releases. Then it locks without a lease, and the \
                store gets the hour again. If the holder crashes at that moment, the lock stays for an hour.",
        ),
        exhibit(
            "Minutes late",
            ("Consul", "hashicorp/consul#18271"),
            (day(2023, 7, 25), Open(day(2023, 7, 25))),
            "lost_fires_late",
            "A holder that is cut off knows after two failed renewals that it can no longer hold the lock. \
                The errors of the renewals are logged. The loss is signalled by a blocking query, which \
                returns only when the operating system gives up the connection. As #1843 in 2016: between \
                half a minute and five minutes, with the commands of two holders at work.",
        ),
        exhibit(
            "It is in the log",
            ("Redisson", "redisson/redisson#4698"),
            (day(2022, 11, 24), Open(day(2026, 8, 3))),
            "lost_needs_poll",
            "A failed renewal is logged, and the program has no way to learn of it. A callback was \
                requested in 2022. A proposed one was in review in August 2026.",
        ),
        exhibit(
            "The flag said yes",
            ("actor-ts", "pathosDev/actor-ts#937"),
            (day(2026, 8, 6), Open(day(2026, 8, 22))),
            "cached_valid_flag",
            "`checkAlive()` answered from a flag that the renewal timer sets. A pause that stops the timer \
                leaves the flag set: the answer is yes when it matters most.",
        ),
    ],
};
