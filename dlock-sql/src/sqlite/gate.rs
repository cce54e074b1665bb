//! The fence gate in this backend's own database. Inside a transaction of yours it is
//! [`direct::gate`](crate::direct::gate), which shares what it remembers.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue};
use dlock_core::{Error, ErrorKind, LockName, Result, Token};

use super::connection::{AskGate, GateAnswer, Needs, Pass};
use super::lock::SqliteLock;
use crate::gate::check_token;

#[async_trait]
impl FenceGate for SqliteLock {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        let value = None;
        self.pass(resource, Pass { token, access, value }).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let (access, value) = (Access::Exclusive, Some(value.to_vec()));
        self.pass(resource, Pass { token, access, value }).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        match self.ask_gate(resource, None).await? {
            GateAnswer::Value(value) => Ok(value),
            GateAnswer::Admission(_) => Err(unanswered()),
        }
    }
}

impl SqliteLock {
    async fn pass(&self, resource: &LockName, pass: Pass) -> Result<Admission> {
        check_token(pass.token).map_err(|e| e.with_name(resource))?;
        match self.ask_gate(resource, Some(pass)).await? {
            GateAnswer::Admission(admission) => Ok(admission),
            GateAnswer::Value(_) => Err(unanswered()),
        }
    }

    /// Check, and write if there is a value, in one transaction that waits for the disk: what a gate has
    /// refused once it refuses after a power loss too.
    async fn ask_gate(&self, resource: &LockName, pass: Option<Pass>) -> Result<GateAnswer> {
        self.check_name(resource)?;
        let needs = Needs {
            write: pass.is_some(),
            durable: pass.is_some(),
            gate: Some(AskGate {
                resource: resource.clone(),
                pass,
            }),
            ..Needs::default()
        };
        let answer = self.connection.call(needs, |view| {
            view.gate.take().unwrap_or_else(|| Err(unanswered()))
        });
        answer.await.map_err(|e| e.with_name(resource))
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unavailable, "the fence gate was not asked")
}
