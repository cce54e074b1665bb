//! What is known of each name, and of the connections.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, Tombstones};
use dlock_core::{Error, ErrorKind, RequestId, Result, Timestamp, Token};
use event_listener::Event;

use super::GRACE;
use super::wait::Cancel;
use crate::lately::Lately;
use crate::session::connection::Handle;
use crate::session::keys::Key;

/// A late call of a request that was abandoned is one of this process: nothing overtakes within a session. So
/// its memory is enough. No call is under way for a day, nor are so many at once.
const REMEMBERED: (Duration, usize) = (Duration::from_secs(24 * 3600), 1 << 14);

pub(super) struct State {
    pub(super) names: HashMap<Key, Name>,
    pub(super) buried: Tombstones,
    /// Of those, who was given back as a holder.
    pub(super) released: Tombstones,
    /// Requests that may be granted in a session of which no more is heard, and until when that session may
    /// live.
    pub(super) doubtful: HashMap<RequestId, Timestamp>,
    pub(super) shared: Option<Arc<Handle>>,
    /// Connections that wait for nothing and hold nothing, the latest last.
    pub(super) idle: Vec<Arc<Handle>>,
    /// How many connections there are beside the shared one, and how many are being made.
    pub(super) waiting: usize,
    /// Whose first in line found no connection to wait on.
    pub(super) starved: VecDeque<Key>,
    /// When somebody of another client was there last.
    pub(super) crowded: Lately<Key, Timestamp>,
    /// Sessions are shared behind our back: nothing is asked for any more.
    pub(super) pooler: Option<Error>,
    pub(super) closed: bool,
}

#[derive(Default)]
pub(super) struct Name {
    pub(super) holder: Option<Holder>,
    pub(super) trying: Option<LeaseKey>,
    pub(super) contender: Option<Contender>,
    pub(super) line: VecDeque<InLine>,
}

impl Name {
    pub(super) fn is_empty(&self) -> bool {
        self.holder.is_none() && self.trying.is_none() && self.contender.is_none() && self.line.is_empty()
    }

    /// Who is away for too long is no longer in line.
    pub(super) fn pass_over(&mut self, now: Timestamp) {
        self.line.retain(|l| !l.presence.is_gone(now));
    }

    pub(super) fn ring_first(&self) {
        if let Some(first) = self.line.front() {
            first.bell.notify(usize::MAX);
        }
    }
}

/// A lease, and the connection on which it hangs.
#[derive(Clone)]
pub(in crate::session) struct Holder {
    pub(in crate::session) lease: LeaseKey,
    pub(in crate::session) token: Token,
    pub(in crate::session) connection: Arc<Handle>,
    /// It is being given back.
    pub(super) leaving: bool,
    /// Until when anybody believes in it. What is not renewed by then lapses.
    pub(super) until: Timestamp,
    /// Whoever asked for it knows that it has it, or has been there when it was granted.
    pub(super) claimed: bool,
}

pub(super) struct Contender {
    pub(super) lease: LeaseKey,
    pub(super) bell: Arc<Event>,
    pub(super) cancel: Arc<Cancel>,
    pub(super) presence: Presence,
    /// Once there is one.
    pub(super) connection: Option<u64>,
    /// Since when it waits, if there was a connection for it.
    pub(super) since: Option<Timestamp>,
}

pub(super) struct InLine {
    pub(super) lease: LeaseKey,
    pub(super) bell: Arc<Event>,
    pub(super) presence: Presence,
    /// Why it could not contend.
    pub(super) failure: Option<Error>,
}

/// Whether somebody listens.
#[derive(Clone, Copy)]
pub(super) enum Presence {
    Here,
    Since(Timestamp),
}

impl Presence {
    pub(super) fn is_gone(self, now: Timestamp) -> bool {
        match self {
            Self::Here => false,
            Self::Since(left) => now.since(left) > GRACE,
        }
    }
}

impl State {
    pub(super) fn new() -> Self {
        let (keep, most) = REMEMBERED;
        Self {
            names: HashMap::new(),
            buried: Tombstones::new(keep, most),
            released: Tombstones::new(keep, most),
            doubtful: HashMap::new(),
            shared: None,
            idle: Vec::new(),
            waiting: 0,
            starved: VecDeque::new(),
            crowded: Lately::default(),
            pooler: None,
            closed: false,
        }
    }

    pub(super) fn check_closed(&self) -> Result<()> {
        match self.closed {
            true => Err(Error::new(ErrorKind::Closed, "the client was closed")),
            false => Ok(()),
        }
    }

    pub(super) fn check_open(&self) -> Result<()> {
        self.check_closed()?;
        self.pooler.clone().map_or(Ok(()), Err)
    }

    pub(super) fn contender(&mut self, key: &Key, lease: &LeaseKey) -> Option<&mut Contender> {
        let name = self.names.get_mut(key)?;
        name.contender.as_mut().filter(|c| c.lease.id == lease.id)
    }

    /// Nothing is kept of a name that nobody of this client is at.
    pub(super) fn tidy(&mut self, key: &Key) {
        if self.names.get(key).is_some_and(Name::is_empty) {
            self.names.remove(key);
        }
    }

    /// There may be a connection to wait on.
    pub(super) fn feed(&mut self) {
        while let Some(key) = self.starved.pop_front() {
            if let Some(name) = self.names.get(&key)
                && !name.line.is_empty()
            {
                name.ring_first();
                return;
            }
        }
    }
}
