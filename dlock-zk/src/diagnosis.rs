//! Findings about an ensemble, for operators.

use dlock_core::{Finding, Result};
use zookeeper_client::Error as Zk;

use crate::lock::ZkLock;

/// Where a server keeps which servers there are, from 3.5 on.
const ENSEMBLE: &str = "/zookeeper/config";

impl ZkLock {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let session = self.connection.session().await?;
        let client = session.client()?;
        let ensemble = match session.synced(&client, || client.get_data(ENSEMBLE)).await {
            Ok((config, _)) => ensemble(&String::from_utf8_lossy(&config)),
            Err(Zk::NoNode) => ensemble(""),
            Err(Zk::NoAuth) => Finding::warning(
                "ensemble",
                format!("not known: this user may not read {ENSEMBLE}"),
            ),
            Err(e) => return Err(session.failed(e)),
        };
        let server = format!(
            "ZooKeeper at {}, session {:#x} of {:?}: locks of a client that vanishes stay taken that long",
            session.at, session.id, session.timeout
        );
        let clock = "leases do not depend on the time of day: no clock step ends or extends one";
        Ok(vec![
            Finding::good("server", server),
            ensemble,
            Finding::good("clock", clock),
        ])
    }
}

/// By the lines of its configuration; there are none of a server that is alone.
fn ensemble(config: &str) -> Finding {
    let about = "ensemble";
    let servers = config.lines().filter(|line| line.starts_with("server."));
    let voting = servers.filter(|line| !line.contains(":observer")).count();
    match voting {
        0 | 1 => {
            let text = "only one server: while it is down nobody is granted a lock, and only its disk knows \
                        the holders. With three servers, one may fail";
            Finding::warning(about, text)
        }
        n => {
            let text = format!("{n} voting servers, of which {} may fail", (n - 1) / 2);
            match n {
                2 => Finding::warning(about, format!("{text}: add a third, so that one may fail")),
                _ => Finding::good(about, text),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Severity::{Good, Warning};

    use super::*;

    #[test]
    fn an_ensemble_outlasts_less_than_half_of_its_servers() {
        let of = |voting: usize, observers: usize| {
            let lines = |n: usize, kind: &'static str| {
                (0..n).map(move |n| format!("server.{n}=h:2888:3888:{kind};0.0.0.0:2181\n"))
            };
            let config: String = lines(voting, "participant")
                .chain(lines(observers, "observer"))
                .collect();
            ensemble(&(config + "version=100000000"))
        };
        let severity = |n, m| of(n, m).severity;
        assert_eq!(
            (severity(0, 0), severity(1, 2), severity(2, 1)),
            (Warning, Warning, Warning)
        );
        assert_eq!((severity(3, 0), severity(5, 0)), (Good, Good));
        assert!(of(5, 2).text.contains("of which 2 may fail"), "{:?}", of(5, 2));
    }
}
