//! The turn that never comes.

use super::day::day;
use super::exhibit::End::{Closed, Mended, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "The turn that never comes",
    intro: "Waiting is half of a lock, and often it is tested with two threads and a second of patience. \
        These need a third party, a second longer, or a release at the one moment at which nobody listens.",
    exhibits: &[
        exhibit(
            "The watch came too late",
            ("Apache Helix", "apache/helix#44"),
            (day(2016, 5, 19), Closed),
            "notify_before_register",
            "A waiter looks who is before it, and then asks to be told when that one goes. Gone between the \
                two, it is never told, and everybody behind it waits as well.",
        ),
        exhibit(
            "The same, in ZooKeeper's own recipe and its port",
            ("ZooKeeperNetEx", "shayhatsor/zookeeper#26"),
            (day(2018, 2, 13), Open(day(2018, 2, 13))),
            "notify_before_register",
            "A waiter watches the entry before its own. The watch on one that is already deleted fires when \
                it is created again, and that never happens. The log had a warning for it.",
        ),
        exhibit(
            "The same, over pub/sub",
            ("Redisson", "redisson/redisson#3891"),
            (day(2021, 10, 14), Mended(day(2024, 4, 10))),
            "notify_before_register",
            "The message of the unlock was missed, and the waiter came only when the lease of the released \
                lock would have ended: half a minute of standing still at each hand-over that it hit. The \
                release of April 2024 mends missed unlock messages.",
        ),
        exhibit(
            "The expiry that nobody announces",
            ("Redisson", "redisson/redisson#3730"),
            (day(2021, 7, 14), Closed),
            "expiry_no_wakeup",
            "\"FairLock deadlock again\": the first thread ends without unlocking, its lease runs out, and \
                sometimes the next in line waits on for the whole of its limit beside a free lock. A \
                release is announced; an expiry is not.",
        ),
        exhibit(
            "Reader and writer wait for each other",
            ("kazoo", "python-zk/kazoo#649"),
            (day(2021, 7, 30), Mended(day(2022, 2, 7))),
            "rw_cross_wait",
            "A writer holds, a reader waits, a writer waits behind it. The first one goes, and the reader \
                looks for writers in its way: all writers, those behind it as well. It waits for the \
                second, which waits for it.",
        ),
        exhibit(
            "A coin with one side",
            ("etcd", "etcd-io/etcd#6408"),
            (day(2016, 9, 12), Mended(day(2016, 9, 14))),
            "waits_on_deleted_key",
            "In the read-write recipe, whoever had waited for a writer looked up the key before its own \
                again, was given the one that had just been deleted, and so on for ever. There was a test: \
                it chose by chance between reading and writing, by `rand.Intn(1) == 0`, which is always \
                true, so that it never wrote.",
        ),
        exhibit(
            "A blink of the connection",
            ("kazoo", "python-zk/kazoo#170"),
            (day(2014, 2, 20), Mended(day(2014, 3, 3))),
            "waiter_hangs_on_cut",
            "Restart the leader of the ensemble while two processes take turns at a lock: the connections \
                are back within their sessions, and both wait for ever.",
        ),
        exhibit(
            "Five minutes are enough",
            ("Redisson", "redisson/redisson#3004"),
            (day(2020, 8, 23), Closed),
            "live_waiter_evicted",
            "The fair queue dropped whoever had stood in it for longer than five minutes, unless told \
                otherwise, taking it for dead. It was not, and it was never told.",
        ),
        exhibit(
            "A queue behind the dead",
            ("Redisson", "redisson/redisson#4595"),
            (day(2022, 10, 12), Open(day(2022, 10, 12))),
            "dead_head_blocks",
            "A pod is killed while it stands in a fair queue with no limit to its wait. Its place stays, at \
                the head. After the restart the same service queues behind its own ghost, beside a free \
                lock. Told again as #4661, #4929 and #6150.",
        ),
        exhibit(
            "Time runs, and the timeouts run faster",
            ("Redisson", "redisson/redisson#1104"),
            (day(2017, 10, 18), Mended(day(2017, 10, 27))),
            "queue_timeouts_drift",
            "Each entry of a fair queue has a time at which it counts as dead, and each arrival moved those \
                times on and none moved them back. In production they were six hours ahead of the clock, \
                and for as long a waiter that had died kept all the others waiting. Found again, by other \
                ways to drift, as #2099 in 2019.",
        ),
        exhibit(
            "Already held, said of a lock that was lost",
            ("Consul", "hashicorp/consul#4902"),
            (day(2018, 11, 6), Closed),
            "held_after_loss",
            "The servers went away, the channel told of the loss, the program locked again: `Lock already \
                held`. The object's own flag was cleared by an unlock, not by a loss. The maintainers \
                expected a new object to be made after a loss, and said in #4935 that this was not \
                documented.",
        ),
    ],
};
