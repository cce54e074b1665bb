//! The fence gate in this backend's own database. Inside a transaction of yours it is
//! [`direct::gate`](crate::direct::gate), which shares what it remembers.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};
use futures::FutureExt as _;
use sqlx::Sqlite;

use super::connection::Needs;
use super::lock::SqliteLock;
use super::store::Sync;
use crate::gate;

#[async_trait]
impl FenceGate for SqliteLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.capabilities.check_name(resource)?;
        let look = gate::look::<Sqlite>("{p}fence", resource);
        let read = self.connection.ask(Needs::default(), |_, store| {
            async move { Ok(gate::value::<Sqlite>(&store.ask(&look).await?)) }.boxed()
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
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        self.capabilities.check_name(resource)?;
        let pass = gate::pass::<Sqlite>("{p}fence", resource, token, access, value);
        let pass = pass.map_err(|e| e.with_name(resource))?;
        let needs = Needs::write(Sync::Durable, Vec::new());
        let passed = self.connection.ask(needs, move |_, store| {
            async move { Ok(gate::admission::<Sqlite>(&store.ask(&pass).await?, token, access)) }.boxed()
        });
        passed.await.map_err(|e| e.with_name(resource))
    }
}
