//! Lines on servers that know no containers, or refuse them: plain nodes, which the clients remove.
//!
//! Whoever leaves a line deletes it as well, in the same round trip; a server removes no node that has others below it, so that is done by the last one. What is left are the
//! lines of those who did not leave, but died: they are swept. Of all clients one sweeps, when it comes to that and once a minute; which one is decided by an ephemeral node,
//! and nothing depends on there being only one. The others look once a minute whether it is there. So however many clients begin at a time, the lines are looked at by one.
//!
//! What could break it, and why it does not:
//!
//! * *Somebody joins while the line is removed.* It is there and not removed, or removed before: then who joins finds no line and makes it again, as where a server removes a
//!   container.
//! * *The answer to a removal is lost, or its client dies.* The line is swept.
//! * *Whoever sweeps dies, or stands still.* Its node goes with its session, and the next one takes over within a minute of that.
//! * *A server is behind*, and shows a node that has gone: then it takes a minute more. One that is there and not shown is not made again.
//! * *A client of the same locks makes containers.* The line is what the first of them made it, and goes either way.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use futures::{FutureExt as _, pin_mut};
use zookeeper_client::{Client, CreateMode, Error as Zk, SessionState};

use crate::connection::Connection;
use crate::open::Layout;
use crate::session::Session;

/// Between two sweeps.
const PAUSE: Duration = Duration::from_secs(60);

/// How many lines are looked at in one round trip.
const AT_ONCE: usize = 64;

impl Connection {
    /// Whether lines are plain nodes, which who leaves them removes.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain.load(Ordering::Acquire)
    }

    /// The server has refused a container.
    pub(crate) fn go_plain(self: &Arc<Self>, session: &Arc<Session>) {
        if !self.plain.swap(true, Ordering::AcqRel) {
            self.sweep(session);
        }
    }

    /// Sweeps as long as that session lives.
    pub(crate) fn sweep(self: &Arc<Self>, session: &Arc<Session>) {
        // Among Curator's locks may stand what is none, and to whom it belongs is not known.
        if self.settings.paths.layout == Layout::Curator {
            return;
        }
        let sweeping = keep_sweeping(Arc::downgrade(self), session.clone());
        self.runtime.spawn(sweeping.boxed());
    }
}

async fn keep_sweeping(connection: Weak<Connection>, session: Arc<Session>) {
    let Ok(mut states) = session.client().map(|client| client.state_watcher()) else {
        return;
    };
    loop {
        {
            let Some(c) = connection.upgrade() else {
                return;
            };
            let Ok(client) = session.client() else {
                return;
            };
            // What fails is tried again in a minute, by this client or another one.
            let _ = sweep(&c, &client).await;
        }
        let pause = session.runtime.sleep(PAUSE);
        let over = async {
            while let SessionState::SyncConnected
            | SessionState::Disconnected
            | SessionState::ConnectedReadOnly = states.changed().await
            {}
        };
        pin_mut!(over);
        if let Either::Left(_) = select(over, pause).await {
            return;
        }
    }
}

/// Whether it is on this client to sweep.
async fn is_ours(c: &Connection, client: &Client) -> Result<bool, Zk> {
    let sweeper = c.settings.paths.sweeper();
    // A look costs less than a write.
    if let Some(stat) = client.check_stat(&sweeper).await? {
        return Ok(stat.ephemeral_owner == client.session_id().0);
    }
    match client.create(&sweeper, &[], &c.node(CreateMode::Ephemeral)).await {
        Ok(_) => Ok(true),
        Err(Zk::NodeExists) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes lines that are empty, if it is on this client to do so.
async fn sweep(c: &Connection, client: &Client) -> Result<(), Zk> {
    if !is_ours(c, client).await? {
        return Ok(());
    }
    let paths = &c.settings.paths;
    let names = client.list_children(paths.locks()).await?;
    let names: Vec<_> = names
        .into_iter()
        .map(|name| format!("{}/{name}", paths.locks()))
        .collect();
    for some in names.chunks(AT_ONCE) {
        let stats = join_all(some.iter().map(|path| client.check_stat(path))).await;
        let empty: HashSet<&String> = some
            .iter()
            .zip(stats)
            // Of no session, and nobody stands in it.
            .filter(|(_, stat)| matches!(stat, Ok(Some(s)) if s.ephemeral_owner == 0 && s.num_children == 0))
            .map(|(path, _)| path)
            .collect();
        // Who joins one of them just now keeps it: then the deletion is refused.
        join_all(empty.into_iter().map(|path| client.delete(path, None))).await;
    }
    Ok(())
}
