//! The servers of a Redis Cluster: the connections to each, and which one has which slot.
//!
//! Each node is a [`Server`], so everything about the connection to one server holds here, and a failing node
//! does not affect the others. The driver's cluster client is not used: it asks all nodes in turn for the
//! slots, and blocks requests meanwhile; so one node that hung cost every lease at the others.
//!
//! * *A slot moves.* The old node says where it is. Nothing was done, so the request is sent there.
//! * *A slot is being moved, or has no node for a while.* Nothing was done either. The request is repeated
//!   for half of the time limit of an operation, and a caller that gives up knows that nothing was done.
//! * *A node dies.* A request that did not reach it looks up the slots again (`discovery.rs`), at other
//!   nodes; the first that knows all is believed. If it is behind, the node that it names refuses, and the
//!   slots are looked up again.
//! * *Listening.* A node that hands a slot over ends the subscriptions of its channels, unasked, in the words
//!   that answer an `SUNSUBSCRIBE`; the driver may take them for an answer. So commands go over other
//!   connections than those that listen, and such a connection is made anew. Lost pushes are made up for:
//!   waiters ask again when they can listen again.
//! * *The new node does not take the subscription yet, and the slot comes back.* In between the channel is
//!   noted as subscribed nowhere, and the next look subscribes again. The same goes for the channels of a
//!   node that is given up.

mod discovery;
mod slots;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::spi::Host;
use futures::FutureExt as _;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind as Said, Value};

use self::discovery::Pace;
use self::slots::{Slots, host, slot_of};
use crate::connection::server::{Moved, Server, Setup};
use crate::failure::{Cause, Failed};

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Makes the connection to a node.
pub(crate) type Connect = Box<dyn Fn(&Host, Option<Moved>) -> dlock_core::Result<Arc<Server>> + Send + Sync>;

/// One of the servers.
struct Node {
    at: Host,
    /// To ask on. Nothing is listened to.
    commands: Arc<Server>,
    /// To listen on, if anything is listened to there.
    ears: OnceLock<Arc<Server>>,
}

pub(crate) struct Cluster {
    connect: Connect,
    seeds: Vec<Host>,
    pub(crate) setup: Setup,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: Slots,
    /// The same as reported by the last node that was believed, without later redirections.
    told: Slots,
    nodes: HashMap<Host, Arc<Node>>,
    /// What is listened to, and where, if it is already.
    channels: BTreeMap<Vec<u8>, Option<Host>>,
    /// A task looks for the slots; and there was a reason to once more since it began.
    looking: bool,
    again: bool,
    pace: Pace,
    closed: bool,
}

impl Cluster {
    /// A cluster of which those nodes are known, none of them connected to.
    pub(crate) fn new(seeds: Vec<Host>, connect: Connect, setup: Setup) -> Arc<Self> {
        Arc::new(Self {
            connect,
            seeds,
            setup,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds out which nodes there are, and whether one of them answers.
    pub(crate) async fn ready(self: &Arc<Self>) -> Result<(), Failed> {
        self.setup.within(self.look()).await.map(drop)
    }

    /// Asks the node that it concerns: that of its first key.
    pub(crate) async fn ask<F: Future<Output = RedisResult<Value>>>(
        self: &Arc<Self>,
        command: &Cmd,
        request: impl Fn(MultiplexedConnection) -> F,
    ) -> Result<Value, Failed> {
        let slot = slot_of(key_of(command));
        let ask = |node: Arc<Node>| {
            let request = &request;
            async move { node.commands.ask(request).await }
        };
        self.repeat(slot, ask).await
    }

    /// All masters there are, by host and port.
    pub(crate) async fn masters(self: &Arc<Self>) -> Result<Vec<String>, Failed> {
        self.ready().await?;
        let mut masters: Vec<_> = self.state().slots.masters().map(Host::to_string).collect();
        masters.sort();
        masters.dedup();
        Ok(masters)
    }

    /// Asks one of them, as long as it is one: see [`Server::ask_numbered`].
    pub(crate) async fn ask_node<F: Future<Output = RedisResult<Value>>>(
        &self,
        node: &str,
        request: impl Fn(MultiplexedConnection) -> F,
    ) -> Result<(u64, Value), Failed> {
        let node = {
            let mut state = self.state();
            let at = state.slots.masters().find(|at| at.to_string() == node).cloned();
            let gone = || RedisError::from((ErrorKind::Io, "a node is no master any more"));
            let at = at.ok_or_else(|| Failed::unsent(gone()))?;
            self.node(&mut state, at)?
        };
        node.commands.ask_numbered(request).await
    }

    /// Until a node has carried it out, or may have.
    async fn repeat<T, F: Future<Output = Result<T, Failed>>>(
        self: &Arc<Self>,
        slot: u16,
        request: impl Fn(Arc<Node>) -> F,
    ) -> Result<T, Failed> {
        // Not all of the time that an operation has: who gave up here is certain that nothing was done.
        let until = Timestamp::now() + self.setup.timeout / 2;
        let (mut pause, mut redirected) = (PAUSE_MIN, false);
        loop {
            let node = self.node_of(slot)?;
            let failed = match request(Arc::clone(&node)).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            if let Some(to) = moved_to(&failed, &node.at) {
                let mut state = self.state();
                state.slots.moved(slot, to);
                self.look_again_in(&mut state);
                drop(state);
                if !std::mem::replace(&mut redirected, true) {
                    continue;
                }
            } else if !nothing_was_done(&failed) {
                return Err(failed);
            } else if !matches!(kind(&failed), Some(ErrorKind::Server(Said::Ask | Said::TryAgain))) {
                // Where it is under way to is known.
                self.look_again_in(&mut self.state());
            }
            if Timestamp::now() + pause > until {
                return Err(Failed::unsent(failed.cause));
            }
            crate::connection::pause::pause(self.setup.runtime.sleep(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The node that has that slot. If none is known to, any: it will say why.
    fn node_of(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>, Failed> {
        let mut state = self.state();
        let at = match state.slots.master(slot) {
            Some(at) => at.clone(),
            None => {
                self.look_again_in(&mut state);
                let known = state.slots.masters().chain(&self.seeds).next();
                known.cloned().ok_or_else(|| Failed::unsent(nobody()))?
            }
        };
        self.node(&mut state, at)
    }

    fn node(&self, state: &mut State, at: Host) -> Result<Arc<Node>, Failed> {
        if state.closed {
            return Err(Failed::unsent(nobody()));
        }
        if let Some(node) = state.nodes.get(&at) {
            return Ok(Arc::clone(node));
        }
        let node = Arc::new(Node {
            commands: self.connect(&at, None)?,
            ears: OnceLock::new(),
            at: at.clone(),
        });
        state.nodes.insert(at, Arc::clone(&node));
        Ok(node)
    }

    fn connect(&self, at: &Host, moved: Option<Moved>) -> Result<Arc<Server>, Failed> {
        // The settings, which were good for the nodes of the URL, may not be for one that they told of.
        (self.connect)(at, moved).map_err(|e| {
            let what = format!("has an unusable node: {e}");
            Failed::unsent(Cause::Refused(e.kind(), what.into()))
        })
    }

    fn ears(self: &Arc<Self>, node: &Node) -> Result<Arc<Server>, Failed> {
        if let Some(ears) = node.ears.get() {
            return Ok(Arc::clone(ears));
        }
        let me = Arc::downgrade(self);
        let moved = Arc::new(move |channel: &[u8]| {
            if let Some(me) = me.upgrade() {
                me.moved(channel);
            }
        });
        let ears = self.connect(&node.at, Some(moved))?;
        Ok(Arc::clone(node.ears.get_or_init(|| ears)))
    }

    pub(crate) async fn subscribe(self: &Arc<Self>, channel: &[u8]) -> Result<(), Failed> {
        self.state().channels.entry(channel.to_vec()).or_insert(None);
        self.setup.within(self.listen(channel)).await
    }

    /// Listens where the slot of that channel is.
    async fn listen(self: &Arc<Self>, channel: &[u8]) -> Result<(), Failed> {
        let slot = slot_of(channel);
        let listen = |node: Arc<Node>| async move {
            self.ears(&node)?.subscribe(channel).await?;
            Ok(node)
        };
        let node = self.repeat(slot, listen).await?;
        let is_unwanted = {
            let mut state = self.state();
            // And it was not given up meanwhile.
            let is_known = state.nodes.get(&node.at).is_some_and(|n| Arc::ptr_eq(n, &node));
            let is_there = is_known && state.slots.master(slot) == Some(&node.at);
            match state.channels.get_mut(channel) {
                Some(listened_at) => {
                    *listened_at = is_there.then(|| node.at.clone());
                    if !is_there {
                        self.look_again_in(&mut state);
                    }
                    false
                }
                // It was unsubscribed from meanwhile.
                None => true,
            }
        };
        if is_unwanted && let Some(ears) = node.ears.get() {
            ears.unsubscribe(channel).await;
        }
        Ok(())
    }

    pub(crate) async fn unsubscribe(&self, channel: &[u8]) {
        let node = {
            let mut state = self.state();
            let listened_at = state.channels.remove(channel).flatten();
            // The subscriber may have been dropped before the subscription was confirmed.
            let at = listened_at.or_else(|| state.slots.master(slot_of(channel)).cloned());
            at.and_then(|at| state.nodes.get(&at).cloned())
        };
        if let Some(ears) = node.as_ref().and_then(|node| node.ears.get()) {
            ears.unsubscribe(channel).await;
        }
    }

    /// Nothing is heard of that channel any more: its slot has moved.
    fn moved(self: &Arc<Self>, channel: &[u8]) {
        let mut state = self.state();
        if let Some(at) = state.channels.get_mut(channel) {
            *at = None;
            self.look_again_in(&mut state);
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.channels.clear();
        for node in std::mem::take(&mut state.nodes).into_values() {
            node.close();
        }
    }

    /// Listens at the right places to what is not listened to there; whether that is everything.
    async fn listen_again(self: &Arc<Self>) -> bool {
        // Where they were is taken back first: should it fail here, and the slot come back to where it was.
        let misplaced: Vec<(Vec<u8>, Option<Arc<Node>>)> = {
            let state = &mut *self.state();
            let misplaced = state
                .channels
                .iter_mut()
                .filter(|(channel, at)| at.is_none() || at.as_ref() != state.slots.master(slot_of(channel)));
            misplaced
                .map(|(channel, at)| {
                    let old = at.take().and_then(|at| state.nodes.get(&at).cloned());
                    (channel.clone(), old)
                })
                .collect()
        };
        for (channel, old) in &misplaced {
            if let Some(ears) = old.as_ref().and_then(|old| old.ears.get()) {
                ears.forget(channel);
            }
        }
        let heard = misplaced.iter().map(|(channel, _)| {
            let listening = self.listen(channel).boxed();
            async move { self.setup.within(listening).await.is_ok() }
        });
        let heard = join_all(heard).await;
        if heard.contains(&true) {
            // Earlier pushes may have been missed.
            self.setup.pushes.disconnected();
            self.setup.pushes.back();
        }
        !heard.contains(&false)
    }
}

impl Node {
    fn close(&self) {
        self.commands.close();
        if let Some(ears) = self.ears.get() {
            ears.close();
        }
    }
}

/// The first key of a command.
fn key_of(command: &Cmd) -> &[u8] {
    let mut args = command.args_iter().map(|arg| match arg {
        redis::Arg::Simple(arg) => arg,
        _ => &[][..],
    });
    let key = match args.next() {
        Some(b"EVALSHA") => args.nth(2),
        _ => args.next(),
    };
    key.unwrap_or_default()
}

/// Where it is, if the node says that it has it no more.
fn moved_to(failed: &Failed, told_by: &Host) -> Option<Host> {
    match &failed.cause {
        Cause::Driver(e) if e.kind() == ErrorKind::Server(Said::Moved) => host(e.redirect_node()?.0, told_by),
        _ => None,
    }
}

fn kind(failed: &Failed) -> Option<ErrorKind> {
    match &failed.cause {
        Cause::Driver(e) => Some(e.kind()),
        _ => None,
    }
}

/// Certain to have been carried out by no node, and perhaps not so for long.
fn nothing_was_done(failed: &Failed) -> bool {
    match kind(failed) {
        Some(ErrorKind::Server(said)) => matches!(
            said,
            Said::Moved
                | Said::Ask
                | Said::TryAgain
                | Said::ClusterDown
                | Said::MasterDown
                | Said::ReadOnly
                | Said::BusyLoading
        ),
        Some(ErrorKind::Io) => !failed.sent,
        _ => false,
    }
}

fn nobody() -> RedisError {
    RedisError::from((ErrorKind::Io, "no node of the cluster is known"))
}

#[cfg(test)]
mod tests {
    use dlock_core::Runtime;
    use futures::future::{BoxFuture, ready};
    use redis::Client;

    use super::*;
    use crate::connection::check::Demands;
    use crate::connection::server::Source;
    use crate::wait::Pushes;

    /// As one that has been shut down.
    #[derive(Debug)]
    struct Ended;

    impl Runtime for Ended {
        fn spawn(&self, task: BoxFuture<'static, ()>) {
            drop(task);
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            ready(()).boxed()
        }

        fn now(&self) -> Timestamp {
            Timestamp::now()
        }

        fn fill_random(&self, buffer: &mut [u8]) {
            buffer.fill(0);
        }

        fn name(&self) -> &'static str {
            "ended"
        }
    }

    #[test]
    fn on_a_runtime_that_has_ended_a_request_keeps_no_thread() {
        let setup = Setup {
            demands: Demands::default(),
            timeout: Duration::from_secs(2),
            runtime: Arc::new(Ended),
            scripts: Arc::new([]),
            pushes: Pushes::new(true),
        };
        let theirs = setup.clone();
        let connect = move |_: &Host, moved| {
            let source = Source::Server(Box::new(Client::open("redis://127.0.0.1:1").unwrap()));
            Ok(Server::new(theirs.clone(), source, moved))
        };
        let cluster = Cluster::new(vec![Host::new("127.0.0.1", 1)], Box::new(connect), setup);
        let command = redis::cmd("GET").arg("a").to_owned();
        let asked = cluster.ask(&command, |_| async { Ok(Value::Nil) });
        // Without a word from others it would be at it until its time is over.
        assert!(asked.now_or_never().is_none());
    }
}
