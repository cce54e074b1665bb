//! The fence gate in this backend's own tables. Inside your own transaction use
//! [`direct::gate`](crate::direct::gate), on the same table.
//!
//! The check and the write are one transaction in one request.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};

use super::call::Statement;
use super::dialect::Dialect;
use super::lock::{Lease, named};
use crate::direct::Dialect as _;
use crate::gate::{self, Pass};

impl<D: Dialect> Lease<D> {
    async fn pass(&self, pass: Pass<'_>) -> Result<Admission> {
        self.capabilities.check_name(pass.0)?;
        named(pass.0, D::pass(&self.db, pass).await)
    }
}

#[async_trait]
impl<D: Dialect> FenceGate for Lease<D> {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass((resource, token, access, None)).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass((resource, token, Access::Exclusive, Some(value))).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.capabilities.check_name(resource)?;
        let (fence, name) = (&self.db.fence, D::Driver::bytes(resource.as_bytes()));
        let text = format!("SELECT max_exclusive, max_any, value FROM {fence} WHERE resource = {name}");
        let read = self.db.read(|| Ok(Statement::Text(text.clone()))).await;
        let read = read.and_then(|answer| gate::value::<D::Driver>(&answer.rows));
        named(resource, read)
    }
}
