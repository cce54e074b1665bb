//! Bugs that only a future backend can show.

use super::day::{Day, day};

/// A bug that cannot be rebuilt yet.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// Where.
    pub project: &'static str,
    /// The public record: `owner/repo#N`.
    pub issue: &'static str,
    /// The first day in that record.
    pub since: Day,
    /// What went wrong.
    pub story: &'static str,
    /// The kind of backend that it needs.
    pub needs: &'static str,
    /// The rule that should catch it.
    pub rule: &'static str,
}

impl Absent {
    /// The address of the record.
    pub fn url(&self) -> String {
        super::exhibit::url(self.issue)
    }
}

/// A bug on that record, for a backend of that kind and that rule to show.
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

/// The bugs that are not planted yet, by the kind of backend that they need.
pub static WAITING: &[Absent] = &[
    absent(
        ("authentik", "goauthentik/authentik#23876", day(2026, 7, 9)),
        ("PostgreSQL behind a transaction pooler", "4.07"),
        "A transaction pooler gives each transaction another connection. A session's advisory lock stays on \
            the connection that took it, and the unlock runs on another one: every pod that starts later \
            waits.",
    ),
    absent(
        ("PgBouncer", "pgbouncer/pgbouncer#102", day(2016, 1, 20)),
        ("PostgreSQL behind a transaction pooler", "4.07"),
        "Since version 1.7 connections are not reset in that mode, so locks outlive the client that took \
            them. An option brings the reset back. The maintainers say that the mode is not meant for state \
            that outlives a transaction.",
    ),
    absent(
        ("iTop", "Combodo/iTop#209", day(2021, 4, 20)),
        ("MySQL", "16.04"),
        "The server closes a connection that is idle for too long, and silently drops the lock that it was \
            kept open for.",
    ),
    absent(
        ("ShedLock", "lukas-krecan/ShedLock#1876", day(2024, 4, 5)),
        ("MySQL", "16.11"),
        "In the hour that daylight saving skips in spring no lock could be taken: the database refused the \
            end of the lease, because that local time does not exist.",
    ),
    absent(
        ("ShedLock", "lukas-krecan/ShedLock#231", day(2020, 4, 13)),
        ("a store that leaves expiry to its clients", "16.11"),
        "Each machine compares the end of the lease with its own clock. One that is three minutes ahead \
            takes the lock three minutes early. Since then the clock of the database can be used.",
    ),
    absent(
        ("Redisson", "redisson/redisson#3994", day(2021, 11, 30)),
        ("Redis with replicas", "16.12"),
        "The client asked the store how many replicas had confirmed a lock, and ignored the answer.",
    ),
    absent(
        ("Redisson", "redisson/redisson#2172", day(2019, 6, 14)),
        ("a quorum over several stores", "18.01"),
        "A lock across several servers, acquired with a wait of -1 and a lease of ten seconds, was granted \
            to several threads at once.",
    ),
];
