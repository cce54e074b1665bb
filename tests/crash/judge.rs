//! What all the processes did, on the clock of the machine, and whether it may have been.

use std::collections::HashMap;

use dlock::Timestamp;
use dlock_conformance::agent::{Seen, Step};
use dlock_conformance::{Verdict, ensure};

/// A guard, and for how long it was believed in.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) who: String,
    pub(crate) token: u64,
    /// When the acquire had returned.
    pub(crate) from: u64,
    /// The latest deadline that it told, or the time before its release.
    pub(crate) until: u64,
    ended: bool,
}

/// A write that the gate admitted.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) who: String,
    pub(crate) token: u64,
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

/// The doings of all processes.
#[derive(Debug, Default)]
pub(crate) struct Record {
    grants: HashMap<(u64, u64), Grant>,
    writes: Vec<Write>,
    pub(crate) refused: u64,
    pub(crate) failed: HashMap<String, u64>,
}

impl Record {
    /// What the process with that number told.
    pub(crate) fn add(&mut self, process: u64, step: Step) {
        let key = (process, step.grant);
        match step.seen {
            Seen::Granted { token, deadline } => {
                self.granted(key, token, Timestamp::from_nanos(step.ended), deadline)
            }
            Seen::Valid { deadline } => {
                if let Some(grant) = self.grants.get_mut(&key) {
                    grant.until = grant.until.max(deadline);
                }
            }
            Seen::Releasing => self.released(key, Timestamp::from_nanos(step.began)),
            Seen::Admitted => {
                if let Some(grant) = self.grants.get(&key) {
                    let (who, token) = (grant.who.clone(), grant.token);
                    let (began, ended) = (step.began, step.ended);
                    self.writes.push(Write {
                        who,
                        token,
                        began,
                        ended,
                    });
                }
            }
            Seen::Refused => self.refused += 1,
            Seen::Failed(why) => *self.failed.entry(why).or_default() += 1,
            Seen::Invalid | Seen::Released => {}
        }
    }

    /// A grant, also of the parent's own.
    pub(crate) fn granted(&mut self, key: (u64, u64), token: u64, at: Timestamp, deadline: u64) {
        let who = format!("process {} (hold {})", key.0, key.1);
        let (from, until) = (at.as_nanos(), deadline);
        self.grants.insert(
            key,
            Grant {
                who,
                token,
                from,
                until,
                ended: false,
            },
        );
    }

    /// It believes no more from that time on.
    pub(crate) fn released(&mut self, key: (u64, u64), at: Timestamp) {
        if let Some(grant) = self.grants.get_mut(&key)
            && !grant.ended
        {
            grant.ended = true;
            grant.until = grant.until.min(at.as_nanos());
        }
    }

    /// A write of the parent's own that was admitted.
    pub(crate) fn wrote(&mut self, token: u64, began: Timestamp, ended: Timestamp) {
        let (began, ended) = (began.as_nanos(), ended.as_nanos());
        let who = "the parent".to_owned();
        self.writes.push(Write {
            who,
            token,
            began,
            ended,
        });
    }

    /// Whether that process was holding when it did its last step.
    pub(crate) fn holds(&self, process: u64) -> bool {
        let of_it = self.grants.iter().filter(|((p, _), _)| *p == process);
        of_it
            .max_by_key(|((_, n), _)| *n)
            .is_some_and(|(_, grant)| !grant.ended)
    }

    /// How many others were granted in that time.
    pub(crate) fn granted_between(&self, from: Timestamp, until: Timestamp) -> usize {
        let between = |grant: &&Grant| (from.as_nanos()..until.as_nanos()).contains(&grant.from);
        self.grants.values().filter(between).count()
    }

    /// When anybody was granted last, as far as it was told.
    pub(crate) fn last_grant(&self) -> Timestamp {
        let last = self.grants.values().map(|grant| grant.from).max();
        Timestamp::from_nanos(last.unwrap_or_default())
    }

    pub(crate) fn grants(&self) -> u64 {
        self.grants.len() as u64
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.len() as u64
    }

    /// No two valid guards at once; tokens in the order of the grants; no write after one with a larger
    /// token.
    pub(crate) fn judge(&self) -> Verdict {
        // One that was over when it was told was believed by nobody: its process was stopped on the way.
        let believed = |grant: &&Grant| grant.from < grant.until;
        let mut grants: Vec<&Grant> = self.grants.values().filter(believed).collect();
        grants.sort_by_key(|grant| grant.from);
        let mut before: Option<&Grant> = None;
        for grant in grants {
            if let Some(before) = before {
                ensure!(
                    before.until <= grant.from,
                    "{} with token {} was granted {} ms before {} with token {} believed no more",
                    grant.who,
                    grant.token,
                    (before.until - grant.from) as f64 / 1e6,
                    before.who,
                    before.token
                );
                ensure!(
                    before.token < grant.token,
                    "{} was granted after {}, with token {} after {}",
                    grant.who,
                    before.who,
                    grant.token,
                    before.token
                );
            }
            before = Some(match before {
                Some(before) if before.until > grant.until => before,
                _ => grant,
            });
        }
        let mut ended: Vec<&Write> = self.writes.iter().collect();
        ended.sort_by_key(|write| write.ended);
        let mut ended = ended.into_iter().peekable();
        let mut began: Vec<&Write> = self.writes.iter().collect();
        began.sort_by_key(|write| write.began);
        let mut largest: Option<&Write> = None;
        for write in began {
            while let Some(done) = ended.next_if(|done| done.ended < write.began) {
                if largest.is_none_or(|largest| done.token > largest.token) {
                    largest = Some(done);
                }
            }
            if let Some(largest) = largest {
                ensure!(
                    write.token >= largest.token,
                    "a write of {} with the stale token {} was admitted after one of {} with token {}",
                    write.who,
                    write.token,
                    largest.who,
                    largest.token
                );
            }
        }
        Ok(())
    }
}
