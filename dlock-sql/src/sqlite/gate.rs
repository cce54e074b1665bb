//! The fence gate in this backend's own database. Inside a transaction of yours it is
//! [`direct::gate`](crate::direct::gate), which shares what it remembers.

use async_trait::async_trait;
use dlock_core::{Access, Admission, FenceGate, FencedValue};
use dlock_core::{Error, ErrorKind, LockName, Result, Token};

use super::connection::Needs;
use super::lock::SqliteLock;
use crate::gate::check_token;

/// What a job asks of the gate.
#[derive(Clone, Debug)]
pub(super) enum AskGate {
    Read(LockName),
    Pass {
        resource: LockName,
        token: Token,
        access: Access,
        value: Option<Vec<u8>>,
    },
}

impl AskGate {
    pub(super) fn resource(&self) -> &LockName {
        match self {
            Self::Read(resource) | Self::Pass { resource, .. } => resource,
        }
    }
}

/// What the gate answers.
pub(super) enum GateAnswer {
    Value(Option<FencedValue>),
    Admission(Admission),
}

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
        let needs = Needs {
            gate: Some(AskGate::Read(resource.clone())),
            ..Needs::default()
        };
        match self.ask_gate(needs, resource).await? {
            GateAnswer::Value(value) => Ok(value),
            GateAnswer::Admission(_) => Err(unanswered()),
        }
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
        let ask = AskGate::Pass {
            resource: resource.clone(),
            token,
            access,
            value,
        };
        let needs = Needs {
            gate: Some(ask),
            write: true,
            durable: true,
            ..Needs::default()
        };
        match self.ask_gate(needs, resource).await? {
            GateAnswer::Admission(admission) => Ok(admission),
            GateAnswer::Value(_) => Err(unanswered()),
        }
    }

    async fn ask_gate(&self, needs: Needs, resource: &LockName) -> Result<GateAnswer> {
        self.check_name(resource)?;
        let answer = self.connection.call(needs, |view| {
            view.gate.take().unwrap_or_else(|| Err(unanswered()))
        });
        answer.await.map_err(|e| e.with_name(resource))
    }
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Unavailable, "the fence gate was not asked")
}
