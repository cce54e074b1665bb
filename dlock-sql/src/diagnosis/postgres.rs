//! What is asked of PostgreSQL.

use dlock_core::Finding;

use super::{Diagnosed, Said};

impl Diagnosed for sqlx::Postgres {
    const ASKED: &'static [&'static str] = &["\
        SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'full_page_writes', \
        'synchronous_commit', 'synchronous_standby_names', 'idle_session_timeout', 'max_connections') \
        UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication \
        UNION ALL SELECT 'connections', coalesce(sum(numbackends), 0)::text FROM pg_stat_database \
        UNION ALL SELECT 'up', extract(epoch FROM now() - pg_postmaster_start_time())::bigint::text \
        UNION ALL SELECT 'clock', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text"];

    fn findings(said: &Said, in_sessions: bool) -> Vec<Finding> {
        let server = format!("PostgreSQL {}{}", said.text("server_version"), said.since("up"));
        let mut found = vec![
            Finding::good("server", server),
            persistence(said),
            replication(said),
        ];
        found.extend(said.connections("connections", "max_connections"));
        if in_sessions && said.number("idle_session_timeout").is_some_and(|ms| ms > 0) {
            let text = "idle_session_timeout ends sessions, and every lock that hangs on one: set it to 0 \
                        for this role";
            found.push(Finding::problem("sessions", text));
        }
        found
    }
}

fn persistence(said: &Said) -> Finding {
    let about = "persistence";
    if !said.is_on("fsync") || !said.is_on("full_page_writes") {
        let text = "fsync or full_page_writes is off: a crash of the machine can damage the database, and \
                    with it what is locked. Set both to on";
        return Finding::problem(about, text);
    }
    match said.text("synchronous_commit") {
        "off" => {
            let text = "synchronous_commit is off: a crash of the server takes back the locks that were \
                        granted in the last moments. Set it to on for this role";
            Finding::warning(about, text)
        }
        _ => Finding::good(
            about,
            "what is answered is on the disk, and a crash forgets no lock",
        ),
    }
}

fn replication(said: &Said) -> Finding {
    let about = "replication";
    match (said.number("standbys"), said.text("synchronous_standby_names")) {
        (Some(0) | None, "") => Finding::good(about, "no standby that takes over"),
        (n, "") => {
            let n = n.unwrap_or_default();
            let text = format!(
                "standbys: {n}, none of them synchronous. One that takes over may lack the locks that were \
                 granted last. Name them in synchronous_standby_names, or let tokens be checked at a fence \
                 gate"
            );
            Finding::warning(about, text)
        }
        (_, names) if matches!(said.text("synchronous_commit"), "off" | "local") => {
            let text = format!(
                "the standbys {names} are not waited for, as synchronous_commit is {}: one that takes over \
                 may lack the locks that were granted last",
                said.text("synchronous_commit")
            );
            Finding::warning(about, text)
        }
        (_, names) => {
            let text = format!(
                "a standby of {names} has what is answered: let one of these take over, and no other"
            );
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
        severity::<sqlx::Postgres>(about, true, &[&SOUND, more].concat())
    }

    #[test]
    fn what_a_crash_takes_back_is_told() {
        assert_eq!(of("persistence", &[]), Good);
        assert_eq!(of("persistence", &[("synchronous_commit", "off")]), Warning);
        assert_eq!(of("persistence", &[("fsync", "off")]), Problem);
        assert_eq!(of("persistence", &[("full_page_writes", "off")]), Problem);
    }

    #[test]
    fn a_standby_has_to_be_waited_for() {
        let (one, named) = (("standbys", "1"), ("synchronous_standby_names", "ANY 1 (*)"));
        assert_eq!(of("replication", &[("standbys", "0")]), Good);
        assert_eq!(of("replication", &[one]), Warning);
        assert_eq!(of("replication", &[one, named]), Good);
        assert_eq!(
            of("replication", &[one, named, ("synchronous_commit", "local")]),
            Warning
        );
    }

    #[test]
    fn sessions_must_not_be_ended() {
        assert_eq!(of("sessions", &[("idle_session_timeout", "1000")]), Problem);
        assert_eq!(of("server", &[("idle_session_timeout", "0")]), Good);
    }
}
