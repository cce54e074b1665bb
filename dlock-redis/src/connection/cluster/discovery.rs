//! Looking up the slots: which nodes are asked, which are believed, and how often.
//!
//! * *A node that left the cluster* knows no slots. That does not count: the others are asked, and the known
//!   slots stay.
//! * *A node that knows only some slots*, since it was cut off or the cluster is just being made, is believed
//!   if none knows more. The nodes that were known before are still asked, until one knows all slots.
//! * *A node is silent*, or hangs: two are asked, and all others if neither has answered after a moment.
//! * *The slots do not change*, while a dead master is not replaced: every request wants a look. They share
//!   it, and each look that shows nothing new delays the next one, up to a second. A look that shows
//!   something does not: there may be more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, select};
use futures::stream::{FuturesUnordered, StreamExt as _};
use redis::{ErrorKind, RedisError, ServerErrorKind as Said, Value};

use super::slots::Slots;
use super::{Cluster, Node, State, kind, nobody};
use crate::connection::pause::pause;
use crate::failure::Failed;

const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Between two looks that show nothing new.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many are asked first.
const FIRST: usize = 2;
/// How long they alone have to answer.
const ALONE: Duration = Duration::from_millis(100);

/// When the next look may begin.
#[derive(Debug)]
pub(super) struct Pace {
    pause: Duration,
    next: Timestamp,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            pause: PAUSE_MIN,
            next: Timestamp::ZERO,
        }
    }
}

impl Pace {
    /// How long a look that is wanted now has to wait. The first one after a while does not.
    fn wait(&mut self, now: Timestamp) -> Duration {
        if now.since(self.next) > PAUSE_MAX {
            self.pause = PAUSE_MIN;
        }
        now.until(self.next)
    }

    /// A look is over. Half of the pause is random: clients that lost the same node do not look in step.
    fn over(&mut self, now: Timestamp, changed: bool, random: u8) {
        if changed {
            self.pause = PAUSE_MIN;
        }
        let half = self.pause / 2;
        self.next = now + half + half * u32::from(random) / 255;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl Cluster {
    /// Looks up the slots. Returns whether they have changed.
    pub(super) async fn look(self: &Arc<Self>) -> Result<bool, Failed> {
        let mut first = self.candidates();
        let others = first.split_off(FIRST.min(first.len()));
        let mut asked = FuturesUnordered::new();
        let mut best = Err(Failed::unsent(nobody()));
        // After the last of them a part is taken for an answer, so that one that hangs does not block the
        // rest.
        let alone = ALONE.min(self.setup.timeout / 8);
        for (nodes, patience) in [(first, alone), (others, self.setup.timeout / 2 - alone)] {
            asked.extend(nodes.into_iter().map(ask));
            let mut over = self.setup.runtime.sleep(patience);
            while let Either::Left((Some(answer), _)) = select(asked.next(), &mut over).await {
                best = better(best, answer);
                if best.as_ref().is_ok_and(Slots::are_all) {
                    return best.map(|slots| self.learn(slots));
                }
            }
        }
        while best.is_err()
            && let Some(answer) = asked.next().await
        {
            best = better(best, answer);
        }
        best.map(|slots| self.learn(slots))
    }

    /// All nodes that are known, two of them, whichever they are, in front.
    fn candidates(&self) -> Vec<Result<Arc<Node>, Failed>> {
        let mut state = self.state();
        let known = state.slots.masters().chain(state.nodes.keys()).chain(&self.seeds);
        let all: HashSet<_> = known.cloned().collect();
        let mut all: Vec<_> = all.into_iter().map(|at| self.node(&mut state, at)).collect();
        for n in 0..FIRST.min(all.len()) {
            let other = n + usize::from(self.setup.random()) % (all.len() - n);
            all.swap(n, other);
        }
        all
    }

    /// Stores the slots. Returns whether they have changed. Nodes that have no slots any more, and are not
    /// among the known ones, are dropped: no channel is subscribed there.
    fn learn(self: &Arc<Self>, slots: Slots) -> bool {
        let state = &mut *self.state();
        // Not with what redirections said since: of a node that is behind, that would be news each time.
        let changed = state.told != slots;
        (state.told, state.slots) = (slots.clone(), slots);
        if state.slots.are_all() {
            let kept: HashSet<_> = state.slots.masters().chain(&self.seeds).collect();
            let gone = state.nodes.extract_if(|at, _| !kept.contains(at));
            let gone: HashMap<_, _> = gone.inspect(|(_, node)| node.close()).collect();
            let mut is_deaf = false;
            for listened_at in state.channels.values_mut() {
                if listened_at.take_if(|at| gone.contains_key(at)).is_some() {
                    is_deaf = true;
                }
            }
            if is_deaf {
                self.look_again_in(state);
            }
        }
        changed
    }

    /// Has it looked for once more.
    pub(super) fn look_again_in(self: &Arc<Self>, state: &mut State) {
        state.again = true;
        if !state.closed && !std::mem::replace(&mut state.looking, true) {
            let looking = look_until_it_is_found(Arc::downgrade(self), self.setup.runtime.clone());
            self.setup.runtime.spawn(looking.boxed());
        }
    }

    /// One look; whether it is over with that.
    async fn look_once(self: &Arc<Self>) -> bool {
        self.state().again = false;
        let looked = self.setup.within(self.look()).await;
        let heard = looked.is_ok() && self.listen_again().await;
        let mut state = self.state();
        let changed = matches!(looked, Ok(true));
        state.pace.over(Timestamp::now(), changed, self.setup.random());
        // The next request looks again; connections that only listen do not.
        let nobody_waits = looked.is_err() && state.channels.is_empty();
        let over = state.closed || ((heard || nobody_waits) && !state.again);
        state.looking = !over;
        over
    }
}

/// Who knows of more slots says more. That one is not there says less than what another one says.
fn better(best: Result<Slots, Failed>, answer: Result<Slots, Failed>) -> Result<Slots, Failed> {
    match (&best, &answer) {
        (Ok(best), Ok(slots)) if best.count() < slots.count() => answer,
        (Err(why), _) if answer.is_ok() || kind(why) == Some(ErrorKind::Io) => answer,
        _ => best,
    }
}

/// Where the slots are, as that node has it.
fn ask(node: Result<Arc<Node>, Failed>) -> BoxFuture<'static, Result<Slots, Failed>> {
    async move {
        let node = node?;
        let query = |mut c| async move {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS").query_async::<Value>(&mut c).await
        };
        let answer = node.commands.ask(query).await?;
        let slots = Slots::read(&answer, &node.at).ok_or_else(|| Failed::sent(no_slots()))?;
        match slots.count() {
            0 => Err(Failed::sent(belongs_to_none())),
            _ => Ok(slots),
        }
    }
    .boxed()
}

/// Until it is known where the slots are and everything is listened to there, if anything is.
async fn look_until_it_is_found(me: Weak<Cluster>, runtime: Arc<dyn Runtime>) {
    loop {
        let Some(cluster) = me.upgrade() else { return };
        let wait = cluster.state().pace.wait(Timestamp::now());
        // Without the cluster: it may be given up meanwhile.
        drop(cluster);
        if !wait.is_zero() {
            pause(runtime.sleep(wait)).await;
        }
        let Some(cluster) = me.upgrade() else { return };
        if cluster.look_once().await {
            return;
        }
    }
}

fn no_slots() -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "its slots are not told"))
}

fn belongs_to_none() -> RedisError {
    RedisError::from((ErrorKind::Server(Said::ClusterDown), "the node knows of no slots"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_look_after_a_while_is_at_once() {
        let (mut pace, mut now) = (Pace::default(), Timestamp::ZERO + PAUSE_MAX * 5);
        assert_eq!(pace.wait(now), Duration::ZERO);
        for _ in 0..20 {
            pace.over(now, false, 255);
            now = now + pace.wait(now);
        }
        now = now + PAUSE_MAX * 3;
        assert_eq!(pace.wait(now), Duration::ZERO);
        pace.over(now, false, 255);
        assert!(pace.wait(now) <= PAUSE_MIN);
    }
}
