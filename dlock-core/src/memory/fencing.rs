//! Tokens: what they survive, and raising them.

use async_trait::async_trait;

use super::lock::MemoryLock;
use crate::capabilities::Capability;
use crate::error::Result;
use crate::gate::FenceGate;
use crate::spi::{Fencing, LeaseKey, Raised};
use crate::token::{Strength, Token};

#[async_trait]
impl Fencing for MemoryLock {
    fn strength(&self) -> Strength {
        self.connection.shared.strength
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        (!self.connection.shared.caps.took_back(Capability::Gate)).then_some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let connection = &*self.connection;
        connection.check_open()?;
        // The engine never raises, and so has not refused it.
        connection
            .shared
            .caps
            .need(Capability::Raise, "raising a token")?;
        connection.call(|state, _, effects| state.table.raise(lease, to, effects))
    }
}
