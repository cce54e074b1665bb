//! The lock that etcd itself offers to clients.

use etcd_client::LockOptions;

use super::raw::Raw;
use super::server::Server;
use crate::redis::Contender;

/// One who wants a lock by etcd's lock API.
#[allow(missing_debug_implementations)] // the driver has none
#[derive(Clone)]
pub struct Api {
    raw: Raw,
    name: String,
}

impl Api {
    /// With a connection and a lease of its own: the API gives a lock to a lease as often as it asks.
    pub async fn new(server: &Server, name: &str) -> Self {
        Self {
            raw: Raw::new(server).await,
            name: name.to_owned(),
        }
    }

    /// One acquire and release.
    pub async fn pair(&mut self) {
        let held = self.acquire().await;
        self.release(held).await;
    }
}

impl Contender for Api {
    /// The key.
    type Held = Vec<u8>;

    async fn acquire(&mut self) -> Vec<u8> {
        let options = LockOptions::new().with_lease(self.raw.lease);
        let held = self.raw.client.lock(self.name.clone(), Some(options)).await;
        held.expect("it is waited for").key().to_vec()
    }

    async fn release(&mut self, key: Vec<u8>) {
        self.raw.client.unlock(key).await.expect("it was held");
    }
}
