//! Waiting in the queue: a watch on the one node that must go first, and a look at the queue when it has.
//!
//! For *n* permits these are *n* nodes, most of which must still be watched after a look: watches without an
//! event are kept. So a woken waiter looks once, and watches one more.
//!
//! What could break it, and why it does not:
//!
//! * *The node goes before it is watched.* The server says that the node is missing, and the queue is read at
//!   once.
//! * *It is downgraded before it is watched.* The watch is set with a look at the node, whose version shows
//!   the change; then the queue is read once more.
//! * *A node that was watched before this look has changed since.* Then its watch fires, now or later, and
//!   there is another look: a server reports a change to a session before it shows it.
//! * *A waiter in front gives up.* Its deletion wakes only the one behind it, which finds the next node to
//!   watch.
//! * *The connection breaks.* The driver sets its watches again on the next one, and the server reports
//!   missing nodes at once. If the session is over the stream ends: the engine asks again, and joins anew.
//! * *Our own node is gone.* An operator removed it, or the session is over. A request that is not in the
//!   queue is not granted.
//! * *There are too many waiters for all to watch.* For the others the engine polls now and then, and they
//!   watch as soon as there is [room](crate::watch_budget).
//! * *The session is near its end.* A grant is reported only if the session was confirmed within half of its
//!   timeout; otherwise it is confirmed first.

use std::collections::HashMap;
use std::future::{poll_fn, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use dlock_core::spi::{LeaseKey, Place, Push};
use futures::future::{BoxFuture, join_all};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use zookeeper_client::{Error as Zk, WatchedEvent};

use crate::line::{nodes, place_of};
use crate::lock::ZkLock;
use crate::requests::Node;
use crate::session::Session;
use crate::watch_budget::Room;

/// What a waiter watches of a line.
struct Watching {
    session: Arc<Session>,
    line: String,
    /// By their nodes. Each tells once.
    watched: HashMap<String, Watched>,
    /// Of who looks at the line whenever one of them changes.
    versions: Option<Versions>,
}

struct Watched {
    event: BoxFuture<'static, WatchedEvent>,
    /// Dropped after the watch.
    _room: Room,
}

/// At which version a node was when the line was last looked at because of it. A node that is not in here, at
/// zero: it has not changed since it was made.
type Versions = HashMap<String, i32>;

impl ZkLock {
    /// Tells when it is the turn of that node.
    pub(crate) fn turn(
        &self,
        session: &Arc<Session>,
        key: &LeaseKey,
        node: &Node,
        mut watch: Vec<String>,
    ) -> BoxStream<'static, Push> {
        let line = self.paths().lock(&key.name);
        let mut watching = Watching::new(session, line, Some(Versions::new()));
        let (lock, session, key, node) = (self.clone(), session.clone(), key.clone(), node.clone());
        let turn = async move {
            loop {
                watching.changed(&watch).await?;
                let line = lock.read_line(&session, &watching.line).await.ok()?;
                match place_of(&line, &node.name) {
                    Some(Place::Admitted) => {
                        session.be_ample().await.ok()?;
                        // Or it was withdrawn meanwhile, or ended: a full attempt reports it.
                        let grant = session.grant(&key, &node);
                        return Some(grant.map_or(Push::Changed, Push::Granted));
                    }
                    Some(Place::Behind { watch: behind, .. }) => watch = nodes(&line, behind),
                    // A full attempt reports why.
                    _ => return Some(Push::Changed),
                }
            }
        };
        stream::once(turn).filter_map(ready).boxed()
    }

    /// Tells a waiter that is not in the queue when one of those nodes has gone.
    pub(crate) fn change(
        &self,
        session: &Arc<Session>,
        line: String,
        watch: Vec<String>,
    ) -> BoxStream<'static, Push> {
        let mut watching = Watching::new(session, line, None);
        let changed = async move { watching.changed(&watch).await.map(|()| Push::Changed) };
        stream::once(changed).filter_map(ready).boxed()
    }
}

impl Watching {
    fn new(session: &Arc<Session>, line: String, versions: Option<Versions>) -> Self {
        Self {
            session: session.clone(),
            line,
            watched: HashMap::new(),
            versions,
        }
    }

    /// Waits until one of those nodes has gone or is changed. `None`: the watch says nothing any more.
    async fn changed(&mut self, nodes: &[String]) -> Option<()> {
        // Those that are in front now: of many who overtake it none is remembered.
        self.watched.retain(|node, _| nodes.contains(node));
        if let Some(versions) = &mut self.versions {
            versions.retain(|node, _| nodes.contains(node));
        }
        if !self.watch(nodes).await? {
            poll_fn(|cx| self.told(cx)).await;
        }
        Some(())
    }

    /// Watches those of the nodes that are not watched yet. Whether one of them has gone or is changed
    /// already.
    async fn watch(&mut self, nodes: &[String]) -> Option<bool> {
        let (new, rooms) = self.room(nodes).await;
        let client = self.session.client().ok()?;
        // With their data, since a watch on what is not there would stay.
        let asked = rooms.iter().map(|room| client.get_and_watch_data(&room.path));
        let answers = join_all(asked).await;
        let mut changed = false;
        for ((node, room), answer) in new.into_iter().zip(rooms).zip(answers) {
            let (_, stat, watcher) = match answer {
                Ok(answer) => answer,
                Err(Zk::NoNode) => {
                    changed = true;
                    continue;
                }
                Err(_) => return None,
            };
            if let Some(versions) = &mut self.versions {
                let before = versions.insert(node.clone(), stat.version);
                changed |= before.unwrap_or(0) != stat.version;
            }
            let watched = Watched {
                event: watcher.changed().boxed(),
                _room: room,
            };
            self.watched.insert(node, watched);
        }
        Some(changed)
    }

    /// Which nodes are to be watched beside those that are, and room for each of them.
    async fn room(&mut self, nodes: &[String]) -> (Vec<String>, Vec<Room>) {
        let is_new = |n: &&String| !self.watched.contains_key(*n);
        let new: Vec<String> = nodes.iter().filter(is_new).cloned().collect();
        let paths = |of: &[String]| -> Vec<_> { of.iter().map(|n| format!("{}/{n}", self.line)).collect() };
        if let Some(rooms) = self.session.watches.take(&paths(&new)) {
            return (new, rooms);
        }
        // Nobody waits for room while he has some.
        let all = paths(nodes);
        self.watched.clear();
        (nodes.to_vec(), self.session.watches.room(&all).await)
    }

    /// Whether one of the watches has told something, if only that the session is over: then the next look
    /// fails. Those that did are there no more.
    fn told(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut told = Poll::Pending;
        self.watched.retain(|_, watched| {
            let is_told = watched.event.poll_unpin(cx).is_ready();
            if is_told {
                told = Poll::Ready(());
            }
            !is_told
        });
        told
    }
}
