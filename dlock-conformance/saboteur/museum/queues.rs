//! The turn that never comes.

use super::day::day;
use super::exhibit::End::{Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "The turn that never comes",
    intro: "Waiting is half of what a lock does, and it is often tested with two threads for one second. \
        These bugs need a third client, a longer test, or a release at the one moment at which no waiter is \
        registered.",
    exhibits: &[
        exhibit(
            "The watch came too late",
            ("Apache Helix", "apache/helix#44"),
            (day(2016, 5, 19), Closed),
            "notify_before_register",
            "A waiter checks which entry is before it, and then watches that entry. If the entry goes in \
                between, the watch never fires, and every waiter behind it waits as well.",
        ),
        exhibit(
            "The same, in ZooKeeper's own recipe and its port",
            ("ZooKeeperNetEx", "shayhatsor/zookeeper#26"),
            (day(2018, 2, 13), Open(day(2018, 2, 13))),
            "notify_before_register",
            "A waiter watches the entry before its own. If that entry is already deleted, the watch fires \
                when it is created again, which never happens. The log had a warning for it.",
        ),
        exhibit(
            "The same, over pub/sub",
            ("Redisson", "redisson/redisson#3891"),
            (day(2021, 10, 14), Mended(day(2024, 4, 10))),
            "notify_before_register",
            "The waiter missed the message of the unlock and continued only when the lease of the released \
                lock would have ended. Each hand-off that it hit took half a minute. The release of April \
                2024 fixes missed unlock messages.",
        ),
        exhibit(
            "The expiry that is not announced",
            ("Redisson", "redisson/redisson#3730"),
            (day(2021, 7, 14), Closed),
            "expiry_no_wakeup",
            "\"FairLock deadlock again\": the first thread ends without unlocking and its lease expires. \
                Sometimes the next waiter then waits until its own limit, although the lock is free. A \
                release is announced, an expiry is not.",
        ),
        exhibit(
            "Reader and writer wait for each other",
            ("kazoo", "python-zk/kazoo#649"),
            (day(2021, 7, 30), Mended(day(2022, 2, 7))),
            "rw_cross_wait",
            "A writer holds the lock, a reader waits, and another writer waits behind it. The first writer \
                leaves. The reader then looks for writers in its way and finds all of them, including the \
                one behind it. It waits for the second writer, which waits for the reader.",
        ),
        exhibit(
            "A coin with one side",
            ("etcd", "etcd-io/etcd#6408"),
            (day(2016, 9, 12), Mended(day(2016, 9, 14))),
            "waits_on_deleted_key",
            "In the read-write recipe, a client that had waited for a writer looked up the key before its \
                own again. It got the key that had just been deleted, and so on for ever. There was a test: \
                it chose between reading and writing by `rand.Intn(1) == 0`, which is always true, so it \
                never wrote.",
        ),
        exhibit(
            "A short disconnect",
            ("kazoo", "python-zk/kazoo#170"),
            (day(2014, 2, 20), Mended(day(2014, 3, 3))),
            "waiter_hangs_on_cut",
            "The leader of the ensemble is restarted while two processes take turns at a lock. The \
                connections are back within their sessions, but both processes wait for ever.",
        ),
        exhibit(
            "Five minutes are enough",
            ("Redisson", "redisson/redisson#3004"),
            (day(2020, 8, 23), Closed),
            "live_waiter_evicted",
            "By default the fair queue took a waiter that had queued for longer than five minutes for dead \
                and dropped it. The waiter was alive, and got no notice.",
        ),
        exhibit(
            "A queue behind the dead",
            ("Redisson", "redisson/redisson#4595"),
            (day(2022, 10, 12), Open(day(2022, 10, 12))),
            "dead_head_blocks",
            "A pod is killed while it waits in a fair queue without a limit. Its entry stays at the head. \
                After the restart the same service queues behind its own old entry, although the lock is \
                free. Reported again as #4661, #4929 and #6150.",
        ),
        exhibit(
            "Time runs, and the timeouts run faster",
            ("Redisson", "redisson/redisson#1104"),
            (day(2017, 10, 18), Mended(day(2017, 10, 27))),
            "queue_timeouts_drift",
            "Each entry of a fair queue has a time after which it counts as dead. Each arrival moved those \
                times forward, and nothing moved them back. In production they were six hours ahead of the \
                clock, and for that long a dead waiter kept all others waiting. Reported again in 2019 as \
                #2099, with other causes of the drift.",
        ),
        exhibit(
            "Already held, after a loss",
            ("Consul", "hashicorp/consul#4902"),
            (day(2018, 11, 6), Closed),
            "held_after_loss",
            "The servers went away, the channel reported the loss, and the program locked again: `Lock \
                already held`. Only an unlock cleared the object's own flag, a loss did not. The \
                maintainers expected a new object after a loss, and said in #4935 that this was not \
                documented.",
        ),
    ],
};
