//! Changing the mode of a lease in place.

use async_trait::async_trait;

use super::lock::MemoryLock;
use crate::error::Result;
use crate::mode::Mode;
use crate::spi::{Converted, LeaseKey, RwLock};

#[async_trait]
impl RwLock for MemoryLock {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let connection = &*self.connection;
        connection.check_open()?;
        connection.shared.caps.check_mode(to)?;
        connection.call(|state, sent, effects| {
            Ok(match state.table.convert(sent, lease, to, effects)? {
                Converted::Done(grant) => Converted::Done(connection.shown(grant)),
                not_done => not_done,
            })
        })
    }
}
