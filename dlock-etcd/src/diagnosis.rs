//! What a cluster says of itself, for an operator.

use std::sync::atomic::Ordering;

use dlock_core::{ErrorKind, Finding, Result};
use etcd_client::{AlarmAction, AlarmType};

use crate::failure::told;
use crate::lock::EtcdLock;

impl EtcdLock {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let session = self.connection.session().await?;
        let (link, _) = session.link()?;
        let away = |e| told(e, ErrorKind::Unavailable, &link.at);
        let mut maintenance = link.client.maintenance_client();
        let mut cluster = link.client.cluster_client();
        let status = link.answer(maintenance.status()).await.map_err(away)?;
        let ttl = session.deadline.span();
        let mut findings = vec![
            Finding::good(
                "server",
                format!("etcd {} at {}, one of the members", status.version(), link.at),
            ),
            Finding::good(
                "lease",
                format!(
                    "{:x} of {ttl:?}: so long the locks of a client that vanished stay taken",
                    session.lease
                ),
            ),
        ];
        if is_revoked_early(status.version()) {
            let text = "a leader of this version that stood still may end leases that were renewed since, \
                        when it goes on (etcd issue 15247): use 3.4.31, 3.5.13 or later";
            findings.push(Finding::warning("leases", text));
        }
        match link.answer(cluster.member_list()).await {
            Ok(list) => findings.push(members(list.members().iter().filter(|m| !m.is_learner()).count())),
            Err(e) => findings.push(not_told("members", away(e))),
        }
        match link
            .answer(maintenance.alarm(AlarmAction::Get, AlarmType::None, None))
            .await
        {
            Ok(alarms) if alarms.alarms().is_empty() => {
                findings.push(Finding::good("alarms", "none is raised"));
            }
            Ok(alarms) => {
                let kinds: Vec<_> = alarms
                    .alarms()
                    .iter()
                    .map(|a| format!("{:?}", a.alarm()))
                    .collect();
                let text = format!(
                    "raised: {}. Until it is disarmed new requests are refused",
                    kinds.join(", ")
                );
                findings.push(Finding::problem("alarms", text));
            }
            Err(e) => findings.push(not_told("alarms", away(e))),
        }
        if self.connection.put_back.load(Ordering::Acquire) {
            let text = "the cluster was put back to an earlier state since this client began: tokens have \
                        fallen, and fences elsewhere refuse until they have grown past what these have seen";
            findings.push(Finding::problem("tokens", text));
        }
        let clock = "no lease goes by the time of day: no step of a clock changes one";
        findings.push(Finding::good("clock", clock));
        Ok(findings)
    }
}

fn not_told(about: &'static str, e: dlock_core::Error) -> Finding {
    Finding::warning(about, format!("cannot be asked for: {e}"))
}

fn members(voting: usize) -> Finding {
    let about = "members";
    match voting {
        0 | 1 => {
            let text = "one alone: while it is away nobody is granted a lock, and its disk is the only one \
                        that knows who holds what. Three outlast one";
            Finding::warning(about, text)
        }
        n => {
            let text = format!("{n} that vote, of which {} may fail", (n - 1) / 2);
            match n {
                2 => Finding::warning(about, format!("{text}: a third one makes it one")),
                _ => Finding::good(about, text),
            }
        }
    }
}

/// Whether a leader of that version ends leases by what it knew before it stood still.
fn is_revoked_early(version: &str) -> bool {
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(u32::MAX));
    let (major, minor, patch) = (numbers.next(), numbers.next(), numbers.next());
    match (major, minor, patch) {
        (Some(3), Some(4), Some(patch)) => patch < 31,
        (Some(3), Some(5), Some(patch)) => patch < 13,
        (Some(3), Some(minor), _) => minor < 4,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Severity::{Good, Warning};

    use super::*;

    #[test]
    fn a_cluster_outlasts_less_than_half_of_its_members() {
        let severity = |n| members(n).severity;
        assert_eq!([severity(1), severity(2), severity(3)], [Warning, Warning, Good]);
        assert!(members(5).text.contains("of which 2 may fail"));
    }

    #[test]
    fn versions_that_end_leases_early_are_known() {
        for version in ["3.3.27", "3.4.23", "3.4.30", "3.5.1", "3.5.12"] {
            assert!(is_revoked_early(version), "{version}");
        }
        for version in ["3.4.31", "3.5.13", "3.6.0", "4.0.0", "main", "3.5.x"] {
            assert!(!is_revoked_early(version), "{version}");
        }
    }
}
