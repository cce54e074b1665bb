//! Watching a lock: a list of the queue with a watch on it, and another one each time it has changed.
//!
//! The differences of two lists are reported as changes if nothing else happened in between: the queue counts
//! its changes, and if the count matches what is seen, nothing was missed. Otherwise a snapshot is reported,
//! with `skipped`; also if the server has removed the queue, with its count, in between.
//!
//! *Why one watch after the other, and no persistent one* (`AddWatch`, of 3.6). That tells more of holds that
//! are shorter than a look. But after a reconnect the driver (0.11.2) does not set persistent watches again,
//! so that nothing is told any more, and no error either. Servers before 3.6 break the connection of a client
//! that asks for one, with all its locks on it. And its events pile up without bound in front of a slow
//! watcher. Skipped changes are reported in either case.
//!
//! *Whether a holder released or its session ended* does not show in its node. Each session has a node of its
//! own, which goes with it: if that exists, it was a release. A session that is closed right after a release
//! is reported as expired, if the watcher looks later than that.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Page, Watch};
use dlock_core::{Change, Holder, Inspection, LockName, Mode, RequestId, Result, Token};
use futures::channel::mpsc;
use futures::future::{BoxFuture, join, join_all};
use futures::stream::BoxStream;
use futures::{FutureExt as _, SinkExt as _, StreamExt as _};
use zookeeper_client::{Client, Error as Zk, Stat};

use crate::deadline::believed;
use crate::force_release::foreign;
use crate::layout::Layout;
use crate::line::Line;
use crate::lock::{ZkLock, unsupported};
use crate::node::NodeData;
use crate::session::Session;
use crate::watch_budget::Room;

/// Until a failed look is repeated.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// Until the next look where there is no room for a watch.
const UNWATCHED: Duration = Duration::from_secs(1);

/// How many changes may wait to be taken.
const AHEAD: usize = 64;

/// How often the line may change while its holders are asked for.
const TRIES: usize = 8;

/// A holder, and the session of its node.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    holder: Holder,
    session: i64,
}

/// One look at a line.
#[derive(Clone, Debug, Default)]
struct Look {
    /// Which line it is, and how often it has changed; `None` where there is none.
    count: Option<(i64, i32)>,
    children: BTreeSet<String>,
    line: Line,
    /// By their nodes.
    holders: BTreeMap<String, Seen>,
    /// One of the holders had gone before it could be looked at.
    missed: bool,
}

impl Look {
    fn now(&self) -> Inspection {
        // In the order of the line, which is that of the grants.
        let in_line = self.line.entries.iter();
        let holders = in_line.filter_map(|e| self.holders.get(&e.node).map(|s| s.holder.clone()));
        let waiting = self.line.entries.len() - self.line.admitted();
        Inspection::new(holders.collect(), u32::try_from(waiting).unwrap_or(u32::MAX))
    }

    /// Whether what differs from an earlier look is all that happened since.
    fn explains(&self, before: &Self) -> bool {
        let came = self.children.difference(&before.children).count();
        let went = before.children.difference(&self.children).count();
        let (Some((line, n)), Some((now, m))) = (before.count, self.count) else {
            return false;
        };
        if line != now || usize::try_from(m.wrapping_sub(n)) != Ok(came + went) || self.missed {
            return false;
        }
        // A waiter that went after somebody in front of it may have been the holder in between.
        let mut gone_before = false;
        for (i, entry) in before.line.entries.iter().enumerate() {
            let gone = !self.children.contains(&entry.node);
            if gone && gone_before && i >= before.line.admitted() {
                return false;
            }
            gone_before |= gone;
        }
        true
    }
}

impl ZkLock {
    /// The holders in that queue, and their sessions.
    async fn holders(
        &self,
        session: &Session,
        client: &Client,
        look: &mut Look,
        known: &Look,
        lock: &str,
    ) -> Result<()> {
        let holders = &look.line.entries[..look.line.admitted()];
        let asked = holders.iter().map(|entry| {
            let path = format!("{lock}/{}", entry.node);
            let before = known
                .holders
                .get(&entry.node)
                .filter(|s| s.holder.mode == entry.mode);
            let asking = before.is_none().then(|| client.get_data(&path));
            async move {
                match asking {
                    None => Ok(before.cloned()),
                    Some(asking) => match asking.await {
                        Ok((data, stat)) => {
                            Ok(Some(self.seen(session, (entry.id(), entry.mode), &data, &stat)))
                        }
                        Err(Zk::NoNode) => Ok(None),
                        Err(e) => Err(session.failed(e)),
                    },
                }
            }
        });
        let asked = join_all(asked).await;
        let mut found = BTreeMap::new();
        for (entry, seen) in holders.iter().zip(asked) {
            match seen? {
                Some(seen) => drop(found.insert(entry.node.clone(), seen)),
                None => look.missed = true,
            }
        }
        look.holders = found;
        Ok(())
    }

    fn seen(&self, session: &Session, (id, mode): (RequestId, Mode), data: &[u8], stat: &Stat) -> Seen {
        let data = NodeData::read(data);
        let id = match self.paths().layout {
            Layout::Own => id,
            Layout::Curator => data.id.unwrap_or(id),
        };
        let token = u64::try_from(stat.czxid).ok().and_then(Token::new);
        let expires_in = match session.owns(stat) {
            true => session
                .now()
                .until(session.deadline.confirmed() + session.deadline.span()),
            // Its session may be heard of at any moment; this is what it has then.
            false => believed(data.ttl),
        };
        Seen {
            holder: Holder::new(id, mode, token, expires_in)
                .with_owner(data.owner)
                .with_whereabouts(data.whereabouts),
            session: stat.ephemeral_owner,
        }
    }

    async fn inspect_line(&self, session: &Session, client: &Client, name: &LockName) -> Result<Inspection> {
        let lock = self.paths().lock(name);
        let mut look = Look::default();
        for _ in 0..TRIES {
            look = Look {
                line: self.line(session.children(client, &lock).await?)?,
                ..Look::default()
            };
            let known = Look::default();
            self.holders(session, client, &mut look, &known, &lock).await?;
            if !look.missed {
                break;
            }
        }
        Ok(look.now())
    }

    async fn inspect_unfair(
        &self,
        session: &Session,
        client: &Client,
        name: &LockName,
    ) -> Result<Inspection> {
        let Some((data, stat)) = session.data(client, &self.paths().lock(name)).await? else {
            return Ok(Inspection::default());
        };
        let id = NodeData::read(&data).id.ok_or_else(foreign)?;
        let holder = self.seen(session, (id, Mode::Exclusive), &data, &stat).holder;
        Ok(Inspection::new(vec![holder], 0))
    }
}

/// The stream of changes of one name.
struct Watching {
    lock: ZkLock,
    name: LockName,
    path: String,
    last: Option<Look>,
    /// To be told.
    pending: VecDeque<Change>,
    /// Until when there is nothing to be seen.
    quiet: Option<BoxFuture<'static, ()>>,
    /// For its watch, and after it.
    room: Option<Vec<Room>>,
    over: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<Change>> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Some(Ok(change));
            }
            if self.over {
                return None;
            }
            if let Some(quiet) = self.quiet.take() {
                quiet.await;
            }
            if let Err(e) = self.look().await {
                if !e.is_retryable() {
                    self.over = true;
                    return Some(Err(e.with_name(&self.name)));
                }
                self.quiet = Some(self.lock.connection.runtime.sleep(AFTER_FAILURE));
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        let session = self.lock.connection.session().await?;
        let client = session.client()?;
        let told = |e| session.failed(e);
        let empty = Look::default();
        let known = self.last.as_ref().unwrap_or(&empty);
        let mut look = Look::default();
        let room = session.watches.take(std::slice::from_ref(&self.path));
        let runtime = &self.lock.connection.runtime;
        // Of each look anew, since it tells once.
        let looked = match &room {
            Some(_) => {
                let looked = client.get_and_watch_children(&self.path).await;
                looked.map(|(children, stat, watcher)| (children, stat, watcher.changed().map(drop).boxed()))
            }
            None => {
                let looked = client.get_children(&self.path).await;
                looked.map(|(children, stat)| (children, stat, runtime.sleep(UNWATCHED)))
            }
        };
        let quiet = match looked {
            Ok((children, stat, quiet)) => {
                look.line = self.lock.line(children.clone())?;
                look.children = children.into_iter().collect();
                look.count = Some((stat.czxid, stat.cversion));
                self.lock
                    .holders(&session, &client, &mut look, known, &self.path)
                    .await?;
                quiet
            }
            Err(Zk::NoNode) if room.is_none() => runtime.sleep(UNWATCHED),
            Err(Zk::NoNode) => match client.check_and_watch_stat(&self.path).await.map_err(told)? {
                (None, watcher) => watcher.changed().map(drop).boxed(),
                // It was made meanwhile.
                (Some(_), _) => return Ok(()),
            },
            Err(e) => return Err(told(e)),
        };
        match &self.last {
            // No watch told of a change, it only looks again: a line that came and went in between is not
            // seen.
            Some(before) if self.room.is_none() && before.count.is_none() && look.count.is_none() => {}
            Some(before) if look.explains(before) => {
                let changes = self.lock.differences(&client, &self.name, before, &look).await;
                self.pending.extend(changes);
            }
            before => self.pending.push_back(Change::Snapshot {
                now: look.now(),
                skipped: before.is_some(),
            }),
        }
        self.last = Some(look);
        self.quiet = Some(quiet);
        self.room = room;
        Ok(())
    }
}

impl ZkLock {
    async fn differences(&self, client: &Client, name: &LockName, before: &Look, now: &Look) -> Vec<Change> {
        let in_line = before.line.entries.iter();
        let gone: Vec<_> = in_line
            .filter(|e| !now.children.contains(&e.node))
            .filter_map(|e| before.holders.get(&e.node).map(|seen| (e.node.clone(), seen)))
            .collect();
        let mut changes = Vec::new();
        if !gone.is_empty() {
            let nodes: Vec<_> = gone.iter().map(|(node, _)| node.clone()).collect();
            let sessions: HashSet<i64> = gone.iter().map(|(_, seen)| seen.session).collect();
            let ended = sessions.into_iter().map(|id| async move {
                let marker = client.check_stat(&self.paths().session(id)).await;
                (marker == Ok(None)).then_some(id)
            });
            let (ended, forced) = join(join_all(ended), self.were_ended(client, name, &nodes)).await;
            let ended: HashSet<i64> = ended.into_iter().flatten().collect();
            for (node, seen) in gone {
                let id = seen.holder.id;
                changes.push(match (forced.contains(&node), ended.contains(&seen.session)) {
                    (true, _) => Change::Forced { id },
                    (false, true) => Change::Expired { id },
                    (false, false) => Change::Released { id },
                });
            }
        }
        for entry in &now.line.entries {
            if let Some(seen) = now.holders.get(&entry.node)
                && before
                    .holders
                    .get(&entry.node)
                    .is_none_or(|b| b.holder.mode != seen.holder.mode)
            {
                changes.push(Change::Granted(seen.holder.clone()));
            }
        }
        changes
    }
}

#[async_trait]
impl Watch for ZkLock {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.check_name(name)?;
        if self.paths().unfair {
            return Err(unsupported("unfair locks are not watched"));
        }
        let mut watching = Watching {
            lock: self.clone(),
            name: name.clone(),
            path: self.paths().lock(name),
            last: None,
            pending: VecDeque::new(),
            quiet: None,
            room: None,
            over: false,
        };
        // The first look is behind a `sync`: a watch that begins after a grant sees it.
        {
            let session = self.connection.session().await?;
            let client = session.client()?;
            let synced = session.synced(&client, || async { Ok(()) }).await;
            synced.map_err(|e| session.failed(e))?;
        }
        while watching.pending.is_empty() {
            watching.look().await?;
        }
        // In a task of its own: even a busy watcher sees short holds. The task stops looking when it is that
        // many changes ahead, and then reports that some were skipped.
        let (mut tell, told) = mpsc::channel(AHEAD);
        let looking = async move {
            while let Some(change) = watching.next().await {
                if tell.send(change).await.is_err() {
                    return;
                }
            }
        };
        // Dropped with the stream, it ends the task.
        let (looking, handle) = looking.remote_handle();
        self.connection.runtime.spawn(looking.boxed());
        let told = told.map(move |change| {
            let _ = &handle;
            change
        });
        Ok(told.boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.check_name(name)?;
        let look = self.reading(|session, client| {
            async move {
                match self.paths().unfair {
                    true => self.inspect_unfair(&session, &client, name).await,
                    false => self.inspect_line(&session, &client, name).await,
                }
            }
            .boxed()
        });
        look.await
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.end_by_force(name).await
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        self.reading(|session, client| self.page(session, client, prefix, from).boxed())
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::line_of;
    use crate::node::prefix;

    /// A look at a line that was made at `line` and has had `changes`, with requests of those numbers.
    fn look((line, changes): (i64, i32), mode: Mode, numbers: &[u64]) -> Look {
        let name = |n: &u64| format!("{}{n:010}", prefix(Layout::Own, RequestId::new(1, *n), mode));
        let children: Vec<_> = numbers.iter().map(name).collect();
        Look {
            count: Some((line, changes)),
            line: line_of(Layout::Own, children.clone()).unwrap(),
            children: children.into_iter().collect(),
            ..Look::default()
        }
    }

    #[test]
    fn a_look_explains_all_that_happened_or_does_not() {
        let (x, r) = (Mode::Exclusive, Mode::READER);
        let before = look((7, 3), x, &[1, 2, 3]);
        for (now, explains) in [
            (look((7, 3), x, &[1, 2, 3]), true),
            (look((7, 4), x, &[2, 3]), true),
            (look((7, 4), x, &[1, 3]), true),
            (look((7, 5), x, &[2, 3, 4]), true),
            // Of another line; and somebody came and went.
            (look((8, 4), x, &[2, 3]), false),
            (look((7, 6), x, &[2, 3]), false),
            // The second may have been the holder in between.
            (look((7, 5), x, &[3]), false),
            (Look::default(), false),
        ] {
            assert_eq!(now.explains(&before), explains, "{now:?}");
        }
        let mut missed = look((7, 4), x, &[2, 3]);
        missed.missed = true;
        assert!(!missed.explains(&before));
        // They were holders both.
        assert!(look((7, 5), r, &[3]).explains(&look((7, 3), r, &[1, 2, 3])));
    }
}
