//! The time of a call, and what others must be notified of.

use crate::inspection::Change;
use crate::name::LockName;
use crate::spi::{Grant, LeaseKey};
use crate::timestamp::Timestamp;

/// What others must be notified of after a call.
#[derive(Debug)]
pub(in crate::memory) struct Effects {
    /// The time of the call.
    pub(in crate::memory) now: Timestamp,
    /// Whether there are watchers; otherwise changes are not recorded.
    pub(in crate::memory) observed: bool,
    /// Allocated when there is something: mostly only the caller learns of a call.
    news: Option<Box<News>>,
}

/// See [`Effects`].
#[derive(Debug, Default)]
pub(in crate::memory) struct News {
    /// Queued requests that are granted now, counted from the store's time.
    pub(in crate::memory) granted: Vec<Grant>,
    /// Queue entries that ended otherwise.
    pub(in crate::memory) dropped: Vec<LeaseKey>,
    /// The changes, in order.
    pub(in crate::memory) changes: Vec<(LockName, Change)>,
    /// Names without a change to report whose next expiry is sooner now, for watchers.
    pub(in crate::memory) nudged: Vec<LockName>,
    /// The same, for the next queued request.
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

    /// `None` if nobody must be notified.
    pub(in crate::memory) fn into_news(self) -> Option<Box<News>> {
        self.news
    }
}
