//! The fence gate in this backend's own tables. Inside a transaction of yours it is
//! [`direct::gate`](crate::direct::gate), on the same table.
//!
//! Check and write are one statement, which locks the resource's row first, and changes nothing if refused.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};

use super::call::Statement;
use super::dialect::Server;
use super::lock::{Lease, named};
use crate::direct::Dialect as _;
use crate::gate::{check_token, value};

impl<D: Server> Lease<D> {
    async fn pass(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        self.capabilities.check_name(resource)?;
        named(resource, check_token(token))?;
        named(resource, D::admit(&self.db, resource, token, access, value).await)
    }
}

#[async_trait]
impl<D: Server> FenceGate for Lease<D> {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value)).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.capabilities.check_name(resource)?;
        let (tables, name) = (self.db.tables(), D::Driver::bytes(resource.as_bytes()));
        let text = format!("SELECT max_exclusive, max_any, value FROM {tables}fence WHERE resource = {name}");
        let read = self.db.read(|| Ok(Statement::Text(text.clone()))).await;
        named(resource, read.and_then(|answer| value::<D::Driver>(&answer.rows)))
    }
}
