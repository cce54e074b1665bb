//! The questions to MySQL and MariaDB.

use dlock_core::Finding;

use super::{Diagnosed, Said, kept, lost, or_else};

impl Diagnosed for sqlx::MySql {
    /// Each knows some of the names, and leaves out the others.
    const ASKED: &'static [&'static str] = &[
        "SHOW VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'sync_binlog', \
         'log_bin', 'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')",
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime', 'Threads_connected', 'Slaves_connected')",
        "SELECT 'clock', CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) AS CHAR)",
    ];

    fn findings(said: &Said, in_sessions: bool) -> Vec<Finding> {
        let version = said.text("version");
        let product = if version.contains("MariaDB") {
            "MariaDB"
        } else {
            "MySQL"
        };
        let server = format!("{product} {version}{}", said.since("uptime"));
        let mut found = vec![
            Finding::good("server", server),
            persistence(said, in_sessions),
            replication(said, in_sessions),
        ];
        found.extend(said.connections("threads_connected", "max_connections"));
        found
    }
}

fn persistence(said: &Said, in_sessions: bool) -> Finding {
    let (about, lost) = ("persistence", lost(in_sessions));
    match said.text("innodb_flush_log_at_trx_commit") {
        // A commit that the binary log has lost is undone. 3 is of MariaDB, and no less than 1.
        "1" | "3" if said.is_on("log_bin") && said.text("sync_binlog") != "1" => {
            let text = format!(
                "sync_binlog is {}: a crash of the machine takes back {lost} last. Set it to 1",
                said.text("sync_binlog")
            );
            Finding::warning(about, text)
        }
        "1" | "3" => kept(in_sessions),
        other => {
            let text = format!(
                "innodb_flush_log_at_trx_commit is {other}: a crash takes back {lost} in the last second. \
                 Set it to 1"
            );
            Finding::warning(about, text)
        }
    }
}

fn replication(said: &Said, in_sessions: bool) -> Finding {
    let (about, lost) = ("replication", lost(in_sessions));
    let waits = said.is_on("rpl_semi_sync_master_enabled") || said.is_on("rpl_semi_sync_source_enabled");
    match said.number("slaves_connected") {
        Some(0) => Finding::good(about, "no replica is connected"),
        None if !said.is_on("log_bin") => Finding::good(about, "no binary log, which a replica would follow"),
        _ if waits => {
            let text = format!(
                "semi-synchronous: a replica has what is answered, as long as one answers in time. Behind \
                that \
                 it is waited for no more, and one that takes over may lack {lost} last"
            );
            Finding::good(about, text)
        }
        None => {
            let text = format!(
                "whether replicas follow is not known. One that takes over may lack {lost} last, unless it \
                is \
                 semi-synchronous"
            );
            Finding::good(about, text)
        }
        Some(n) => {
            let text = format!(
                "replicas: {n}, which follow after the answer. One that takes over may lack {lost} last. \
                Make \
                 them semi-synchronous, or {}",
                or_else(in_sessions)
            );
            Finding::warning(about, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Severity::{self, Good, Warning};

    use super::super::tests::severity;

    fn of(about: &str, said: &[(&str, &str)]) -> Severity {
        severity::<sqlx::MySql>(about, false, said)
    }

    #[test]
    fn what_a_crash_takes_back_is_told() {
        let flush = |at| ("innodb_flush_log_at_trx_commit", at);
        assert_eq!(of("persistence", &[flush("1")]), Good);
        assert_eq!(of("persistence", &[flush("2")]), Warning);
        assert_eq!(of("persistence", &[flush("3")]), Good);
        for (log, sync, severity) in [("ON", "0", Warning), ("ON", "1", Good), ("OFF", "0", Good)] {
            let said = [flush("1"), ("log_bin", log), ("sync_binlog", sync)];
            assert_eq!(of("persistence", &said), severity, "{log} {sync}");
        }
    }

    #[test]
    fn a_replica_has_to_be_waited_for() {
        let (one, log) = (("slaves_connected", "1"), ("log_bin", "ON"));
        assert_eq!(of("replication", &[("slaves_connected", "0"), log]), Good);
        assert_eq!(of("replication", &[("log_bin", "OFF")]), Good);
        assert_eq!(of("replication", &[one, log]), Warning);
        // MySQL 8 does not say how many there are.
        assert_eq!(of("replication", &[log]), Good);
        for waits in ["rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"] {
            assert_eq!(of("replication", &[one, log, (waits, "ON")]), Good);
        }
    }
}
