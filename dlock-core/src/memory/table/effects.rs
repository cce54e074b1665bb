//! When a call is made, and what others must be told of.

use crate::inspection::Change;
use crate::name::LockName;
use crate::spi::{Grant, LeaseKey};
use crate::timestamp::Timestamp;

/// What others must be told of a call.
#[derive(Debug)]
pub(in crate::memory) struct Effects {
    /// When it is made.
    pub(in crate::memory) now: Timestamp,
    /// Whether anybody watches anything; changes are not recorded otherwise.
    pub(in crate::memory) observed: bool,
    /// In a box that is made when there is something: mostly nobody but the caller learns of a call.
    news: Option<Box<News>>,
}

/// See [`Effects`].
#[derive(Debug, Default)]
pub(in crate::memory) struct News {
    /// Queued requests that hold the lock now, counted from the store's time.
    pub(in crate::memory) granted: Vec<Grant>,
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
    pub(in crate::memory) fn of(now: Timestamp, observed: bool) -> Self {
        let news = None;
        Self { now, observed, news }
    }

    pub(in crate::memory) fn news(&mut self) -> &mut News {
        self.news.get_or_insert_default()
    }

    /// `None` if there is nothing to tell.
    pub(in crate::memory) fn into_news(self) -> Option<Box<News>> {
        self.news
    }
}
