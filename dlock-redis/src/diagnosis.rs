//! Findings about the servers, for operators.

use std::time::{Duration, SystemTime};

use dlock_core::{ErrorKind, Finding, Result};
use redis::cmd;

use crate::backend::Store;
use crate::connection::check::{field, text_of};
use crate::failure::{Failed, nothing_done};
use crate::reply::Reply;

impl Store {
    /// The number of replicas that must acknowledge a grant.
    pub(crate) async fn diagnose(&self, acknowledging: u32) -> Result<Vec<Finding>> {
        self.open()?;
        let failed = |e: Failed| nothing_done(e, &self.at);
        let nodes = self.connection.nodes().await.map_err(failed)?;
        let mut found = Vec::new();
        for node in &nodes {
            let of_node = self.diagnose_node(node, acknowledging).await?;
            found.extend(of_node.into_iter().map(|finding| match node.as_str() {
                "" => finding,
                node => finding.of(node),
            }));
        }
        Ok(found)
    }

    async fn diagnose_node(&self, node: &str, acknowledging: u32) -> Result<Vec<Finding>> {
        let ask = async |command: redis::Cmd| {
            let answer = self.connection.ask_node(node, &command).await;
            answer
                .map(|(_, answer)| answer)
                .map_err(|e| nothing_done(e, &self.at))
        };
        let asked = SystemTime::now();
        let mut time = Reply::new(ask(cmd("TIME")).await?)?;
        let answered = SystemTime::now();
        let part = |text: String| text.parse().unwrap_or(0);
        let time = Duration::from_secs(part(time.text()?)) + Duration::from_micros(part(time.text()?));
        let clock = Finding::clock(SystemTime::UNIX_EPOCH + time, asked, answered);
        let info = match ask(cmd("INFO")).await {
            Ok(info) => text_of(info),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                let text = "version, persistence, memory and replicas are not known: this user may not run \
                            INFO, allow +info";
                return Ok(vec![Finding::warning("server", text), clock]);
            }
            Err(e) => return Err(e),
        };
        let mut fsync = cmd("CONFIG");
        fsync.arg("GET").arg("appendfsync");
        let fsync = match ask(fsync).await {
            Ok(redis::Value::Map(pairs)) => pairs.into_iter().next().map(|(_, value)| text_of(value)),
            // Not every user may ask, and not every service answers.
            _ => None,
        };
        Ok(vec![
            server(&info),
            persistence(&info, fsync.as_deref()),
            memory(&info),
            replication(&info, acknowledging),
            clock,
        ])
    }
}

fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

/// Some services leave out lines of INFO.
fn unknown(about: &'static str) -> Finding {
    Finding::good(about, "not known: INFO of this server leaves it out")
}

fn server(info: &str) -> Finding {
    let (product, version) = match field(info, "valkey_version") {
        Some(version) => ("Valkey", version),
        None => (
            "Redis",
            field(info, "redis_version").unwrap_or("of an unknown version"),
        ),
    };
    let up = number(info, "uptime_in_days").map(|days| format!(", up for {days} days"));
    Finding::good("server", format!("{product} {version}{}", up.unwrap_or_default()))
}

fn persistence(info: &str, fsync: Option<&str>) -> Finding {
    let about = "persistence";
    let Some(is_kept) = field(info, "aof_enabled") else {
        return unknown(about);
    };
    if is_kept != "1" {
        let text = "appendonly is off: a restart forgets all locks, and two may hold one lock for a ttl. \
                    Set appendonly to yes, and appendfsync to always";
        return Finding::warning(about, text);
    }
    if field(info, "aof_last_write_status").is_some_and(|status| status != "ok") {
        let text =
            "the append-only file cannot be written, and no lock can be taken until it can. Check the disk";
        return Finding::problem(about, text);
    }
    match fsync {
        Some("always") => Finding::good(
            about,
            "answers are on disk before they are sent, and a restart forgets no lock",
        ),
        Some(other) => {
            let text = format!(
                "appendfsync is {other}: a crash of the machine forgets the latest grants. Set it to always \
                 if that matters"
            );
            Finding::warning(about, text)
        }
        None => {
            let text = "appendonly is on. Whether a crash of the machine forgets the last second depends on \
                        appendfsync, which CONFIG GET does not show here";
            Finding::good(about, text)
        }
    }
}

fn memory(info: &str) -> Finding {
    let about = "memory";
    let (used, most) = (number(info, "used_memory"), number(info, "maxmemory"));
    let (Some(used), Some(most), Some(policy)) = (used, most, field(info, "maxmemory_policy")) else {
        return unknown(about);
    };
    match most {
        0 => Finding::good(about, "no limit, so no key is evicted"),
        _ if policy != "noeviction" => {
            let text = format!(
                "maxmemory-policy is {policy}: when the memory is full, held locks are evicted. Set it to \
                 noeviction, or give the locks a server of their own"
            );
            Finding::problem(about, text)
        }
        _ if used > most / 10 * 9 => {
            let text = format!(
                "{} % of maxmemory is used: when it is full, locks can be released but not acquired",
                used.saturating_mul(100) / most
            );
            Finding::warning(about, text)
        }
        _ => Finding::good(about, "limited, and no key is evicted (noeviction)"),
    }
}

fn replication(info: &str, acknowledging: u32) -> Finding {
    let about = "replication";
    let Some(connected) = number(info, "connected_slaves") else {
        return unknown(about);
    };
    match (connected, acknowledging) {
        (0, 0) => Finding::good(about, "no replica is connected"),
        (n, 0) => {
            let text = format!(
                "replicas: {n}, asynchronous. After a failover the latest grants may be missing. \
                 `?replicas={n}` in the URL waits for the replicas; a fence gate protects writes in any \
                 case"
            );
            Finding::warning(about, text)
        }
        (n, needed) if n < u64::from(needed) => {
            let text = format!(
                "{n} replicas are connected, and {needed} must acknowledge a grant: no lock can be taken"
            );
            Finding::problem(about, text)
        }
        (n, needed) => Finding::good(about, format!("{needed} of {n} replicas acknowledge each grant")),
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Severity::{Good, Problem, Warning};

    use super::*;

    #[test]
    fn what_a_restart_forgets_is_told() {
        let on = "aof_enabled:1\r\naof_last_write_status:ok\r\n";
        for (info, fsync, severity) in [
            ("aof_enabled:0\r\n", Some("always"), Warning),
            (on, Some("always"), Good),
            (on, Some("everysec"), Warning),
            (on, None, Good),
            (
                "aof_enabled:1\r\naof_last_write_status:err\r\n",
                Some("always"),
                Problem,
            ),
        ] {
            assert_eq!(persistence(info, fsync).severity, severity, "{info} {fsync:?}");
        }
    }

    #[test]
    fn a_full_memory_is_told() {
        let of = |used: u64, most: u64, policy: &str| {
            let info = format!("used_memory:{used}\r\nmaxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n");
            memory(&info).severity
        };
        assert_eq!(
            (of(5, 0, "allkeys-lru"), of(900, 1_000, "noeviction")),
            (Good, Good)
        );
        assert_eq!(
            (of(901, 1_000, "noeviction"), of(1, 1_000, "volatile-lru")),
            (Warning, Problem)
        );
    }

    #[test]
    fn replicas_have_to_be_waited_for() {
        let of = |n: u32, needed| replication(&format!("connected_slaves:{n}\r\n"), needed).severity;
        assert_eq!(
            (of(0, 0), of(1, 0), of(1, 1), of(1, 2)),
            (Good, Warning, Good, Problem)
        );
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        for finding in [
            persistence("", None),
            memory(""),
            replication("", 0),
            replication("", 1),
        ] {
            assert!(finding.text.starts_with("not known"), "{finding:?}");
        }
        assert_eq!(server("").text, "Redis of an unknown version");
    }
}
