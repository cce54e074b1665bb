//! Looking for the slots: who is asked, who is believed, and how often.
//!
//! * *A node that left the cluster* knows of no slots. That is no answer: the others are asked, and what is
//!   known stays.
//! * *A node that knows of a part alone*, since it was cut off or the cluster is just being made, is believed
//!   if nobody knows more. The nodes that were known before stay those to ask; only who knows all the slots
//!   ends that.
//! * *A node that says nothing*, or hangs: two are asked, and all others as soon as one of them does not say
//!   it, or not at once.
//! * *What the slots are told of does not change*, while a master is dead that nobody replaces: everybody who
//!   asks wants a look. They share it, and each one that has shown nothing new puts the next one off, up to a
//!   second. One that has shown something does not: there may be more.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::{Runtime, Timestamp};
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, pending, select};
use futures::stream::{FuturesUnordered, StreamExt as _};
use redis::{ErrorKind, RedisError, ServerErrorKind as Said, Value};

use super::slots::Slots;
use super::{Cluster, Node, State, kind, nobody};
use crate::connection::pause;
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
    /// Asks where the slots are; whether that is another place than was told before.
    pub(super) async fn look(self: &Arc<Self>) -> Result<bool, Failed> {
        let mut first = self.candidates();
        let mut others = first.split_off(FIRST.min(first.len()));
        let mut asked: FuturesUnordered<_> = first.into_iter().map(ask).collect();
        // Then a part is taken for an answer, so that one that hangs keeps nobody from it.
        let long_enough = self.setup.timeout / 2;
        let alone = if others.is_empty() { long_enough } else { ALONE };
        let mut patience: BoxFuture<'static, ()> = self.setup.runtime.sleep(alone);
        let (mut part, mut is_late): (Option<Slots>, bool) = (None, false);
        let mut why: Option<Failed> = None;
        loop {
            let over = match select(asked.next(), &mut patience).await {
                Either::Left((Some(Ok(slots)), _)) if slots.are_all() => return Ok(self.learn(slots)),
                Either::Left((Some(Ok(slots)), _)) => {
                    if part.as_ref().is_none_or(|part| part.count() < slots.count()) {
                        part = Some(slots);
                    }
                    false
                }
                Either::Left((Some(Err(failed)), _)) => {
                    // That one is not there says less than what another one says.
                    if why.as_ref().is_none_or(|why| kind(why) == Some(ErrorKind::Io)) {
                        why = Some(failed);
                    }
                    false
                }
                Either::Left((None, _)) if others.is_empty() => break,
                Either::Left((None, _)) => false,
                Either::Right(_) => true,
            };
            if !others.is_empty() {
                asked.extend(others.drain(..).map(ask));
                patience = self.setup.runtime.sleep(long_enough);
            } else if over {
                (is_late, patience) = (true, pending().boxed());
            }
            if is_late && part.is_some() {
                break;
            }
        }
        match part {
            Some(slots) => Ok(self.learn(slots)),
            None => Err(why.unwrap_or_else(|| Failed::unsent(nobody()))),
        }
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

    /// Takes in where the slots are; whether it was told otherwise before. Of nodes that have none any more
    /// nothing is kept.
    fn learn(self: &Arc<Self>, slots: Slots) -> bool {
        let (changed, gone) = {
            let mut state = self.state();
            // Not with what redirections said since: of a node that is behind, that would be news each time.
            let changed = state.told != slots;
            state.told = slots.clone();
            (changed, self.replace(&mut state, slots))
        };
        for node in gone {
            node.close();
        }
        changed
    }

    /// The nodes that have no slots any more, and are no longer among those that are known: nobody hears
    /// anything there.
    fn replace(self: &Arc<Self>, state: &mut State, slots: Slots) -> Vec<Arc<Node>> {
        state.slots = slots;
        let State {
            slots,
            nodes,
            channels,
            ..
        } = state;
        if !slots.are_all() {
            return Vec::new();
        }
        let kept: HashSet<_> = slots.masters().chain(&self.seeds).collect();
        let gone: Vec<_> = nodes.extract_if(|at, _| !kept.contains(at)).collect();
        let mut is_deaf = false;
        for listened_at in channels.values_mut() {
            if gone.iter().any(|(at, _)| listened_at.as_ref() == Some(at)) {
                (*listened_at, is_deaf) = (None, true);
            }
        }
        if is_deaf {
            self.look_again_in(state);
        }
        gone.into_iter().map(|(_, node)| node).collect()
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
        // Whoever asks has it looked for again; those who only listen do not ask.
        let nobody_waits = looked.is_err() && state.channels.is_empty();
        let over = state.closed || ((heard || nobody_waits) && !state.again);
        state.looking = !over;
        over
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
    fn looks_that_show_nothing_new_come_more_and_more_seldom() {
        let (mut pace, mut now, mut looks) = (Pace::default(), Timestamp::ZERO + PAUSE_MAX * 5, 0);
        let end = now + Duration::from_secs(10);
        while now < end {
            now = now + pace.wait(now);
            pace.over(now, false, 0);
            looks += 1;
        }
        assert!(looks < 30, "{looks}");
        // Never more seldom than that.
        pace.over(now, false, 255);
        assert_eq!(pace.wait(now), PAUSE_MAX);
        // There was something new.
        pace.over(now, true, 255);
        assert!(pace.wait(now) <= PAUSE_MIN);
    }

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
