use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::shared::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Access, Admission, FenceGate, FencedValue};
use crate::name::LockName;
use crate::token::Token;

/// The guarded values of a store. Under a mutex of their own: a caller's closure must not hold up the locks.
#[derive(Default)]
pub(super) struct Gates(Mutex<HashMap<LockName, FencedValue>>);

impl Gates {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<LockName, FencedValue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fence gate of a [`Memory`](super::Memory) store: guarded values beside the locks.
#[derive(Clone)]
pub struct MemoryGate {
    pub(super) shared: Arc<Shared>,
    closed: Arc<AtomicBool>,
}

impl MemoryGate {
    pub(super) fn new(shared: Arc<Shared>, closed: Arc<AtomicBool>) -> Self {
        Self { shared, closed }
    }

    /// Checks the token and, if it is admitted, changes the value, in one step that nothing comes between.
    /// Answers the closure's result, or the newer token that was seen.
    ///
    /// The closure runs under the gate's mutex and must not use the gate.
    ///
    /// # Errors
    /// `Closed` after the link was closed; `InvalidInput` for a resource whose name is longer than the store
    /// takes.
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

    fn check(
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

    pub(super) fn on<R>(
        &self,
        resource: &LockName,
        f: impl FnOnce(&mut HashMap<LockName, FencedValue>) -> R,
    ) -> Result<R> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "the link to the store is closed"));
        }
        self.shared.caps.check_name(resource)?;
        Ok(f(&mut self.shared.gates.lock()))
    }
}

#[async_trait]
impl FenceGate for MemoryGate {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.check(resource, token, access, None)
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.check(resource, token, Access::Exclusive, Some(value))
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.on(resource, |gates| gates.get(resource).cloned())
    }
}

impl fmt::Debug for MemoryGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryGate").finish_non_exhaustive()
    }
}
