//! The turn that never comes.

use super::day::day;
use super::{End, Exhibit, Hall};

pub(super) const HALL: Hall = Hall {
    title: "The turn that never comes",
    intro: "Waiting is half of a lock, and often it is tested with two threads and a second of patience. \
        These need a third \
            party, a second longer, or a release at the one moment at which nobody listens.",
    exhibits: &[
        Exhibit {
            title: "The watch came too late",
            project: "Apache Helix",
            issue: "apache/helix#44",
            since: day(2016, 5, 19),
            end: End::Closed,
            story: "A waiter looks who is before it, and then asks to be told when that one goes. Gone \
                between the two, it is never told, \
                    and everybody behind it waits as well.",
            bug: "notify_before_register",
        },
        Exhibit {
            title: "The same, in ZooKeeper's own recipe and its port",
            project: "ZooKeeperNetEx",
            issue: "shayhatsor/zookeeper#26",
            since: day(2018, 2, 13),
            end: End::Open(day(2018, 2, 13)),
            story: "A waiter watches the entry before its own. The watch on one that is already deleted \
                fires when it is created \
                    again, and that never happens. The log had a warning for it.",
            bug: "notify_before_register",
        },
        Exhibit {
            title: "The same, over pub/sub",
            project: "Redisson",
            issue: "redisson/redisson#3891",
            since: day(2021, 10, 14),
            end: End::Mended(day(2024, 4, 10)),
            story: "The message of the unlock was missed, and the waiter came only when the lease of the \
                released lock would \
                    have ended: half a minute of standing still at each hand-over that it hit. The release \
                    of April 2024 mends \
                    missed unlock messages.",
            bug: "notify_before_register",
        },
        Exhibit {
            title: "The expiry that nobody announces",
            project: "Redisson",
            issue: "redisson/redisson#3730",
            since: day(2021, 7, 14),
            end: End::Closed,
            story: "\"FairLock deadlock again\": the first thread ends without unlocking, its lease runs \
                out, and sometimes the \
                    next in line waits on for the whole of its limit beside a free lock. A release is \
                    announced; an expiry is \
                    not.",
            bug: "expiry_no_wakeup",
        },
        Exhibit {
            title: "Reader and writer wait for each other",
            project: "kazoo",
            issue: "python-zk/kazoo#649",
            since: day(2021, 7, 30),
            end: End::Mended(day(2022, 2, 7)),
            story: "A writer holds, a reader waits, a writer waits behind it. The first one goes, and the \
                reader looks for writers in its way: \
                    all writers, those behind it as well. It waits for the second, which waits for it.",
            bug: "rw_cross_wait",
        },
        Exhibit {
            title: "A coin with one side",
            project: "etcd",
            issue: "etcd-io/etcd#6408",
            since: day(2016, 9, 12),
            end: End::Mended(day(2016, 9, 14)),
            story: "In the read-write recipe, whoever had waited for a writer looked up the key before its \
                own again, was given \
                    the one that had just been deleted, and so on for ever. There was a test: it chose by \
                    chance between reading \
                    and writing, by `rand.Intn(1) == 0`, which is always true, so that it never wrote.",
            bug: "waits_on_deleted_key",
        },
        Exhibit {
            title: "A blink of the connection",
            project: "kazoo",
            issue: "python-zk/kazoo#170",
            since: day(2014, 2, 20),
            end: End::Mended(day(2014, 3, 3)),
            story: "Restart the leader of the ensemble while two processes take turns at a lock: the \
                connections are back within their \
                    sessions, and both wait for ever.",
            bug: "waiter_hangs_on_cut",
        },
        Exhibit {
            title: "Five minutes are enough",
            project: "Redisson",
            issue: "redisson/redisson#3004",
            since: day(2020, 8, 23),
            end: End::Closed,
            story: "The fair queue dropped whoever had stood in it for longer than five minutes, unless \
                told otherwise, taking \
                    it for dead. It was not, and it was never told.",
            bug: "live_waiter_evicted",
        },
        Exhibit {
            title: "A queue behind the dead",
            project: "Redisson",
            issue: "redisson/redisson#4595",
            since: day(2022, 10, 12),
            end: End::Open(day(2022, 10, 12)),
            story: "A pod is killed while it stands in a fair queue with no limit to its wait. Its place \
                stays, at the head. After the restart the \
                    same service queues behind its own ghost, beside a free lock. Told again as #4661, \
                    #4929 and #6150.",
            bug: "dead_head_blocks",
        },
        Exhibit {
            title: "Time runs, and the timeouts run faster",
            project: "Redisson",
            issue: "redisson/redisson#1104",
            since: day(2017, 10, 18),
            end: End::Mended(day(2017, 10, 27)),
            story: "Each entry of a fair queue has a time at which it counts as dead, and each arrival \
                moved those times on and none moved them back. \
                    In production they were six hours ahead of the clock, and for as long a waiter that had \
                    died kept all the others waiting. \
                    Found again, by other ways to drift, as #2099 in 2019.",
            bug: "queue_timeouts_drift",
        },
        Exhibit {
            title: "Already held, said of a lock that was lost",
            project: "Consul",
            issue: "hashicorp/consul#4902",
            since: day(2018, 11, 6),
            end: End::Closed,
            story: "The servers went away, the channel told of the loss, the program locked again: `Lock \
                already held`. The \
                    object's own flag was cleared by an unlock, not by a loss. The maintainers expected a \
                    new object to be made \
                    after a loss, and said in #4935 that this was not documented.",
            bug: "held_after_loss",
        },
    ],
};
