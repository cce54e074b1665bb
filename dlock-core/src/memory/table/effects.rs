//! What the table answers, and what others must be told of.

use crate::inspection::Change;
use crate::name::LockName;
use crate::spi::LeaseKey;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// A lease in the server's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) struct Held {
    pub(in crate::memory) token: Token,
    pub(in crate::memory) expires: Timestamp,
    pub(in crate::memory) provisional: bool,
}

/// What a request that is not granted learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) struct Place {
    pub(in crate::memory) ahead: u32,
    /// When the first thing in the way runs out.
    pub(in crate::memory) recheck: Option<Timestamp>,
}

/// The answer to an attempt or a re-ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Asked {
    Granted(Held),
    Queued(Place),
    /// Not granted, and nothing was left behind.
    Held(Place),
}

/// The answer to a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memory) enum Conversion {
    Done(Held),
    Busy,
    WouldDeadlock,
}

/// What others must be told of.
#[derive(Debug, Default)]
pub(in crate::memory) struct Effects {
    /// Whether anybody watches anything; changes are not recorded otherwise.
    pub(in crate::memory) observed: bool,
    /// In a box that is made when there is something: mostly nobody but the caller learns of a call.
    news: Option<Box<News>>,
}

/// See [`Effects`].
#[derive(Debug, Default)]
pub(in crate::memory) struct News {
    /// Queued requests that hold the lock now.
    pub(in crate::memory) granted: Vec<(LeaseKey, Held)>,
    /// Queue entries that ended otherwise.
    pub(in crate::memory) dropped: Vec<LeaseKey>,
    /// In the order in which they happened.
    pub(in crate::memory) changes: Vec<(LockName, Change)>,
    /// Nothing to report, but what runs out next runs out sooner: for whoever watches.
    pub(in crate::memory) nudged: Vec<LockName>,
    /// The same, for the queued request that is next.
    pub(in crate::memory) sooner: Vec<LeaseKey>,
}

impl Effects {
    pub(in crate::memory) fn of(observed: bool) -> Self {
        Self { observed, news: None }
    }

    pub(in crate::memory) fn news(&mut self) -> &mut News {
        self.news.get_or_insert_default()
    }

    /// `None` if there is nothing to tell.
    pub(in crate::memory) fn into_news(self) -> Option<Box<News>> {
        self.news
    }

    pub(super) fn change(&mut self, name: &LockName, change: impl FnOnce() -> Change) {
        if self.observed {
            self.news().changes.push((name.clone(), change()));
        }
    }
}
