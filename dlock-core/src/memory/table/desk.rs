//! What all names of a table share: the counter of tokens, and who holds how much.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::error::{Error, ErrorKind, Result};
use crate::request_id::RequestId;
use crate::token::Token;

/// What the table is told at its start.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memory) struct Settings {
    pub(in crate::memory) claim_window: Option<Duration>,
    pub(in crate::memory) max_held: Option<u64>,
    pub(in crate::memory) max_waiters: Option<u64>,
}

/// What all names share.
#[derive(Debug)]
pub(super) struct Desk {
    /// The last token minted. One counter for all names: a name that is forgotten takes nothing with it.
    pub(super) counter: u64,
    pub(super) claim_window: Option<Duration>,
    pub(super) max_held: Option<u64>,
    pub(super) max_waiters: Option<u64>,
    /// Held and queued requests of each client; kept only when there is a limit.
    pub(super) clients: HashMap<u128, u64, RandomState>,
}

impl Desk {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            counter: 0,
            claim_window: settings.claim_window,
            max_held: settings.max_held,
            max_waiters: settings.max_waiters,
            clients: HashMap::default(),
        }
    }

    pub(super) fn mint(&mut self) -> Token {
        // Never beyond `MAX_RAISED` + the number of grants since, so it cannot wrap.
        self.counter += 1;
        Token::new(self.counter).unwrap_or(Token::MIN)
    }

    /// Counts one more request of that client, unless it is at its limit.
    pub(super) fn begin(&mut self, id: RequestId) -> Result<()> {
        if let Some(max) = self.max_held {
            let count = self.clients.entry(id.client()).or_default();
            if *count >= max {
                return Err(Error::new(
                    ErrorKind::LimitReached,
                    "this client holds and waits for as many locks as it may",
                ));
            }
            *count += 1;
        }
        Ok(())
    }

    /// A lease or queue entry of that client is over.
    pub(super) fn ended(&mut self, id: RequestId) {
        if self.max_held.is_none() {
            return;
        }
        if let Some(count) = self.clients.get_mut(&id.client()) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&id.client());
            }
        }
    }
}
