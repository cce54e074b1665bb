//! The state that all names of a table share, the token counter and the number of locks per client, and the
//! ledger for the admission rule.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::effects::Effects;
use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::spi::LeaseKey;
use crate::spi::admission::{Entry, Event, Ledger, Phase};
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The settings of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memory) struct Settings {
    pub(in crate::memory) claim_window: Option<Duration>,
    pub(in crate::memory) max_held: Option<u64>,
    pub(in crate::memory) max_waiters: Option<u64>,
}

/// The state that all names share.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The last token minted. There is one counter for all names, so forgetting a name loses no token.
    pub(super) counter: u64,
    pub(super) settings: Settings,
    /// Held and queued requests of each client; kept only when there is a limit.
    pub(super) clients: HashMap<u128, u64, RandomState>,
}

impl Desk {
    pub(super) fn mint(&mut self) -> Token {
        // At most `MAX_RAISED` plus the number of later grants, so it cannot wrap.
        self.counter += 1;
        Token::new(self.counter).unwrap_or(Token::MIN)
    }

    /// Records that a lease or queue entry of a client has ended.
    pub(super) fn ended(&mut self, id: RequestId) {
        if self.settings.max_held.is_none() {
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

/// The ledger of one name.
pub(super) struct Books<'a> {
    pub(super) desk: &'a mut Desk,
    pub(super) effects: &'a mut Effects,
    pub(super) name: &'a LockName,
}

impl Ledger for Books<'_> {
    /// Counts one more request of the client, unless a limit is reached.
    #[inline]
    fn begin(&mut self, id: RequestId, behind: Option<usize>) -> Result<()> {
        let refused = |text| Err(Error::new(ErrorKind::LimitReached, text).with_name(self.name));
        let Settings {
            max_held,
            max_waiters,
            ..
        } = self.desk.settings;
        if max_waiters.is_some_and(|max| behind.is_some_and(|n| n as u64 >= max)) {
            return refused("the maximum number of waiters of this lock is reached");
        }
        if let Some(max) = max_held {
            let count = self.desk.clients.entry(id.client()).or_default();
            if *count >= max {
                return refused(
                    "the maximum number of locks that this client may hold and wait for is \
                    reached",
                );
            }
            *count += 1;
        }
        Ok(())
    }

    fn mint(&mut self) -> Result<Token> {
        Ok(self.desk.mint())
    }

    fn raise(&mut self, to: Token) {
        self.desk.counter = self.desk.counter.max(to.get());
    }

    /// The claim window, if there is one and it is shorter than the ttl.
    fn hand_off(&self, waiter: &Entry, now: Timestamp) -> (Phase, Timestamp) {
        match self.desk.settings.claim_window {
            Some(window) if window < waiter.ttl() => (Phase::Provisional, now + window),
            _ => (Phase::Held, now + waiter.ttl()),
        }
    }

    fn slack(&self, _: Duration) -> Duration {
        Duration::ZERO
    }

    // Each caller has one kind of event, which mostly nobody observes: after inlining, hardly any code is
    // left.
    #[inline(always)]
    fn note(&mut self, entry: &Entry, event: Event, now: Timestamp) {
        if self.effects.observed {
            self.tell(entry, event, now);
        }
        let key = |id| LeaseKey::new(self.name.clone(), id);
        match event {
            Event::HandedOff => {
                let grant = entry.lease(now).grant(key(entry.id), now);
                self.effects.news().granted.push(grant);
            }
            Event::Dropped => {
                self.desk.ended(entry.id);
                self.effects.news().dropped.push(key(entry.id));
            }
            Event::Ended(_) if entry.phase != Phase::Kept => self.desk.ended(entry.id),
            Event::Kept { next } => {
                self.desk.ended(entry.id);
                // The next waiter was told when the lease would expire, which may be long after this.
                if let Some(next) = next {
                    self.effects.news().sooner.push(key(next));
                }
            }
            _ => {}
        }
    }
}

impl Books<'_> {
    /// Notifies the watchers.
    #[inline(never)]
    fn tell(&mut self, entry: &Entry, event: Event, now: Timestamp) {
        let (name, news) = (self.name.clone(), self.effects.news());
        match event.change(entry, now) {
            Some(change) => news.changes.push((name, change)),
            None if matches!(event, Event::Kept { .. }) => news.nudged.push(name),
            None => {}
        }
    }
}
