//! Tokens that fence nothing.

use super::day::day;
use super::{End, Exhibit, Hall};

pub(super) const HALL: Hall = Hall {
    title: "Tokens that fence nothing",
    intro: "The last defence against all of the above is a number that grows with each grant, and a \
        resource that refuses the smaller one. It is \
            seldom used in a test, because without a fault it is never needed; so it may be wrong for years.",
    exhibits: &[
        Exhibit {
            title: "A random number for a fence",
            project: "Gears",
            issue: "constructorfabric/gears-rust#4863",
            since: day(2026, 9, 18),
            end: End::Open(day(2026, 9, 18)),
            story: "The trait promises a fence that is counted up at every acquisition. One backend counts; \
                a new one draws 64 \
                    random bits, and says that they are meant to tell one holder from another. For that \
                    they serve; to refuse \
                    the older of two they are of no use, since it has the larger number every other time. A \
                    reviewer caught it \
                    before it was merged.",
            bug: "token_random",
        },
        Exhibit {
            title: "The counter is deleted with the lock",
            project: "Occurrent",
            issue: "johanhaleby/occurrent#672",
            since: day(2026, 8, 9),
            end: End::Closed,
            story: "The version was kept in the document of the lock, and the release deleted the document. \
                The next holder \
                    began at zero again, as the one before it.",
            bug: "token_reset_on_release",
        },
        Exhibit {
            title: "The counter is tidied away",
            project: "Apache Pulsar",
            issue: "apache/pulsar#12193",
            since: day(2021, 9, 25),
            end: End::Closed,
            story: "A change let ZooKeeper remove empty folders by itself. One of them was a counter: its \
                value was the version \
                    of the folder, and that of a folder made anew begins at zero.",
            bug: "token_reset_on_release",
        },
        Exhibit {
            title: "Back again, under the old number",
            project: "Sliceworkz Eventstore",
            issue: "sliceworkz/eventstore#176",
            since: day(2026, 9, 16),
            end: End::Closed,
            story: "Whoever took back its own lease after it had lapsed kept its token. In between anybody \
                could have had it; what the paused \
                    self had stamped before could not be told from what it stamped now.",
            bug: "token_kept_on_retake",
        },
        Exhibit {
            title: "Computed, and thrown away",
            project: "Occurrent",
            issue: "johanhaleby/occurrent#661",
            since: day(2026, 8, 8),
            end: End::Closed,
            story: "Every acquire computed a fencing token, the documentation said why one needs it, and \
                nothing ever compared it: a \
                    consumer that had lost its lease could set the checkpoint back.",
            bug: "resource_accepts_stale",
        },
        Exhibit {
            title: "Twenty-five million keys",
            project: "Redisson",
            issue: "redisson/redisson#6510",
            since: day(2025, 3, 24),
            end: End::Open(day(2026, 8, 21)),
            story: "Each name that was ever locked with a token leaves its counter behind for ever: 25 of \
                the 75 million keys of \
                    a production store. Letting them expire would start them anew; a way out is one counter \
                    for all names.",
            bug: "fence_key_leak",
        },
        Exhibit {
            title: "After two thousand million",
            project: "kazoo",
            issue: "python-zk/kazoo#730",
            since: day(2023, 10, 9),
            end: End::Open(day(2026, 5, 8)),
            story: "ZooKeeper numbers the entries of a queue with 32 bits and a sign. A busy election came \
                to the end, the numbers turned negative, and \
                    compared as text each new one is the smallest: every newcomer is the leader.",
            bug: "token_i32_wrap",
        },
    ],
};
