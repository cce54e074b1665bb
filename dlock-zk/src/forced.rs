//! Locks that an operator ended, and how their holders hear of it.
//!
//! A session goes on when one of its nodes is deleted, so a holder would not notice: hearing of the session is all that its renewals are. So whoever ends locks by force says so in
//! one node of the ensemble, in the same step, and every session watches that one. It has the last few that were ended; whoever has missed more looks for each of its nodes.
//!
//! Nodes that are deleted by other means, with `zkCli` say, are missed by the next wake of their line, and by their holder not at all: see `docs/zookeeper.md`.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, LockName, Result};
use zookeeper_client::{Client, CreateMode, Error as Zk, EventType};

use crate::connection::Connection;
use crate::entries::{Card, marker};
use crate::failure::Effect;
use crate::line::Line;
use crate::lock::ZkLock;
use crate::session::{Request, Session};
use crate::single::cause;

/// How many are kept.
const KEPT: usize = 64;

/// How often the line may change under a release by force.
const TRIES: usize = 16;

/// Until a failed look is repeated.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What stands there of an acquisition: no other one has it.
fn said_of(paths: &crate::paths::Paths, name: &LockName, node: &str) -> String {
    let lock = paths.lock(name);
    let part = lock.rsplit('/').next().unwrap_or_default();
    format!("{part}/{node}")
}

/// What of a request stands there when it is ended.
fn of_request(connection: &Connection, request: &Request) -> Option<String> {
    let paths = &connection.settings.paths;
    let node = request.node.as_ref()?;
    Some(match paths.unfair {
        true => said_of(paths, &request.key.name, &request.key.id.to_string()),
        false => said_of(paths, &request.key.name, &node.name),
    })
}

/// The lines of the node.
pub(crate) fn read(data: &[u8]) -> HashSet<String> {
    String::from_utf8_lossy(data).lines().map(str::to_owned).collect()
}

fn with(data: &[u8], ended: &[String]) -> Vec<u8> {
    let before = String::from_utf8_lossy(data);
    let mut lines: Vec<&str> = before.lines().chain(ended.iter().map(String::as_str)).collect();
    let surplus = lines.len().saturating_sub(KEPT);
    lines.drain(..surplus);
    lines.join("\n").into_bytes()
}

/// Listens for what is ended by force, as long as the session lives.
pub(crate) async fn listen(connection: Weak<Connection>, session: Arc<Session>) {
    let mut seen = None;
    loop {
        let Some(c) = connection.upgrade() else {
            return;
        };
        let Ok(client) = session.client() else {
            return;
        };
        let path = c.settings.paths.forced();
        match client.get_and_watch_data(&path).await {
            Ok((data, stat, watcher)) => {
                let before = seen.replace(stat.version);
                if let Some(before) = before
                    && before != stat.version
                {
                    let missed = stat.version.wrapping_sub(before) != 1;
                    tell(&c, &session, &client, &read(&data), missed).await;
                }
                drop((client, c));
                if watcher.changed().await.event_type == EventType::Session {
                    return;
                }
            }
            // Not allowed: then nobody is told here.
            Err(Zk::NoAuth) => return,
            Err(e) => {
                if e == Zk::NoNode && make(&c, &client).await.is_ok() {
                    continue;
                }
                drop((client, c));
                session.runtime.sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// Makes the node, where nobody has.
pub(crate) async fn make(connection: &Connection, client: &Client) -> Result<(), Zk> {
    let paths = &connection.settings.paths;
    connection.make_directory(client, paths.ours()).await?;
    let options = connection.node(CreateMode::Persistent);
    match client.create(&paths.forced(), &[], &options).await {
        Ok(_) | Err(Zk::NodeExists) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Ends the leases of this session that were ended there.
async fn tell(c: &Connection, session: &Session, client: &Client, ended: &HashSet<String>, missed: bool) {
    let mut lost = Vec::new();
    for request in session.granted() {
        let Some(said) = of_request(c, &request) else {
            continue;
        };
        let is_ended = match ended.contains(&said) {
            // It may be asked for anew under the same name of an unfair lock, never under the same id.
            true => true,
            false if missed => is_gone(c, session, client, &request).await,
            false => false,
        };
        if is_ended {
            session.forget(&request.key);
            lost.push(request.key);
        }
    }
    c.lost(lost);
}

async fn is_gone(c: &Connection, session: &Session, client: &Client, request: &Request) -> bool {
    let Some(node) = &request.node else {
        return false;
    };
    let path = match c.settings.paths.unfair {
        true => c.settings.paths.holder(request.key.id),
        false => format!("{}/{}", c.settings.paths.lock(&request.key.name), node.name),
    };
    match client.check_stat(&path).await {
        Ok(stat) => !stat.is_some_and(|stat| session.owns(&stat)),
        Err(_) => false,
    }
}

impl ZkLock {
    /// Deletes the nodes of all holders, and says so, in one step.
    pub(crate) async fn end_by_force(&self, name: &LockName) -> Result<u32> {
        self.check_name(name)?;
        let session = self.connection.session().await?;
        let client = session.client()?;
        let told = |e| session.told(e, Effect::None);
        for _ in 0..TRIES {
            let (paths, ended) = self.to_be_ended(&session, &client, name).await?;
            if ended.is_empty() {
                return Ok(0);
            }
            let forced = self.paths().forced();
            let (data, stat) = match client.get_data(&forced).await {
                Ok(found) => found,
                Err(Zk::NoNode) => {
                    make(&self.connection, &client).await.map_err(told)?;
                    continue;
                }
                Err(e) => return Err(told(e)),
            };
            let mut all = client.new_multi_writer();
            for path in &paths {
                all.add_delete(path, None).map_err(told)?;
            }
            let said = with(&data, &ended);
            all.add_set_data(&forced, &said, Some(stat.version))
                .map_err(told)?;
            let answer = session
                .written(|| {
                    let ending = all.commit();
                    async { ending.await.map_err(cause) }
                })
                .await;
            match answer {
                Ok(_) => return Ok(u32::try_from(ended.len()).unwrap_or(u32::MAX)),
                // One of them has let go, or somebody else does the same.
                Err(Zk::NoNode | Zk::BadVersion) => {}
                Err(e) => return Err(session.told(e, Effect::Perhaps)),
            }
        }
        let message = "the holders changed each time before they could be ended";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    /// The nodes of the holders, and what is said of them.
    async fn to_be_ended(
        &self,
        session: &Session,
        client: &Client,
        name: &LockName,
    ) -> Result<(Vec<String>, Vec<String>)> {
        let told = |e| session.told(e, Effect::None);
        let lock = self.paths().lock(name);
        if self.paths().unfair {
            return match session.synced(client, || client.get_data(&lock)).await {
                Ok((data, _)) => match Card::read(&data).id {
                    Some(id) => Ok((
                        vec![self.paths().holder(id), lock],
                        vec![said_of(self.paths(), name, &id.to_string())],
                    )),
                    None => Err(foreign()),
                },
                Err(Zk::NoNode) => Ok((Vec::new(), Vec::new())),
                Err(e) => Err(told(e)),
            };
        }
        let children = match session.synced(client, || client.list_children(&lock)).await {
            Ok(children) => children,
            Err(Zk::NoNode) => Vec::new(),
            Err(e) => return Err(told(e)),
        };
        let line: Line = self.line(&children)?;
        let mut paths = Vec::new();
        let mut ended = Vec::new();
        for entry in &line.entries()[..line.admitted()] {
            ended.push(said_of(self.paths(), name, &entry.node));
            paths.push(format!("{lock}/{}", entry.node));
            let mark = marker(&entry.node, entry.mode);
            if children.contains(&mark) {
                paths.push(format!("{lock}/{mark}"));
            }
        }
        Ok((paths, ended))
    }

    /// Which of these are nodes that were ended by force, as far as that is kept.
    pub(crate) async fn were_ended(
        &self,
        client: &Client,
        name: &LockName,
        nodes: &[String],
    ) -> HashSet<String> {
        match client.get_data(&self.paths().forced()).await {
            Ok((data, _)) => {
                let said = read(&data);
                let of = |node: &&String| said.contains(&said_of(self.paths(), name, node));
                nodes.iter().filter(of).cloned().collect()
            }
            Err(_) => HashSet::new(),
        }
    }
}

pub(crate) fn foreign() -> Error {
    let message = "the node of the lock was not made by dlock: remove it, or use another root";
    Error::new(ErrorKind::BackendData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_are_kept() {
        let mut data = Vec::new();
        for i in 0..2 * KEPT {
            data = with(&data, &[format!("orders/{i}")]);
        }
        let kept = read(&data);
        assert_eq!(kept.len(), KEPT);
        assert!(kept.contains("orders/127") && !kept.contains("orders/63"));
    }
}
