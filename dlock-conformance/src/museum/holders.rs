//! Two holders.

use super::day::day;
use super::{End, Exhibit, Hall};

pub(super) const HALL: Hall = Hall {
    title: "Two holders",
    intro: "A lock has one job. Most of these needed no attack and no broken machine: a task that took a \
        second longer than \
            planned, a reply that got lost, two names for the owner of a lock. While it happens little is \
            logged and nothing fails; it may \
            be found weeks later, in the data.",
    exhibits: &[
        Exhibit {
            title: "The late unlock frees the next one's lock",
            project: "ShedLock",
            issue: "lukas-krecan/ShedLock#2583",
            since: day(2025, 5, 14),
            end: End::Mended(day(2025, 5, 20)),
            story: "The report's example: a job with a lock of 30 seconds takes 31. By then the lock has \
                lapsed and another has \
                    it; the first one's unlock deletes the key without looking whose it is, and a third can \
                    start. The mended \
                    unlock compares the owner, and has to be asked for.",
            bug: "release_by_name",
        },
        Exhibit {
            title: "The same, eight years before",
            project: "Laravel",
            issue: "laravel/framework#26213",
            since: day(2017, 8, 23),
            end: End::Mended(day(2019, 1, 15)),
            story: "First reported as #20709 in 2017, before the release that brought these locks, and sent \
                on as a suggestion. \
                    A year later somebody else found it again: whoever overran the lock's time released the \
                    lock of the next. \
                    Since 5.8 an unlock compares the owner.",
            bug: "release_by_name",
        },
        Exhibit {
            title: "Look, then take",
            project: "Laravel",
            issue: "laravel/framework#43627",
            since: day(2022, 8, 9),
            end: End::Mended(day(2023, 2, 13)),
            story: "With the file cache and no time limit, which is the default, a lock was taken by \
                reading the file and then \
                    writing it. Whoever read between the two had the lock as well. The change that mended \
                    it shows what that \
                    did: two workers counted to 1,938 instead of 2,000.",
            bug: "check_then_set",
        },
        Exhibit {
            title: "The unlock that was sent twice",
            project: "etcd",
            issue: "etcd-io/etcd#22082",
            since: day(2026, 7, 18),
            end: End::Open(day(2026, 9, 10)),
            story: "An unlock reaches the server and its reply is lost. Another task of the same session \
                takes the lock; the first one \
                    repeats its unlock, which deletes by the name of the key, and that name is the same for \
                    the whole session. The \
                    second task works on without a lock.",
            bug: "unlock_retry_frees_relock",
        },
        Exhibit {
            title: "An error that was passed over",
            project: "libkv",
            issue: "docker/libkv#186",
            since: day(2017, 12, 18),
            end: End::Mended(day(2017, 12, 19)),
            story: "A lock in etcd was taken in two attempts. An error of the connection in the first was \
                passed over, and the \
                    second overwrote what stood there: two clients believed that they had the lock.",
            bug: "retry_assumes_success",
        },
        Exhibit {
            title: "Locking twice is a no-op",
            project: "etcd",
            issue: "etcd-io/etcd#7444",
            since: day(2017, 3, 13),
            end: End::ByDesign,
            story: "The lock service promises that calls with one lease count as one acquisition. Two tasks \
                of a process that share a \
                    session therefore both have the lock, and neither waits.",
            bug: "owner_is_client",
        },
        Exhibit {
            title: "Granted, and already gone",
            project: "etcd",
            issue: "etcd-io/etcd#11456",
            since: day(2018, 7, 12),
            end: End::Mended(day(2019, 12, 4)),
            story: "Whoever waits for a lock has a lease of its own, and it can lapse while it waits. When \
                the one before it \
                    went, the wait ended and the lock was reported as held, by somebody who was not in line \
                    any more. Reported \
                    as #9921 in 2018. Jepsen, who test such systems with faults, found lost updates in 2019 \
                    and name this as a \
                    part of the cause; the other part is that no lock with a lease can rule them out alone.",
            bug: "stale_waiter_granted",
        },
        Exhibit {
            title: "The same, in the read-write recipe",
            project: "etcd",
            issue: "etcd-io/etcd#16221",
            since: day(2023, 7, 11),
            end: End::Open(day(2026, 8, 20)),
            story: "The mutex looks after its wait whether its own key is still there. The experimental \
                recipe beside it does \
                    not: in the report's test, in which one of three writers loses its lease while it \
                    waits, two had the lock. \
                    The issue is closed; the recipe of August 2026 is as it was.",
            bug: "stale_waiter_granted",
        },
        Exhibit {
            title: "The pool is the owner",
            project: "Kodus",
            issue: "kodustech/kodus-ai#1129",
            since: day(2026, 5, 18),
            end: End::Closed,
            story: "A PostgreSQL advisory lock belongs to the connection and may be taken again on it. \
                Every call took any connection of \
                    the pool; two callers that were given the same one were both told that they held the \
                    lock.",
            bug: "owner_is_pool_connection",
        },
        Exhibit {
            title: "Two processes of one name",
            project: "Spring Integration",
            issue: "spring-projects/spring-integration#3724",
            since: day(2022, 2, 10),
            end: End::Closed,
            story: "The owner of a lock in a table is a client id. It is random unless it is configured; \
                configured alike in two \
                    processes it makes them one owner, and the second is not refused, it refreshes. One of \
                    the makers wrote in \
                    2016 that to share it is a mistake of the application. The record was closed while it \
                    waited for its \
                    reporter.",
            bug: "owner_from_pid_time",
        },
        Exhibit {
            title: "The second lock lets the first one go",
            project: "DistributedLock",
            issue: "madelson/DistributedLock#123",
            since: day(2022, 1, 17),
            end: End::Mended(day(2022, 7, 5)),
            story: "Old MySQL and MariaDB keep one named lock per connection, and drop it without a word \
                when the next is taken. \
                    A library that puts many locks on one connection to save connections loses all but the \
                    last. It is \
                    documented since that the sharing must be turned off for them.",
            bug: "second_lock_drops_first",
        },
        Exhibit {
            title: "A lock and a read lock that never met",
            project: "Redisson",
            issue: "redisson/redisson#4023",
            since: day(2021, 12, 16),
            end: End::Closed,
            story: "One thread held the plain lock of a name, another asked for the read lock of the same \
                name and got it. When \
                    the reader left, the first one's lock was gone too. The maintainer's answer is that \
                    objects of different \
                    kinds must not share a name. It is not checked.",
            bug: "reader_during_write",
        },
        Exhibit {
            title: "A writer slips in during the downgrade",
            project: "Curator",
            issue: "apache/curator#1138",
            since: day(2015, 11, 4),
            end: End::Mended(day(2023, 4, 1)),
            story: "Whoever holds the write lock takes the read lock and lets go of the write lock: the \
                textbook's downgrade. A \
                    writer that had been waiting stood before the new reader in line, did not see it, and \
                    came in beside it. \
                    Reported as CURATOR-276 in 2015, again as CURATOR-621 in 2021. The mended lock gives \
                    the reader the writer's \
                    place.",
            bug: "downgrade_gap",
        },
        Exhibit {
            title: "The last reader's lease counts for all",
            project: "Redisson",
            issue: "redisson/redisson#2144",
            since: day(2019, 6, 3),
            end: End::Mended(day(2019, 6, 5)),
            story: "All readers of a lock shared one expiry, and each new one set it. A reader for five \
                seconds, then one for \
                    one second, which dies: after that second the first has lost its lock as well.",
            bug: "last_lease_for_all",
        },
        Exhibit {
            title: "The reader's unlock deletes the writer",
            project: "Redisson",
            issue: "redisson/redisson#891",
            since: day(2017, 5, 25),
            end: End::Mended(day(2017, 5, 27)),
            story: "Write lock, read lock inside it, read unlock: the unlock of the reader removed the \
                whole record, and the write lock with it. \
                    In January 2025 the release notes mend an unlock of the read-write lock that did not \
                    respect its owner.",
            bug: "read_unlock_ignores_owner",
        },
        Exhibit {
            title: "A lease that was over before it began",
            project: "ShedLock",
            issue: "lukas-krecan/ShedLock#3577",
            since: day(2026, 7, 7),
            end: End::Mended(day(2026, 8, 18)),
            story: "About once a day two pods ran the same job, a quarter of a second apart. By the \
                reporter's analysis the end \
                    of the lease was computed from the database's `now()`, which inside a transaction is \
                    the time at which that \
                    began, so that the store thinks the lease over earlier than its holder does; #3682 \
                    reproduces it. Since \
                    7.9.0 the provider in question, that for jOOQ, can be given a transaction of its own.",
            bug: "early_expiry",
        },
    ],
};
