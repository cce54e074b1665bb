//! What is asked of MySQL and MariaDB.

use dlock_core::Finding;

use super::{Diagnosed, Said};

impl Diagnosed for sqlx::MySql {
    /// Each knows some of the names, and leaves out the others.
    const ASKED: &'static [&'static str] = &[
        "SHOW VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'sync_binlog', \
         'log_bin', 'max_connections', 'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')",
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Uptime', 'Threads_connected', 'Slaves_connected')",
        "SELECT 'clock', CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) AS CHAR)",
    ];

    fn findings(said: &Said, _: bool) -> Vec<Finding> {
        let version = said.text("version");
        let product = if version.contains("MariaDB") {
            "MariaDB"
        } else {
            "MySQL"
        };
        let server = format!("{product} {version}{}", said.since("uptime"));
        let mut found = vec![
            Finding::good("server", server),
            persistence(said),
            replication(said),
        ];
        found.extend(said.connections("threads_connected", "max_connections"));
        found
    }
}

fn persistence(said: &Said) -> Finding {
    let about = "persistence";
    match said.text("innodb_flush_log_at_trx_commit") {
        "1" => Finding::good(
            about,
            "what is answered is on the disk, and a crash forgets no lock",
        ),
        other => {
            let text = format!(
                "innodb_flush_log_at_trx_commit is {other}: a crash takes back the locks that were granted \
                 in the last second. Set it to 1"
            );
            Finding::warning(about, text)
        }
    }
}

fn replication(said: &Said) -> Finding {
    let about = "replication";
    let waits = said.is_on("rpl_semi_sync_master_enabled") || said.is_on("rpl_semi_sync_source_enabled");
    match said.number("slaves_connected") {
        Some(0) => Finding::good(about, "no replica that takes over"),
        None if !said.is_on("log_bin") => {
            Finding::good(about, "no binary log, so no replica that takes over")
        }
        _ if waits => {
            let text = "semi-synchronous: a replica has what is answered, as long as one answers in time. \
                        Behind that it is waited for no more, and one that takes over may lack the locks \
                        granted last";
            Finding::good(about, text)
        }
        n => {
            let n = n.map_or_else(
                || "replicas, if there are any,".to_owned(),
                |n| format!("{n} replicas"),
            );
            let text = format!(
                "replicas: {n}, which follow after the answer. One that takes over may lack the locks that \
                 were granted last. Make them semi-synchronous, or let tokens be checked at a fence gate"
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
        assert_eq!(
            of("persistence", &[("innodb_flush_log_at_trx_commit", "1")]),
            Good
        );
        assert_eq!(
            of("persistence", &[("innodb_flush_log_at_trx_commit", "2")]),
            Warning
        );
    }

    #[test]
    fn a_replica_has_to_be_waited_for() {
        let (one, log) = (("slaves_connected", "1"), ("log_bin", "ON"));
        assert_eq!(of("replication", &[("slaves_connected", "0"), log]), Good);
        assert_eq!(of("replication", &[("log_bin", "OFF")]), Good);
        assert_eq!(of("replication", &[one, log]), Warning);
        assert_eq!(of("replication", &[log]), Warning);
        for waits in ["rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"] {
            assert_eq!(of("replication", &[one, log, (waits, "ON")]), Good);
        }
    }
}
