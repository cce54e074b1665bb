//! The fence gate in this backend's own tables. Inside a transaction of yours it is
//! [`direct::gate`](crate::direct::gate), on the same table.
//!
//! Check and write are one statement, which locks the resource's row first. Where the token is not admitted
//! it changes nothing.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue, LockName, Result, Token};

use super::dialect::{Pass, Server};
use super::lock::{Lease, named};
use crate::gate::check_token;

impl<D: Server> Lease<D> {
    async fn pass(&self, pass: Pass<'_>) -> Result<Admission> {
        let Pass(token, resource, ..) = pass;
        self.capabilities.check_name(resource)?;
        named(resource, check_token(token))?;
        named(resource, D::admit(&self.db, pass).await)
    }
}

#[async_trait]
impl<D: Server> FenceGate for Lease<D> {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(Pass(token, resource, access, None)).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let access = Access::Exclusive;
        self.pass(Pass(token, resource, access, Some(value))).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.capabilities.check_name(resource)?;
        named(resource, D::read(&self.db, resource).await)
    }
}
