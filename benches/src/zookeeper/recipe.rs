//! The lock that the driver itself brings.

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use super::raw::Raw;
use super::server::Server;
use crate::redis::Contender;

/// One who wants a lock by the driver's recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    client: Client,
    line: String,
}

impl Recipe {
    /// In a session of its own.
    pub async fn new(server: &Server, line: &str) -> Self {
        Self {
            client: Raw::new(server).await.client,
            line: line.to_owned(),
        }
    }

    /// Of another lock, in the same session.
    pub fn at(&self, line: String) -> Self {
        Self {
            client: self.client.clone(),
            line,
        }
    }

    /// One acquire and release.
    pub async fn pair(&mut self) {
        let held = self.acquire().await;
        self.release(held).await;
    }
}

impl Contender for Recipe {
    /// The node.
    type Held = String;

    async fn acquire(&mut self) -> String {
        let parent = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parent);
        let prefix = LockPrefix::new_curator(&self.line, "lock-").expect("a good path");
        let lock = self
            .client
            .lock(prefix, b"who", options.expect("good options"))
            .await;
        let lock = lock.expect("it is waited for");
        let node = lock.lock_path().to_owned();
        // Its guard deletes in the background; the end of a release is to be seen.
        std::mem::forget(lock);
        node
    }

    async fn release(&mut self, node: String) {
        self.client.delete(&node, None).await.expect("it was held");
    }
}
