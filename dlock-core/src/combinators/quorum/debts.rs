//! Obligations to the members: lost rounds that must be given back.
//!
//! Each member that is owed something has one task. The task abandons the rounds in its list, many in one
//! call, and retries with growing pauses until the member has answered or the rounds have expired. So a
//! member that is away for an hour costs one call a second, and one that hangs delays no other. An abandon
//! leaves a tombstone, so it does not matter whether the request has arrived or arrives late.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{Either, select};

use super::rounds::Round;
use super::shared::Shared;
use crate::capabilities::Nature;
use crate::error::ErrorKind;
use crate::runtime::yield_now;
use crate::spi::LeaseKey;
use crate::timestamp::Timestamp;

/// The maximum number of rounds that are abandoned in one call.
const BATCH: usize = 256;
/// The maximum number of rounds kept for one member. Beyond it the oldest are dropped, and expire.
const MOST: usize = 1 << 16;
/// The first pause after a failure. It doubles up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

/// The obligations to one member.
#[derive(Default)]
pub(super) struct Debts(Mutex<Owed>);

#[derive(Default)]
struct Owed {
    /// Each with the time by which it has expired.
    keys: VecDeque<(LeaseKey, Timestamp)>,
    /// Whether a task is running.
    paid: bool,
}

impl Debts {
    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is owed and no task is running.
    pub(super) fn is_settled(&self) -> bool {
        let owed = self.owed();
        owed.keys.is_empty() && !owed.paid
    }
}

impl Shared {
    /// Undoes a round at a member, in the background.
    pub(super) fn owe(self: &Arc<Self>, member: usize, round: &Round) {
        // A request that is sent now may take a while, and a grant lives for its ttl. A session keeps it for
        // longer.
        let lapsed_at = match self.capabilities.nature {
            Nature::Session => Timestamp::MAX,
            Nature::Lease => self.runtime.now() + round.ttl * 2 + self.patience,
        };
        let begins = {
            let mut owed = self.members[member].debts.owed();
            if owed.keys.len() >= MOST {
                owed.keys.pop_front();
            }
            owed.keys.push_back((round.inside.clone(), lapsed_at));
            !std::mem::replace(&mut owed.paid, true)
        };
        if begins {
            let shared = self.clone();
            self.runtime
                .spawn(async move { shared.pay(member).await }.boxed());
        }
    }

    /// Waits until all answers are received and nothing is owed, for the patience at most: obligations to a
    /// dead member expire.
    pub(super) async fn settle(&self) {
        const LOOKS: Duration = Duration::from_millis(2);
        let by = self.runtime.now() + self.patience;
        let is_settled = || {
            self.lingering.load(Ordering::Acquire) == 0
                && self.members.iter().all(|member| member.debts.is_settled())
        };
        while !is_settled() && self.runtime.now() < by {
            self.runtime.sleep(LOOKS).await;
            yield_now().await;
        }
    }

    async fn pay(self: Arc<Self>, member: usize) {
        // If this task is dropped half-way, the next obligation starts another.
        let paying = Paying(&self, member);
        let mut pause = PAUSES.0;
        loop {
            let batch = self.next_debts(member);
            if batch.is_empty() {
                // It has ended already, and another may have started.
                return std::mem::forget(paying);
            }
            if self.abandon_some(member, batch).await {
                pause = PAUSES.0;
            } else {
                self.runtime.sleep(pause).await;
                yield_now().await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    /// The first rounds in the list that have not expired. If there are none, the task ends in the same step:
    /// the next obligation starts another.
    fn next_debts(&self, member: usize) -> Vec<(LeaseKey, Timestamp)> {
        let now = self.runtime.now();
        // Sessions end with the last user of their connections, which is this task.
        let ends_all = self.dropped.load(Ordering::Acquire) && self.capabilities.nature == Nature::Session;
        let mut owed = self.members[member].debts.owed();
        owed.keys.retain(|(_, lapsed_at)| *lapsed_at > now && !ends_all);
        let some = owed.keys.len().min(BATCH);
        let batch: Vec<_> = owed.keys.drain(..some).collect();
        owed.paid = !batch.is_empty();
        batch
    }

    /// Abandons these rounds, and puts those that were not answered back into the list. `true` if all were
    /// answered.
    async fn abandon_some(&self, member: usize, batch: Vec<(LeaseKey, Timestamp)>) -> bool {
        let keys: Vec<_> = batch.iter().map(|(key, _)| key.clone()).collect();
        let at = &self.members[member];
        let asking = AssertUnwindSafe(at.backend.abandon(&keys)).catch_unwind();
        let answers = match select(asking, self.runtime.sleep(self.patience)).await {
            Either::Left((Ok(answers), _)) => answers,
            _ => Vec::new(),
        };
        if answers.iter().any(Result::is_ok) {
            at.silent.store(false, Ordering::Relaxed);
        }
        let mut answers = answers.into_iter();
        let mut all_done = true;
        for debt in batch {
            match answers.next() {
                Some(Ok(_)) => {}
                // A closed member is not asked any more.
                Some(Err(e)) if e.kind() == ErrorKind::Closed => {}
                _ => {
                    all_done = false;
                    at.debts.owed().keys.push_back(debt);
                }
            }
        }
        all_done
    }
}

struct Paying<'a>(&'a Shared, usize);

impl Drop for Paying<'_> {
    fn drop(&mut self) {
        let Self(shared, member) = self;
        shared.members[*member].debts.owed().paid = false;
    }
}
