//! The bare driver: the three requests of a fair lock, one after the other or as ours sends them.

use zookeeper_client::{Acls, Client, CreateMode};

use super::server::{SESSION, Server};

/// A session of the bare driver.
#[derive(Clone, Debug)]
pub struct Raw {
    /// For what else is asked of it.
    pub client: Client,
}

impl Raw {
    /// A new session.
    pub async fn new(server: &Server) -> Self {
        let connector = Client::connector().with_session_timeout(SESSION);
        let client = connector.connect(&server.address()).await;
        Self {
            client: client.expect("the server is there"),
        }
    }

    /// A directory for the line, which nobody removes.
    pub async fn line(&self, path: &str) {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let _ = self.client.create(path, &[], &options).await;
    }

    /// Create, list, delete: three requests in three round trips.
    pub async fn triple(&self, line: &str) {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{line}/123456789012345678901234567890123456-");
        let (_, sequence) = self
            .client
            .create(&prefix, b"who", &options)
            .await
            .expect("it answers");
        let children = self.client.list_children(line).await.expect("it answers");
        assert_eq!(children.len(), 1, "nobody else wants it");
        let made = self.client.delete(&format!("{prefix}{sequence}"), None).await;
        made.expect("it answers");
    }

    /// The same with create and list back to back: two round trips.
    pub async fn in_two(&self, line: &str) {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{line}/123456789012345678901234567890123456-");
        let create = self.client.create(&prefix, b"who", &options);
        let (made, listed) = futures::join!(create, self.client.list_children(line));
        let (_, sequence) = made.expect("it answers");
        assert_eq!(listed.expect("it answers").len(), 1, "nobody else wants it");
        let gone = self.client.delete(&format!("{prefix}{sequence}"), None).await;
        gone.expect("it answers");
    }

    /// The minimum that keeps a place in a queue of its own: a container with a node that has a recognisable
    /// name and no data.
    pub async fn keep(&self, line: &str) {
        let options = CreateMode::Container.with_acls(Acls::anyone_all());
        let made = self.client.create(line, &[], &options);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{line}/_c_12345678-1234-1234-1234-123456789012-lock-");
        let (line, place) = futures::join!(made, self.client.create(&prefix, &[], &options));
        line.expect("it answers");
        place.expect("it answers");
    }
}
