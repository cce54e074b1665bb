//! Looking on: the line of a lock as it was in one revision, and all that happened to it since.
//!
//! Etcd tells each change in the order of revisions, and a watch that was broken off goes on where it
//! ended. So nothing is missed, unless the store has forgotten it by compaction, or whoever watches is
//! slow: then the state as a whole is told, and that something was skipped.
//!
//! *How a hold ended* is not seen from its entry. A release by force writes a key in the same revision. With
//! a lease that ends goes the mark of its client, in the same revision; of other programs the lease is asked
//! for. Everything else is a release. The member that tells of a revision is asked for what it knows of it by
//! itself, so that a watcher is quicker than those who take turns. One that is not, since its member is far
//! away, skips as if nobody took what it tells.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{InLine as _, Page, Watch};
use dlock_core::{Change, Error, ErrorKind, Holder, Inspection, LockName, RequestId, Result};
use etcd_client::{Event, EventType, GetOptions};
use futures::channel::mpsc;
use futures::future::{Either, poll_fn, select, try_join, try_join3};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};

use crate::keys::{behind, read_request};
use crate::line::{Entry, Line, line_of};
use crate::link::revision;
use crate::lock::EtcdLock;
use crate::session::Session;
use crate::watches::{Seen, What};

/// Until a failed look is repeated.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// How many changes may wait to be taken, or to be looked into.
const AHEAD: usize = 64;

/// How many holders are asked for at a time.
const AT_ONCE: usize = 100;

/// How long a client's lease lives unless it is renewed, and where the client is.
type Client = (Duration, Option<Arc<str>>);

impl EtcdLock {
    /// The line with the labels of its owners, and in which revision it was so.
    async fn look_on(&self, session: &Session, name: &LockName) -> Result<(Line, i64)> {
        let line = self.keys().line(name);
        let begins = line.len();
        let how = GetOptions::new().with_range(behind(&line));
        let read = session.get(line, how).await?;
        Ok((line_of(read.kvs(), begins)?, revision!(read)))
    }

    async fn client(&self, session: &Session, entry: &Entry) -> Result<Client> {
        if entry.lease == session.lease {
            let ends = session.deadline.confirmed() + session.deadline.span();
            let whereabouts = self.connection.settings.whereabouts.clone();
            return Ok((session.now().until(ends), Some(whereabouts)));
        }
        let key = self.keys().session(entry.lease);
        // The member has shown the entry, so it knows of the mark that was made before.
        let mark = session.get_by_itself(key, GetOptions::new()).await?;
        let mark = mark.kvs().first();
        let mark = mark.and_then(|kv| kv.value_str().ok());
        let read = mark.and_then(|mark| mark.strip_prefix("ttl=")?.split_once(' '));
        Ok(match read {
            // It may be heard of at any moment; this is what it has then.
            Some((ttl, whereabouts)) => (
                Duration::from_secs(ttl.parse().unwrap_or(0)),
                Some(whereabouts.into()),
            ),
            None => (self.left(session, entry.lease).await?.unwrap_or_default(), None),
        })
    }

    /// How long that lease has yet; `None` if it is not there any more.
    async fn left(&self, session: &Session, lease: i64) -> Result<Option<Duration>> {
        let (link, _) = session.link()?;
        let mut leases = link.client.lease_client();
        let answer = link.answer(leases.time_to_live(lease, None)).await;
        let answer = answer.map_err(|e| self.connection.settings.told(e))?;
        Ok(u64::try_from(answer.ttl()).ok().map(Duration::from_secs))
    }

    /// Whose an entry is that was there in that revision, and its label.
    async fn owner<'a>(
        &self,
        session: &Session,
        entry: &'a Entry,
        at: i64,
    ) -> Result<(RequestId, Option<&'a str>)> {
        let label = str::from_utf8(&entry.value)
            .ok()
            .filter(|label| !label.is_empty());
        if !entry.is_ours {
            // It has its lease and nothing else.
            return Ok((RequestId::new(entry.lease.cast_unsigned().into(), 0), label));
        }
        let name = entry.key.rsplit(|b| *b == b'/').next().unwrap_or_default();
        let key = self.keys().request(&String::from_utf8_lossy(name));
        let read = session
            .get_by_itself(key, GetOptions::new().with_revision(at))
            .await?;
        let of_it = read.kvs().iter().find(|kv| kv.mod_revision() == entry.revision);
        let (text, label) = match of_it {
            Some(kv) => (kv.value(), label),
            None => (&*entry.value, None),
        };
        let id = read_request(text).ok_or_else(|| no_request(entry))?;
        Ok((id, label))
    }

    /// The holders that have these entries, in that revision.
    async fn holders(
        &self,
        session: &Session,
        entries: impl IntoIterator<Item = &Entry>,
        at: i64,
    ) -> Result<Vec<Holder>> {
        let holders = entries.into_iter().map(|entry| async move {
            let (client, owner) = (self.client(session, entry), self.owner(session, entry, at));
            let ((expires_in, whereabouts), (id, label)) = try_join(client, owner).await?;
            let holder = Holder::new(id, entry.mode(), entry.token(), expires_in);
            Ok(holder
                .with_owner(label.map(Into::into))
                .with_whereabouts(whereabouts))
        });
        let holders: Vec<_> = holders.collect();
        stream::iter(holders).buffered(AT_ONCE).try_collect().await
    }

    async fn inspection(&self, session: &Session, line: &Line, at: i64) -> Result<Inspection> {
        let (holding, waiting) = line.entries.split_at(line.admitted());
        Ok(Inspection::new(
            self.holders(session, holding, at).await?,
            u32::try_from(waiting.len()).unwrap_or(u32::MAX),
        ))
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

    /// How that holder ended, in that revision.
    async fn ending(&self, session: &Session, name: &LockName, entry: &Entry, at: i64) -> Result<Change> {
        let then = |key| {
            let how = GetOptions::new().with_revision(at).with_keys_only();
            session.get_by_itself(key, how)
        };
        let mark = self.keys().session(entry.lease);
        let (forced, mark, (id, _)) = try_join3(
            then(self.keys().forced(name)),
            then(mark),
            self.owner(session, entry, at - 1),
        )
        .await?;
        if forced.kvs().first().is_some_and(|kv| kv.mod_revision() == at) {
            return Ok(Change::Forced { id });
        }
        let is_there = match entry.is_ours {
            true => !mark.kvs().is_empty(),
            false => self.left(session, entry.lease).await?.is_some(),
        };
        Ok(match is_there {
            true => Change::Released { id },
            false => Change::Expired { id },
        })
    }
}

fn no_request(entry: &Entry) -> Error {
    let key = entry.key.escape_ascii();
    let message =
        format!("the key `{key}` in etcd does not say whose it is: remove it, or use another prefix");
    Error::new(ErrorKind::BackendData, message)
}

/// The stream of changes of one name.
struct Watching {
    lock: EtcdLock,
    name: LockName,
    line: Line,
    /// In which revision the line was so.
    at: i64,
    tell: mpsc::Sender<Result<Change>>,
    /// Something was not told.
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

    /// Follows the line on one connection. Whether anybody listens yet.
    async fn follow(&mut self) -> Result<bool> {
        let session = self.lock.connection.session().await?;
        let (_, watches) = session.link()?;
        let line = self.lock.keys().line(&self.name);
        let mut watched = watches.watch(What {
            key: line.clone().into(),
            end: Some(behind(&line)),
            from: Some(self.at + 1),
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
        let now = self.lock.inspection(session, &self.line, self.at).await?;
        let told = Change::Snapshot { now, skipped: true };
        self.skipped = self.tell.try_send(Ok(told)).is_err();
        Ok(())
    }

    /// Takes in what happened, one revision after the other.
    async fn take_in(&mut self, session: &Session, events: &[Event]) -> Result<()> {
        let revision = |event: &Event| event.kv().map_or(0, etcd_client::KeyValue::mod_revision);
        self.skipped |= events.len() > AHEAD;
        for group in events.chunk_by(|a, b| revision(a) == revision(b)) {
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
            if self.skipped {
                continue;
            }
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
        let (was, is) = (
            &before.entries[..before.admitted()],
            &self.line.entries[..self.line.admitted()],
        );
        let there: HashSet<_> = self.line.entries.iter().map(|e| e.revision).collect();
        let modes: HashMap<_, _> = was.iter().map(|e| (e.revision, e.mode)).collect();
        let ended = was.iter().filter(|e| !there.contains(&e.revision));
        let ended: Vec<_> = ended
            .map(|e| self.lock.ending(session, &self.name, e, self.at))
            .collect();
        let ended = stream::iter(ended).buffered(AT_ONCE).try_collect();
        let granted = is.iter().filter(|e| modes.get(&e.revision) != Some(&e.mode));
        let (mut changes, granted): (Vec<_>, _) =
            try_join(ended, self.lock.holders(session, granted, self.at)).await?;
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
