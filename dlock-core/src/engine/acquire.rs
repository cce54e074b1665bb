//! One acquire, from the first attempt to a guard.
//!
//! What could break it, and why it does not:
//!
//! * *The future is dropped at any poll.* From before the request may have been sent until a guard exists, a
//!   `Request` is on the stack. Dropped while armed, it owes the store an abandon, which the keeper performs
//!   (I1). Abandoning leaves a tombstone, so it does not matter which of the two messages arrives first.
//! * *The reply is lost.* The attempt is repeated with the same key; the store recognises its own grant and
//!   answers its remaining life (I5). When time runs out the outcome is `Unknown`, and the request is
//!   abandoned.
//! * *The reply comes so late that the grant is over.* Its deadline counts from before the send (I3), so that
//!   is seen here; it is given back, and then the wait continues under a new key. An expired grant never
//!   becomes a guard.
//! * *The store refuses it* (a missing permission, foreign data), possibly after it has done a part of it: a
//!   script is not rolled back. So it is abandoned before the call returns, unless the refusal is one that
//!   precedes every effect.
//! * *The wait limit races with a grant.* The request is abandoned before the call returns. Whatever the
//!   store answers, nothing is held afterwards, so `Timeout` is true: the abandon finds and ends a grant that
//!   arrives meanwhile.
//! * *The store is silent when the wait limit is reached.* That abandon gets no longer than
//!   [`LockOptions::WITHDRAWAL`]. Then its future is dropped, and so is the `Request`, still armed: before
//!   the caller gets `Unknown`, the keeper owes an abandon. The first copy may arrive as well, before or
//!   after the keeper's: both name this key, so the later one finds a tombstone, and neither touches a
//!   successor (I5).
//! * *The client closes.* `Core::hold` refuses under the same mutex under which closing ends what is held.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt as _;

use super::core::{Core, closed};
use super::handle::Engine;
use super::jobs::{Duty, Job};
use super::lease::Lease;
use super::losses::Heard;
use super::periods::deadline_of;
use super::release::drop_lease;
use super::validity::Look;
use super::wait::{Woken, wait};
use crate::capabilities::{Capability, Nature};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::name::LockName;
use crate::observe;
use crate::options::{LockOptions, Terms};
use crate::spi::{Abandoned, Acquire, Attempt, Grant, LeaseKey, Queueing, RenewItem, RenewOutcome};
use crate::timestamp::Timestamp;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) options: Arc<Terms>,
}

/// For how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Does not wait for a holder.
    Try,
    /// Waits that long for holders; `None` for ever.
    Wait(Option<Duration>),
}

/// Acquires; `None` only with `Patience::Try`.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    ask: &Ask,
    patience: Patience,
) -> Result<Option<Arc<Lease>>> {
    engine.check_open()?;
    let mut request = Request::new(engine, ask, patience);
    // The clock is read only if there is a wait limit, or if the answer is not there at once: reading it
    // costs.
    request.started = matches!(patience, Patience::Wait(Some(_))).then(|| engine.now());
    let limit = match patience {
        Patience::Wait(Some(limit)) => limit.min(engine.op_timeout),
        _ => engine.op_timeout,
    };
    let answer = {
        let mut first = pin!(engine.ask(limit, engine.backend.attempt(&request.acquire)));
        match futures::poll!(first.as_mut()) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                // Not from the answer on: a store that never answers would cost the limit twice.
                request.started.get_or_insert_with(|| engine.now());
                first.await
            }
        }
    };
    match answer {
        // The common case, without the large future of the other cases.
        Ok(Attempt::Granted(grant)) if !grant.provisional => match request.accept(grant) {
            Ok(lease) => Ok(Some(lease)),
            Err(why) => Box::pin(pursue(request, Err(why), patience)).await,
        },
        Ok(Attempt::Held(_)) if patience == Patience::Try => {
            request.disarm();
            Ok(None)
        }
        other => Box::pin(pursue(request, other, patience)).await,
    }
    .map_err(|e| e.with_name(&ask.name))
}

/// A request that may have reached the store. Dropped while armed, it owes the store an abandon.
pub(super) struct Request<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) acquire: Acquire,
    ask: &'a Ask,
    /// With a wait limit, the time of the call. Otherwise the time since which it had to wait, even for an
    /// answer.
    started: Option<Timestamp>,
    /// Whether it has had to wait.
    waited: bool,
    armed: bool,
    /// The store has it: in the queue, or granted.
    in_store: bool,
    /// Its key is: the grant had expired, or the store has a tombstone for it.
    used_up: bool,
    /// [`Core::heard`](super::core::Core::heard) before the last of its messages was sent.
    heard: Heard,
    /// A copy of it under the present key was not answered.
    late_copy: bool,
}

impl<'a> Request<'a> {
    fn new(engine: &'a Arc<Engine>, ask: &'a Ask, patience: Patience) -> Self {
        let options = &ask.options;
        let mut acquire = Acquire::new(engine.new_key(&ask.name), options.ttl)
            .with_mode(ask.mode)
            .with_priority(options.priority);
        acquire.owner = options.owner_label.clone();
        acquire.waits = patience != Patience::Try;
        if acquire.waits && engine.caps.has(Capability::Queue) {
            acquire.queue = Queueing::Join;
        }
        engine.in_flight.fetch_add(1, Ordering::AcqRel);
        Self {
            engine,
            acquire,
            ask,
            started: None,
            waited: false,
            armed: true,
            in_store: false,
            used_up: false,
            heard: engine.heard(),
            late_copy: false,
        }
    }

    pub(super) fn key(&self) -> &LeaseKey {
        &self.acquire.key
    }

    /// Nothing of it is in the store: nothing is owed.
    fn disarm(mut self) {
        self.armed = false;
    }

    /// Asks the store. What may be there under a key that is used up is given back first: the attempt under
    /// the next one would find the lock held, by this request. The key is never asked for again, since a copy
    /// of the abandon may be in flight.
    async fn attempt(&mut self, until: Option<Timestamp>) -> Result<Attempt> {
        let engine = self.engine;
        if self.used_up {
            abandon_in_line(self, engine.time_left(until)).await?;
            self.acquire.key = engine.new_key(&self.ask.name);
            (self.used_up, self.late_copy, self.in_store) = (false, false, false);
        }
        let attempt = engine.backend.attempt(&self.acquire);
        engine.ask(engine.time_left(until), attempt).await
    }

    /// Turns a grant into a lease that the keeper manages; nothing is owed any more then. Fails if the grant
    /// has expired, or if the client is closing.
    fn accept(&mut self, grant: Grant) -> Result<Arc<Lease>> {
        let now = self.engine.now();
        let expires_in = grant.expires_in;
        let (options, nature) = (self.ask.options.clone(), self.engine.caps.nature);
        let lease = Lease::new(grant, self.ask.mode, options, now, self.late_copy, nature);
        if !matches!(lease.look(now), Look::Valid(_)) {
            return Err(over());
        }
        self.engine.hold(&lease, self.heard)?;
        self.armed = false;
        // From here on the keeper renews it, and without a guard nothing would release it.
        let unclaimed = Unclaimed(self.engine, &lease);
        let waited_since = self.started.filter(|_| self.waited);
        observe::acquired(&self.engine.caps, &lease, expires_in, waited_since, now);
        std::mem::forget(unclaimed);
        Ok(lease)
    }
}

/// A lease that the keeper manages and that has no guard yet. Dropped, because an observer panicked, it is
/// given back.
struct Unclaimed<'a>(&'a Core, &'a Arc<Lease>);

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        drop_lease(self.0, self.1);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.engine
                .owe_abandon(self.acquire.key.clone(), &self.ask.options);
        }
        self.engine.landed();
    }
}

fn timed_out() -> Error {
    Error::new(ErrorKind::Timeout, "the lock was not free within the wait limit")
}

/// A grant came so late that it is over.
fn over() -> Error {
    Error::lost(LossReason::Expired)
}

/// Everything but the common case.
async fn pursue(
    mut request: Request<'_>,
    mut answer: Result<Attempt>,
    patience: Patience,
) -> Result<Option<Arc<Lease>>> {
    let engine = request.engine;
    let started = *request.started.get_or_insert_with(|| engine.now());
    let mut asked_at = started;
    request.waited = true;
    let until = match patience {
        Patience::Wait(Some(limit)) => Some(started + limit),
        Patience::Try | Patience::Wait(None) => None,
    };
    // Since when, and how many times, the store could not be asked, without a success in between.
    let mut failing = Failing::default();
    let mut reconnects = Reconnects::default();
    // It has been queued since the last attempt.
    let mut in_line = false;
    loop {
        request.in_store |= matches!(answer, Ok(Attempt::Granted(_) | Attempt::Queued(_)));
        in_line |= matches!(answer, Ok(Attempt::Held(_) | Attempt::Queued(_)));
        let woken = match answer {
            Ok(Attempt::Granted(grant)) => Woken::Granted(grant, None),
            Ok(Attempt::Held(_)) if patience == Patience::Try => {
                // An earlier copy whose answer was lost may still be in transit, and be granted when the name
                // is free. So the request stays armed, and the abandon's tombstone stops that copy.
                if !failing.may_be_held {
                    request.disarm();
                }
                return Ok(None);
            }
            Ok(Attempt::Held(w)) => {
                failing.note_success();
                wait(&request, w, None, until).await
            }
            Ok(Attempt::Queued(w)) => {
                failing.note_success();
                let queue_ttl = Some(request.acquire.queue_ttl);
                wait(&request, w, queue_ttl, until).await
            }
            Err(e) => Woken::Failed(e),
        };
        match woken {
            Woken::Granted(grant, heard) => {
                request.heard = heard.unwrap_or(request.heard);
                let confirmed = match confirm_if_needed(&request, grant, until).await {
                    Ok(grant) => grant,
                    Err(e) => {
                        answer = Err(e);
                        continue;
                    }
                };
                match request.accept(confirmed) {
                    Ok(lease) => return Ok(Some(lease)),
                    Err(why) => {
                        answer = Err(why);
                        continue;
                    }
                }
            }
            Woken::AskAgain => {}
            Woken::PushesEnded => {
                let pause = reconnects.pause(engine);
                let rest = until.map_or(pause, |t| pause.min(engine.now().until(t)));
                engine.pause(rest).await?;
            }
            Woken::TimedOut => return Err(give_up(request).await),
            Woken::Closed => return Err(closed()),
            Woken::Failed(e) => match e.kind() {
                ErrorKind::Lost => {
                    request.used_up = true;
                    // A grant that came while it was queued: nothing has failed since the last attempt, which
                    // may be long ago.
                    let since = if in_line { engine.now() } else { asked_at };
                    failing.count(since, false);
                    if failing.longer_than(engine.op_timeout, engine.now()) {
                        let message = "grants expire before they arrive: the ttl is too short for the \
                            latency of the store";
                        return Err(Error::new(ErrorKind::Unknown, message).with_source(e));
                    }
                }
                ErrorKind::Unavailable | ErrorKind::Unknown => {
                    request.late_copy |= e.may_be_held();
                    failing.count(asked_at, e.may_be_held());
                    let now = engine.now();
                    // If the wait limit is reached too, the request is withdrawn first, below.
                    if failing.longer_than(engine.op_timeout, now) && until.is_none_or(|t| t > now) {
                        return Err(failing.verdict(request, e));
                    }
                }
                ErrorKind::Closed => return Err(e),
                // Refused before anything was sent, or by the first check of the store.
                ErrorKind::InvalidInput | ErrorKind::Unsupported => {
                    if !failing.may_be_held && !request.in_store {
                        request.disarm();
                    }
                    return Err(e);
                }
                _ => return Err(refused(request, e, until).await),
            },
        }
        if failing.tries > 0 {
            let pause = engine.backoff(failing.tries);
            let now = engine.now();
            if until.is_some_and(|t| t <= now + pause) {
                engine
                    .pause(until.map_or(Duration::ZERO, |t| now.until(t)))
                    .await?;
                return Err(give_up(request).await);
            }
            engine.pause(pause).await?;
        }
        engine.check_open()?;
        if until.is_some_and(|t| t <= engine.now()) {
            return Err(give_up(request).await);
        }
        asked_at = engine.now();
        in_line = false;
        request.heard = engine.heard();
        answer = request.attempt(until).await;
    }
}

/// Streams of pushes that end as soon as they begin: a store whose pushes fail while its commands work.
#[derive(Default)]
struct Reconnects {
    last: Option<Timestamp>,
    row: u32,
}

impl Reconnects {
    /// The pause before the next attempt. None after the first end: a connection broke, and is back.
    fn pause(&mut self, core: &Core) -> Duration {
        let now = core.now();
        let at_once = self
            .last
            .replace(now)
            .is_some_and(|last| now.since(last) < Duration::from_secs(2));
        self.row = if at_once { self.row + 1 } else { 0 };
        if at_once {
            core.backoff(self.row)
        } else {
            Duration::ZERO
        }
    }
}

/// A series of failures.
#[derive(Default)]
struct Failing {
    since: Option<Timestamp>,
    tries: u32,
    /// Whether one of them may have taken effect.
    may_be_held: bool,
}

impl Failing {
    fn count(&mut self, now: Timestamp, may_be_held: bool) {
        self.since.get_or_insert(now);
        self.tries += 1;
        self.may_be_held |= may_be_held;
    }

    /// The store answered. It is not forgotten that an earlier copy may still be in transit.
    fn note_success(&mut self) {
        self.since = None;
        self.tries = 0;
    }

    fn longer_than(&self, limit: Duration, now: Timestamp) -> bool {
        self.since.is_some_and(|since| now.since(since) >= limit)
    }

    /// The error after the last attempt.
    fn verdict(&self, request: Request<'_>, last: Error) -> Error {
        if !self.may_be_held && !request.in_store {
            request.disarm();
            return last;
        }
        if self.may_be_held && last.kind() != ErrorKind::Unknown {
            let message = "it is not known whether the lock was acquired: an answer of the store was lost";
            return Error::new(ErrorKind::Unknown, message).with_source(last);
        }
        last
    }
}

/// The store refused it, possibly after it had done a part of it: undoes that part. If the store refuses this
/// as well, the ttl ends what there is, and trying for ever is pointless. In a session store the ttl does not
/// end it, so there it is tried for one ttl.
async fn refused(request: Request<'_>, why: Error, until: Option<Timestamp>) -> Error {
    let engine = request.engine;
    let limit = engine.time_left(until.map(|t| t + LockOptions::WITHDRAWAL));
    match abandon_in_line(&request, limit).await {
        // Cut off by its limit, or by the end of the client, which meets its obligations before it ends.
        Err(e) if e.is_retryable() || e.kind() == ErrorKind::Closed => {}
        Err(_) if engine.caps.nature == Nature::Session => {
            let until = engine.now() + request.acquire.ttl + engine.op_timeout;
            engine.owe(Job::new(Duty::Abandon, request.key().clone(), until));
            request.disarm();
        }
        _ => request.disarm(),
    }
    why
}

/// Undoes what may be in the store. If that fails, the request still owes it.
async fn abandon_in_line(request: &Request<'_>, limit: Duration) -> Result<Abandoned> {
    let engine = request.engine;
    let keys = [request.key().clone()];
    let answers = engine.ask(limit, engine.backend.abandon(&keys).map(Ok)).await;
    let none = || Error::new(ErrorKind::BackendData, "the backend gave no answer to an abandon");
    answers?.pop().unwrap_or_else(|| Err(none()))
}

/// The wait limit was reached: withdraws the request, and returns the error that is true then.
async fn give_up(request: Request<'_>) -> Error {
    let engine = request.engine;
    match abandon_in_line(&request, engine.op_timeout.min(LockOptions::WITHDRAWAL)).await {
        Ok(_) => {
            request.disarm();
            timed_out()
        }
        Err(e) if e.kind() == ErrorKind::Closed => e,
        Err(e) => {
            let message = "the wait limit was reached, and it is not known whether the lock was acquired: \
                the client continues to withdraw the request in the background";
            Error::new(ErrorKind::Unknown, message).with_source(e)
        }
    }
}

/// A provisional grant is a short claim window. With auto-renewal, the keeper's first renewal, due after a
/// third of it, confirms it. Without, or if the window is so short that a round trip or two could use it up,
/// it is confirmed here. The wait limit applies to that as well.
async fn confirm_if_needed(request: &Request<'_>, grant: Grant, until: Option<Timestamp>) -> Result<Grant> {
    const SHORT: Duration = Duration::from_millis(100);
    let options = &request.ask.options;
    let engine = request.engine;
    let left = deadline_of(options, grant.counted_from, grant.expires_in).since(engine.now());
    if !grant.provisional || (options.renew_period(left).is_some() && left >= SHORT) {
        return Ok(grant);
    }
    let Some(renew) = engine.backend.renew() else {
        return Ok(grant);
    };
    let items = [RenewItem::lease(grant.key.clone(), options.ttl)];
    match engine
        .ask(engine.time_left(until), renew.renew(&items).map(Ok))
        .await?
        .pop()
    {
        Some(RenewOutcome::Renewed(r)) => {
            Ok(Grant::new(grant.key, grant.token, r.counted_from, r.expires_in))
        }
        Some(RenewOutcome::Failed(e)) => Err(e),
        _ => Err(over()),
    }
}
