//! Tokens that fence nothing.

use super::day::day;
use super::exhibit::End::{Closed, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Tokens that fence nothing",
    intro: "The last defence against all of the above is a token that grows with each grant, and a resource \
        that refuses the smaller one. Tests seldom use it, because it is never needed without a fault. So it \
        may be wrong for years.",
    exhibits: &[
        exhibit(
            "A random number for a fence",
            ("Gears", "constructorfabric/gears-rust#4863"),
            (day(2026, 9, 18), Open(day(2026, 9, 18))),
            "token_random",
            "The trait promises a fence that increases at every acquisition. One backend counts. A new one \
                draws 64 random bits, and says that they are meant to distinguish holders. They do that, \
                but they cannot refuse the older of two holders, which has the larger number half of the \
                time. A reviewer caught it before it was merged.",
        ),
        exhibit(
            "The counter is deleted with the lock",
            ("Occurrent", "johanhaleby/occurrent#672"),
            (day(2026, 8, 9), Closed),
            "token_reset_on_release",
            "The version was stored in the document of the lock, and the release deleted the document. The \
                next holder began at zero again, like the one before it.",
        ),
        exhibit(
            "The counter is cleaned up",
            ("Apache Pulsar", "apache/pulsar#12193"),
            (day(2021, 9, 25), Closed),
            "token_reset_on_release",
            "A change made ZooKeeper remove empty folders automatically. One of them was a counter: its \
                value was the version of the folder, and a new folder starts at version zero.",
        ),
        exhibit(
            "Back again, with the old token",
            ("Sliceworkz Eventstore", "sliceworkz/eventstore#176"),
            (day(2026, 9, 16), Closed),
            "token_kept_on_retake",
            "A client that took its own lease again after it had lapsed kept its token. Another client \
                could have held the lease in between. Writes stamped before the pause had the same token as \
                writes stamped now.",
        ),
        exhibit(
            "Computed, and thrown away",
            ("Occurrent", "johanhaleby/occurrent#661"),
            (day(2026, 8, 8), Closed),
            "resource_accepts_stale",
            "Every acquire computed a fencing token, and the documentation said why it is needed, but \
                nothing compared it. A consumer that had lost its lease could set the checkpoint back.",
        ),
        exhibit(
            "Twenty-five million keys",
            ("Redisson", "redisson/redisson#6510"),
            (day(2025, 3, 24), Open(day(2026, 8, 21))),
            "fence_key_leak",
            "Each name ever locked with a token leaves its counter behind for ever: 25 of the 75 million \
                keys of a production store. If the counters expired, they would start again. One counter \
                for all names is a way out.",
        ),
        exhibit(
            "After two billion",
            ("kazoo", "python-zk/kazoo#730"),
            (day(2023, 10, 9), Open(day(2026, 5, 8))),
            "token_i32_wrap",
            "ZooKeeper numbers the entries of a queue with a signed 32-bit number. A busy election reached \
                the end, and the numbers turned negative. Compared as text, each new one is then the \
                smallest: every newcomer is the leader.",
        ),
    ],
};
