//! Findings about a cluster, for operators.

use std::pin::pin;
use std::sync::atomic::Ordering;

use dlock_core::{ErrorKind, Finding, Result};
use etcd_client::{AlarmAction, AlarmType, Member};

use crate::failure::told;
use crate::lock::EtcdLock;

impl EtcdLock {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let session = self.connection.session().await?;
        let (link, _) = session.link()?;
        let away = |e| told(e, ErrorKind::Unavailable, &link.at);
        let mut maintenance = link.client.maintenance_client();
        let mut cluster = link.client.cluster_client();
        let status = link.answer(pin!(maintenance.status())).await.map_err(away)?;
        let ttl = session.deadline.span();
        let (lease, version, at) = (session.lease, status.version(), &link.at);
        let server = format!("etcd {version} at {at}, a member of the cluster");
        let lease = format!("{lease:x} with a ttl of {ttl:?}: a lost client's locks stay taken that long");
        let mut findings = vec![Finding::good("server", server), Finding::good("lease", lease)];
        if is_revoked_early(version) {
            let text = "a leader of this version that was paused may revoke leases that were renewed \
                        meanwhile (etcd issue 15247): use 3.4.31, 3.5.13 or later";
            findings.push(Finding::warning("leases", text));
        }
        match link.answer(pin!(cluster.member_list())).await {
            Ok(list) => {
                let all = list.members();
                let here = format!("://{at}");
                let is_here = |urls: &[String]| urls.iter().any(|url| url.ends_with(&here));
                let at_peers = |m: &&Member| is_here(m.peer_urls()) && !is_here(m.client_urls());
                if let Some(member) = all.iter().find(at_peers) {
                    let clients = member.client_urls().join(", ");
                    let text = format!("{at} is its address for the other members: use {clients}");
                    findings.push(Finding::warning("server", text));
                }
                findings.push(members(all.iter().filter(|m| !m.is_learner()).count()));
            }
            Err(e) => findings.push(not_told("members", away(e))),
        }
        let alarms = pin!(maintenance.alarm(AlarmAction::Get, AlarmType::None, None));
        findings.push(match link.answer(alarms).await {
            Ok(alarms) if alarms.alarms().is_empty() => Finding::good("alarms", "none is raised"),
            Ok(alarms) => {
                let kinds = alarms.alarms().iter().map(|a| format!("{:?}", a.alarm()));
                let kinds = kinds.collect::<Vec<_>>().join(", ");
                let text = format!("raised: {kinds}. etcd rejects new requests until they are disarmed");
                Finding::problem("alarms", text)
            }
            Err(e) => not_told("alarms", away(e)),
        });
        if self.connection.put_back.load(Ordering::Acquire) {
            let text = "the cluster was restored from a snapshot since this client connected: tokens have \
                        gone back, and gates outside etcd reject them until they pass the highest one seen";
            findings.push(Finding::problem("tokens", text));
        }
        let clock = "leases do not depend on the time of day: no clock step ends or extends one";
        findings.push(Finding::good("clock", clock));
        Ok(findings)
    }
}

fn not_told(about: &'static str, e: dlock_core::Error) -> Finding {
    Finding::warning(about, format!("not known: {e}"))
}

fn members(voting: usize) -> Finding {
    let about = "members";
    match voting {
        0 | 1 => {
            let text = "only one: while it is down nobody is granted a lock, and only its disk knows the \
                        holders. With three members, one may fail";
            Finding::warning(about, text)
        }
        n => {
            let text = format!("{n} voting members, of which {} may fail", (n - 1) / 2);
            match n {
                2 => Finding::warning(about, format!("{text}: add a third, so that one may fail")),
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
