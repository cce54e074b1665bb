//! Being in line: a watch on the one node that has to go first, and a look at the line when it has.
//!
//! What could break it, and why it does not:
//!
//! * *The node goes before it is watched.* Then there is nothing to be watched, the server says so, and the line is looked at at once.
//! * *It becomes a reader before it is watched.* The watch is set with a look at the node, and its version says that it was changed; then the line is looked at once more.
//! * *A waiter in front gives up.* Its deletion wakes the one behind it alone, which finds the next to watch.
//! * *The connection breaks.* The driver sets its watches again on the next one, and the server tells at once of what is gone. If the session is over the watch says that, and
//!   the stream ends: the engine asks again, and joins the line anew.
//! * *Our own node is gone.* An operator removed it, or the session is over. Whoever is not in the line is not granted anything.
//! * *So many wait that not all can watch.* Those who cannot are asked for by the engine, now and then, and watch as soon as there is [room](crate::watches).
//! * *The session is hardly alive.* A wait may be long and silent. Before a grant is told the session was heard of within half of its life, or it is asked now.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::spi::{LeaseKey, Push};
use futures::StreamExt as _;
use futures::future::{join_all, select_all};
use futures::stream::{self, BoxStream};
use zookeeper_client::{Error as Zk, EventType};

use crate::entries::HELD;
use crate::line::Place;
use crate::lock::ZkLock;
use crate::priority::Turn;
use crate::session::{Node, Session};

/// A waiter of this client.
struct Waiter {
    lock: ZkLock,
    session: Arc<Session>,
    key: LeaseKey,
    node: Node,
    line: String,
    watch: Vec<String>,
    versions: Versions,
}

/// At which version a node was when the line was last looked at because of it. Where none is told, at its first.
type Versions = HashMap<String, i32>;

/// What became of the nodes that are watched.
enum Seen {
    Changed,
    /// The watch says nothing any more.
    Over,
}

impl ZkLock {
    /// Tells when it is the turn of that node.
    pub(crate) fn turn(
        &self,
        session: &Arc<Session>,
        key: &LeaseKey,
        node: &Node,
        watch: Vec<String>,
    ) -> BoxStream<'static, Push> {
        let waiter = Waiter {
            lock: self.clone(),
            session: session.clone(),
            key: key.clone(),
            node: node.clone(),
            line: self.paths().lock(&key.name),
            watch,
            versions: Versions::new(),
        };
        stream::once(waiter.turn())
            .filter_map(|push| async { push })
            .boxed()
    }

    /// Tells when one of those nodes has gone, to whoever is not in the line.
    pub(crate) fn change(
        &self,
        session: &Arc<Session>,
        line: String,
        watch: Vec<String>,
    ) -> BoxStream<'static, Push> {
        let session = session.clone();
        let changed = async move {
            match watched(&session, &line, &watch, None).await {
                Seen::Changed => Some(Push::Changed),
                Seen::Over => None,
            }
        };
        stream::once(changed).filter_map(|push| async { push }).boxed()
    }
}

impl Waiter {
    async fn turn(mut self) -> Option<Push> {
        loop {
            let versions = Some(&mut self.versions);
            if let Seen::Over = watched(&self.session, &self.line, &self.watch, versions).await {
                return None;
            }
            let line = self.lock.read_line(&self.session, &self.line).await.ok()?;
            if self.lock.paths().priorities {
                let turn = self
                    .lock
                    .turn_by_priority(&self.session, &self.key, &self.node, line);
                match turn.await.ok()? {
                    Turn::Granted(grant) => return Some(Push::Granted(grant)),
                    Turn::Behind { watch, .. } => self.watch = watch,
                    Turn::OtherOrder | Turn::Gone => return Some(Push::Changed),
                }
                continue;
            }
            match line.place(&self.node.name) {
                Some(Place::Admitted) => {
                    self.session.be_ample().await.ok()?;
                    // Or it was withdrawn meanwhile, or ended: whoever asks in full is told.
                    let grant = self.session.grant(&self.key, &self.node);
                    return Some(grant.map_or(Push::Changed, Push::Granted));
                }
                Some(Place::Behind { watch, .. }) => self.watch = watch,
                // Whoever asks in full is told why.
                _ => return Some(Push::Changed),
            }
        }
    }
}

/// At which version a node is when nobody changed it since it was made.
fn first(node: &str) -> i32 {
    // Who makes this one writes to it in the same step.
    i32::from(node == HELD)
}

/// Waits until one of those nodes has gone or is changed.
async fn watched(
    session: &Session,
    line: &str,
    nodes: &[String],
    mut versions: Option<&mut Versions>,
) -> Seen {
    let room = nodes.iter().map(|node| format!("{line}/{node}")).collect();
    // Dropped after the watches.
    let room = session.watches.room(room).await;
    let watchers = {
        let Ok(client) = session.client() else {
            return Seen::Over;
        };
        let client = &*client;
        // With their data, since a watch on what is not there would stay.
        join_all(room.paths().iter().map(|path| client.get_and_watch_data(path))).await
    };
    let mut events = Vec::with_capacity(watchers.len());
    if let Some(versions) = &mut versions {
        // What is in front now: of many who overtake it none is remembered.
        versions.retain(|node, _| nodes.contains(node));
    }
    for (node, watcher) in nodes.iter().zip(watchers) {
        match watcher {
            Ok((_, stat, watcher)) => {
                if let Some(versions) = &mut versions
                    && versions.insert(node.clone(), stat.version).unwrap_or(first(node)) != stat.version
                {
                    return Seen::Changed;
                }
                events.push(Box::pin(watcher.changed()));
            }
            Err(Zk::NoNode) => return Seen::Changed,
            Err(_) => return Seen::Over,
        }
    }
    if events.is_empty() {
        return Seen::Changed;
    }
    let (event, _, _) = select_all(events).await;
    match event.event_type {
        EventType::Session => Seen::Over,
        _ => Seen::Changed,
    }
}
