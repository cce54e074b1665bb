//! The one background task of a client.
//!
//! It renews leases in batches, reports losses on time, re-asks for waiters, looks for pollers, and meets
//! obligations to the store. It sleeps until the first of these is due. Requests run beside its timer, never
//! before it: however long a renewal hangs, the loss of its lease is reported at the deadline (I4).
//!
//! Observers are notified, and user code is dropped, only outside of the mutex of the engine's state. Due
//! entries are removed under the mutex, handled without it, and put back under it, where it is checked
//! whether they have ended meanwhile.

mod answers;
mod pay;
mod signals;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, StreamExt};

use crate::engine::core::{Core, Phase};
use crate::engine::jobs::Job;
use crate::engine::lease::Lease;
use crate::engine::limit::{Limit, Over};
use crate::engine::losses::Heard;
use crate::engine::poller::{Looked, Poller};
use crate::engine::timers::Entry;
use crate::engine::validity::Look;
use crate::engine::waiter::{Delivery, Waiter};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::events::GuardEvent;
use crate::runtime::yield_now;
use crate::spi::{Abandoned, Released, RenewItem, RenewOutcome, Signal};
use crate::timestamp::Timestamp;

/// The number of items in one request. Beyond 100 to 500, a batch saves little and delays others.
const BATCH: usize = 500;

/// The shortest time limit of a renewal.
const SHORTEST_TRY: Duration = Duration::from_millis(100);

/// And the shortest part of the ttl: a backend over several stores has decided by then which of them are out
/// of reach, and answers for the others. See [`Renew::renew`](crate::spi::Renew::renew).
const PART_OF_TTL: u32 = 6;

/// Timers of runtimes stand still while the machine is suspended, leases do not: while anything is held, the
/// keeper reads the clock at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The keeper of an engine, to be spawned. Dropped before it has ended, because its runtime was shut down, it
/// shuts the engine down.
pub(super) fn start(core: Arc<Core>) -> BoxFuture<'static, ()> {
    let shut_down = ShutDown(core.clone());
    let mut keeper = Keeper {
        signals: Some(core.backend.signals()),
        requests: FuturesUnordered::new(),
        answers: Vec::new(),
        jobs: 0,
        releases: VecDeque::new(),
        releasing: 0,
        release_limit: pay::ReleaseLimit::default(),
        closing_since: None,
        core,
    };
    Box::pin(async move {
        let _shut_down = shut_down;
        keeper.run().await;
    })
}

/// Shuts the engine down when the keeper is dropped.
struct ShutDown(Arc<Core>);

impl Drop for ShutDown {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

struct Keeper {
    core: Arc<Core>,
    signals: Option<BoxStream<'static, Signal>>,
    requests: FuturesUnordered<BoxFuture<'static, Answer>>,
    answers: Vec<Answer>,
    /// The number of obligations that are not met yet.
    jobs: usize,
    /// Releases that wait until one of those in transit is answered.
    releases: VecDeque<Arc<Job>>,
    releasing: usize,
    /// How many releases may be in transit.
    release_limit: pay::ReleaseLimit,
    closing_since: Option<Timestamp>,
}

/// The subject of a renewal.
#[derive(Debug)]
enum Target {
    Lease(Arc<Lease>),
    Waiter(Arc<Waiter>),
}

/// The outcome of a request.
enum Answer {
    Renewed {
        targets: Vec<Target>,
        /// [`Core::heard`] before it was sent.
        heard: Heard,
        answer: Result<Vec<RenewOutcome>>,
    },
    Abandoned(Vec<Arc<Job>>, Result<Vec<Result<Abandoned>>>),
    Released(Arc<Job>, Result<Released>),
    /// Releases have waited for the answers to others for a while.
    Crowded,
    Looked(Arc<Poller>, Result<Looked>),
    Signal(Signal),
}

/// Due entries, removed from the timers.
#[derive(Default)]
struct Due {
    leases: Vec<Arc<Lease>>,
    waiters: Vec<Arc<Waiter>>,
    pollers: Vec<Arc<Poller>>,
    jobs: Vec<Arc<Job>>,
    limits: Vec<Arc<Limit>>,
}

impl Keeper {
    async fn run(&mut self) {
        loop {
            for answer in std::mem::take(&mut self.answers) {
                self.take_answer(answer);
            }
            let now = self.core.now();
            let due = self.collect(now);
            self.handle(due, now);
            if self.is_done(now) {
                break;
            }
            let until = self.arm(now);
            self.idle(until).await;
        }
        let core = &self.core;
        // An engine whose last handle was dropped does not close the backend, which other clients may share.
        if self.phase() == Phase::Closing {
            // The answer is ignored: there is no caller left.
            let _ = core
                .timed(
                    core.op_timeout,
                    AssertUnwindSafe(core.backend.close()).catch_unwind(),
                )
                .await;
        }
    }

    fn phase(&self) -> Phase {
        self.core.phase()
    }

    /// Sleeps until something is due, an answer or signal arrives, or the bell rings.
    async fn idle(&mut self, until: Timestamp) {
        // Reads the clock again: handling due entries took time.
        let left = || self.core.now().until(until);
        let mut timer = (until < Timestamp::MAX).then(|| self.core.runtime.sleep(left()));
        let mut is_over = false;
        std::future::poll_fn(|cx| {
            let mut ready = self.core.poll_bell(cx);
            while let Poll::Ready(Some(answer)) = self.requests.poll_next_unpin(cx) {
                self.answers.push(answer);
                ready = true;
            }
            while let Some(signals) = &mut self.signals {
                let polled = std::panic::catch_unwind(AssertUnwindSafe(|| signals.poll_next_unpin(cx)));
                match polled {
                    Ok(Poll::Ready(Some(signal))) => {
                        self.answers.push(Answer::Signal(signal));
                        ready = true;
                    }
                    // The stream ended, or the backend panicked: there are no more signals.
                    Ok(Poll::Ready(None)) | Err(_) => self.signals = None,
                    Ok(Poll::Pending) => break,
                }
            }
            is_over = !ready && timer.as_mut().is_some_and(|t| t.as_mut().poll(cx).is_ready());
            if ready || is_over {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        // Early: the runtime is being shut down.
        if is_over && self.core.now() < until {
            yield_now().await;
        }
    }

    /// Publishes when it will wake next, so that code with something earlier rings the bell.
    fn arm(&self, now: Timestamp) -> Timestamp {
        let mut state = self.core.state();
        let mut until = state.timers.next().unwrap_or(Timestamp::MAX);
        if state.timers.len() > 0 {
            until = until.min(now + LONGEST_SLEEP);
        }
        if let Some(since) = self.closing_since {
            until = until.min(since + self.core.op_timeout);
        }
        state.armed = until;
        until
    }

    /// Whether nothing is left to do, and no user is left.
    fn is_done(&self, now: Timestamp) -> bool {
        let core = &self.core;
        let idle = self.jobs == 0 && self.requests.len() == usize::from(self.release_limit.is_watched());
        match self.phase() {
            Phase::Closed => true,
            Phase::Closing => {
                // Not before `collect` has seen it: only then is everything that was held being given back.
                let Some(since) = self.closing_since else {
                    return false;
                };
                let in_flight = core.in_flight.load(Ordering::Acquire);
                (idle && in_flight == 0 && core.state().inbox.is_empty())
                    || now.since(since) >= core.op_timeout
            }
            Phase::Open => idle && core.retired() && core.state().inbox.is_empty(),
        }
    }

    // ---- what is due ----

    fn collect(&mut self, now: Timestamp) -> Due {
        let mut due = Due::default();
        let mut state = self.core.state();
        // Takes everything once, when closing begins; from then on nothing new is held.
        let by = match (self.phase(), self.closing_since) {
            (Phase::Closing, None) => {
                self.closing_since = Some(now);
                Timestamp::MAX
            }
            _ => now,
        };
        while let Some(entry) = state.timers.pop_due(by) {
            due.push(entry);
        }
        // Renewals that are due soon join the present batch. Only leases whose next event is that renewal are
        // near the top of the heap, so a few tries suffice; entries that do not join are put back.
        if let Some(horizon) = due
            .leases
            .iter()
            .filter_map(|l| l.options.renew_period(l.span()))
            .min()
        {
            let horizon = now + horizon / 8;
            while let Some(entry) = state.timers.pop_due(horizon) {
                due.push(entry);
            }
        }
        let inbox = std::mem::take(&mut state.inbox);
        self.jobs += inbox.len();
        due.jobs.extend(inbox);
        due.pollers.append(&mut state.pokes);
        due
    }

    fn handle(&mut self, due: Due, now: Timestamp) {
        let closing = self.phase() != Phase::Open;
        for limit in due.limits {
            self.due_limit(&limit, now, closing);
        }
        let mut targets = Vec::new();
        for lease in due.leases {
            self.due_lease(lease, now, closing, &mut targets);
        }
        for waiter in due.waiters {
            if !closing {
                self.due_waiter(waiter, &mut targets);
            }
        }
        self.renew(targets);
        for poller in due.pollers {
            if !closing {
                self.look(poller);
            }
        }
        self.pay(due.jobs);
    }

    fn due_lease(&self, lease: Arc<Lease>, now: Timestamp, closing: bool, targets: &mut Vec<Target>) {
        let core = &self.core;
        if closing {
            return core.lose(&lease, LossReason::Closed, true);
        }
        match lease.look(now) {
            Look::Valid(_) => {}
            Look::JustExpired => return core.expired(&lease),
            Look::Ended => return,
        }
        if lease.take_due_warning(now) {
            lease.emit(GuardEvent::HeldLong);
        }
        let horizon = lease
            .options
            .renew_period(lease.span())
            .map_or(now, |p| now + p / 8);
        if lease.take_due_renewal(horizon) {
            targets.push(Target::Lease(lease.clone()));
        }
        core.reschedule(&lease);
    }

    fn due_limit(&self, limit: &Arc<Limit>, now: Timestamp, closing: bool) {
        if closing {
            limit.end(Over::Closing);
        } else if limit.at <= now {
            limit.end(Over::Time);
        } else {
            // It was taken along with due entries.
            let mut state = self.core.state();
            if !limit.has_left() {
                state.timers.set(limit.at, Entry::Limit(limit.clone()));
            }
        }
    }

    fn due_waiter(&self, waiter: Arc<Waiter>, targets: &mut Vec<Target>) {
        if waiter.queue_ttl.is_none() {
            waiter.deliver(Delivery::AskAgain);
        } else if waiter.begin_ask() {
            targets.push(Target::Waiter(waiter));
        } else {
            waiter.ask_again();
        }
    }

    /// Puts a waiter back into the timers, unless it has left.
    fn seat(&self, waiter: &Arc<Waiter>, recheck_in: Option<Duration>) {
        let at = self.core.next_ask(waiter, self.core.now(), recheck_in);
        self.seat_at(waiter, at);
    }

    fn seat_at(&self, waiter: &Arc<Waiter>, at: Timestamp) {
        let mut state = self.core.state();
        if !waiter.has_left() {
            // Something changed while it was being asked for: ask once more, at once.
            let at = if waiter.is_to_ask_again() {
                self.core.now()
            } else {
                at
            };
            state.timers.set(at, Entry::Waiter(waiter.clone()));
        }
    }

    // ---- requests ----

    fn send(&self, request: impl Future<Output = Answer> + Send + 'static) {
        self.requests.push(Box::pin(request));
    }

    /// Leases past half of their life are renewed separately. Something prevents their renewal, and would
    /// delay the other leases in the batch, since a request gets no more time than its most urgent item has.
    fn renew(&self, targets: Vec<Target>) {
        let now = self.core.now();
        let is_late = |t: &Target| match t {
            // Claim windows too: they would leave the others less time than their ttl promises.
            Target::Lease(l) => {
                let late = l.deadline().is_some_and(|d| now.until(d) < l.span() / 2);
                late || l.span() < l.options.ttl / 2
            }
            Target::Waiter(_) => false,
        };
        let (late, in_time) = targets.into_iter().partition(is_late);
        self.renew_batch(in_time);
        self.renew_batch(late);
    }

    fn renew_batch(&self, mut targets: Vec<Target>) {
        while !targets.is_empty() {
            let rest = targets.split_off(targets.len().min(BATCH));
            let batch = std::mem::replace(&mut targets, rest);
            let core = self.core.clone();
            let heard = core.heard();
            // A lost answer must leave time for another try: one renewal may take a third of the shortest
            // life in its batch. But however little is left, an item that waits for an unavailable store must
            // not fail the other items.
            let now = core.now();
            let limits = batch.iter().filter_map(|t| match t {
                Target::Lease(l) => {
                    let left = l.deadline().map(|d| now.until(d))?;
                    // Computed from what it has now: a provisional grant lives for a moment, and a session
                    // from one sign of life to the next.
                    let life = l.span().min(l.options.ttl);
                    // The time limit of an operation is for callers. This request has none.
                    Some((left / 3).min(core.op_timeout).max(life / PART_OF_TTL))
                }
                Target::Waiter(w) => Some(w.queue_ttl? / PART_OF_TTL).map(|part| part.max(core.op_timeout)),
            });
            let limit = limits.min().unwrap_or(core.op_timeout).max(SHORTEST_TRY);
            self.send(async move {
                let items: Vec<_> = batch
                    .iter()
                    .map(|t| match t {
                        Target::Lease(l) => RenewItem::lease(l.key.clone(), l.options.ttl),
                        Target::Waiter(w) => {
                            RenewItem::queued(w.key.clone(), w.queue_ttl.unwrap_or_default())
                        }
                    })
                    .collect();
                let renewal = async {
                    match core.backend.renew() {
                        Some(part) => Ok(part.renew(&items).await),
                        None => Err(Error::new(
                            ErrorKind::Unsupported,
                            "the backend has no Renew part",
                        )),
                    }
                };
                let answer = guarded(&core, limit, renewal).await.and_then(|a| a);
                Answer::Renewed {
                    targets: batch,
                    heard,
                    answer,
                }
            });
        }
    }

    fn look(&self, poller: Arc<Poller>) {
        if poller.begin_look(self.core.now()) {
            let core = self.core.clone();
            self.send(async move {
                let answer = guarded(&core, core.op_timeout, poller.ask())
                    .await
                    .and_then(|a| a);
                Answer::Looked(poller, answer)
            });
        }
    }
}

impl Due {
    fn push(&mut self, entry: Entry) {
        match entry {
            Entry::Lease(x) => self.leases.push(x),
            Entry::Waiter(x) => self.waiters.push(x),
            Entry::Poller(x) => self.pollers.push(x),
            Entry::Job(x) => self.jobs.push(x),
            Entry::Limit(x) => self.limits.push(x),
        }
    }
}

/// Runs a request of the keeper with its time limit. A panic in it does not end the keeper.
async fn guarded<T>(core: &Core, limit: Duration, request: impl Future<Output = T>) -> Result<T> {
    match core.timed(limit, AssertUnwindSafe(request).catch_unwind()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Error::new(ErrorKind::Unknown, "the backend panicked")),
        Err(e) => Err(e),
    }
}
