//! What a client, its guards, its waiting futures and its keeper share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_listener::Event;
use futures::task::AtomicWaker;

use super::jobs::Job;
use super::lease::Lease;
use super::limit::Over;
use super::losses::{Heard, Losses};
use super::periods::scatter;
use super::poller::Poller;
use super::timers::{Entry, Timers};
use super::validity::Look;
use super::waiter::Waiter;
use crate::capabilities::Capabilities;
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::name::LockName;
use crate::observe;
use crate::request_id::RequestId;
use crate::runtime::Runtime;
use crate::spi::{self, LeaseKey, LostLeases};
use crate::timestamp::Timestamp;

/// The settings of a client.
pub(crate) struct Settings {
    pub(crate) backend: Arc<dyn spi::Lock>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) op_timeout: Duration,
}

pub(crate) struct Core {
    pub(crate) backend: Arc<dyn spi::Lock>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) caps: Capabilities,
    /// How long one request to the store may take, and how long failing requests are retried.
    pub(crate) op_timeout: Duration,
    client: u128,
    sequence: AtomicU64,
    random: AtomicU64,
    phase: AtomicU8,
    pub(super) retired: AtomicBool,
    /// Requests whose outcome has not been handled yet: closing waits for them.
    pub(super) in_flight: AtomicUsize,
    /// The number of mass losses. Only changed under the mutex of the state.
    losses: AtomicU64,
    /// The number of doubts about leases. Only changed under the mutex of the state.
    doubts: AtomicU64,
    /// The number of pollers, readable without the mutex.
    pub(super) pollers: AtomicUsize,
    state: Mutex<State>,
    keeper: AtomicWaker,
    poked: AtomicBool,
    /// Notified when closing begins.
    pub(super) closing: Event,
    /// Notified when closing has ended.
    pub(super) closed: Event,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("backend", &self.caps.backend)
            .finish_non_exhaustive()
    }
}

/// The state under the mutex. Nothing is awaited, woken or dropped into user code while it is locked.
#[derive(Debug)]
pub(super) struct State {
    pub(super) timers: Timers,
    /// New obligations for the keeper.
    pub(super) inbox: Vec<Arc<Job>>,
    pub(super) pollers: HashMap<LockName, Arc<Poller>>,
    /// Pollers that must look at once.
    pub(super) pokes: Vec<Arc<Poller>>,
    losses: Losses,
    /// When the keeper will wake. Code that adds an earlier entry to the timers wakes it.
    pub(super) armed: Timestamp,
}

/// The phase in the life of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Closing,
    Closed,
}

impl Core {
    pub(super) fn new(settings: Settings) -> Self {
        let Settings {
            backend,
            runtime,
            op_timeout,
        } = settings;
        let mut seed = [0; 24];
        runtime.fill_random(&mut seed);
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|j| seed[8 * i + j]));
        Self {
            caps: crate::spi::capabilities_of(&*backend),
            backend,
            op_timeout,
            client: u128::from(word(0)) << 64 | u128::from(word(1)),
            sequence: AtomicU64::new(1),
            random: AtomicU64::new(word(2)),
            phase: AtomicU8::new(Phase::Open as u8),
            retired: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            losses: AtomicU64::new(0),
            doubts: AtomicU64::new(0),
            pollers: AtomicUsize::new(0),
            state: Mutex::new(State {
                timers: Timers::default(),
                inbox: Vec::new(),
                pollers: HashMap::new(),
                pokes: Vec::new(),
                losses: Losses::default(),
                armed: Timestamp::MAX,
            }),
            keeper: AtomicWaker::new(),
            poked: AtomicBool::new(false),
            closing: Event::new(),
            closed: Event::new(),
            runtime,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    /// A fresh key (I5).
    pub(super) fn new_key(&self, name: &LockName) -> LeaseKey {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        LeaseKey::new(name.clone(), RequestId::new(self.client, sequence))
    }

    /// A random duration of at most `up_to`, seeded from the runtime (splitmix64).
    pub(super) fn jitter(&self, up_to: Duration) -> Duration {
        let z = scatter(self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed));
        let share = (z >> 11) as f64 / (1_u64 << 53) as f64;
        up_to.mul_f64(share)
    }

    /// The pause after `tries` failed tries: 25 ms doubling to 800 ms, half of it random.
    pub(crate) fn backoff(&self, tries: u32) -> Duration {
        let full = Duration::from_millis(25) * 2_u32.pow(tries.clamp(1, 6) - 1);
        full / 2 + self.jitter(full / 2)
    }

    // ---- life ----

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Open,
            1 => Phase::Closing,
            _ => Phase::Closed,
        }
    }

    pub(super) fn retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase() == Phase::Open
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.phase() {
            Phase::Open => Ok(()),
            _ => Err(closed()),
        }
    }

    pub(super) fn begin_closing(&self) {
        let (open, closing) = (Phase::Open as u8, Phase::Closing as u8);
        if self
            .phase
            .compare_exchange(open, closing, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            self.closing.notify(usize::MAX);
            self.wake_keeper();
        }
    }

    /// The keeper has ended, in order or because its runtime did. Nothing is renewed from here on, so no
    /// lease is valid from here on.
    pub(super) fn shut_down(&self) {
        self.phase.store(Phase::Closed as u8, Ordering::Release);
        // Jobs are dropped outside of the mutex: this notifies those that wait for the end of a release.
        let (entries, _unpaid): (Vec<Entry>, _) = {
            let mut state = self.state();
            let unpaid = std::mem::take(&mut state.inbox);
            let all = std::iter::from_fn(|| state.timers.pop_due(Timestamp::MAX)).collect();
            (all, unpaid)
        };
        for entry in &entries {
            match entry {
                Entry::Lease(lease) if lease.lose(LossReason::Closed) => {
                    observe::ended(&self.caps);
                    observe::lost(&self.caps, lease, LossReason::Closed);
                }
                Entry::Limit(limit) => limit.end(Over::Closing),
                _ => {}
            }
        }
        self.closing.notify(usize::MAX);
        self.closed.notify(usize::MAX);
    }

    /// Something that closing waits for has ended.
    pub(super) fn landed(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 && self.phase() != Phase::Open {
            self.wake_keeper();
        }
    }

    // ---- the keeper's bell ----

    pub(super) fn wake_keeper(&self) {
        if !self.poked.swap(true, Ordering::AcqRel) {
            self.keeper.wake();
        }
    }

    /// Whether the bell rang. Registers first and looks second, so that no ring is lost.
    pub(super) fn poll_bell(&self, cx: &mut std::task::Context<'_>) -> bool {
        self.keeper.register(cx.waker());
        self.poked.swap(false, Ordering::AcqRel)
    }

    // ---- the table ----

    /// The store has reported that leases are lost; `held` are those that the keeper manages. Grants in
    /// transit count too.
    pub(super) fn note_loss(&self, state: &mut State, what: &LostLeases, held: &[Arc<Lease>]) {
        match what {
            LostLeases::All | LostLeases::Where(_) => {
                let number = self.losses.fetch_add(1, Ordering::AcqRel) + 1;
                state.losses.note_mass_loss(number, what.clone());
            }
            LostLeases::These(keys) if self.in_flight.load(Ordering::Acquire) > 0 => {
                let held: HashSet<_> = held.iter().map(|lease| &lease.key).collect();
                let early = keys.iter().filter(|key| !held.contains(key));
                state.losses.note_early(early.cloned());
            }
            LostLeases::These(_) => state.losses.forget_early(),
        }
    }

    /// The store has reported a doubt whether leases stand: leases whose grants are in transit are renewed as
    /// soon as they arrive.
    pub(super) fn note_doubt(&self, _: &mut State) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// What the store has reported so far. Read before a request is sent.
    pub(super) fn heard(&self) -> Heard {
        Heard {
            losses: self.losses.load(Ordering::Acquire),
            doubts: self.doubts.load(Ordering::Acquire),
        }
    }

    /// Hands a lease to the keeper. Fails if the client is closing, or if the lease was lost while its grant
    /// was in transit; `before` was read before the request was sent. On failure the caller gives the lease
    /// back.
    pub(super) fn hold(&self, lease: &Arc<Lease>, before: Heard) -> Result<()> {
        let earlier = {
            let mut state = self.state();
            // Under the mutex, so that closing, which locks it to end what is held, cannot miss the lease.
            if self.phase() != Phase::Open {
                return Err(closed());
            }
            let heard = self.heard();
            let in_a_lot = heard.losses != before.losses && state.losses.hit_since(before.losses, &lease.key);
            if in_a_lot || state.losses.hit_early(&lease.key) {
                return Err(Error::lost(LossReason::SessionLost));
            }
            if heard.doubts != before.doubts && lease.options.renew_period(lease.span()).is_some() {
                lease.renew_at(self.now());
            }
            let Some(at) = lease.next_event() else {
                return Err(Error::lost(LossReason::Expired));
            };
            state.timers.set(at, Entry::Lease(lease.clone()));
            at < state.armed
        };
        if earlier {
            self.wake_keeper();
        }
        Ok(())
    }

    /// Schedules the next event of a lease with the keeper, if it is held.
    pub(super) fn reschedule(&self, lease: &Arc<Lease>) {
        let earlier = {
            let mut state = self.state();
            // Checked under the mutex: code that ends the lease removes it under the mutex afterwards.
            match lease.next_event() {
                Some(at) => {
                    state.timers.set(at, Entry::Lease(lease.clone()));
                    at < state.armed
                }
                None => {
                    state.timers.remove(&lease.place);
                    false
                }
            }
        };
        if earlier {
            self.wake_keeper();
        }
    }

    /// Takes a lease from the keeper.
    pub(super) fn let_go(&self, lease: &Lease) {
        self.state().timers.remove(&lease.place);
        observe::ended(&self.caps);
    }

    /// The time left until the deadline of a lease, by the clock. The look that finds it over does what has
    /// to follow.
    pub(crate) fn remaining(&self, lease: &Arc<Lease>) -> Duration {
        let now = self.now();
        match lease.look(now) {
            Look::Valid(deadline) => now.until(deadline),
            Look::JustExpired => {
                self.expired(lease);
                Duration::ZERO
            }
            Look::Ended => Duration::ZERO,
        }
    }

    /// Stops the keeper at once: its obligations are never met, and what is held expires.
    pub(crate) fn abort(&self) {
        self.phase.store(Phase::Closed as u8, Ordering::Release);
        self.wake_keeper();
    }

    /// Does, once, what has to follow when the deadline of a lease has passed.
    pub(super) fn expired(&self, lease: &Arc<Lease>) {
        self.let_go(lease);
        observe::lost(&self.caps, lease, lease.loss().unwrap_or(LossReason::Expired));
        // The store may keep it for the margin: released, others get it sooner.
        self.owe_release(lease);
    }

    /// Ends a lease as lost; `release` says whether the store may still keep it.
    pub(super) fn lose(&self, lease: &Arc<Lease>, reason: LossReason, release: bool) {
        if lease.lose(reason) {
            self.let_go(lease);
            observe::lost(&self.caps, lease, reason);
            if release {
                self.owe_release(lease);
            } else {
                self.abandon_late_copy(lease);
            }
        }
    }

    /// This client released the name: its waiters need not wait for the next look.
    pub(super) fn poke_poller(&self, name: &LockName) {
        self.poke(name, |_| {});
    }

    /// One of the first waiters of the name was granted: the next few are asked for, whatever a look says.
    pub(super) fn poke_next_in_line(&self, name: &LockName) {
        self.poke(name, Poller::look_at_next);
    }

    fn poke(&self, name: &LockName, with: impl FnOnce(&Poller)) {
        if self.pollers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state();
        if let Some(poller) = state.pollers.get(name).cloned() {
            with(&poller);
            state.pokes.push(poller);
            drop(state);
            self.wake_keeper();
        }
    }

    /// The store has news: pollers need not wait until their next look is due.
    pub(super) fn hasten_looks(&self) {
        let now = self.now();
        let mut state = self.state();
        let pollers: Vec<_> = state.pollers.values().cloned().collect();
        for poller in pollers {
            let at = poller.look_at(now);
            // A poller that is not in the timers is looking now, and will look again soon.
            state.timers.hasten(at, &Entry::Poller(poller));
        }
    }

    /// Asks for a waiter again at once.
    pub(super) fn hasten(&self, waiter: &Arc<Waiter>) {
        let now = self.now();
        {
            let mut state = self.state();
            if !state.timers.hasten(now, &Entry::Waiter(waiter.clone())) {
                // It is being asked for, and the answer may precede the change.
                waiter.ask_again();
            }
        }
        self.wake_keeper();
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was closed")
}
