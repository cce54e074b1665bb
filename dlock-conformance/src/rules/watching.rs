//! A stream of changes, followed: what its reader believes after each item, and whether the items fit
//! together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::MutexGuard;

use dlock_core::{Change, Holder, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::prelude::*;
use crate::policy::Merging;
use crate::subject::Observe;

/// The grants of a name with one holder at a time, in their order: each noted before its release.
#[derive(Clone, Default)]
pub(super) struct Grants(Arc<Mutex<Vec<Grant>>>);

#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) id: String,
    /// When it was requested.
    pub(super) asked: Timestamp,
}

impl Grants {
    pub(super) fn note(&self, id: String, asked: Timestamp) {
        self.all().push(Grant { id, asked });
    }

    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Grant>> {
        lock(&self.0)
    }
}

/// What one item said.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// These hold.
    Snapshot(Vec<String>),
    /// That one holds now as well.
    Granted(String),
    /// That one holds no more: `expired`, `released` or `forced`.
    Ended(String, &'static str),
}

/// A stream that is read.
pub(super) struct Watching {
    who: String,
    changes: BoxStream<'static, Result<Change>>,
    holders: BTreeMap<String, Holder>,
    told: Vec<Told>,
    /// When the first item was here.
    pub(super) began: Timestamp,
    /// The largest token so far.
    newest: Option<Token>,
    /// How many snapshots said that changes are missing.
    pub(super) skips: usize,
}

/// The part of a client that watches and inspects, where that is claimed.
pub(super) fn observer(client: &dyn Subject) -> Verdict<&dyn Observe> {
    client.observe().ok_or_else(|| {
        Failure::Broken("watching or inspecting is claimed, and the client does not offer it".to_owned())
    })
}

/// All of them take items until they see exactly these holders.
pub(super) async fn all_believe(cx: &Cx, streams: &mut [Watching], by: Timestamp, ids: &[String]) -> Verdict {
    try_join_all(streams.iter_mut().map(|stream| stream.until_holders(cx, by, ids))).await?;
    Ok(())
}

/// A watcher of the holder's client, and one of another client.
pub(super) async fn beside_and_elsewhere(
    cx: &Cx,
    name: &LockName,
    (beside, elsewhere): (&dyn Subject, &dyn Subject),
    who: &str,
) -> Verdict<Vec<Watching>> {
    Ok(vec![
        Watching::begin(cx, beside, name, format!("{who} beside a holder")).await?,
        Watching::begin(cx, elsewhere, name, format!("{who} elsewhere")).await?,
    ])
}

impl Watching {
    /// Opens the stream, and takes the first item, which must be a snapshot.
    pub(super) async fn begin(
        cx: &Cx,
        client: &dyn Subject,
        name: &LockName,
        who: impl fmt::Display + Send,
    ) -> Verdict<Self> {
        let bound = cx.claims().op_bound;
        let who = who.to_string();
        let what = format!("{who} starts to watch");
        let changes = cx.within(bound, &what, observer(client)?.watch(name)).await?;
        let mut watching = Self {
            changes: changes.seen(&what)?,
            holders: BTreeMap::new(),
            told: Vec::new(),
            began: cx.now(),
            newest: None,
            skips: 0,
            who,
        };
        if !watching.next(cx, bound).await? {
            fail!("{}: no first item after {bound:?}", watching.who);
        }
        watching.began = cx.now();
        Ok(watching)
    }

    /// Takes one item; `false` if none came within that time.
    pub(super) async fn next(&mut self, cx: &Cx, limit: Duration) -> Verdict<bool> {
        match cx.timeout(limit, self.changes.next()).await {
            None => Ok(false),
            Some(Some(Ok(change))) => {
                self.take(change)?;
                Ok(true)
            }
            Some(Some(Err(e))) => fail!(
                "{}: the stream ended with {e:?} although nothing was cut",
                self.who
            ),
            Some(None) => fail!("{}: the stream ended without an error", self.who),
        }
    }

    /// Takes what comes until that time.
    pub(super) async fn follow_until(&mut self, cx: &Cx, until: Timestamp) -> Verdict {
        while cx.now() < until {
            self.next(cx, cx.now().until(until)).await?;
        }
        Ok(())
    }

    /// Whether it sees exactly these holders.
    pub(super) fn believes(&self, ids: &[String]) -> bool {
        self.holders.len() == ids.len() && ids.iter().all(|id| self.holders.contains_key(id))
    }

    /// Takes items until it sees exactly these holders.
    pub(super) async fn until_holders(&mut self, cx: &Cx, by: Timestamp, ids: &[String]) -> Verdict {
        while !self.believes(ids) {
            let now = cx.now();
            if now >= by || !self.next(cx, now.until(by)).await? && !self.believes(ids) {
                fail!(
                    "{}: the final state was not reported: the watcher believes that the holders are {:?}, \
                        but they are {ids:?}; {} items came, the latest {:?}",
                    self.who,
                    self.holders.keys().collect::<Vec<_>>(),
                    self.told.len(),
                    self.told.iter().rev().take(4).collect::<Vec<_>>()
                );
            }
        }
        Ok(())
    }

    /// Drops the stream. Its items are kept.
    pub(super) fn stop(&mut self) {
        self.changes = stream::empty().boxed();
    }

    /// How many items came.
    pub(super) fn items(&self) -> usize {
        self.told.len()
    }

    /// What they said.
    pub(super) fn told(&self) -> &[Told] {
        &self.told
    }

    /// The holders that were reported, by a change or in a snapshot.
    pub(super) fn was_told_of(&self, id: &str) -> bool {
        self.told.iter().any(|told| match told {
            Told::Granted(granted) => granted == id,
            Told::Snapshot(holders) => holders.iter().any(|h| h == id),
            Told::Ended(..) => false,
        })
    }

    fn take(&mut self, change: Change) -> Verdict {
        let who = &self.who;
        match change {
            Change::Snapshot { now, skipped } => {
                ensure!(
                    skipped != self.told.is_empty(),
                    "{who}: item {} is a snapshot with skipped: {skipped}; only the first item is a snapshot \
                        without missing changes",
                    self.told.len() + 1
                );
                self.skips += usize::from(skipped);
                self.told.push(Told::Snapshot(
                    now.holders.iter().map(|h| h.id.to_string()).collect(),
                ));
                for holder in &now.holders {
                    self.newest = self.newest.max(holder.token);
                }
                let by_id = |h: Holder| (h.id.to_string(), h);
                self.holders = now.holders.into_iter().map(by_id).collect();
            }
            _ if self.told.is_empty() => fail!("{who}: the first item is {change:?} rather than a snapshot"),
            Change::Granted(holder) => {
                let id = holder.id.to_string();
                let exclusive = |h: &Holder| h.mode.is_exclusive();
                let beside: Vec<_> = self.holders.iter().filter(|(other, _)| **other != id).collect();
                ensure!(
                    beside.is_empty() || !exclusive(&holder) && !beside.iter().any(|(_, h)| exclusive(h)),
                    "{who}: the grant of {id} ({}) was reported while {:?} hold, without the end of their \
                     holds",
                    holder.mode,
                    beside.iter().map(|(id, _)| id).collect::<Vec<_>>()
                );
                ensure!(
                    holder.token >= self.newest,
                    "{who}: the grant {id} with token {:?} was reported after one with {:?}: not in the \
                        order of the grants",
                    holder.token,
                    self.newest
                );
                self.newest = holder.token;
                self.told.push(Told::Granted(id.clone()));
                self.holders.insert(id, holder);
            }
            Change::Released { id } => self.ended(id.to_string(), "released")?,
            Change::Expired { id } => self.ended(id.to_string(), "expired")?,
            Change::Forced { id } => self.ended(id.to_string(), "forced")?,
            // A kind of change that this kit does not know yet.
            _ => {}
        }
        Ok(())
    }

    fn ended(&mut self, id: String, how: &'static str) -> Verdict {
        if self.holders.remove(&id).is_none() {
            fail!(
                "{}: the stream reports that {id} was {how}, but never reported its grant: a change is \
                 missing",
                self.who
            );
        }
        self.told.push(Told::Ended(id, how));
        Ok(())
    }

    /// Checks that each grant requested after the first item was reported in its turn, or that a snapshot in
    /// its place says that changes are missing, up to the last reported one.
    pub(super) fn is_unbroken(&self, grants: &Grants, merging: Merging) -> Verdict {
        let grants = grants.all();
        let place: BTreeMap<&str, usize> = (0..).zip(&*grants).map(|(i, g)| (g.id.as_str(), i)).collect();
        // The next reported one is among these; at first, up to the one requested after the first item.
        let (mut from, mut to) = (0_usize, grants.partition_point(|g| g.asked < self.began));
        for (item, told) in (1..).zip(&self.told) {
            let (id, skips) = match told {
                Told::Ended(..) => continue,
                Told::Granted(id) => (id, merging == Merging::Silent),
                Told::Snapshot(holders) => {
                    if item > 1 {
                        to = grants.len();
                        // It may show the last reported one.
                        from = from.saturating_sub(1);
                    }
                    match holders.first() {
                        None => continue,
                        Some(id) => (id, true),
                    }
                }
            };
            let Some(&at) = place.get(id.as_str()) else {
                fail!(
                    "{}: the stream reports a grant {id} that does not exist",
                    self.who
                );
            };
            ensure!(
                at >= from && (at <= to || skips),
                "{}: item {item} is grant {} of {}, although grant {} was due, and nothing says that changes \
                    are missing",
                self.who,
                at + 1,
                grants.len(),
                to + 1
            );
            (from, to) = (at + 1, at + 1);
        }
        Ok(())
    }
}
