//! A lease as the client knows it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use event_listener::Event;

use super::lease_state::LeaseState;
use super::periods::{NEVER, deadline_of, kept_by_session, max_hold_at, renew_at};
use super::place::Place;
use super::validity::{Look, Validity};
use crate::capabilities::Nature;
use crate::error::LossReason;
use crate::events::{GuardEvent, Subscribers};
use crate::mode::Mode;
use crate::options::Terms;
use crate::spi::{Grant, LeaseKey};
use crate::timestamp::{Timestamp, nanos};
use crate::token::Token;

/// One acquisition, shared by its guards, its observers and the keeper. About 200 bytes; no task, no timer of
/// its own.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) key: LeaseKey,
    pub(crate) options: Arc<Terms>,
    pub(crate) acquired_at: Timestamp,
    /// A copy of its request was not answered and may still arrive, even after the release: only a tombstone
    /// stops it.
    pub(crate) late_copy: bool,
    validity: Validity,
    mode: AtomicU64,
    token: AtomicU64,
    /// The effective length of the lease in nanoseconds, as the store last reported it.
    span: AtomicU64,
    /// When the ttl ends of a hold that its session keeps and that is not renewed. `NEVER` for all others.
    lapse_at: AtomicU64,
    /// See [`LeaseState`].
    state: AtomicU8,
    /// The conversions that were sent and not answered: [`DOWNGRADE`], [`UPGRADE`], [`CONVERTING`].
    unanswered: AtomicU8,
    /// Whether there are observers, for the code that ends it.
    observed: AtomicBool,
    /// How many guards share it (re-entry). The last one releases it; at 0 it cannot be entered any more.
    holds: AtomicU32,
    /// When the keeper renews it next. `NEVER` while a renewal is in transit. Only under the mutex of the
    /// engine's state.
    renew_at: AtomicU64,
    /// When the keeper next reports that it is held long. Only under the mutex of the engine's state.
    warn_at: AtomicU64,
    pub(crate) place: Place,
    /// Allocated for the first observer: most holds have none.
    observers: OnceLock<Box<Observers>>,
}

/// The observers of a lease.
#[derive(Debug)]
struct Observers {
    lost: Event,
    subscribers: Subscribers,
}

/// A downgrade was sent and not answered.
pub(super) const DOWNGRADE: u8 = 1;
/// An upgrade was sent and not answered.
pub(super) const UPGRADE: u8 = 2;
/// A future waits for the answer to a conversion.
pub(super) const CONVERTING: u8 = 4;

impl Lease {
    /// Creates the lease of a grant. Its deadline may have passed already.
    pub(crate) fn new(
        grant: Grant,
        mode: Mode,
        options: Arc<Terms>,
        now: Timestamp,
        late_copy: bool,
        nature: Nature,
    ) -> Arc<Self> {
        let (options, lapse_at) = kept_by_session(options, nature, grant.counted_from);
        // For a claim window, the remaining time counts: the store may have compared clocks long before the
        // window began.
        let (from, span) = match grant.provisional {
            true => (now, (grant.counted_from + grant.expires_in).since(now)),
            false => (grant.counted_from, grant.expires_in),
        };
        let renew_at = renew_at(&options, &grant.key, from, span);
        Arc::new(Self {
            key: grant.key,
            acquired_at: now,
            late_copy,
            validity: Validity::until(
                deadline_of(&options, grant.counted_from, grant.expires_in)
                    .min(max_hold_at(&options, now))
                    .min(Timestamp::from_nanos(lapse_at)),
            ),
            lapse_at: AtomicU64::new(lapse_at),
            mode: AtomicU64::new(encode(mode)),
            token: AtomicU64::new(grant.token.map_or(0, Token::get)),
            span: AtomicU64::new(nanos(span)),
            state: AtomicU8::new(LeaseState::Held.code()),
            unanswered: AtomicU8::new(0),
            observed: AtomicBool::new(false),
            holds: AtomicU32::new(1),
            renew_at: AtomicU64::new(renew_at),
            warn_at: AtomicU64::new(options.warn_after.map_or(NEVER, |d| (now + d).as_nanos())),
            place: Place::nowhere(),
            observers: OnceLock::new(),
            options,
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        decode(self.mode.load(Ordering::Acquire))
    }

    /// The mode, for a guard that has just entered. A downgrade reads the number of guards after it has
    /// changed the mode; the two fences ensure that one of the two sees the other.
    pub(crate) fn mode_when_entered(&self) -> Mode {
        fence(Ordering::SeqCst);
        self.mode()
    }

    /// Makes it a shared hold, unless other guards share the exclusive one.
    pub(super) fn weaken(&self, to: Mode) -> bool {
        let before = self.mode();
        self.set_mode(to);
        fence(Ordering::SeqCst);
        let alone = self.holds.load(Ordering::Acquire) <= 1;
        if !alone {
            self.set_mode(before);
        }
        alone
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(encode(mode), Ordering::Release);
    }

    /// Returns the conversions in progress, and adds this one.
    pub(super) fn begin_conversion(&self, which: u8) -> u8 {
        self.unanswered.fetch_or(which, Ordering::AcqRel)
    }

    pub(super) fn end_conversion(&self, which: u8) {
        self.unanswered.fetch_and(!which, Ordering::AcqRel);
    }

    /// Whether the store may still have this as an exclusive hold.
    pub(crate) fn may_be_exclusive_in_store(&self) -> bool {
        self.mode().is_exclusive() || self.unanswered.load(Ordering::Acquire) & (DOWNGRADE | UPGRADE) != 0
    }

    pub(crate) fn token(&self) -> Option<Token> {
        Token::new(self.token.load(Ordering::Acquire))
    }

    pub(crate) fn set_token(&self, token: Option<Token>) {
        self.token.store(token.map_or(0, Token::get), Ordering::Release);
    }

    /// The effective ttl of the lease.
    pub(crate) fn ttl(&self) -> Duration {
        match self.lapse_at.load(Ordering::Relaxed) {
            NEVER => self.span(),
            _ => self.options.ttl,
        }
    }

    /// Starts the ttl anew, of a hold that its session keeps without renewals, after it was renewed by hand
    /// or converted.
    pub(crate) fn start_anew(&self, counted_from: Timestamp) {
        if self.lapse_at.load(Ordering::Relaxed) != NEVER {
            let at = deadline_of(&self.options, counted_from, self.options.ttl);
            self.lapse_at.fetch_max(at.as_nanos(), Ordering::AcqRel);
        }
    }

    /// How long the store keeps the lease after each sign of life. Renewals are scheduled by it.
    pub(crate) fn span(&self) -> Duration {
        Duration::from_nanos(self.span.load(Ordering::Relaxed))
    }

    pub(crate) fn state(&self) -> LeaseState {
        LeaseState::from_code(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self.state() {
            LeaseState::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// The local deadline; `None` once it has ended.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        self.validity.deadline()
    }

    /// Whether it is valid at this time. The look that finds the deadline passed ends the lease, and its
    /// caller does what has to follow.
    pub(crate) fn look(&self, now: Timestamp) -> Look {
        self.noticed(now, self.validity.look(now))
    }

    /// Applies a confirmed renewal or conversion, unless it came too late: then the lease is lost.
    pub(crate) fn confirm(&self, now: Timestamp, counted_from: Timestamp, expires_in: Duration) -> Look {
        let to = deadline_of(&self.options, counted_from, expires_in)
            .min(self.max_hold_at())
            .min(Timestamp::from_nanos(self.lapse_at.load(Ordering::Acquire)));
        let look = self.noticed(now, self.validity.confirm(now, to));
        if let Look::Valid(_) = look {
            self.span.store(nanos(expires_in), Ordering::Relaxed);
        }
        look
    }

    fn noticed(&self, now: Timestamp, look: Look) -> Look {
        if look == Look::JustExpired {
            self.finish(LeaseState::Lost(if now < self.max_hold_at() {
                LossReason::Expired
            } else {
                LossReason::MaxHold
            }));
        }
        look
    }

    /// Ends it as lost, once. `true` if this call did; observers are told then.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let first = self.validity.end();
        if first {
            self.finish(LeaseState::Lost(reason));
        }
        first
    }

    /// Begins its release, if it is valid: from here on it is neither valid nor renewed.
    pub(crate) fn begin_release(&self, now: Timestamp) -> Look {
        match self.look(now) {
            Look::Valid(_) if !self.validity.end() => Look::Ended,
            Look::Valid(deadline) => {
                // Observers are not notified yet: it is not known how it ends.
                self.state.store(LeaseState::Releasing.code(), Ordering::Release);
                Look::Valid(deadline)
            }
            over => over,
        }
    }

    /// Records the outcome of a release. `true` if this call is the first to do so.
    pub(crate) fn end_release(&self, end: LeaseState) -> bool {
        let begun = LeaseState::Releasing.code();
        let first = self
            .state
            .compare_exchange(begun, end.code(), Ordering::SeqCst, Ordering::Acquire)
            .is_ok();
        if first {
            self.tell_end();
        }
        first
    }

    /// Records the end. Only for the one caller whose look or call ended the validity.
    fn finish(&self, end: LeaseState) {
        self.state.swap(end.code(), Ordering::SeqCst);
        self.tell_end();
    }

    /// Notifies the observers. The end was written before this; an observer registers before it reads the
    /// end. All four steps are sequentially consistent, so at least one of the two sees the other.
    fn tell_end(&self) {
        if self.observed.load(Ordering::SeqCst)
            && let Some(observers) = self.observers.get()
        {
            observers.subscribers.close();
            observers.lost.notify(usize::MAX);
        }
    }

    fn observers(&self) -> &Observers {
        let make = || {
            Box::new(Observers {
                lost: Event::new(),
                subscribers: Subscribers::default(),
            })
        };
        let observers = self.observers.get_or_init(make);
        self.observed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        observers
    }

    /// Completes when the lease is lost; never after a release.
    pub(crate) async fn lost(self: Arc<Self>) -> LossReason {
        loop {
            // Listen first, look second: the look sees a loss that happened in between.
            let listener = self.observers().lost.listen();
            match self.state() {
                LeaseState::Lost(reason) => return reason,
                LeaseState::Released => std::future::pending().await,
                LeaseState::Held | LeaseState::Releasing => listener.await,
            }
        }
    }

    pub(crate) fn subscribers(&self) -> &Subscribers {
        &self.observers().subscribers
    }

    pub(crate) fn emit(&self, event: GuardEvent) {
        if let Some(observers) = self.observers.get() {
            observers.subscribers.emit(event);
        }
    }

    /// One more guard shares it, unless the last one has gone.
    pub(crate) fn enter(&self, limit: u32) -> Entered {
        let mut holds = self.holds.load(Ordering::Acquire);
        loop {
            match holds {
                0 => return Entered::Gone,
                n if n >= limit => return Entered::LimitReached,
                n => match self
                    .holds
                    .compare_exchange_weak(n, n + 1, Ordering::AcqRel, Ordering::Acquire)
                {
                    Ok(_) => return Entered::Yes,
                    Err(current) => holds = current,
                },
            }
        }
    }

    /// One guard fewer. `true` if it was the last.
    pub(crate) fn leave(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// A renewal is due one period after the lease began to count.
    pub(crate) fn schedule_renewal(&self, counted_from: Timestamp, expires_in: Duration) {
        let at = renew_at(&self.options, &self.key, counted_from, expires_in);
        self.renew_at.store(at, Ordering::Relaxed);
    }

    pub(crate) fn renew_at(&self, at: Timestamp) {
        self.renew_at.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Takes the renewal that is due by then, so that only one is in transit.
    pub(crate) fn take_due_renewal(&self, by: Timestamp) -> bool {
        let due = self.renew_at.load(Ordering::Relaxed) <= by.as_nanos();
        if due {
            self.renew_at.store(NEVER, Ordering::Relaxed);
        }
        due
    }

    /// Whether a long hold has to be reported; schedules the next report.
    pub(crate) fn take_due_warning(&self, by: Timestamp) -> bool {
        let at = self.warn_at.load(Ordering::Relaxed);
        let due = at <= by.as_nanos();
        if due && let Some(every) = self.options.warn_after {
            self.warn_at.store((by + every).as_nanos(), Ordering::Relaxed);
        }
        due
    }

    /// The end of its maximum hold. The deadline is never later.
    fn max_hold_at(&self) -> Timestamp {
        max_hold_at(&self.options, self.acquired_at)
    }

    /// The next time at which the keeper has something to do for it; `None` once it has ended.
    pub(crate) fn next_event(&self) -> Option<Timestamp> {
        let deadline = self.deadline()?;
        let others = self
            .renew_at
            .load(Ordering::Relaxed)
            .min(self.warn_at.load(Ordering::Relaxed));
        Some(deadline.min(Timestamp::from_nanos(others)))
    }
}

/// The answer to a re-entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    Yes,
    Gone,
    LimitReached,
}

/// 0 exclusive, 1 reader, n + 1 for one of n permits.
fn encode(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared { limit: None } => 1,
        Mode::Shared { limit: Some(n) } => u64::from(n.get()) + 1,
    }
}

fn decode(word: u64) -> Mode {
    match word {
        0 => Mode::Exclusive,
        1 => Mode::READER,
        n => match u32::try_from(n - 1).ok().and_then(std::num::NonZeroU32::new) {
            Some(n) => Mode::permit(n),
            None => Mode::READER,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    /// The store and the client compared clocks long before the claim window began.
    #[test]
    fn claim_window_lives_for_its_remaining_time() {
        let now = Timestamp::ZERO + Duration::from_secs(100);
        let key = LeaseKey::new(
            crate::LockName::new("x").unwrap(),
            crate::request_id::RequestId::new(1, 1),
        );
        let anchor = Timestamp::ZERO + Duration::from_secs(91);
        let grant = Grant::new(key, None, anchor, Duration::from_secs(10)).provisional();
        let lease = Lease::new(
            grant,
            Mode::Exclusive,
            Arc::new(Terms::DEFAULT),
            now,
            false,
            Nature::Lease,
        );
        assert_eq!(lease.span(), Duration::from_secs(1));
    }

    #[test]
    fn every_mode_survives_its_encoding() {
        for mode in [
            Mode::Exclusive,
            Mode::READER,
            Mode::permit(NonZeroU32::MIN),
            Mode::permit(NonZeroU32::MAX),
        ] {
            assert_eq!(decode(encode(mode)), mode);
        }
    }

    #[test]
    fn held_lock_uses_at_most_250_bytes() {
        assert!(
            std::mem::size_of::<Lease>() + 16 <= 250,
            "{}",
            std::mem::size_of::<Lease>()
        );
    }
}
