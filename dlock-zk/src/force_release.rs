//! Force-release, and how holders learn of it.
//!
//! A session survives the deletion of one of its nodes, so a holder would not notice: its renewals only
//! confirm the session. So a release by force is also written to one node of the ensemble, in the same step,
//! and every session watches that node. It lists the last few locks that were ended; a session that missed
//! more looks for each of its nodes.
//!
//! What could break it, and why it does not:
//!
//! * *More are ended than the node keeps.* No step ends more than that, so what a step says is never cut
//!   short. A session that missed a step knows it from the node's version, and looks.
//! * *The session has not looked yet*, or cannot at the moment. The first look, and one that failed, look for
//!   each node as well.
//! * *It was seen in the queue, and is not handed out yet.* An ended request is forgotten whether it was
//!   handed out or not, and a forgotten one is not [handed out](crate::requests::Requests::hand_out).
//! * *Its node is not known yet*, since the answer to its creation was not read. Then the queue is read once
//!   more before the request is believed. A call that learns its node checks afterwards whether it was
//!   doubted, and a request is doubted only while its node is unknown, in one step: so one of the two holds.
//! * *Others must be looked for, which takes long.* The named ones are told first.
//! * *The operator dies between two steps.* Some holds are ended and told, the others stay; a repeated
//!   force-release ends them.
//! * *One of the two nodes of an unfair lock was deleted by hand.* A hold is over when the node of the lock
//!   has gone; then the other one is deleted before that is reported.
//!
//! A node that is deleted by other means, such as `zkCli`, admits the next waiter. Its holder learns of it at
//! its next renewal if it is the only lock of its client, and otherwise not at all: see `docs/zookeeper.md`.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, ErrorKind, LockName, RequestId, Result};
use futures::future::join_all;
use zookeeper_client::{Client, CreateMode, Error as Zk, EventType, Stat};

use crate::connection::Connection;
use crate::keys::Paths;
use crate::lock::ZkLock;
use crate::node::{NodeData, marker, who};
use crate::requests::Request;
use crate::session::Session;

/// How many are kept, and how many are ended in one step at the most.
const KEPT: usize = 64;

/// How often the line may change under a release by force.
const TRIES: usize = 16;

/// How many are looked for in one round trip.
const AT_ONCE: usize = 64;

/// Whatever the version of a node is: it is there.
const ANY: i32 = -1;

/// Until a failed look is repeated.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What stands there of an acquisition: no other one has it.
fn said_of(paths: &Paths, name: &LockName, node: &str) -> String {
    let lock = paths.lock(name);
    let part = lock.rsplit('/').next().unwrap_or_default();
    format!("{part}/{node}")
}

/// What the node tells of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Its node was ended.
    Ended,
    /// One of its nodes was, and it may have had several: it has to be looked for.
    Perhaps,
    Nothing,
}

fn said(paths: &Paths, ended: &HashSet<String>, request: &Request) -> Said {
    let (name, id) = (&request.key.name, request.key.id);
    let is_said = |what: &str| ended.contains(&said_of(paths, name, what));
    match (&request.node, paths.unfair) {
        // Both have the same name again if it was asked for again.
        (_, true) if is_said(&id.to_string()) => Said::Perhaps,
        (Some(node), false) if is_said(&node.name) => Said::Ended,
        (None, false) => {
            let beginning = said_of(paths, name, &who(paths.layout, id));
            match ended.iter().any(|s| s.starts_with(&beginning)) {
                true => Said::Perhaps,
                false => Said::Nothing,
            }
        }
        _ => Said::Nothing,
    }
}

/// The lines of the node.
pub(crate) fn read(data: &[u8]) -> HashSet<String> {
    String::from_utf8_lossy(data).lines().map(str::to_owned).collect()
}

fn with(data: &[u8], ended: &[Holder]) -> Vec<u8> {
    let before = String::from_utf8_lossy(data);
    let now = ended.iter().map(|h| h.said.as_str());
    let mut lines: Vec<&str> = before.lines().chain(now).collect();
    let surplus = lines.len().saturating_sub(KEPT);
    lines.drain(..surplus);
    lines.join("\n").into_bytes()
}

/// Listens for what is ended by force, as long as the session lives.
pub(crate) async fn listen(connection: Weak<Connection>, session: Arc<Session>) {
    // Which node it was, and at which version.
    let mut seen = None;
    while let Some(c) = connection.upgrade()
        && let Ok(client) = session.client()
    {
        let watcher = match client.get_and_watch_data(&c.settings.paths.forced()).await {
            Ok((data, stat, watcher)) => {
                let now = (stat.czxid, stat.version);
                let follows = |(node, version)| node == now.0 && now.1.wrapping_sub(version) == 1;
                let told = match seen {
                    Some(seen) if seen == now => Ok(()),
                    _ => tell(&c, &session, &client, &read(&data), !seen.is_some_and(follows)).await,
                };
                told.is_ok().then(|| {
                    seen = Some(now);
                    watcher
                })
            }
            // Not allowed: then no session is told here.
            Err(Zk::NoAuth) => return,
            Err(Zk::NoNode) if make(&c, &client).await.is_ok() => continue,
            Err(_) => None,
        };
        drop((client, c));
        let Some(watcher) = watcher else {
            session.runtime.sleep(AFTER_FAILURE).await;
            continue;
        };
        if watcher.changed().await.event_type == EventType::Session {
            return;
        }
    }
}

/// Creates the node if it is missing.
pub(crate) async fn make(connection: &Connection, client: &Client) -> Result<(), Zk> {
    let paths = &connection.settings.paths;
    connection.make_directory(client, paths.ours()).await?;
    let options = connection.node(CreateMode::Persistent);
    match client.create(&paths.forced(), &[], &options).await {
        Ok(_) | Err(Zk::NodeExists) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Ends the leases of this session that were ended there: at once those that are named, and then whatever
/// else has gone, where something was missed.
///
/// # Errors
/// If not all could be looked for: then it is to be told again.
async fn tell(
    c: &Connection,
    session: &Session,
    client: &Client,
    ended: &HashSet<String>,
    missed: bool,
) -> Result<(), Zk> {
    let paths = &c.settings.paths;
    let noted = session
        .requests
        .with_nodes(|r| missed || said(paths, ended, r) != Said::Nothing);
    let (named, mut others) =
        (noted.into_iter()).partition::<Vec<_>, _>(|r| said(paths, ended, r) == Said::Ended);
    c.lost(forget(session, &named));
    others.retain(|r| missed || said(paths, ended, r) == Said::Perhaps);
    for some in others.chunks(AT_ONCE) {
        let looks = some.iter().map(async |request| match &request.node {
            Some(_) if paths.unfair => is_gone(paths, session, client, &request.key).await,
            Some(node) => {
                let path = format!("{}/{}", paths.lock(&request.key.name), node.name);
                let stat = client.check_stat(&path).await?;
                Ok(!stat.is_some_and(|s| session.owns(&s)))
            }
            None => Ok(false),
        });
        let looks = join_all(looks).await;
        let gone = some.iter().zip(&looks).filter(|(_, look)| **look == Ok(true));
        let gone: Vec<_> = gone.map(|(request, _)| request.clone()).collect();
        c.lost(forget(session, &gone));
        looks.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    Ok(())
}

/// Forgets those requests. Answers whose hold it was: it may have been handed out since it was looked at.
fn forget(session: &Session, ended: &[Request]) -> Vec<LeaseKey> {
    let forgotten = ended.iter().filter_map(|seen| session.requests.forget_node(seen));
    forgotten.filter(|r| r.granted).map(|r| r.key).collect()
}

/// A holder who is to be ended.
struct Holder {
    /// What is said of it.
    said: String,
    /// Its nodes.
    paths: Vec<String>,
    /// The node of its session, if one of the nodes is missing: see [`unfair`](crate::unfair).
    session: Option<String>,
}

impl ZkLock {
    /// Deletes the nodes of all holders found at the first look, and records it: in one step as many as one
    /// record takes.
    pub(crate) async fn end_by_force(&self, name: &LockName) -> Result<u32> {
        self.check_name(name)?;
        let mut ended = 0;
        let all = self.end_all(name, &mut ended).await;
        all.map_err(|e| match (ended, e.kind()) {
            (0, _) | (_, ErrorKind::Unknown) => e,
            _ => {
                let message = format!("{ended} holds were ended; whether others remain is not known");
                Error::new(ErrorKind::Unknown, message).with_source(e)
            }
        })?;
        Ok(ended)
    }

    async fn end_all(&self, name: &LockName, ended: &mut u32) -> Result<()> {
        let session = self.connection.session().await?;
        let client = session.client()?;
        let told = |e| session.failed(e);
        // Those of the first look: who is let in by the end of some of them is not meant.
        let mut meant: Option<HashSet<String>> = None;
        let mut tries = 0;
        while tries < TRIES {
            tries += 1;
            // First its version: see [`unfair`](crate::unfair).
            let forced = self.paths().forced();
            let (data, stat) = match client.get_data(&forced).await {
                Ok(found) => found,
                Err(Zk::NoNode) => {
                    make(&self.connection, &client).await.map_err(told)?;
                    continue;
                }
                Err(e) => return Err(told(e)),
            };
            let Some(mut holders) = self.to_be_ended(&session, &client, name).await? else {
                continue;
            };
            match &meant {
                Some(meant) => holders.retain(|h| meant.contains(&h.said)),
                None => meant = Some(holders.iter().map(|h| h.said.clone()).collect()),
            }
            if holders.is_empty() {
                return Ok(());
            }
            let is_last = holders.len() <= KEPT;
            holders.truncate(KEPT);
            let mut all = client.new_multi_writer();
            for path in holders.iter().flat_map(|h| &h.paths) {
                all.add_delete(path, None).map_err(told)?;
            }
            for path in holders.iter().filter_map(|h| h.session.as_ref()) {
                all.add_check_version(path, ANY).map_err(told)?;
            }
            let said = with(&data, &holders);
            all.add_set_data(&forced, &said, Some(stat.version))
                .map_err(told)?;
            match session.commit(all).await {
                Ok(_) => {
                    *ended += u32::try_from(holders.len()).unwrap_or(u32::MAX);
                    if is_last {
                        return Ok(());
                    }
                    tries = 0;
                }
                // One of them has let go, or somebody else does the same.
                Err(Zk::NoNode | Zk::BadVersion) => {}
                Err(e) => return Err(session.perhaps(e)),
            }
        }
        let message = "the holders changed each time before they could be ended";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The holders as the leader has them, first come first. `None` if they changed under the look.
    async fn to_be_ended(
        &self,
        session: &Session,
        client: &Client,
        name: &LockName,
    ) -> Result<Option<Vec<Holder>>> {
        let told = |e| session.failed(e);
        let lock = self.paths().lock(name);
        if self.paths().unfair {
            let Some((data, stat)) = session.data(client, &lock).await? else {
                return Ok(Some(Vec::new()));
            };
            let id = NodeData::read(&data).id.ok_or_else(foreign)?;
            let own = self.paths().holder(id);
            // Without it, the node of the lock may be that of the next holder by now.
            let is_whole = client.check_stat(&own).await.map_err(told)?.is_some();
            if !is_whole {
                let now = client.check_stat(&lock).await.map_err(told)?;
                if now.is_none_or(|now| now.czxid != stat.czxid) {
                    return Ok(None);
                }
            }
            let said = said_of(self.paths(), name, &id.to_string());
            let paths = is_whole.then_some(own).into_iter().chain([lock]).collect();
            let session = (!is_whole).then(|| self.paths().session(stat.ephemeral_owner));
            return Ok(Some(vec![Holder { said, paths, session }]));
        }
        let children = session.children(client, &lock).await?;
        let line = self.line(children.clone())?;
        let children: HashSet<String> = children.into_iter().collect();
        let holders = line.entries[..line.admitted()].iter().map(|entry| {
            let mut paths = vec![format!("{lock}/{}", entry.node)];
            let mark = marker(&entry.node, entry.mode);
            if children.contains(&mark) {
                paths.push(format!("{lock}/{mark}"));
            }
            let said = said_of(self.paths(), name, &entry.node);
            Holder {
                said,
                paths,
                session: None,
            }
        });
        Ok(Some(holders.collect()))
    }

    /// Which of these are nodes that were ended by force, as far as that is kept.
    pub(crate) async fn were_ended(
        &self,
        client: &Client,
        name: &LockName,
        nodes: &[String],
    ) -> HashSet<String> {
        let told = client.get_data(&self.paths().forced()).await;
        // What cannot be read says nothing.
        let said = told.map(|(data, _)| read(&data)).unwrap_or_default();
        let of = |node: &&String| said.contains(&said_of(self.paths(), name, node));
        nodes.iter().filter(of).cloned().collect()
    }
}

pub(crate) fn foreign() -> Error {
    let message = "the node of the lock was not made by dlock: remove it, or use another root";
    Error::new(ErrorKind::BackendData, message)
}

/// Whether nothing is left of that request's hold of an unfair lock. What is left of one that has gone is
/// deleted first.
///
/// # Errors
/// If that is not known, or something may be left.
async fn is_gone(paths: &Paths, session: &Session, client: &Client, key: &LeaseKey) -> Result<bool, Zk> {
    let lock = paths.lock(&key.name);
    let has = async || match client.get_data(&lock).await {
        Ok(found) => Ok(is_of(session, key.id, &found)),
        Err(Zk::NoNode) => Ok(false),
        Err(e) => Err(e),
    };
    if has().await? {
        return Ok(false);
    }
    // The call that has it sees to that itself. And it may have had it anew before.
    if let Ok(_in_call) = session.requests.call(key) {
        if has().await? {
            return Ok(false);
        }
        match client.delete(&paths.holder(key.id), None).await {
            Ok(()) | Err(Zk::NoNode) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

pub(crate) fn is_of(session: &Session, id: RequestId, (data, stat): &(Vec<u8>, Stat)) -> bool {
    session.owns(stat) && NodeData::read(data).id == Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_are_kept() {
        let mut data = Vec::new();
        for i in 0..2 * KEPT {
            let (said, paths) = (format!("orders/{i}"), Vec::new());
            let holder = Holder {
                said,
                paths,
                session: None,
            };
            data = with(&data, &[holder]);
        }
        let kept = read(&data);
        assert_eq!(kept.len(), KEPT);
        assert!(kept.contains("orders/127") && !kept.contains("orders/63"));
    }
}
