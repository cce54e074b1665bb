//! What all names of a table share: the counter of tokens, and who holds how much.

use std::time::Duration;

use super::Map;
#[cfg(dlock_saboteur)]
use super::planted;
use crate::error::{Error, ErrorKind, Result};
#[cfg(dlock_saboteur)]
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::saboteur::{Bug, Planted};
#[cfg(dlock_saboteur)]
use crate::timestamp::Timestamp;
use crate::token::Token;

/// What the table is told at its start.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memory) struct Settings {
    pub(in crate::memory) claim_window: Option<Duration>,
    pub(in crate::memory) max_held: Option<u64>,
    pub(in crate::memory) max_waiters: Option<u64>,
    pub(in crate::memory) bug: Planted,
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
    pub(super) clients: Map<u128, u64>,
    /// Which bug is planted, for the `if` lines around a record.
    pub(super) bug: Planted,
    /// The ttl of the first grant of each name, for a planted bug.
    #[cfg(dlock_saboteur)]
    pub(super) first_ttls: Map<LockName, Duration>,
    /// The last token of each name, for a planted bug.
    #[cfg(dlock_saboteur)]
    pub(super) last_tokens: Map<LockName, Token>,
    /// What a clock that can be set showed last, for a planted bug.
    #[cfg(dlock_saboteur)]
    pub(super) wall: Timestamp,
    /// What the rebuilt bugs remember.
    #[cfg(dlock_saboteur)]
    pub(super) notes: planted::Notes,
}

impl Desk {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            counter: 0,
            claim_window: settings.claim_window,
            max_held: settings.max_held,
            max_waiters: settings.max_waiters,
            clients: Map::default(),
            bug: settings.bug,
            #[cfg(dlock_saboteur)]
            first_ttls: Map::default(),
            #[cfg(dlock_saboteur)]
            last_tokens: Map::default(),
            #[cfg(dlock_saboteur)]
            wall: Timestamp::ZERO,
            #[cfg(dlock_saboteur)]
            notes: planted::Notes::default(),
        }
    }

    pub(super) fn mint(&mut self) -> Token {
        // Never beyond `MAX_RAISED` + the number of grants since, so it cannot wrap.
        self.counter += 1;
        // planted: 7.02
        #[cfg(dlock_saboteur)]
        if self.bug.is(Bug::TokenRandom) {
            return planted::random_token(self.counter);
        }
        // planted: 7.02
        if self.bug.is(Bug::TokenRepeats) && self.counter.is_multiple_of(16) {
            return Token::new(self.counter - 1).unwrap_or(Token::MIN);
        }
        // planted: 7.07
        #[cfg(dlock_saboteur)]
        if self.bug.is(Bug::TokenWalltime) {
            return Token::new(self.wall.as_nanos() + self.counter).unwrap_or(Token::MIN);
        }
        // planted: 7.08
        if self.bug.is(Bug::TokenI32Wrap) {
            return Token::new(self.counter & 0x7fff_ffff).unwrap_or(Token::MIN);
        }
        Token::new(self.counter).unwrap_or(Token::MIN)
    }

    /// Counts one more request of that client, unless it is at its limit.
    pub(super) fn begin(&mut self, id: RequestId) -> Result<()> {
        if let Some(max) = self.max_held {
            let count = self.clients.entry(id.client()).or_default();
            // planted: 13.15
            let max = if self.bug.is(Bug::LimitOffBy10x) {
                max * 10
            } else {
                max
            };
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
