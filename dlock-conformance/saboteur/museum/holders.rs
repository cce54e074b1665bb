//! Two holders.

use super::day::day;
use super::exhibit::End::{ByDesign, Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Two holders",
    intro: "A lock has one job. Most of these needed no attack and no broken machine: a task that took a \
        second longer than planned, a reply that got lost, two names for the owner of a lock. While it \
        happens little is logged and nothing fails; it may be found weeks later, in the data.",
    exhibits: &[
        exhibit(
            "The late unlock frees the next one's lock",
            ("ShedLock", "lukas-krecan/ShedLock#2583"),
            (day(2025, 5, 14), Mended(day(2025, 5, 20))),
            "release_by_name",
            "The report's example: a job with a lock of 30 seconds takes 31. By then the lock has lapsed \
                and another has it; the first one's unlock deletes the key without looking whose it is, and \
                a third can start. The mended unlock compares the owner, and has to be asked for.",
        ),
        exhibit(
            "The same, eight years before",
            ("Laravel", "laravel/framework#26213"),
            (day(2017, 8, 23), Mended(day(2019, 1, 15))),
            "release_by_name",
            "First reported as #20709 in 2017, before the release that brought these locks, and sent on as \
                a suggestion. A year later somebody else found it again: whoever overran the lock's time \
                released the lock of the next. Since 5.8 an unlock compares the owner.",
        ),
        exhibit(
            "Look, then take",
            ("Laravel", "laravel/framework#43627"),
            (day(2022, 8, 9), Mended(day(2023, 2, 13))),
            "check_then_set",
            "With the file cache and no time limit, which is the default, a lock was taken by reading the \
                file and then writing it. Whoever read between the two had the lock as well. The change \
                that mended it shows what that did: two workers counted to 1,938 instead of 2,000.",
        ),
        exhibit(
            "The unlock that was sent twice",
            ("etcd", "etcd-io/etcd#22082"),
            (day(2026, 7, 18), Open(day(2026, 9, 10))),
            "unlock_retry_frees_relock",
            "An unlock reaches the server and its reply is lost. Another task of the same session takes the \
                lock; the first one repeats its unlock, which deletes by the name of the key, and that name \
                is the same for the whole session. The second task works on without a lock.",
        ),
        exhibit(
            "The old session's entry",
            ("Curator", "apache/curator#1121"),
            (day(2021, 7, 29), Closed),
            "adopts_old_entry",
            "CURATOR-604: a session expires, the client comes back with a new one, finds the old one's node \
                before the server has cleared it away, and takes it for its own. A moment later it is \
                deleted, and the lock is another's as well.",
        ),
        exhibit(
            "An error that was passed over",
            ("libkv", "docker/libkv#186"),
            (day(2017, 12, 18), Mended(day(2017, 12, 19))),
            "retry_assumes_success",
            "A lock in etcd was taken in two attempts. An error of the connection in the first was passed \
                over, and the second overwrote what stood there: two clients believed that they had the \
                lock.",
        ),
        exhibit(
            "Locking twice is a no-op",
            ("etcd", "etcd-io/etcd#7444"),
            (day(2017, 3, 13), ByDesign),
            "owner_is_client",
            "The lock service promises that calls with one lease count as one acquisition. Two tasks of a \
                process that share a session therefore both have the lock, and neither waits.",
        ),
        exhibit(
            "Granted, and already gone",
            ("etcd", "etcd-io/etcd#11456"),
            (day(2018, 7, 12), Mended(day(2019, 12, 4))),
            "stale_waiter_granted",
            "Whoever waits for a lock has a lease of its own, and it can lapse while it waits. When the one \
                before it went, the wait ended and the lock was reported as held, by somebody who was not \
                in line any more. Reported as #9921 in 2018. Jepsen, who test such systems with faults, \
                found lost updates in 2019 and name this as a part of the cause; the other part is that no \
                lock with a lease can rule them out alone.",
        ),
        exhibit(
            "The same, in the read-write recipe",
            ("etcd", "etcd-io/etcd#16221"),
            (day(2023, 7, 11), Open(day(2026, 8, 20))),
            "stale_waiter_granted",
            "The mutex looks after its wait whether its own key is still there. The experimental recipe \
                beside it does not: in the report's test, in which one of three writers loses its lease \
                while it waits, two had the lock. The issue is closed; the recipe of August 2026 is as it \
                was.",
        ),
        exhibit(
            "The pool is the owner",
            ("Kodus", "kodustech/kodus-ai#1129"),
            (day(2026, 5, 18), Closed),
            "owner_is_pool_connection",
            "A PostgreSQL advisory lock belongs to the connection and may be taken again on it. Every call \
                took any connection of the pool; two callers that were given the same one were both told \
                that they held the lock.",
        ),
        exhibit(
            "Two processes of one name",
            ("Spring Integration", "spring-projects/spring-integration#3724"),
            (day(2022, 2, 10), Closed),
            "owner_from_pid_time",
            "The owner of a lock in a table is a client id. It is random unless it is configured; \
                configured alike in two processes it makes them one owner, and the second is not refused, \
                it refreshes. One of the makers wrote in 2016 that to share it is a mistake of the \
                application. The record was closed while it waited for its reporter.",
        ),
        exhibit(
            "The second lock lets the first one go",
            ("DistributedLock", "madelson/DistributedLock#123"),
            (day(2022, 1, 17), Mended(day(2022, 7, 5))),
            "second_lock_drops_first",
            "Old MySQL and MariaDB keep one named lock per connection, and drop it without a word when the \
                next is taken. A library that puts many locks on one connection to save connections loses \
                all but the last. It is documented since that the sharing must be turned off for them.",
        ),
        exhibit(
            "A lock and a read lock that never met",
            ("Redisson", "redisson/redisson#4023"),
            (day(2021, 12, 16), Closed),
            "reader_during_write",
            "One thread held the plain lock of a name, another asked for the read lock of the same name and \
                got it. When the reader left, the first one's lock was gone too. The maintainer's answer is \
                that objects of different kinds must not share a name. It is not checked.",
        ),
        exhibit(
            "A writer slips in during the downgrade",
            ("Curator", "apache/curator#1138"),
            (day(2015, 11, 4), Mended(day(2023, 4, 1))),
            "downgrade_gap",
            "Whoever holds the write lock takes the read lock and lets go of the write lock: the textbook's \
                downgrade. A writer that had been waiting stood before the new reader in line, did not see \
                it, and came in beside it. Reported as CURATOR-276 in 2015, again as CURATOR-621 in 2021. \
                The mended lock gives the reader the writer's place.",
        ),
        exhibit(
            "The last reader's lease counts for all",
            ("Redisson", "redisson/redisson#2144"),
            (day(2019, 6, 3), Mended(day(2019, 6, 5))),
            "last_lease_for_all",
            "All readers of a lock shared one expiry, and each new one set it. A reader for five seconds, \
                then one for one second, which dies: after that second the first has lost its lock as well.",
        ),
        exhibit(
            "The reader's unlock deletes the writer",
            ("Redisson", "redisson/redisson#891"),
            (day(2017, 5, 25), Mended(day(2017, 5, 27))),
            "read_unlock_ignores_owner",
            "Write lock, read lock inside it, read unlock: the unlock of the reader removed the whole \
                record, and the write lock with it. In January 2025 the release notes mend an unlock of the \
                read-write lock that did not respect its owner.",
        ),
        exhibit(
            "A lease that was over before it began",
            ("ShedLock", "lukas-krecan/ShedLock#3577"),
            (day(2026, 7, 7), Mended(day(2026, 8, 18))),
            "early_expiry",
            "About once a day two pods ran the same job, a quarter of a second apart. By the reporter's \
                analysis the end of the lease was computed from the database's `now()`, which inside a \
                transaction is the time at which that began, so that the store thinks the lease over \
                earlier than its holder does; #3682 reproduces it. Since 7.9.0 the provider in question, \
                that for jOOQ, can be given a transaction of its own.",
        ),
    ],
};
