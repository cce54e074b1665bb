//! The questions to PostgreSQL.

use dlock_core::Finding;

use super::{Diagnosed, Said, kept, lost, or_else};

impl Diagnosed for sqlx::Postgres {
    /// Of those that follow, a subscriber of some tables is no standby.
    const ASKED: &'static [&'static str] = &["\
        SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'full_page_writes', \
        'synchronous_commit', 'synchronous_standby_names', 'max_connections') \
        UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication WHERE pid NOT IN \
        (SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL) \
        UNION ALL SELECT 'connections', coalesce(sum(numbackends), 0)::text FROM pg_stat_database \
        UNION ALL SELECT 'up', extract(epoch FROM now() - pg_postmaster_start_time())::bigint::text \
        UNION ALL SELECT 'clock', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text"];

    fn findings(said: &Said, in_sessions: bool) -> Vec<Finding> {
        let server = format!("PostgreSQL {}{}", said.text("server_version"), said.since("up"));
        // Those of a session are its own.
        let commit = if in_sessions {
            "on"
        } else {
            said.text("synchronous_commit")
        };
        let mut found = vec![
            Finding::good("server", server),
            persistence(said, commit, in_sessions),
            replication(said, commit, in_sessions),
        ];
        found.extend(said.connections("connections", "max_connections"));
        found
    }
}

fn persistence(said: &Said, commit: &str, in_sessions: bool) -> Finding {
    let about = "persistence";
    if !said.is_on("fsync") {
        let text = "fsync is off: a crash of the machine can damage the database, and with it what is \
                    locked. \
                    Set it to on";
        return Finding::problem(about, text);
    }
    if !said.is_on("full_page_writes") {
        let text = "full_page_writes is off: a crash of the machine can damage the database, unless its \
                    storage \
                    cannot tear pages, as that of some services. Set it to on elsewhere";
        return Finding::warning(about, text);
    }
    match commit {
        "off" => {
            let text = "synchronous_commit is off: a crash of the server takes back the locks that were \
                        granted in the last moments. Set it to on for this role";
            Finding::warning(about, text)
        }
        _ => kept(in_sessions),
    }
}

fn replication(said: &Said, commit: &str, in_sessions: bool) -> Finding {
    let (about, lost) = ("replication", lost(in_sessions));
    match (said.number("standbys"), said.text("synchronous_standby_names")) {
        (Some(0) | None, "") => Finding::good(about, "no standby is connected"),
        (n, "") => {
            let n = n.unwrap_or_default();
            let text = format!(
                "standbys: {n}, none of them synchronous. One that takes over may lack {lost} last. Name \
                them \
                 in synchronous_standby_names, or {}",
                or_else(in_sessions)
            );
            Finding::warning(about, text)
        }
        (_, names) if matches!(commit, "off" | "local") => {
            let text = format!(
                "the standbys {names} are not waited for, as synchronous_commit is {commit}: one that takes \
                 over may lack {lost} last"
            );
            Finding::warning(about, text)
        }
        (_, names) => {
            let text = format!("a standby of {names} has {lost}: let one of these take over, and no other");
            Finding::good(about, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Severity::{self, Good, Problem, Warning};

    use super::super::tests::severity;

    const SOUND: [(&str, &str); 3] = [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
    ];

    fn of(about: &str, more: &[(&str, &str)]) -> Severity {
        severity::<sqlx::Postgres>(about, false, &[&SOUND, more].concat())
    }

    fn of_sessions(about: &str, more: &[(&str, &str)]) -> Severity {
        severity::<sqlx::Postgres>(about, true, &[&SOUND, more].concat())
    }

    #[test]
    fn what_a_crash_takes_back_is_told() {
        assert_eq!(of("persistence", &[]), Good);
        assert_eq!(of("persistence", &[("synchronous_commit", "off")]), Warning);
        assert_eq!(of("persistence", &[("fsync", "off")]), Problem);
        assert_eq!(of("persistence", &[("full_page_writes", "off")]), Warning);
        assert_eq!(of_sessions("persistence", &[("synchronous_commit", "off")]), Good);
        assert_eq!(of_sessions("persistence", &[("fsync", "off")]), Problem);
    }

    #[test]
    fn a_standby_has_to_be_waited_for() {
        let (one, named) = (("standbys", "1"), ("synchronous_standby_names", "ANY 1 (*)"));
        assert_eq!(of("replication", &[("standbys", "0")]), Good);
        assert_eq!(of("replication", &[one]), Warning);
        assert_eq!(of("replication", &[one, named]), Good);
        let local = [one, named, ("synchronous_commit", "local")];
        assert_eq!(of("replication", &local), Warning);
        assert_eq!(of_sessions("replication", &[one]), Warning);
        assert_eq!(of_sessions("replication", &local), Good);
    }
}
