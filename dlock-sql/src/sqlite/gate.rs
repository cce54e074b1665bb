//! The fence gate in this backend's own database. Inside a transaction of yours it is
//! [`direct::gate`](crate::direct::gate), which shares what it remembers.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};
use futures::FutureExt as _;

use super::connection::Needs;
use super::lock::SqliteLock;
use super::store::Sync;
use crate::gate::check_token;

#[async_trait]
impl FenceGate for SqliteLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value.to_vec()))
            .await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.check_name(resource)?;
        let name = resource.clone();
        let read = self.connection.ask(Needs::default(), |_, store| {
            async move { store.fenced(&name).await }.boxed()
        });
        read.await.map_err(|e| e.with_name(resource))
    }
}

impl SqliteLock {
    /// Check, and write if there is a value, in one transaction that waits for the disk: what a gate has
    /// refused once it refuses after a power loss too.
    async fn pass(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<Vec<u8>>,
    ) -> Result<Admission> {
        check_token(token).map_err(|e| e.with_name(resource))?;
        self.check_name(resource)?;
        let (needs, name) = (Needs::write(Sync::Durable, Vec::new()), resource.clone());
        let passed = self.connection.ask(needs, move |_, store| {
            async move { store.pass(&name, token, access, value.as_deref()).await }.boxed()
        });
        passed.await.map_err(|e| e.with_name(resource))
    }
}
