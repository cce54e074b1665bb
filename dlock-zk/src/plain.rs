//! Lines on servers that know no containers, or refuse them: plain nodes, which the clients remove.
//!
//! Whoever leaves a line deletes it as well, in the same round trip; a server removes no node that has others below it, so that is done by the last one. What is left are the
//! lines of those who did not leave, but died: they are swept. Of all clients one sweeps, when its session begins and once a minute; which one is decided by an ephemeral node,
//! and nothing depends on there being only one.
//!
//! What could break it, and why it does not:
//!
//! * *Somebody joins while the line is removed.* It is there and not removed, or removed before: then who joins finds no line and makes it again, as where a server removes a
//!   container.
//! * *The answer to a removal is lost, or its client dies.* The line is swept.
//! * *Whoever sweeps dies, or stands still.* Its node goes with its session, and the next one takes over within a minute of that.
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
    let mut is_first = true;
    loop {
        {
            let Some(c) = connection.upgrade() else {
                return;
            };
            let Ok(client) = session.client() else {
                return;
            };
            // What fails is tried again in a minute, by this client or another one.
            let _ = sweep(&c, &client, is_first).await;
            is_first = false;
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

/// Removes lines that are empty, if it is on this client to do so. Each does it once when it begins: it may follow one that died.
async fn sweep(c: &Connection, client: &Client, is_first: bool) -> Result<(), Zk> {
    let paths = &c.settings.paths;
    let is_ours = match client
        .create(&paths.sweeper(), &[], &c.node(CreateMode::Ephemeral))
        .await
    {
        Ok(_) => true,
        Err(Zk::NodeExists) => {
            let stat = client.check_stat(&paths.sweeper()).await?;
            stat.is_some_and(|s| s.ephemeral_owner == client.session_id().0)
        }
        Err(e) => return Err(e),
    };
    if !is_ours && !is_first {
        return Ok(());
    }
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
