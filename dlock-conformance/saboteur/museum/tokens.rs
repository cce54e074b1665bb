//! Tokens that fence nothing.

use super::day::day;
use super::exhibit::End::{Closed, Open};
use super::exhibit::{Hall, exhibit};

pub(super) const HALL: Hall = Hall {
    title: "Tokens that fence nothing",
    intro: "The last defence against all of the above is a number that grows with each grant, and a \
        resource that refuses the smaller one. It is seldom used in a test, because without a fault it is \
        never needed; so it may be wrong for years.",
    exhibits: &[
        exhibit(
            "A random number for a fence",
            ("Gears", "constructorfabric/gears-rust#4863"),
            (day(2026, 9, 18), Open(day(2026, 9, 18))),
            "token_random",
            "The trait promises a fence that is counted up at every acquisition. One backend counts; a new \
                one draws 64 random bits, and says that they are meant to tell one holder from another. For \
                that they serve; to refuse the older of two they are of no use, since it has the larger \
                number every other time. A reviewer caught it before it was merged.",
        ),
        exhibit(
            "The counter is deleted with the lock",
            ("Occurrent", "johanhaleby/occurrent#672"),
            (day(2026, 8, 9), Closed),
            "token_reset_on_release",
            "The version was kept in the document of the lock, and the release deleted the document. The \
                next holder began at zero again, as the one before it.",
        ),
        exhibit(
            "The counter is tidied away",
            ("Apache Pulsar", "apache/pulsar#12193"),
            (day(2021, 9, 25), Closed),
            "token_reset_on_release",
            "A change let ZooKeeper remove empty folders by itself. One of them was a counter: its value \
                was the version of the folder, and that of a folder made anew begins at zero.",
        ),
        exhibit(
            "Back again, under the old number",
            ("Sliceworkz Eventstore", "sliceworkz/eventstore#176"),
            (day(2026, 9, 16), Closed),
            "token_kept_on_retake",
            "Whoever took back its own lease after it had lapsed kept its token. In between anybody could \
                have had it; what the paused self had stamped before could not be told from what it stamped \
                now.",
        ),
        exhibit(
            "Computed, and thrown away",
            ("Occurrent", "johanhaleby/occurrent#661"),
            (day(2026, 8, 8), Closed),
            "resource_accepts_stale",
            "Every acquire computed a fencing token, the documentation said why one needs it, and nothing \
                ever compared it: a consumer that had lost its lease could set the checkpoint back.",
        ),
        exhibit(
            "Twenty-five million keys",
            ("Redisson", "redisson/redisson#6510"),
            (day(2025, 3, 24), Open(day(2026, 8, 21))),
            "fence_key_leak",
            "Each name that was ever locked with a token leaves its counter behind for ever: 25 of the 75 \
                million keys of a production store. Letting them expire would start them anew; a way out is \
                one counter for all names.",
        ),
        exhibit(
            "After two thousand million",
            ("kazoo", "python-zk/kazoo#730"),
            (day(2023, 10, 9), Open(day(2026, 5, 8))),
            "token_i32_wrap",
            "ZooKeeper numbers the entries of a queue with 32 bits and a sign. A busy election came to the \
                end, the numbers turned negative, and compared as text each new one is the smallest: every \
                newcomer is the leader.",
        ),
    ],
};
