//! Checks whether a connection still answers: after a request without an answer, and now and then while it
//! only listens.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::{Line, Server};
use crate::connection::pause::pause;

/// How long a request may be without an answer, when it is given up, before the connection is suspected.
const SUSPICIOUS: Duration = Duration::from_millis(100);

/// How long a connection that is listened on may be silent before it is asked.
const PROBE: Duration = Duration::from_secs(10);

/// A request that is under way. Dropped without an answer after a while, it makes the connection suspicious.
pub(super) struct Asked<'a> {
    server: &'a Arc<Server>,
    generation: u64,
    since: Timestamp,
    answered: bool,
}

impl<'a> Asked<'a> {
    pub(super) fn new(server: &'a Arc<Server>, generation: u64) -> Self {
        Self {
            server,
            generation,
            since: Timestamp::now(),
            answered: false,
        }
    }

    /// With what it was asked for, or with an error.
    pub(super) fn answered(mut self, well: bool) {
        self.answered = true;
        if well {
            self.server.heard.store(self.since.as_nanos(), Ordering::Relaxed);
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered && Timestamp::now() > self.since + SUSPICIOUS {
            self.server.suspect(self.generation);
        }
    }
}

impl Server {
    /// Finds out whether that connection still answers.
    fn suspect(self: &Arc<Self>, generation: u64) {
        let mut state = self.state();
        let mut connection = match &state.line {
            Line::Up(up) if up.generation == generation => up.connection.clone(),
            _ => return,
        };
        if std::mem::replace(&mut state.checking, true) {
            return;
        }
        drop(state);
        let (limit, me) = (self.setup.runtime.sleep(self.setup.timeout), Arc::downgrade(self));
        let checking = async move {
            let ping = redis::cmd("PING");
            let answers = match select(pin!(ping.exec_async(&mut connection)), limit).await {
                // Who is not allowed to ask that is answered too.
                Either::Left((answer, _)) => answer.map_or_else(|e| e.code() == Some("NOPERM"), |()| true),
                Either::Right(_) => false,
            };
            let Some(me) = me.upgrade() else { return };
            me.state().checking = false;
            if !answers {
                me.lost(generation);
            }
        };
        self.setup.runtime.spawn(checking.boxed());
    }

    /// Has a task look, now and then, whether what is listened on still answers, as long as anything is
    /// listened to.
    pub(super) fn probe(self: &Arc<Self>) {
        let mut state = self.state();
        if state.closed || state.probing.is_some() {
            return;
        }
        let (probing, ended) = oneshot::channel();
        state.probing = Some(probing);
        let probing = probe(Arc::downgrade(self), self.setup.runtime.clone(), ended);
        self.setup.runtime.spawn(probing.boxed());
    }
}

async fn probe(me: Weak<Server>, runtime: Arc<dyn Runtime>, mut ended: oneshot::Receiver<()>) {
    let mut next = PROBE;
    // Without the connection: it may be given up meanwhile.
    while let Either::Left(_) = select(pin!(pause(runtime.sleep(next))), &mut ended).await {
        let Some(me) = me.upgrade() else { return };
        let mut state = me.state();
        if state.channels.is_empty() {
            state.probing = None;
            return;
        }
        let heard = Timestamp::from_nanos(me.heard.load(Ordering::Relaxed));
        next = Timestamp::now().until(heard + PROBE);
        if next.is_zero() {
            next = PROBE;
            let generation = state.generation;
            drop(state);
            me.suspect(generation);
        }
    }
}
