//! What only a backend that is still to come can show.

use super::day::{Day, day};

/// A bug that cannot be rebuilt yet.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// Where.
    pub project: &'static str,
    /// Where it is on record: `owner/repo#N`.
    pub issue: &'static str,
    /// The first day in that record.
    pub since: Day,
    /// What went wrong.
    pub story: &'static str,
    /// What it needs.
    pub needs: &'static str,
    /// The rule that is to catch it.
    pub rule: &'static str,
}

impl Absent {
    /// Where to read of it.
    pub fn url(&self) -> String {
        super::url(self.issue)
    }
}

/// What is missing, by the backend that it waits for.
pub static WAITING: &[Absent] = &[
    Absent {
        project: "authentik",
        issue: "goauthentik/authentik#23876",
        since: day(2026, 7, 9),
        story: "Behind a pooler that gives each transaction another connection a session's advisory lock \
            stays on the connection that took \
                it, and the unlock meets another one: every pod that starts later waits.",
        needs: "PostgreSQL behind a transaction pooler",
        rule: "4.07",
    },
    Absent {
        project: "PgBouncer",
        issue: "pgbouncer/pgbouncer#102",
        since: day(2016, 1, 20),
        story: "With version 1.7 connections were no longer reset in that mode, and locks that used to go \
            away with their user \
                stayed. An option brings the reset back; the makers hold that the mode is not meant for \
                what outlives a \
                transaction.",
        needs: "PostgreSQL behind a transaction pooler",
        rule: "4.07",
    },
    Absent {
        project: "Curator",
        issue: "apache/curator#1121",
        since: day(2021, 7, 29),
        story: "CURATOR-604: a session expires, the client comes back with a new one, finds the old one's \
            node before the server has cleared it away, and \
                holds a lock that is deleted a moment later.",
        needs: "a store with sessions",
        rule: "16.04",
    },
    Absent {
        project: "iTop",
        issue: "Combodo/iTop#209",
        since: day(2021, 4, 20),
        story: "The server closes a connection that was silent for long, and the lock that it was kept open \
            for goes with it, \
                without a word.",
        needs: "MySQL",
        rule: "16.04",
    },
    Absent {
        project: "ShedLock",
        issue: "lukas-krecan/ShedLock#1876",
        since: day(2024, 4, 5),
        story: "In the hour that does not exist in spring no lock could be taken: the database refused the \
            end of the lease, a \
                time that is none.",
        needs: "MySQL",
        rule: "16.11",
    },
    Absent {
        project: "ShedLock",
        issue: "lukas-krecan/ShedLock#231",
        since: day(2020, 4, 13),
        story: "Each machine compares the end of the lease with its own clock; one that is three minutes \
            ahead need not wait for \
                it. The clock of the database can be asked for since.",
        needs: "a store that leaves expiry to its clients",
        rule: "16.11",
    },
    Absent {
        project: "Redisson",
        issue: "redisson/redisson#3994",
        since: day(2021, 11, 30),
        story: "The store was asked how many replicas had confirmed a lock, and the answer was not looked \
            at.",
        needs: "Redis with replicas",
        rule: "16.12",
    },
    Absent {
        project: "Redisson",
        issue: "redisson/redisson#2172",
        since: day(2019, 6, 14),
        story: "A lock over several servers, asked for with a wait of -1 and a lease of ten seconds, was \
            given to several \
                threads at once.",
        needs: "a quorum over several stores",
        rule: "18.01",
    },
];
