//! The fence gate in this backend's own database. Inside your own transaction use
//! [`direct::gate`](crate::direct::gate), which shares its table.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};
use futures::FutureExt as _;
use sqlx::Sqlite;

use super::connection::Needs;
use super::lock::SqliteLock;
use super::store::Sync;
use crate::gate::{self, Pass};

#[async_trait]
impl FenceGate for SqliteLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass((resource, token, access, None)).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass((resource, token, Access::Exclusive, Some(value))).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.capabilities.check_name(resource)?;
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
    async fn pass(&self, pass: Pass<'_>) -> Result<Admission> {
        let (resource, token, access, _) = pass;
        self.capabilities.check_name(resource)?;
        let text = gate::pass::<Sqlite>("{p}fence", pass).map_err(|e| e.with_name(resource))?;
        let passed = self
            .connection
            .ask(Needs::write(Sync::Durable, Vec::new()), move |_, store| {
                let row = store.ask_once(text);
                async move { Ok(gate::admission::<Sqlite>(&row.await?, token, access)) }.boxed()
            });
        passed.await.map_err(|e| e.with_name(resource))
    }
}
