//! One attempt: sent to all members at once, raised on those that granted, given back if it was lost.
//!
//! What could break it, and why it does not, is in the module's documentation.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::calls::Calls;
use super::rounds::Round;
use super::shared::{Shared, only_some};
use super::votes::{Step, Votes, Won};
use super::wait::{self, InTheWay};
use crate::error::{Error, ErrorKind, LossReason, Result};
use crate::mode::Mode;
use crate::spi::{Acquire, Attempt, Grant, Queueing, Raised};
use crate::timestamp::Timestamp;

/// For how long a try that has got the first of the contended members keeps at it, at least; at most for the
/// patience.
const INSISTS: Duration = Duration::from_millis(20);
/// And that many times as long as it took to hear that it is contended: so long the others need to give back
/// what they have got.
const EXCHANGES: u32 = 8;

/// What a member said.
enum Said {
    ToAttempt(Result<Attempt>),
    ToRaise(Result<Raised>),
}

/// What a member comes to.
enum Standing {
    /// Not answered yet.
    Asked,
    /// One of the votes.
    Granted,
    Held(InTheWay),
    /// It did not, and nothing is there.
    Failed(Error),
    /// It may have.
    Unknown(Error),
}

pub(super) async fn attempt(shared: &Arc<Shared>, request: &Acquire) -> Result<Attempt> {
    check(shared, request)?;
    let asked_at = shared.runtime.now();
    let round = shared
        .rounds()
        .begin(&request.key, request.ttl, shared.members.len(), asked_at, || {
            shared.fresh_key(&request.key.name)
        })?;
    let members = shared.members.len();
    let mut inside = request.clone();
    inside.key = round.inside.clone();
    // The answer of a member is its vote; the request does not queue there.
    inside.waits = false;
    let asking = Asking {
        calls: Calls::new(shared, shared.patience_of(request.ttl)),
        standing: (0..members).map(|_| Standing::Asked).collect(),
        votes: Votes::new(members, shared.fenced, round.token()),
        tarried: false,
        insisting: None,
        inside: Arc::new(inside),
        round,
        request,
        asked_at,
        heard_at: asked_at,
        shared,
    };
    asking.run().await
}

/// Checks everything about a request before any member is asked.
fn check(shared: &Shared, request: &Acquire) -> Result<()> {
    shared.check_open()?;
    let unsupported = |what: &str| {
        let message = format!("a quorum has no {what}");
        Err(Error::new(ErrorKind::Unsupported, message).with_name(&request.key.name))
    };
    match request.mode {
        Mode::Shared { limit: Some(_) } => {
            return unsupported("permits: its members together would grant more of them than there are");
        }
        Mode::Shared { .. } if !shared.capabilities.has(crate::Capability::Shared) => {
            return unsupported("readers, since one of its members does not support them");
        }
        _ => {}
    }
    if request.queue == Queueing::Join {
        return unsupported("queue: the members' queues would deadlock");
    }
    if request.priority != Acquire::DEFAULT_PRIORITY {
        return unsupported("priorities, which need a queue");
    }
    let range = shared.capabilities.min_ttl..=shared.capabilities.max_ttl;
    if !range.contains(&request.ttl) {
        let message = format!("the ttl must be within {range:?} on this quorum");
        return Err(Error::new(ErrorKind::InvalidInput, message).with_name(&request.key.name));
    }
    Ok(())
}

struct Asking<'a> {
    shared: &'a Arc<Shared>,
    request: &'a Acquire,
    round: Arc<Round>,
    /// The request under the members' key.
    inside: Arc<Acquire>,
    /// A time before the first member was asked, from which every life counts.
    asked_at: Timestamp,
    calls: Calls<Said>,
    standing: Vec<Standing>,
    votes: Votes,
    /// When a member answered last.
    heard_at: Timestamp,
    /// An answer that would have told whether to keep at it did not come soon.
    tarried: bool,
    /// Since it was first lost: how long that took, and until when it is kept at.
    insisting: Option<(Duration, Timestamp)>,
}

impl Asking<'_> {
    async fn run(mut self) -> Result<Attempt> {
        for member in 0..self.shared.members.len() {
            self.ask(member);
        }
        loop {
            while let Some((member, said)) = self.calls.ready().await {
                self.take(member, said);
            }
            match self.votes.step() {
                Step::Won(won) => return self.won(won),
                Step::Raise(to, members) => {
                    for member in members {
                        self.raise(member, to);
                    }
                    continue;
                }
                Step::Wait => {}
            }
            if self.is_open() {
                match self.calls.next().await {
                    Some((member, said)) => self.take(member, said),
                    None if self.calls.running().next().is_none() => return self.lost(),
                    None => self.give_up_on_the_silent(),
                }
            } else if self.may_be_first() {
                match self.calls.next_soon().await {
                    Some((member, said)) => self.take(member, said),
                    None => self.tarried = true,
                }
            } else if let Some(pause) = self.insists() {
                self.shared.runtime.sleep(pause).await;
                self.ask_again();
            } else {
                return self.lost();
            }
        }
    }

    fn count(&self, of: impl Fn(&Standing) -> bool) -> usize {
        self.standing.iter().filter(|standing| of(standing)).count()
    }

    /// Whether the answers that are lacking can decide: whether it is granted, or else whether it is held or
    /// out of reach.
    fn is_open(&self) -> bool {
        let asked = self.count(|s| matches!(s, Standing::Asked));
        let granted = self.votes.count();
        let answered = granted + self.count(|s| matches!(s, Standing::Held(_)));
        let majority = self.shared.majority;
        granted + asked >= majority || answered < majority && answered + asked >= majority
    }

    fn ask(&mut self, member: usize) {
        self.standing[member] = Standing::Asked;
        self.round.asks(member);
        let backend = self.shared.members[member].backend.clone();
        let inside = self.inside.clone();
        self.calls.send(
            member,
            async move { Said::ToAttempt(backend.attempt(&inside).await) },
        );
    }

    fn raise(&mut self, member: usize, to: crate::Token) {
        let backend = self.shared.members[member].backend.clone();
        let inside = self.inside.clone();
        self.calls.send(member, async move {
            Said::ToRaise(match backend.fencing() {
                Some(part) => part.raise(&inside.key, to).await,
                None => Err(Error::new(
                    ErrorKind::Unsupported,
                    "the member has no tokens to raise",
                )),
            })
        });
    }

    fn take(&mut self, member: usize, said: Said) {
        match said {
            Said::ToAttempt(answer) => self.take_answer(member, answer),
            Said::ToRaise(Ok(Raised::Raised(token))) => self.votes.raised(member, token),
            Said::ToRaise(Ok(Raised::NotHeld)) => {
                self.votes.gone(member);
                self.standing[member] = Standing::Failed(Error::lost(LossReason::Expired));
            }
            // The lease stands there, most likely; but whether its token was raised is not known.
            Said::ToRaise(Err(e)) => {
                self.votes.gone(member);
                self.standing[member] = match e.is_retryable() {
                    true => Standing::Unknown(e),
                    false => Standing::Failed(e),
                };
            }
        }
    }

    fn take_answer(&mut self, member: usize, answer: Result<Attempt>) {
        self.heard_at = self.shared.runtime.now();
        // Given back meanwhile, by a concurrent abandon: a late grant is undone.
        if self.round.hears(member, &answer) {
            self.shared.owe(member, &self.round);
        }
        self.standing[member] = match answer {
            Ok(Attempt::Granted(grant)) if grant.token.is_some() || !self.shared.fenced => {
                // No life is counted from later than the first request, nor from later than the member itself
                // says.
                let from = grant.counted_from.min(self.asked_at);
                let life = self.asked_at.until(from + grant.expires_in);
                let own = grant.token.filter(|_| self.shared.fenced);
                self.votes.granted(member, own, life, grant.provisional);
                Standing::Granted
            }
            Ok(Attempt::Held(wait)) => Standing::Held(InTheWay::new(wait)),
            Ok(_) => Standing::Failed(Error::new(
                ErrorKind::BackendData,
                "a member queued a request that does not queue, or granted without a token",
            )),
            Err(e) if e.may_be_held() => {
                // Its driver may have waited for as long as it waits.
                let at = &self.shared.members[member];
                at.silent.store(true, Ordering::Relaxed);
                Standing::Unknown(e)
            }
            // Nothing came of this copy. An earlier one went unanswered, or was granted, and this says
            // nothing of that.
            Err(e) if self.round.may_be_at(member) => Standing::Unknown(e),
            Err(e) => Standing::Failed(e),
        };
    }

    /// Members that have not answered count as unknown, and their earlier grants do not count.
    fn give_up_on_the_silent(&mut self) {
        for member in self.calls.running().collect::<Vec<_>>() {
            self.votes.gone(member);
            self.standing[member] = Standing::Unknown(Error::new(
                ErrorKind::Unknown,
                format!("member {member} did not answer in time"),
            ));
        }
    }

    /// How long to wait before asking the members that refused again, if this attempt is the one that
    /// insists.
    ///
    /// If several clients want a free name at once, each may get a part of the members, and all would give
    /// back and start again, possibly for ever. So the members have an order, the one in which they are
    /// listed. The client that has the first contended member keeps asking, and the others give back at once.
    /// It keeps its part for a short time only, since the name may really be held.
    fn insists(&mut self) -> Option<Duration> {
        let first = self.votes.first()?;
        let is_held = |s: &Standing| matches!(s, Standing::Held(_));
        let refused = self.standing.iter().position(is_held)?;
        if self.votes.count() + self.count(is_held) < self.shared.majority {
            return None;
        }
        let (took, until) = *self.insisting.get_or_insert_with(|| {
            let took = self.asked_at.until(self.heard_at);
            let most = self.shared.patience_of(self.request.ttl);
            (took, self.asked_at + (took * EXCHANGES).max(INSISTS).min(most))
        });
        let now = self.shared.runtime.now();
        let pause = (took / 2).clamp(Duration::from_millis(1), Duration::from_millis(5));
        (first < refused && now + pause < until).then_some(pause)
    }

    /// Whether an answer that must arrive soon may make it the one that insists. Without waiting for it, the
    /// client with the first member might give it back before it knows that it has it, and nobody would get
    /// the lock.
    fn may_be_first(&self) -> bool {
        let refused = self.standing.iter().position(|s| matches!(s, Standing::Held(_)));
        let before = 0..refused.unwrap_or(0);
        !self.tarried && before.into_iter().any(|member| self.calls.is_expected(member))
    }

    fn ask_again(&mut self) {
        for member in 0..self.standing.len() {
            if matches!(self.standing[member], Standing::Held(_)) {
                self.ask(member);
            }
        }
    }

    fn won(self, won: Won) -> Result<Attempt> {
        let Self {
            shared,
            request,
            round,
            calls,
            asked_at,
            ..
        } = self;
        if !round.win(won.token) {
            // The call that ended the round has handled every member.
            return Err(Error::lost(LossReason::Refused).with_name(&request.key.name));
        }
        linger(shared, &round, calls);
        let grant = Grant::new(request.key.clone(), won.token, asked_at, won.life);
        Ok(Attempt::Granted(match won.provisional {
            true => grant.provisional(),
            false => grant,
        }))
    }

    fn lost(self) -> Result<Attempt> {
        let granted = self.votes.count();
        let held = self.count(|s| matches!(s, Standing::Held(_)));
        let unknown = self.count(|s| matches!(s, Standing::Unknown(_) | Standing::Asked));
        let majority = self.shared.majority;
        if granted + held >= majority {
            // So many answered, and it is not to be had of them.
            let in_the_way = self.standing.iter().enumerate().filter_map(|(n, s)| match s {
                Standing::Held(wait) => Some((n, wait)),
                _ => None,
            });
            let wait = wait::until_free(in_the_way.collect(), granted, self.shared);
            self.give_back();
            return Ok(Attempt::Held(wait));
        }
        if granted + unknown >= majority {
            let message = only_some("granted", granted, self.shared);
            let error = Error::new(ErrorKind::Unknown, message).with_name(&self.request.key.name);
            let error = error.caused_by(self.errors().next().cloned());
            // It may be held. The engine asks again, and the members recognise what they granted; or it
            // abandons the key.
            linger(self.shared, &self.round, self.calls);
            return Err(error);
        }
        let error = self.why_not(granted);
        self.give_back();
        Err(error)
    }

    fn errors(&self) -> impl Iterator<Item = &Error> {
        self.standing.iter().filter_map(|s| match s {
            Standing::Failed(e) | Standing::Unknown(e) => Some(e),
            _ => None,
        })
    }

    /// The error of the first member that failed, if it is more than being away.
    fn why_not(&self, granted: usize) -> Error {
        let is_away = |e: &Error| matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Unknown);
        let told = self.errors().find(|e| !is_away(e));
        let name = &self.request.key.name;
        let kind = told.map_or(ErrorKind::Unavailable, Error::kind);
        if kind == ErrorKind::Lost {
            // The leases expired before they could be raised: the engine starts again, under another key.
            return Error::lost(LossReason::Expired).with_name(name);
        }
        let error = Error::new(kind, only_some("granted", granted, self.shared)).with_name(name);
        error.caused_by(told.or_else(|| self.errors().next()).cloned())
    }

    /// Undoes the round at all members, in the background.
    fn give_back(self) {
        let Self {
            shared,
            request,
            round,
            calls,
            ..
        } = self;
        if !shared.rounds().give_back(&request.key, &round) {
            return;
        }
        for member in 0..shared.members.len() {
            // Requests in transit are handled when they are answered: most were refused, and there is nothing
            // to undo.
            if round.may_be_at(member) && !calls.is_running(member) {
                shared.owe(member, &round);
            }
        }
        linger(shared, &round, calls);
    }
}

/// Receives the answers that are missing, in the background.
fn linger(shared: &Arc<Shared>, round: &Arc<Round>, calls: Calls<Said>) {
    let (shared, round) = (shared.clone(), round.clone());
    calls.linger(move |member, said| {
        let owed = match said {
            Some(Said::ToAttempt(answer)) => round.hears(member, &answer),
            Some(Said::ToRaise(_)) | None => round.is_given_back() && round.may_be_at(member),
        };
        if owed {
            shared.owe(member, &round);
        }
    });
}
