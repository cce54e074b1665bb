//! Locked, and held by nobody.

use super::day::day;
use super::exhibit::End::{Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Locked, and held by nobody",
    intro: "Here nobody overwrites anybody: nobody works at all. What is left behind by a timeout, a \
        cancelled task or a lost reply keeps the lock, often kept alive by a renewal that nobody remembers. \
        The usual remedy is a restart, and the usual finding that it then works again.",
    exhibits: &[
        exhibit(
            "Give up once, locked for ever",
            ("zk", "zk-ruby/zk#49"),
            (day(2012, 9, 21), Mended(day(2012, 9, 22))),
            "orphan_waiter",
            "Whoever had waited too long left its place in the queue behind. When its turn came the lock \
                was nobody's, until that process ended.",
        ),
        exhibit(
            "The same, in another language, seven years later",
            ("aiozk", "micro-fan/aiozk#34"),
            (day(2019, 8, 10), Mended(day(2019, 8, 12))),
            "orphan_waiter",
            "A timeout during the acquire did not delete the node that stood for it in the queue; the next \
                ones waited for a ghost.",
        ),
        exhibit(
            "The best effort was one effort",
            ("kazoo", "python-zk/kazoo#732"),
            (day(2023, 11, 12), Open(day(2026, 5, 8))),
            "cleanup_tried_once",
            "An attempt that is refused deletes its node. If the session is suspended just then, the error \
                of that is swallowed, `not acquired` is answered, and the node stays: it is granted the \
                lock when its turn comes. Seen with 800 workers that made tens of thousands of attempts a \
                second.",
        ),
        exhibit(
            "Two locks enter, three locks leave",
            ("zk", "zk-ruby/zk#54"),
            (day(2012, 11, 9), Mended(day(2012, 11, 10))),
            "retry_double_enqueue",
            "After a short loss of the connection a waiting client queued a second time and then waited for \
                its own first entry. The script that reproduces it is named as this exhibit is.",
        ),
        exhibit(
            "Timed out, and granted",
            ("DistributedLock", "madelson/DistributedLock#147"),
            (day(2022, 11, 7), Mended(day(2022, 11, 12))),
            "timeout_leaks_grant",
            "With short timeouts and many threads PostgreSQL could report that the wait for an advisory \
                lock had timed out although it had been granted. The library believed the error, and the \
                lock stayed. Now it looks after a timeout whether it holds the lock after all.",
        ),
        exhibit(
            "Interrupted, and renewed for ever",
            ("Redisson", "redisson/redisson#2714"),
            (day(2020, 4, 21), Mended(day(2021, 9, 13))),
            "cancel_leaks_grant",
            "A thread was interrupted while it tried for a lock. The request had been granted, the watchdog \
                had been told, and no guard came of it: the lock was renewed for nobody. It was reported \
                anew as #4368 the year after, by somebody who found that the repair looked at the wrong \
                thread.",
        ),
        exhibit(
            "A node that owns the lock without knowing",
            ("Curator", "apache/curator#600"),
            (day(2013, 11, 27), Mended(day(2014, 8, 20))),
            "cancel_leaks_grant",
            "CURATOR-79: a thread was interrupted when the node that stood for it in the queue had been \
                created, and before it was told so. The client thought that nothing had been created; some \
                time later the node was first in line, and nobody knew that it had the lock.",
        ),
        exhibit(
            "A future is dropped",
            ("sqlx", "transact-rs/sqlx#4198"),
            (day(2026, 3, 23), Mended(day(2026, 3, 26))),
            "cancel_leaks_grant",
            "`try_join!` drops the other futures when one fails. An acquire that is dropped between the \
                statement that locks and the guard that would unlock left the lock on its connection, and \
                that went back to the pool. The code was four years old.",
        ),
        exhibit(
            "No guard, no release",
            ("Ankurah", "ankurah/ankurah#398"),
            (day(2026, 7, 18), Open(day(2026, 7, 18))),
            "drop_keeps_renewing",
            "Lock, work, unlock, in one async block. Every error released the lock; a caller's timeout, \
                which drops the block, did not, and the pooled connection kept it. It was found in a \
                review.",
        ),
        exhibit(
            "The unlock failed, the watchdog did not",
            ("Redisson", "redisson/redisson#1602"),
            (day(2018, 8, 24), Mended(day(2018, 9, 8))),
            "renewer_survives_failed_release",
            "The network failed during an unlock, the caller had its exception, the network came back, and \
                the renewal went on. #1626 tells from production of a watchdog that is never cancelled: \
                threads pile up until the instance that runs it is restarted.",
        ),
        exhibit(
            "Forgotten here, remembered there",
            ("Curator", "apache/curator#1193"),
            (day(2018, 11, 27), Open(day(2026, 7, 20))),
            "renewer_survives_failed_release",
            "CURATOR-486 and CURATOR-678: when a release fails in transport, the client forgets the lock \
                all the same. The lock's node may live as long as the session; those who reported it could \
                neither release the lock nor take it again.",
        ),
        exhibit(
            "A watchdog that comes late stays",
            ("Redisson", "redisson/redisson#7272"),
            (day(2026, 7, 31), Open(day(2026, 8, 21))),
            "zombie_renewer",
            "Beginning to renew and ending it are callbacks of two different futures, and nothing orders \
                them. If the end runs first it finds nothing to end; then the renewal begins, of a lock \
                that has been released.",
        ),
        exhibit(
            "The living renew the dead",
            ("Redisson", "redisson/redisson#7098"),
            (day(2026, 5, 2), Mended(day(2026, 5, 4))),
            "renews_every_reader",
            "A reader's watchdog renewed every entry that it found in the record of the lock, those of \
                other instances included. An instance that had crashed kept its read lock, and writers out, \
                for as long as another reader lived.",
        ),
        exhibit(
            "Unlocked on another connection",
            ("MockForge", "SaaSy-Solutions/mockforge#968"),
            (day(2026, 7, 30), Closed),
            "unlock_on_other_conn",
            "Lock and unlock of a migration each took any connection of the pool. When they met different \
                ones the unlock answered `false`, which nobody read. The next release hung before it opened \
                its port, was rolled back, and the replacement hung as well: production was down.",
        ),
        exhibit(
            "Released, when somebody needs the connection",
            ("Npgsql", "npgsql/npgsql#5592"),
            (day(2024, 2, 25), Closed),
            "lazy_release",
            "Closing a pooled connection returns it to the pool. The reset that lets go of what it holds is \
                sent in front of the first command of whoever is given it next; until then the lock that \
                was released is not free.",
        ),
        exhibit(
            "Killed, and still the holder",
            ("PgDog", "pgdogdev/pgdog#1407"),
            (day(2026, 8, 21), Open(day(2026, 9, 3))),
            "kill_leaks",
            "A client is killed while it holds a session's lock. The proxy, if it shares connections by \
                transaction, returns the client's connection to the pool with the lock on it, and whoever \
                asks for that lock spins until the pool happens to close it.",
        ),
        exhibit(
            "The acquire that failed had succeeded",
            ("Redisson", "redisson/redisson#4706"),
            (day(2022, 11, 29), Mended(day(2023, 3, 1))),
            "lost_reply_immortal",
            "During a failover a lock was taken, no replica confirmed it, and an error was thrown; what had \
                been taken stayed taken. From then on one of two instances could lock, and the other waited \
                until that one was stopped. It was told again as #4822, with which it was mended.",
        ),
        exhibit(
            "Closing waits for ever",
            ("Wolverine", "JasperFx/wolverine#4261"),
            (day(2026, 9, 3), Mended(day(2026, 9, 4))),
            "close_hangs",
            "One connection, used by several tasks at once. When a release met another statement on it, the \
                shutdown hung in the closing of the connection, which takes no timeout; two dumps of hung \
                test hosts were equal frame by frame.",
        ),
    ],
};
