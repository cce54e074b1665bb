//! Two holders.

use super::day::day;
use super::exhibit::End::{ByDesign, Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Two holders",
    intro: "A lock has one job. Most of these bugs needed no attack and no broken machine: a task took a \
        second longer than planned, a reply got lost, or two owners had the same id. While it happens, \
        little is logged and nothing fails. It may be found weeks later, in the data.",
    exhibits: &[
        exhibit(
            "The late unlock frees the next holder's lock",
            ("ShedLock", "lukas-krecan/ShedLock#2583"),
            (day(2025, 5, 14), Mended(day(2025, 5, 20))),
            "release_by_name",
            "The report's example: a job with a lock of 30 seconds takes 31. By then the lock has lapsed \
                and another job holds it. The first job's unlock deletes the key without checking the \
                owner, and a third job can start. The fixed unlock compares the owner, but has to be \
                enabled.",
        ),
        exhibit(
            "The same, eight years before",
            ("Laravel", "laravel/framework#26213"),
            (day(2017, 8, 23), Mended(day(2019, 1, 15))),
            "release_by_name",
            "First reported as #20709 in 2017, before the release that brought these locks, and treated as \
                a suggestion. A year later another user found it again: a holder that overran its lock time \
                released the next holder's lock. Since 5.8 an unlock compares the owner.",
        ),
        exhibit(
            "Read, then write",
            ("Laravel", "laravel/framework#43627"),
            (day(2022, 8, 9), Mended(day(2023, 2, 13))),
            "check_then_set",
            "With the file cache and no time limit, which is the default, a lock was taken by reading the \
                file and then writing it. A second process that read between the two had the lock as well. \
                The fix shows the effect: two workers counted to 1,938 instead of 2,000.",
        ),
        exhibit(
            "The unlock that was sent twice",
            ("etcd", "etcd-io/etcd#22082"),
            (day(2026, 7, 18), Open(day(2026, 9, 10))),
            "unlock_retry_frees_relock",
            "An unlock reaches the server, but its reply is lost. Another task of the same session takes \
                the lock. The first task repeats its unlock, which deletes the key by name, and the whole \
                session uses the same name. The second task works on without a lock.",
        ),
        exhibit(
            "The old session's entry",
            ("Curator", "apache/curator#1121"),
            (day(2021, 7, 29), Closed),
            "adopts_old_entry",
            "CURATOR-604: a session expires and the client returns with a new one. It finds the old \
                session's node before the server has deleted it, and takes it for its own. A moment later \
                the node is deleted, and another client gets the lock as well.",
        ),
        exhibit(
            "An ignored error",
            ("libkv", "docker/libkv#186"),
            (day(2017, 12, 18), Mended(day(2017, 12, 19))),
            "retry_assumes_success",
            "A lock in etcd was taken in two attempts. A connection error in the first attempt was ignored, \
                and the second attempt overwrote the existing entry: two clients believed that they had the \
                lock.",
        ),
        exhibit(
            "Locking twice is a no-op",
            ("etcd", "etcd-io/etcd#7444"),
            (day(2017, 3, 13), ByDesign),
            "owner_is_client",
            "The lock service promises that calls with the same lease count as one acquisition. If two \
                tasks of a process share a session, both therefore get the lock, and neither waits.",
        ),
        exhibit(
            "Granted, and already gone",
            ("etcd", "etcd-io/etcd#11456"),
            (day(2018, 7, 12), Mended(day(2019, 12, 4))),
            "stale_waiter_granted",
            "A waiter has a lease of its own, and that lease can lapse during the wait. When the holder \
                before it left, the wait ended and reported the lock as held, although the waiter was no \
                longer queued. Reported as #9921 in 2018. Jepsen, which tests such systems under faults, \
                found lost updates in 2019 and names this as one cause. The other cause is that a lock with \
                a lease cannot rule them out alone.",
        ),
        exhibit(
            "The same, in the read-write recipe",
            ("etcd", "etcd-io/etcd#16221"),
            (day(2023, 7, 11), Open(day(2026, 8, 20))),
            "stale_waiter_granted",
            "After its wait the mutex checks that its own key still exists. The experimental recipe beside \
                it does not: in the report's test one of three writers loses its lease during its wait, and \
                two writers had the lock. The issue is closed, and the recipe was unchanged in August 2026.",
        ),
        exhibit(
            "The pool is the owner",
            ("Kodus", "kodustech/kodus-ai#1129"),
            (day(2026, 5, 18), Closed),
            "owner_is_pool_connection",
            "A PostgreSQL advisory lock belongs to the connection and can be taken again on it. Each call \
                used any connection of the pool. Two callers that got the same connection both held the \
                lock.",
        ),
        exhibit(
            "Two processes, one owner",
            ("Spring Integration", "spring-projects/spring-integration#3724"),
            (day(2022, 2, 10), Closed),
            "owner_from_pid_time",
            "The owner of a lock in a table is a client id. It is random by default. If two processes \
                configure the same id, they are one owner: the second process is not refused, it refreshes \
                the lock. A maintainer wrote in 2016 that sharing the id is a mistake of the application. \
                The issue was closed while it waited for its reporter.",
        ),
        exhibit(
            "The second lock drops the first",
            ("DistributedLock", "madelson/DistributedLock#123"),
            (day(2022, 1, 17), Mended(day(2022, 7, 5))),
            "second_lock_drops_first",
            "Old MySQL and MariaDB keep one named lock per connection, and silently drop it when the \
                connection takes another one. A library that puts many locks on one connection to save \
                connections keeps only the last. The documentation now says that sharing must be turned off \
                for these servers.",
        ),
        exhibit(
            "A lock and a read lock that never met",
            ("Redisson", "redisson/redisson#4023"),
            (day(2021, 12, 16), Closed),
            "reader_during_write",
            "One thread held the plain lock of a name. Another thread asked for the read lock of the same \
                name and got it. When the reader left, the first thread's lock was gone too. The \
                maintainer's answer is that objects of different kinds must not share a name. The library \
                does not check this.",
        ),
        exhibit(
            "A writer slips in during the downgrade",
            ("Curator", "apache/curator#1138"),
            (day(2015, 11, 4), Mended(day(2023, 4, 1))),
            "downgrade_gap",
            "A thread that holds the write lock takes the read lock and then releases the write lock: the \
                textbook downgrade. A writer that was already waiting stood before the new reader in the \
                queue, did not see it, and got in beside it. Reported as CURATOR-276 in 2015, again as \
                CURATOR-621 in 2021. The fix gives the reader the writer's place.",
        ),
        exhibit(
            "The last reader's lease counts for all",
            ("Redisson", "redisson/redisson#2144"),
            (day(2019, 6, 3), Mended(day(2019, 6, 5))),
            "last_lease_for_all",
            "All readers of a lock shared one expiry, and each new reader set it. One reader took the lock \
                for five seconds. A second one took it for one second and died. After that second the first \
                reader had lost its lock as well.",
        ),
        exhibit(
            "The reader's unlock deletes the writer",
            ("Redisson", "redisson/redisson#891"),
            (day(2017, 5, 25), Mended(day(2017, 5, 27))),
            "read_unlock_ignores_owner",
            "A thread took the write lock, then the read lock inside it, then released the read lock. That \
                unlock removed the whole record, and the write lock with it. The release notes of January \
                2025 fix an unlock of the read-write lock that did not respect its owner.",
        ),
        exhibit(
            "A lease that was over before it began",
            ("ShedLock", "lukas-krecan/ShedLock#3577"),
            (day(2026, 7, 7), Mended(day(2026, 8, 18))),
            "early_expiry",
            "About once a day two pods ran the same job, a quarter of a second apart. According to the \
                reporter, the end of the lease was computed from the database's `now()`. Inside a \
                transaction that is the time at which the transaction began, so the store ends the lease \
                earlier than its holder does. #3682 reproduces it. Since 7.9.0 the affected provider, for \
                jOOQ, can be given its own transaction.",
        ),
    ],
};
