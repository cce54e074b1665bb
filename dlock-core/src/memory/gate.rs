//! The fence gate: guarded values beside the locks.

use std::collections::HashMap;

use async_trait::async_trait;

use super::lock::MemoryLock;
use crate::error::Result;
use crate::gate::{Access, Admission, FenceGate, FencedValue};
use crate::name::LockName;
use crate::token::Token;

impl MemoryLock {
    /// Checks the token at the fence gate and, if it is admitted, changes the value with a closure, in one
    /// atomic step. Returns the closure's result, or the newer token that was seen.
    ///
    /// The closure runs under the gate's mutex and must not use the gate.
    ///
    /// # Errors
    /// `Closed` after the connection was closed; `InvalidInput` for a resource name that is longer than the
    /// store accepts.
    pub fn write_with<R>(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        change: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> Result<Result<R, Token>> {
        self.on(resource, |gates| {
            let value = gates
                .entry(resource.clone())
                .or_insert_with(|| FencedValue::new(Vec::new(), None, None));
            match value.admit(token, access) {
                Admission::Admitted => Ok(change(&mut value.value)),
                Admission::Refused { highest } => Err(highest),
            }
        })
    }

    fn pass(
        &self,
        resource: &LockName,
        token: Token,
        access: Access,
        value: Option<&[u8]>,
    ) -> Result<Admission> {
        let outcome = self.write_with(resource, token, access, |stored| {
            if let Some(value) = value {
                stored.clear();
                stored.extend_from_slice(value);
            }
        })?;
        Ok(match outcome {
            Ok(()) => Admission::Admitted,
            Err(highest) => Admission::Refused { highest },
        })
    }

    fn on<R>(
        &self,
        resource: &LockName,
        f: impl FnOnce(&mut HashMap<LockName, FencedValue>) -> R,
    ) -> Result<R> {
        self.connection.check_open()?;
        self.connection.shared.caps.check_name(resource)?;
        Ok(f(&mut self.connection.shared.gates()))
    }
}

#[async_trait]
impl FenceGate for MemoryLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.pass(resource, token, access, None)
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.pass(resource, token, Access::Exclusive, Some(value))
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.on(resource, |gates| gates.get(resource).cloned())
    }
}
