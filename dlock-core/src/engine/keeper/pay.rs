//! Meeting the obligations to the store (I1).

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, BATCH, Keeper, guarded};
use crate::engine::jobs::{Duty, Job};
use crate::engine::timers::Entry;
use crate::error::{Error, ErrorKind};
use crate::spi::{Release, Released};

/// How many releases may be in transit, at first and at most.
const RELEASES: (usize, usize) = (64, 1024);

/// How long the maximum number of releases may be in transit without any answer. After that a part of the
/// store is considered to hang, and releases elsewhere need not wait for it.
const CROWDED_FOR: Duration = Duration::from_millis(100);

/// How many releases may be in transit. The number grows by the initial one each time that none was answered
/// for a while.
pub(super) struct ReleaseLimit {
    max: usize,
    /// None was answered since the last check.
    is_stuck: bool,
    /// A check is scheduled.
    watched: bool,
}

impl Default for ReleaseLimit {
    fn default() -> Self {
        Self {
            max: RELEASES.0,
            is_stuck: true,
            watched: false,
        }
    }
}

impl ReleaseLimit {
    /// Whether a check is scheduled.
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    pub(super) fn answered(&mut self) {
        self.is_stuck = false;
    }

    pub(super) fn waited(&mut self) {
        self.watched = false;
        if self.is_stuck {
            self.max = (self.max + RELEASES.0).min(RELEASES.1);
        }
    }
}

impl Keeper {
    pub(super) fn pay(&mut self, jobs: Vec<Arc<Job>>) {
        let now = self.core.now();
        let mut abandons = Vec::new();
        for job in jobs {
            if job.moot_at <= now {
                self.paid(&job, None);
                continue;
            }
            match job.duty {
                Duty::Abandon => abandons.push(job),
                Duty::Release(..) => self.releases.push_back(job),
            }
        }
        while !abandons.is_empty() {
            let rest = abandons.split_off(abandons.len().min(BATCH));
            let batch = std::mem::replace(&mut abandons, rest);
            let core = self.core.clone();
            self.send(async move {
                let keys: Vec<_> = batch.iter().map(|j| j.key.clone()).collect();
                let answer = guarded(&core, core.op_timeout, async {
                    core.backend.abandon(&keys).await
                })
                .await;
                Answer::Abandoned(batch, answer)
            });
        }
        while self.releasing < self.release_limit.max
            && let Some(job) = self.releases.pop_front()
        {
            if job.moot_at <= now {
                self.paid(&job, None);
                continue;
            }
            self.releasing += 1;
            let core = self.core.clone();
            self.send(async move {
                // Reads the clock again: less is left of a minimum hold than when the release was first owed.
                let how = match &job.duty {
                    Duty::Release(Some(lease)) => core.release_mode(lease),
                    _ => Release::Now,
                };
                let release = core.backend.release(&job.key, how);
                let answer = guarded(&core, core.op_timeout, release).await.and_then(|a| a);
                Answer::Released(job, answer)
            });
        }
        if self.releases.is_empty() {
            // Releases that hang still count.
            if self.releasing <= RELEASES.0 / 2 {
                self.release_limit.max = RELEASES.0;
            }
        } else if self.release_limit.max < RELEASES.1 && !self.release_limit.watched {
            self.release_limit.watched = true;
            self.release_limit.is_stuck = true;
            let wait = self.core.runtime.sleep(CROWDED_FOR);
            self.send(async move {
                wait.await;
                Answer::Crowded
            });
        }
    }

    /// An obligation is met (`Some`), or moot (`None`).
    pub(super) fn paid(&mut self, job: &Job, released: Option<Released>) {
        self.jobs -= 1;
        match &job.duty {
            Duty::Release(Some(lease)) => {
                self.core.settle(lease, released.unwrap_or(Released::NotHeld));
            }
            _ => self.core.poke_poller(&job.key.name),
        }
    }

    /// An obligation could not be met yet.
    pub(super) fn unpaid(&mut self, job: Arc<Job>, why: &Error) {
        // A closed backend ends every lease of a session; in a lease store they expire.
        if why.kind() == ErrorKind::Closed {
            return self.paid(&job, None);
        }
        let at = self.core.now() + self.core.backoff(job.failed());
        self.core.state().timers.set(at.min(job.moot_at), Entry::Job(job));
    }
}
