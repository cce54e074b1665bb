//! The bare driver: the two requests of a lock.

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};

use super::server::{SESSION, Server};

/// A lease, and a connection of the bare driver.
#[allow(missing_debug_implementations)] // the driver has none
#[derive(Clone)]
pub struct Raw {
    /// For what else is asked of it.
    pub client: Client,
    /// On which its keys hang.
    pub lease: i64,
}

impl Raw {
    /// With a new lease.
    pub async fn new(server: &Server) -> Self {
        let mut client = Client::connect([server.address()], None)
            .await
            .expect("the server is there");
        let seconds = SESSION.as_secs() as i64 * 10;
        let lease = client.lease_grant(seconds, None).await.expect("it answers").id();
        Self { client, lease }
    }

    /// A transaction that puts a key if it is not there, and its deletion.
    pub async fn pair(&mut self, key: &str) {
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let put = TxnOp::put(key, "", Some(PutOptions::new().with_lease(self.lease)));
        let put = self.client.txn(Txn::new().when([absent]).and_then([put])).await;
        assert!(put.expect("it answers").succeeded(), "nobody else wants it");
        self.client.delete(key, None).await.expect("it answers");
    }
}
