//! Locked, and held by nobody.

use super::day::day;
use super::exhibit::End::{Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Locked, and held by nobody",
    intro: "Here no holder overwrites another: no one works at all. A leftover of a timeout, a cancelled \
        task or a lost reply keeps the lock, and a forgotten renewal often keeps the leftover alive. The \
        usual remedy is a restart, and the usual finding is that it then works again.",
    exhibits: &[
        exhibit(
            "Give up once, locked for ever",
            ("zk", "zk-ruby/zk#49"),
            (day(2012, 9, 21), Mended(day(2012, 9, 22))),
            "orphan_waiter",
            "A waiter that timed out left its place in the queue behind. When its turn came, the lock had \
                no holder until that process ended.",
        ),
        exhibit(
            "The same, in another language, seven years later",
            ("aiozk", "micro-fan/aiozk#34"),
            (day(2019, 8, 10), Mended(day(2019, 8, 12))),
            "orphan_waiter",
            "A timeout during the acquire did not delete the waiter's node in the queue. Later waiters \
                waited for an entry without a process.",
        ),
        exhibit(
            "The best effort was one effort",
            ("kazoo", "python-zk/kazoo#732"),
            (day(2023, 11, 12), Open(day(2026, 5, 8))),
            "cleanup_tried_once",
            "A refused attempt deletes its node. If the session is suspended at that moment, the error is \
                swallowed, the call answers `not acquired`, and the node stays. When its turn comes it is \
                granted the lock. Seen with 800 workers that made tens of thousands of attempts a second.",
        ),
        exhibit(
            "Two locks enter, three locks leave",
            ("zk", "zk-ruby/zk#54"),
            (day(2012, 11, 9), Mended(day(2012, 11, 10))),
            "retry_double_enqueue",
            "After a short loss of the connection a waiting client queued a second time and then waited for \
                its own first entry. The exhibit has the name of the script that reproduces it.",
        ),
        exhibit(
            "Timed out, and granted",
            ("DistributedLock", "madelson/DistributedLock#147"),
            (day(2022, 11, 7), Mended(day(2022, 11, 12))),
            "timeout_leaks_grant",
            "With short timeouts and many threads PostgreSQL could report that the wait for an advisory \
                lock had timed out although it had been granted. The library believed the error, and the \
                lock stayed. Now it checks after a timeout whether it holds the lock.",
        ),
        exhibit(
            "Interrupted, and renewed for ever",
            ("Redisson", "redisson/redisson#2714"),
            (day(2020, 4, 21), Mended(day(2021, 9, 13))),
            "cancel_leaks_grant",
            "A thread was interrupted while it tried for a lock. The request had been granted and the \
                watchdog started, but no guard was returned: the lock was renewed without a holder. It was \
                reported again as #4368 a year later, by a user who found that the fix checked the wrong \
                thread.",
        ),
        exhibit(
            "A node that holds the lock without knowing",
            ("Curator", "apache/curator#600"),
            (day(2013, 11, 27), Mended(day(2014, 8, 20))),
            "cancel_leaks_grant",
            "CURATOR-79: a thread was interrupted after its node in the queue was created, and before it \
                heard of that. The client assumed that nothing had been created. Later the node was first \
                in the queue and held the lock, and no client knew.",
        ),
        exhibit(
            "A future is dropped",
            ("sqlx", "transact-rs/sqlx#4198"),
            (day(2026, 3, 23), Mended(day(2026, 3, 26))),
            "cancel_leaks_grant",
            "`try_join!` drops the other futures when one fails. An acquire that was dropped between the \
                statement that locks and the guard that would unlock left the lock on its connection, which \
                went back to the pool. The code was four years old.",
        ),
        exhibit(
            "No guard, no release",
            ("Ankurah", "ankurah/ankurah#398"),
            (day(2026, 7, 18), Open(day(2026, 7, 18))),
            "drop_keeps_renewing",
            "Lock, work and unlock in one async block. Every error released the lock. A timeout in the \
                caller, which drops the block, did not, and the pooled connection kept the lock. It was \
                found in a review.",
        ),
        exhibit(
            "The unlock failed, the watchdog did not",
            ("Redisson", "redisson/redisson#1602"),
            (day(2018, 8, 24), Mended(day(2018, 9, 8))),
            "renewer_survives_failed_release",
            "The network failed during an unlock and the caller got an exception. The network came back, \
                and the renewal went on. #1626 reports from production a watchdog that is never cancelled: \
                threads pile up until its instance is restarted.",
        ),
        exhibit(
            "Forgotten here, remembered there",
            ("Curator", "apache/curator#1193"),
            (day(2018, 11, 27), Open(day(2026, 7, 20))),
            "renewer_survives_failed_release",
            "CURATOR-486 and CURATOR-678: when a release fails in transport, the client still forgets the \
                lock. The lock's node may live as long as the session. The reporters could neither release \
                the lock nor take it again.",
        ),
        exhibit(
            "A late watchdog stays",
            ("Redisson", "redisson/redisson#7272"),
            (day(2026, 7, 31), Open(day(2026, 8, 21))),
            "zombie_renewer",
            "The start and the end of the renewal are callbacks of two different futures, and their order \
                is not fixed. If the end runs first, it finds nothing to end. Then the renewal starts for a \
                lock that has been released.",
        ),
        exhibit(
            "The living renew the dead",
            ("Redisson", "redisson/redisson#7098"),
            (day(2026, 5, 2), Mended(day(2026, 5, 4))),
            "renews_every_reader",
            "A reader's watchdog renewed every entry in the record of the lock, including those of other \
                instances. An instance that had crashed kept its read lock, and writers out, for as long as \
                another reader lived.",
        ),
        exhibit(
            "Unlocked on another connection",
            ("MockForge", "SaaSy-Solutions/mockforge#968"),
            (day(2026, 7, 30), Closed),
            "unlock_on_other_conn",
            "A migration's lock and unlock each used any connection of the pool. When they used different \
                ones the unlock answered `false`, which the code ignored. The next release hung before it \
                opened its port and was rolled back. The replacement hung as well: production was down.",
        ),
        exhibit(
            "Released when the connection is next used",
            ("Npgsql", "npgsql/npgsql#5592"),
            (day(2024, 2, 25), Closed),
            "lazy_release",
            "Closing a pooled connection returns it to the pool. The reset that releases its locks is sent \
                before the first command of its next user. Until then the released lock is not free.",
        ),
        exhibit(
            "Killed, and still the holder",
            ("PgDog", "pgdogdev/pgdog#1407"),
            (day(2026, 8, 21), Open(day(2026, 9, 3))),
            "kill_leaks",
            "A client is killed while it holds a session's lock. If the proxy shares connections by \
                transaction, it returns the client's connection to the pool with the lock on it. Every \
                client that wants the lock spins until the pool happens to close that connection.",
        ),
        exhibit(
            "The acquire that failed had succeeded",
            ("Redisson", "redisson/redisson#4706"),
            (day(2022, 11, 29), Mended(day(2023, 3, 1))),
            "lost_reply_immortal",
            "During a failover a lock was taken, no replica confirmed it, and an error was thrown, but the \
                lock stayed taken. From then on one of two instances could lock, and the other waited until \
                the first was stopped. It was reported again as #4822, and fixed there.",
        ),
        exhibit(
            "Closing waits for ever",
            ("Wolverine", "JasperFx/wolverine#4261"),
            (day(2026, 9, 3), Mended(day(2026, 9, 4))),
            "close_hangs",
            "Several tasks used one connection at once. When a release coincided with another statement on \
                it, the shutdown hung in closing the connection, which takes no timeout. Two dumps of hung \
                test hosts had identical stacks.",
        ),
    ],
};
