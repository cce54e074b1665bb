//! Watching a lock: its queue at one revision, and all changes since.
//!
//! Etcd reports changes in the order of revisions, and a broken watch resumes where it ended. So nothing is
//! missed, unless the store has compacted it, or the watcher is slow: then it gets a snapshot, and learns
//! that changes were skipped.
//!
//! The meaning of [a change](crate::holders) is looked up. Where that takes longer than the next changes,
//! since the member is far away, they are skipped as for a slow watcher.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Page, Watch};
use dlock_core::{Change, Error, Inspection, LockName, Result};
use etcd_client::{Event, EventType, GetOptions};
use futures::channel::mpsc;
use futures::future::{Either, poll_fn, select, try_join};
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};

use crate::keys::behind;
use crate::line::{Entry, Line};
use crate::lock::EtcdLock;
use crate::session::Session;
use crate::watches::{Seen, What};

/// Until a failed look is repeated.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// How many changes may wait to be taken, and how many revisions to be looked into.
const AHEAD: usize = 64;

impl EtcdLock {
    /// The line with the labels of its owners, and in which revision it was so.
    async fn look_on(&self, session: &Session, name: &LockName) -> Result<(Line, i64)> {
        session.line(self.keys().line(name), GetOptions::new()).await
    }

    async fn inspection(&self, session: &Session, line: &Line, at: i64) -> Result<Inspection> {
        let (holding, waiting) = line.entries.split_at(line.admitted());
        let waiting = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        let holders = self.holders(session, holding, at).await?;
        Ok(Inspection::new(holders, waiting))
    }

    async fn looked(&self, name: &LockName) -> Result<(Inspection, Line, i64)> {
        let read = |session: Arc<Session>| {
            let looking = async move {
                let (line, at) = self.look_on(&session, name).await?;
                Ok((self.inspection(&session, &line, at).await?, line, at))
            };
            looking.boxed()
        };
        self.reading(read).await
    }
}

/// The stream of changes of one name.
struct Watching {
    lock: EtcdLock,
    name: LockName,
    line: Line,
    /// In which revision the line was so.
    at: i64,
    tell: mpsc::Sender<Result<Change>>,
    /// Some changes were not reported.
    skipped: bool,
}

impl Watching {
    async fn run(mut self) {
        loop {
            match self.follow().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) if e.is_retryable() => {
                    self.lock.connection.runtime.sleep(AFTER_FAILURE).await;
                    dlock_core::runtime::yield_now().await;
                }
                Err(e) => {
                    let _ = poll_fn(|cx| self.tell.poll_ready(cx)).await;
                    let _ = self.tell.try_send(Err(e.with_name(&self.name)));
                    return;
                }
            }
        }
    }

    /// Follows the queue on one connection. Returns whether there is still a listener.
    async fn follow(&mut self) -> Result<bool> {
        let session = self.lock.connection.session().await?;
        let (_, watches) = session.link()?;
        let line = self.lock.keys().line(&self.name);
        let mut watched = watches.watch(What {
            key: line.clone().into(),
            end: Some(behind(&line)),
            from: Some(self.at + 1),
            deletions_only: false,
        });
        loop {
            let seen = {
                let next = std::pin::pin!(watched.next());
                match self.skipped {
                    false => Some(next.await),
                    true => match select(poll_fn(|cx| self.tell.poll_ready(cx)), next).await {
                        Either::Left((Ok(()), _)) => None,
                        Either::Left((Err(_), _)) => return Ok(false),
                        Either::Right((seen, _)) => Some(seen),
                    },
                }
            };
            match seen {
                // There is room again.
                None => self.snapshot(&session).await?,
                Some(Some(Seen::Events(mut events))) => {
                    while let Some(Some(Seen::Events(more))) = watched.next().now_or_never() {
                        events.extend(more);
                    }
                    self.take_in(&session, &events).await?;
                }
                // The member is behind, or the store was put back from a snapshot and counts from there.
                Some(Some(Seen::Began(at))) if at < self.at => {
                    let (line, at) = self.lock.look_on(&session, &self.name).await?;
                    if at < self.at {
                        (self.line, self.at, self.skipped) = (line, at, true);
                        return Ok(true);
                    }
                }
                Some(Some(Seen::Began(_))) => {}
                Some(Some(Seen::Compacted)) => {
                    (self.line, self.at) = self.lock.look_on(&session, &self.name).await?;
                    self.skipped = true;
                    return Ok(true);
                }
                // The connection is gone.
                Some(None) => return Ok(true),
            }
        }
    }

    /// The state as a whole, since something was skipped.
    async fn snapshot(&mut self, session: &Session) -> Result<()> {
        // What it was when something was skipped may be compacted by now.
        (self.line, self.at) = self.lock.look_on(session, &self.name).await?;
        let now = self.lock.inspection(session, &self.line, self.at).await?;
        let told = Change::Snapshot { now, skipped: true };
        self.skipped = self.tell.try_send(Ok(told)).is_err();
        Ok(())
    }

    /// Takes in what happened, one revision after the other.
    async fn take_in(&mut self, session: &Session, events: &[Event]) -> Result<()> {
        let revision = |event: &Event| event.kv().map_or(0, etcd_client::KeyValue::mod_revision);
        let groups: Vec<_> = events.chunk_by(|a, b| revision(a) == revision(b)).collect();
        self.skipped |= groups.len() > AHEAD;
        for group in groups {
            // All of it is looked at when there is room.
            if self.skipped {
                break;
            }
            let at = revision(&group[0]);
            // Told already, before the connection broke.
            if at <= self.at {
                continue;
            }
            let before = self.line.clone();
            for event in group {
                self.apply(event)?;
            }
            self.at = at;
            match self.differences(session, &before).await {
                Ok(changes) => {
                    for change in changes {
                        self.skipped |= self.tell.try_send(Ok(change)).is_err();
                    }
                }
                // What it was is not to be known any more.
                Err(_) => self.skipped = true,
            }
        }
        Ok(())
    }

    fn apply(&mut self, event: &Event) -> Result<(), Error> {
        let Some(kv) = event.kv() else { return Ok(()) };
        self.line.entries.retain(|e| e.key != kv.key());
        if event.event_type() == EventType::Put {
            let entry = Entry::read(kv, self.lock.keys().line(&self.name).len())?;
            let at = self.line.entries.partition_point(|e| e.revision < entry.revision);
            self.line.entries.insert(at, entry);
        }
        Ok(())
    }

    async fn differences(&self, session: &Session, before: &Line) -> Result<Vec<Change>> {
        let was = &before.entries[..before.admitted()];
        let is = &self.line.entries[..self.line.admitted()];
        let there: HashSet<_> = self.line.entries.iter().map(|e| e.revision).collect();
        let modes: HashMap<_, _> = was.iter().map(|e| (e.revision, e.mode)).collect();
        let ended = was.iter().filter(|e| !there.contains(&e.revision));
        let ended = self.lock.endings(session, &self.name, ended, self.at);
        let granted = is.iter().filter(|e| modes.get(&e.revision) != Some(&e.mode));
        let granted = self.lock.holders(session, granted, self.at);
        let (mut changes, granted) = try_join(ended, granted).await?;
        changes.extend(granted.into_iter().map(Change::Granted));
        Ok(changes)
    }
}

#[async_trait]
impl Watch for EtcdLock {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.check_name(name)?;
        let (now, line, at) = self.looked(name).await?;
        let (mut tell, told) = mpsc::channel(AHEAD);
        let _ = tell.try_send(Ok(Change::Snapshot { now, skipped: false }));
        let watching = Watching {
            lock: self.clone(),
            name: name.clone(),
            line,
            at,
            tell,
            skipped: false,
        };
        // Dropped with the stream, it ends the task.
        let (watching, handle) = watching.run().remote_handle();
        self.connection.runtime.spawn(watching.boxed());
        let told = told.map(move |change| {
            let _ = &handle;
            change
        });
        Ok(told.boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.check_name(name)?;
        Ok(self.looked(name).await?.0)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.check_name(name)?;
        let session = self.connection.session().await?;
        self.end_holders(&session, name).await
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let read = |session: Arc<Session>| async move { self.page(&session, prefix, from).await }.boxed();
        self.reading(read).await
    }
}
