//! The watchers of this connection's names, and what they are told.

use std::collections::HashMap;

use dlock_core::{Change, Error, LockName, Result, Timestamp};
use futures::channel::mpsc;

use crate::admit::{NameState, Told};

/// How many changes wait for a slow consumer before some are skipped.
const BACKLOG: usize = 1024;

/// The watchers of each name, and their last reports.
#[derive(Default)]
pub(super) struct Watchers(HashMap<LockName, Watched>);

struct Watched {
    told: Told,
    to: Vec<Watcher>,
}

struct Watcher {
    send: mpsc::Sender<Result<Change>>,
    skipped: bool,
}

impl Watcher {
    /// After changes were skipped: the state as a whole, as soon as there is room.
    fn tell(&mut self, changes: &[Change], state: &NameState, now: Timestamp) {
        for change in changes {
            self.skipped = self.skipped || self.send.try_send(Ok(change.clone())).is_err();
        }
        if self.skipped {
            let (now, skipped) = (state.rows.inspect(now), true);
            self.skipped = self.send.try_send(Ok(Change::Snapshot { now, skipped })).is_err();
        }
    }
}

impl Watchers {
    pub(super) fn names(&self) -> impl Iterator<Item = LockName> {
        self.0.keys().cloned()
    }

    pub(super) fn add(
        &mut self,
        name: &LockName,
        state: &NameState,
        now: Timestamp,
    ) -> mpsc::Receiver<Result<Change>> {
        let (mut send, receive) = mpsc::channel(BACKLOG);
        let (now, skipped) = (state.rows.inspect(now), false);
        let skipped = send.try_send(Ok(Change::Snapshot { now, skipped })).is_err();
        let watched = self.0.entry(name.clone()).or_insert_with(|| Watched {
            told: Told::of(state),
            to: Vec::new(),
        });
        watched.to.push(Watcher { send, skipped });
        receive
    }

    /// Tells what has led to that state: the changes of a commit of this connection, since what others had
    /// stored was told when it was loaded, in the same transaction; without them, what somebody else has
    /// changed, as far as it shows.
    pub(super) fn tell(
        &mut self,
        name: &LockName,
        own: Option<&[Change]>,
        state: &NameState,
        now: Timestamp,
    ) {
        let Some(watched) = self.0.get_mut(name) else {
            return;
        };
        let compared = watched.told.compare(state, now);
        let changes = own.or(compared.as_deref());
        watched.to.retain_mut(|watcher| {
            watcher.skipped |= changes.is_none();
            watcher.tell(changes.unwrap_or_default(), state, now);
            !watcher.send.is_closed()
        });
        if watched.to.is_empty() {
            self.0.remove(name);
        }
    }

    /// Ends every stream with that error.
    pub(super) fn end(&mut self, e: &Error) {
        for mut watcher in self.0.drain().flat_map(|(_, w)| w.to) {
            // A full backlog ends without it: the stream asks the closed connection next, and hears it there.
            let _ = watcher.send.try_send(Err(e.clone()));
        }
    }
}
