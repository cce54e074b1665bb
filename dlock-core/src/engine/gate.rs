//! The backend's fence gate, as a client provides it: each call has the time limit of an operation, and ends
//! with the client.

use async_trait::async_trait;

use super::core::Core;
use crate::capabilities::Capability;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Access, Admission, FenceGate, FencedValue};
use crate::name::LockName;
use crate::observe;
use crate::spi::Fencing;
use crate::token::Token;

impl Core {
    fn backends_gate(&self) -> Result<&dyn FenceGate> {
        self.check_open()?;
        let fencing = self.backend.fencing();
        let gate = fencing
            .filter(|_| self.caps.has(Capability::Gate))
            .and_then(Fencing::gate);
        gate.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("the backend {} has no fence gate", self.caps.backend),
            )
        })
    }

    /// One request about that resource.
    async fn about<T>(&self, resource: &LockName, asking: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = self.ask(self.op_timeout, asking).await;
        answer.map_err(|e| e.with_resource(resource))
    }
}

// A call that is dropped or reaches its limit half-way is left to the gate: the same token may come again,
// and a copy that arrives later is refused from the first newer token on. So there is nothing to undo, and
// the engine owes nothing.
#[async_trait]
impl FenceGate for Core {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        let gate = self.backends_gate()?;
        let admission = self.about(resource, gate.admit(resource, token, access)).await;
        admission.inspect(|admission| observe::gated(&self.caps, admission))
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        let gate = self.backends_gate()?;
        let admission = self.about(resource, gate.write(resource, token, value)).await;
        admission.inspect(|admission| observe::gated(&self.caps, admission))
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        let gate = self.backends_gate()?;
        self.about(resource, gate.read(resource)).await
    }
}
