//! The requests of this client: the members' keys of each, and which members may have something of it.
//!
//! A request of the engine is not the same as a request to the members. The engine retries under *one* key
//! while it waits. Each lost race gives back what was granted, which leaves tombstones. So each try, a
//! *round*, has its own key at the members, which is never used again after it was given back. A try with an
//! unknown outcome stays open: the next try of the same request continues it, so that the members recognise
//! what they granted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::capabilities::Nature;
use crate::error::{Error, LossReason, Result};
use crate::spi::{Attempt, LeaseKey, Tombstones};
use crate::timestamp::Timestamp;
use crate::token::Token;

/// For how long, and how many, abandoned requests are remembered, to refuse a late attempt.
const TOMBSTONES: (Duration, usize) = (Duration::from_secs(120), 1 << 16);
/// The number of rounds that are kept before stale ones are looked for.
const FIRST_SWEEP: usize = 256;
/// A stale round is forgotten after twice its ttl plus this.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The state of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Requested, or held.
    Open,
    /// Lost: it is being given back in the background, as are late grants.
    GivenBack,
    /// Released or abandoned: that call handles each member, including late grants.
    Taken,
}

/// The state of one member in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    /// It granted, whatever it answers later: answers may arrive in another order than they were given, so an
    /// old "there is none" may arrive after a newer "there is one".
    pub(super) granted: bool,
    /// The number of unanswered requests: each may still be granted, however late.
    pub(super) unanswered: u32,
    /// The lease was ended there by a release or an abandon of this client.
    pub(super) released: bool,
    /// The number of unanswered releases and abandons: each may have ended it, and may still be answered.
    ending: u32,
}

impl At {
    /// Whether a lease may be there, or may still be granted.
    pub(super) fn may_be_there(self) -> bool {
        !self.released && (self.granted || self.unanswered > 0)
    }
}

/// One try to get a majority.
pub(super) struct Round {
    /// Its key at the members.
    pub(super) inside: LeaseKey,
    pub(super) ttl: Duration,
    state: Mutex<State>,
}

struct State {
    fate: Fate,
    /// It was granted.
    won: bool,
    token: Option<Token>,
    at: Box<[At]>,
    /// The time at which it is stale: it has expired long before.
    forgotten_at: Timestamp,
}

impl Round {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token that it was granted with.
    pub(super) fn token(&self) -> Option<Token> {
        self.state().token
    }

    /// The state of a member.
    pub(super) fn at(&self, member: usize) -> At {
        self.state().at[member]
    }

    /// Whether a member may have a lease of it.
    pub(super) fn may_be_at(&self, member: usize) -> bool {
        self.at(member).may_be_there()
    }

    /// Records that a request is about to be sent to a member.
    pub(super) fn asks(&self, member: usize) {
        self.state().at[member].unanswered += 1;
    }

    /// Records the answer. `true` if the round has been given back meanwhile and the member may have
    /// something.
    pub(super) fn hears(&self, member: usize, answer: &Result<Attempt>) -> bool {
        let mut state = self.state();
        let at = &mut state.at[member];
        let unknown = matches!(answer, Err(e) if e.may_be_held());
        if !unknown {
            at.unanswered = at.unanswered.saturating_sub(1);
        }
        // A request that was queued against instructions must be undone as well.
        at.granted |= matches!(answer, Ok(Attempt::Granted(_) | Attempt::Queued(_)));
        // An earlier copy may be unanswered, whatever the answer to this one.
        let may_be_there = at.granted || at.unanswered > 0;
        may_be_there && state.fate == Fate::GivenBack
    }

    /// Records that a release or an abandon is about to be sent to a member, and returns its state before.
    pub(super) fn ends(&self, member: usize) -> At {
        let at = &mut self.state().at[member];
        at.ending += 1;
        *at
    }

    /// Records the answer, however late: whether there was a lease.
    pub(super) fn hears_of_end(&self, member: usize, answer: &Result<bool>) {
        let at = &mut self.state().at[member];
        if !matches!(answer, Err(e) if e.may_be_held()) {
            at.ending = at.ending.saturating_sub(1);
        }
        if let Ok(was_held) = answer {
            (at.granted, at.unanswered) = (false, 0);
            at.released |= was_held;
        }
    }

    /// Records that a release found nothing. If an earlier one was not answered, that one ended the lease.
    pub(super) fn found_nothing(&self, member: usize) {
        let at = &mut self.state().at[member];
        at.released |= at.ending > 0;
    }

    /// Marks it as granted with a token, unless it was given back or taken meanwhile.
    pub(super) fn win(&self, token: Option<Token>) -> bool {
        let mut state = self.state();
        let is_open = state.fate == Fate::Open;
        if is_open {
            (state.won, state.token) = (true, token);
        }
        is_open
    }

    /// Whether it was granted.
    pub(super) fn was_won(&self) -> bool {
        self.state().won
    }

    /// Whether it was lost, and is being undone.
    pub(super) fn is_given_back(&self) -> bool {
        self.state().fate == Fate::GivenBack
    }

    /// Keeps it for another ttl from now.
    pub(super) fn keep(&self, now: Timestamp) {
        self.state().forgotten_at = now + self.ttl * 2 + FORGOTTEN_AFTER;
    }
}

/// The rounds of one client that are open or held, by the engine's key.
pub(super) struct Rounds {
    /// Whether stale rounds have expired. If they depend on a session, they have not.
    lapse: bool,
    table: HashMap<LeaseKey, Arc<Round>>,
    sweep_at: usize,
    dead: Tombstones<LeaseKey>,
}

impl Rounds {
    pub(super) fn new(nature: Nature) -> Self {
        Self {
            lapse: nature == Nature::Lease,
            table: HashMap::new(),
            sweep_at: FIRST_SWEEP,
            dead: Tombstones::new(TOMBSTONES.0, TOMBSTONES.1),
        }
    }

    /// The open round of that request, or a new one under the key that `fresh` makes.
    pub(super) fn begin(
        &mut self,
        key: &LeaseKey,
        ttl: Duration,
        members: usize,
        now: Timestamp,
        fresh: impl FnOnce() -> LeaseKey,
    ) -> Result<Arc<Round>> {
        let over = || Err(Error::lost(LossReason::Refused).with_name(&key.name));
        if self.dead.has(key) {
            return over();
        }
        if let Some(round) = self.table.get(key) {
            round.keep(now);
            return match round.state().fate {
                Fate::Open => Ok(round.clone()),
                _ => over(),
            };
        }
        self.sweep(now);
        let round = Arc::new(Round {
            inside: fresh(),
            ttl,
            state: Mutex::new(State {
                fate: Fate::Open,
                won: false,
                token: None,
                at: vec![At::default(); members].into(),
                forgotten_at: now,
            }),
        });
        round.keep(now);
        self.table.insert(key.clone(), round.clone());
        Ok(round)
    }

    /// The round of a lease that is held.
    pub(super) fn held(&self, key: &LeaseKey) -> Option<Arc<Round>> {
        let round = self.table.get(key)?;
        (round.state().fate == Fate::Open).then(|| round.clone())
    }

    /// Marks it as lost. `false` if another call has ended it already: its release may have to be repeated,
    /// and must find it.
    pub(super) fn give_back(&mut self, key: &LeaseKey, round: &Arc<Round>) -> bool {
        let was_open = {
            let mut state = round.state();
            let was_open = state.fate == Fate::Open;
            if was_open {
                state.fate = Fate::GivenBack;
            }
            was_open
        };
        if was_open {
            self.forget(key, round);
        }
        was_open
    }

    /// Marks the start of its release or abandon. It stays until that is done, since it may have to be
    /// repeated.
    pub(super) fn take(&mut self, key: &LeaseKey) -> Option<Arc<Round>> {
        let round = self.table.get(key)?;
        round.state().fate = Fate::Taken;
        Some(round.clone())
    }

    /// Refuses all later attempts of a request.
    pub(super) fn bury(&mut self, key: &LeaseKey, now: Timestamp) {
        self.dead.bury(key.clone(), now);
    }

    /// Forgets a round that needs nothing more, or that another call handles.
    pub(super) fn forget(&mut self, key: &LeaseKey, round: &Arc<Round>) {
        if self.table.get(key).is_some_and(|r| Arc::ptr_eq(r, round)) {
            self.table.remove(key);
        }
    }

    /// Removes stale rounds: the engine gives up expired requests without notice.
    fn sweep(&mut self, now: Timestamp) {
        if self.table.len() < self.sweep_at || !self.lapse {
            return;
        }
        self.table.retain(|_, round| round.state().forgotten_at > now);
        self.sweep_at = (self.table.len() * 2).max(FIRST_SWEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::name::LockName;
    use crate::request_id::RequestId;
    use crate::spi::{Grant, Wait};

    const TTL: Duration = Duration::from_secs(1);

    fn key(n: u64) -> LeaseKey {
        LeaseKey::new(LockName::new("n").unwrap(), RequestId::new(1, n))
    }

    fn begin(rounds: &mut Rounds, n: u64, now: u64) -> Result<Arc<Round>> {
        let now = Timestamp::from_nanos(now * 1_000_000_000);
        rounds.begin(&key(n), TTL, 3, now, || key(1000 + n))
    }

    /// A table with one round.
    fn one() -> (Rounds, Arc<Round>) {
        let mut rounds = Rounds::new(Nature::Lease);
        let round = begin(&mut rounds, 1, 0).unwrap();
        (rounds, round)
    }

    fn granted() -> Result<Attempt> {
        Ok(Attempt::Granted(Grant::new(key(1), None, Timestamp::ZERO, TTL)))
    }

    fn held() -> Result<Attempt> {
        Ok(Attempt::Held(Wait::default()))
    }

    fn failed<T>(kind: ErrorKind) -> Result<T> {
        Err(Error::new(kind, "lost"))
    }

    fn held_at(round: &Round) -> usize {
        round.state().at.iter().filter(|at| at.granted).count()
    }

    #[test]
    fn open_round_continues_and_lost_round_never_does() {
        let (mut rounds, first) = one();
        assert!(Arc::ptr_eq(&first, &begin(&mut rounds, 1, 0).unwrap()));
        assert!(rounds.give_back(&key(1), &first));
        assert!(!rounds.give_back(&key(1), &first));
        assert!(!first.win(None));
        let second = begin(&mut rounds, 1, 0).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(second.win(Token::new(4)));
        assert_eq!(second.token(), Token::new(4));
    }

    #[test]
    fn released_or_abandoned_round_is_not_retried() {
        let (mut rounds, round) = one();
        assert!(rounds.held(&key(1)).is_some());
        assert!(rounds.take(&key(1)).is_some());
        assert!(!round.win(None) && rounds.held(&key(1)).is_none());
        // A renewal that is answered only now and finds it gone.
        assert!(!rounds.give_back(&key(1), &round) && rounds.take(&key(1)).is_some());
        assert!(begin(&mut rounds, 1, 0).is_err());
        rounds.forget(&key(1), &round);
        rounds.bury(&key(1), Timestamp::ZERO);
        assert!(begin(&mut rounds, 1, 1).is_err());
        // Its tombstone is removed when the next one is made after its time.
        rounds.bury(&key(2), Timestamp::ZERO + TOMBSTONES.0);
        assert!(begin(&mut rounds, 1, 121).is_ok());
    }

    #[test]
    fn unanswered_copy_is_remembered() {
        let (_, round) = one();
        let at = |member| {
            let at = round.at(member);
            (at.granted, at.unanswered, at.may_be_there())
        };
        assert_eq!(at(0), (false, 0, false));
        round.asks(0);
        assert_eq!(at(0), (false, 1, true));
        assert!(!round.hears(0, &failed(ErrorKind::Unknown)));
        round.asks(0);
        round.hears(0, &granted());
        assert_eq!(at(0), (true, 1, true));
        round.ends(0);
        round.hears_of_end(0, &Ok(true));
        assert!(round.at(0).released && !round.may_be_at(0));

        round.asks(1);
        round.hears(1, &granted());
        // The answer to an earlier copy, received late.
        round.asks(1);
        round.hears(1, &held());
        assert_eq!((at(1), held_at(&round)), ((true, 0, true), 1));
    }

    #[test]
    fn unanswered_release_is_not_a_loss() {
        let (_, round) = one();
        for member in 0..3 {
            round.asks(member);
            round.hears(member, &granted());
            round.ends(member);
        }
        // Received late; nothing is retried.
        round.hears_of_end(0, &Ok(true));
        assert!(round.at(0).released);
        // The second one found nothing, and the first was not answered.
        round.ends(1);
        round.hears_of_end(1, &Ok(false));
        round.found_nothing(1);
        assert!(round.at(1).released);
        // Both answered that there was nothing; and one was refused and did nothing.
        round.ends(2);
        round.hears_of_end(2, &Ok(false));
        round.hears_of_end(2, &failed(ErrorKind::Unavailable));
        round.ends(2);
        round.hears_of_end(2, &Ok(false));
        round.found_nothing(2);
        assert!(!round.at(2).released);
    }

    #[test]
    fn late_grant_of_a_lost_round_is_owed() {
        let (mut rounds, round) = one();
        (0..3).for_each(|member| round.asks(member));
        rounds.give_back(&key(1), &round);
        let unknown = failed(ErrorKind::Unknown);
        assert!(round.hears(0, &granted()) && round.hears(1, &unknown) && !round.hears(2, &held()));
        round.asks(1);
        assert!(round.hears(1, &held()), "the copy of before may arrive yet");

        let round = begin(&mut rounds, 1, 0).unwrap();
        round.asks(0);
        rounds.take(&key(1));
        assert!(!round.hears(0, &granted()));
    }

    #[test]
    fn stale_rounds_are_forgotten() {
        let mut rounds = Rounds::new(Nature::Lease);
        for n in 0..10_000 {
            begin(&mut rounds, n, n).unwrap();
        }
        assert!(rounds.table.len() < 2 * FIRST_SWEEP);
    }
}
