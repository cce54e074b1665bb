//! The answers of the store, and what follows from them.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Keeper, Target};
use crate::engine::lease::Lease;
use crate::engine::losses::Heard;
use crate::engine::poller::{Looked, Poller};
use crate::engine::timers::Entry;
use crate::engine::validity::Look;
use crate::engine::waiter::{Delivery, Waiter};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::events::GuardEvent;
use crate::name::LockName;
use crate::observe;
use crate::spi::RenewOutcome;

impl Keeper {
    pub(super) fn take_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Renewed {
                targets,
                heard,
                answer,
            } => {
                let outcomes = match answer {
                    Ok(outcomes) if outcomes.len() == targets.len() => outcomes,
                    Ok(_) => {
                        let e =
                            Error::new(ErrorKind::BackendData, "the backend did not answer every renewal");
                        vec![RenewOutcome::Failed(e); targets.len()]
                    }
                    Err(e) => vec![RenewOutcome::Failed(e); targets.len()],
                };
                let mut granted = Vec::new();
                for (target, outcome) in targets.into_iter().zip(outcomes) {
                    match target {
                        Target::Lease(lease) => self.renewed(&lease, outcome),
                        Target::Waiter(waiter) => self.asked(&waiter, outcome, heard, &mut granted),
                    }
                }
                for (name, was_one_of_the_first) in granted {
                    match was_one_of_the_first {
                        true => self.core.poke_next_in_line(&name),
                        false => self.core.poke_poller(&name),
                    }
                }
            }
            Answer::Abandoned(jobs, answer) => {
                let answers = match answer {
                    Ok(answers) if answers.len() == jobs.len() => answers,
                    Ok(_) => {
                        let e =
                            Error::new(ErrorKind::BackendData, "the backend did not answer every abandon");
                        vec![Err(e); jobs.len()]
                    }
                    Err(e) => vec![Err(e); jobs.len()],
                };
                for (job, answer) in jobs.into_iter().zip(answers) {
                    match answer {
                        Ok(_) => self.paid(&job, None),
                        Err(e) => self.unpaid(job, &e),
                    }
                }
            }
            Answer::Released(job, answer) => {
                self.releasing -= 1;
                if answer.is_ok() {
                    self.release_limit.answered();
                }
                match answer {
                    Ok(released) => self.paid(&job, Some(released)),
                    Err(e) => self.unpaid(job, &e),
                }
            }
            Answer::Crowded => self.release_limit.waited(),
            Answer::Looked(poller, answer) => self.looked(&poller, &answer),
            Answer::Signal(signal) => self.signalled(signal),
        }
    }

    fn renewed(&self, lease: &Arc<Lease>, outcome: RenewOutcome) {
        let core = &self.core;
        let now = core.now();
        match outcome {
            RenewOutcome::Renewed(r) => match lease.confirm(now, r.counted_from, r.expires_in) {
                Look::Valid(_) => {
                    observe::renewed(&core.caps, lease, now.since(r.counted_from));
                    lease.schedule_renewal(r.counted_from, r.expires_in);
                    lease.emit(GuardEvent::Renewed);
                }
                Look::JustExpired => core.expired(lease),
                Look::Ended => {}
            },
            RenewOutcome::Gone => core.lose(lease, LossReason::Refused, false),
            other => {
                let why = match other {
                    RenewOutcome::Failed(e) => e,
                    _ => Error::new(
                        ErrorKind::BackendData,
                        "the backend answered the renewal of a lease as that of a waiter",
                    ),
                };
                observe::renewal_failed(&core.caps, lease, &why);
                lease.emit(GuardEvent::RenewalFailed(why));
                // Retried soon, and sooner as the deadline comes near. A fault that is shorter than the
                // remaining time loses nothing.
                let left = match lease.look(now) {
                    Look::Valid(deadline) => now.until(deadline),
                    Look::JustExpired => return core.expired(lease),
                    Look::Ended => return,
                };
                let pause = (left / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
                lease.renew_at(now + pause / 2 + core.jitter(pause / 2));
            }
        }
        core.reschedule(lease);
    }

    fn asked(
        &self,
        waiter: &Arc<Waiter>,
        outcome: RenewOutcome,
        heard: Heard,
        granted: &mut Vec<(LockName, bool)>,
    ) {
        waiter.end_ask();
        let core = &self.core;
        match outcome {
            RenewOutcome::Granted(grant) => {
                granted.push((grant.key.name.clone(), waiter.was_one_of_the_first()));
                waiter.deliver(Delivery::Granted(grant, heard));
            }
            RenewOutcome::Queued { recheck_in, ahead } => {
                waiter.succeeded();
                waiter.set_ahead(ahead);
                self.seat(waiter, recheck_in);
            }
            RenewOutcome::Failed(e) => {
                let now = core.now();
                let hopeless = !e.is_retryable();
                if hopeless || waiter.failing_for(now) >= core.op_timeout {
                    // The queue entry may still exist: the waiting future abandons it.
                    waiter.deliver(Delivery::Failed(e));
                } else {
                    self.seat_at(waiter, now + core.backoff(3));
                }
            }
            // The store does not have it (any more): attempted again under the same key.
            RenewOutcome::Gone | RenewOutcome::Renewed(_) => waiter.deliver(Delivery::AskAgain),
        }
    }

    fn looked(&self, poller: &Arc<Poller>, answer: &Result<Looked>) {
        let again = poller.end_look(self.core.now());
        if answer.as_ref().is_ok_and(|looked| *looked != Looked::Nothing) {
            poller.reset();
        }
        let mut targets = Vec::new();
        for waiter in poller.concerned(answer) {
            self.due_waiter(waiter, &mut targets);
        }
        self.renew(targets);
        let now = self.core.now();
        let interval = poller.next_interval();
        let mut state = self.core.state();
        if state
            .pollers
            .get(&poller.name)
            .is_some_and(|p| Arc::ptr_eq(p, poller))
        {
            if again {
                state.pokes.push(poller.clone());
            } else {
                let pause = interval - self.core.jitter(interval / 4);
                state.timers.set(now + pause, Entry::Poller(poller.clone()));
            }
        }
    }
}
