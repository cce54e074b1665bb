//! Waiting in the queue: a watch on the one key that must go first, and a look at the queue when it has.
//!
//! For *n* permits these are *n* keys, most of which must still be watched after a look: watches without an
//! event are kept.
//!
//! What could break it, and why it does not:
//!
//! * *The key goes, or is downgraded, before it is watched.* The watch reports the revision at which it
//!   begins. If the look was earlier, there is another look.
//! * *A waiter in front gives up.* Its deletion wakes only the one behind it, which finds the next key to
//!   watch.
//! * *The connection breaks.* The stream ends, and the engine asks again.
//! * *The member lags.* It also reports the changes, each just before it shows it. So a look may come too
//!   early. Then the next one goes through a majority. If that does not show the own entry, the engine makes
//!   a full attempt.
//! * *The lease is near its end.* A grant is reported only if the lease was confirmed within half of its ttl;
//!   otherwise it is renewed first.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

use dlock_core::Mode;
use dlock_core::spi::{LeaseKey, Push};
use etcd_client::KeyValue;
use futures::future::select_all;
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};

use crate::join::{Behind, Turn};
use crate::lock::EtcdLock;
use crate::session::Session;
use crate::watches::{Seen, Watched, Watches, What};

/// What a waiter watches of a line.
struct Watching {
    watched: HashMap<Vec<u8>, Watched>,
    /// The revision of the last look.
    at: i64,
    mode: Mode,
}

impl EtcdLock {
    /// Tells when it is the turn of the entry that was made in that revision.
    pub(crate) fn turn(
        &self,
        session: &Arc<Session>,
        (key, mode): (&LeaseKey, Mode),
        own: i64,
        behind: Behind,
    ) -> BoxStream<'static, Push> {
        let (lock, session, key) = (self.clone(), session.clone(), key.clone());
        // From now on: a late poll gets the earlier events.
        let mut watching = Watching::new(mode);
        let watches = session.link().ok().map(|(_, watches)| watches);
        if let Some(watches) = &watches {
            watching.watch(watches, &behind, None);
        }
        let turn = async move {
            let watches = watches?;
            loop {
                let told = watching.changed().await?;
                let mut turn = lock.look(&session, (&key, mode), own, true).await.ok()?;
                if matches!(&turn, Turn::Behind(seen) if seen.at < told) {
                    turn = lock.look(&session, (&key, mode), own, false).await.ok()?;
                }
                match turn {
                    Turn::Admitted => {
                        session.be_ample().await.ok()?;
                        // Or it was withdrawn meanwhile: a full attempt reports it.
                        let grant = session.grant(&key, own);
                        return Some(grant.map_or(Push::Changed, Push::Granted));
                    }
                    Turn::Behind(next) => watching.watch(&watches, &next, None),
                    // A full attempt reports why.
                    Turn::Mismatch(_) | Turn::Gone => return Some(Push::Changed),
                }
            }
        };
        stream::once(turn).filter_map(ready).boxed()
    }

    /// Tells a waiter that is not in the queue when one of those keys has gone.
    pub(crate) fn change(
        &self,
        session: &Arc<Session>,
        mode: Mode,
        behind: Behind,
    ) -> BoxStream<'static, Push> {
        let mut watching = Watching::new(mode);
        if let Ok((_, watches)) = session.link() {
            // Nobody looks again whether it was before the watch began.
            watching.watch(&watches, &behind, Some(behind.at + 1));
        }
        let changed = async move { watching.changed().await.map(|_| Push::Changed) };
        stream::once(changed).filter_map(ready).boxed()
    }
}

impl Watching {
    fn new(mode: Mode) -> Self {
        Self {
            watched: HashMap::new(),
            at: 0,
            mode,
        }
    }

    /// Watches those that are in front now, and no others any more.
    fn watch(&mut self, watches: &Watches, behind: &Behind, from: Option<i64>) {
        // A watch from a revision of the past tells what came since.
        self.at = from.map_or(behind.at, |_| i64::MAX);
        self.watched.retain(|key, _| behind.watch.contains(key));
        for key in &behind.watch {
            self.watched.entry(key.clone()).or_insert_with(|| {
                watches.watch(What {
                    key: key.clone(),
                    end: None,
                    from,
                    // A holder that is downgraded admits only readers, whatever joined meanwhile. Any other
                    // put of that name is its next entry, far behind.
                    deletions_only: self.mode != Mode::READER,
                })
            });
        }
    }

    /// Waits until one of them may have gone or changed since the last look: the revision that a look has to
    /// show now. `None`: the watch has ended.
    async fn changed(&mut self) -> Option<i64> {
        loop {
            if self.watched.is_empty() {
                return None;
            }
            let all = self.watched.iter_mut();
            let told = all.map(|(key, watched)| watched.next().map(|seen| (key.clone(), seen)).boxed());
            let ((key, seen), ..) = select_all(told).await;
            match seen? {
                Seen::Began(at) if at <= self.at => {}
                Seen::Began(at) => return Some(at),
                Seen::Events(events) => {
                    let revisions = events.iter().filter_map(|event| event.kv());
                    return Some(revisions.map(KeyValue::mod_revision).max().unwrap_or(0));
                }
                // It stands still, and is watched anew.
                Seen::Compacted => {
                    self.watched.remove(&key);
                    return Some(0);
                }
            }
        }
    }
}
