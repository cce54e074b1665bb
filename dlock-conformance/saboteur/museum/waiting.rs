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
        super::exhibit::url(self.issue)
    }
}

/// One on that record, which that backend and that rule are to show.
const fn absent(
    (project, issue, since): (&'static str, &'static str, Day),
    (needs, rule): (&'static str, &'static str),
    story: &'static str,
) -> Absent {
    Absent {
        project,
        issue,
        since,
        story,
        needs,
        rule,
    }
}

/// What is missing, by the backend that it waits for.
pub static WAITING: &[Absent] = &[
    absent(
        ("authentik", "goauthentik/authentik#23876", day(2026, 7, 9)),
        ("PostgreSQL behind a transaction pooler", "4.07"),
        "Behind a pooler that gives each transaction another connection a session's advisory lock stays on \
            the connection that took it, and the unlock meets another one: every pod that starts later \
            waits.",
    ),
    absent(
        ("PgBouncer", "pgbouncer/pgbouncer#102", day(2016, 1, 20)),
        ("PostgreSQL behind a transaction pooler", "4.07"),
        "With version 1.7 connections were no longer reset in that mode, and locks that used to go away \
            with their user stayed. An option brings the reset back; the makers hold that the mode is not \
            meant for what outlives a transaction.",
    ),
    absent(
        ("iTop", "Combodo/iTop#209", day(2021, 4, 20)),
        ("MySQL", "16.04"),
        "The server closes a connection that was silent for long, and the lock that it was kept open for \
            goes with it, without a word.",
    ),
    absent(
        ("ShedLock", "lukas-krecan/ShedLock#1876", day(2024, 4, 5)),
        ("MySQL", "16.11"),
        "In the hour that does not exist in spring no lock could be taken: the database refused the end of \
            the lease, a time that is none.",
    ),
    absent(
        ("ShedLock", "lukas-krecan/ShedLock#231", day(2020, 4, 13)),
        ("a store that leaves expiry to its clients", "16.11"),
        "Each machine compares the end of the lease with its own clock; one that is three minutes ahead \
            need not wait for it. The clock of the database can be asked for since.",
    ),
    absent(
        ("Redisson", "redisson/redisson#3994", day(2021, 11, 30)),
        ("Redis with replicas", "16.12"),
        "The store was asked how many replicas had confirmed a lock, and the answer was not looked at.",
    ),
    absent(
        ("Redisson", "redisson/redisson#2172", day(2019, 6, 14)),
        ("a quorum over several stores", "18.01"),
        "A lock over several servers, asked for with a wait of -1 and a lease of ten seconds, was given to \
            several threads at once.",
    ),
];
