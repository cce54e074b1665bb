//! The grants of the members, and when they make a grant of the quorum: decisions only, without I/O and
//! without a clock. The exhaustive check in `tests.rs` runs this code, not a copy of it.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::token::Token;

/// The number of members that are kept without an allocation.
const USUAL: usize = 5;

/// What is known of one member's lease.
#[derive(Clone, Debug)]
struct Vote {
    /// The token of the lease, as the member last reported it. `None` if the quorum is unfenced.
    own: Option<Token>,
    /// A raise is in transit.
    raising: bool,
    /// The certain life of the lease, counted from before the first request.
    life: Duration,
    /// Whether it is a claim window that a renewal has to confirm.
    provisional: bool,
}

/// The votes of all members for one attempt.
#[derive(Clone, Debug)]
pub(super) struct Votes {
    majority: usize,
    fenced: bool,
    votes: SmallVec<[Option<Vote>; USUAL]>,
    /// The minimum token: an earlier answer to the same request had it, or raises to it are in transit.
    floor: Option<Token>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait until a member answers.
    Wait,
    /// Raise the lease at these members to this token.
    Raise(Token, Vec<usize>),
    /// Granted.
    Won(Won),
}

/// A grant of the quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Won {
    pub(super) token: Option<Token>,
    /// A majority of the members keeps the lease for this long, counted from before the first request.
    pub(super) life: Duration,
    pub(super) provisional: bool,
}

impl Votes {
    /// Creates the votes of `members` members. `floor` is the token of an earlier grant of the same request.
    pub(super) fn new(members: usize, fenced: bool, floor: Option<Token>) -> Self {
        Self {
            majority: majority(members),
            fenced,
            votes: smallvec![None; members],
            floor,
        }
    }

    /// Records that a member has granted, with its own token.
    pub(super) fn granted(&mut self, member: usize, own: Option<Token>, life: Duration, provisional: bool) {
        self.votes[member] = Some(Vote {
            own,
            raising: false,
            life,
            provisional,
        });
    }

    /// Records that a member still had the lease and has raised its token.
    pub(super) fn raised(&mut self, member: usize, to: Token) {
        if let Some(vote) = &mut self.votes[member] {
            vote.raising = false;
            // Larger than requested if the lease is not the one that was granted first, but a later one of
            // the same request: then the token of that one counts.
            vote.own = vote.own.max(Some(to));
        }
    }

    /// Records that a member does not count any more: its lease is gone, or it is not known whether its token
    /// was raised.
    pub(super) fn gone(&mut self, member: usize) {
        self.votes[member] = None;
    }

    /// The number of members that have granted.
    pub(super) fn count(&self) -> usize {
        self.given().count()
    }

    /// The first member that has granted.
    pub(super) fn first(&self) -> Option<usize> {
        self.votes.iter().position(Option::is_some)
    }

    /// Everything that decides the next step, for small tokens: the member's own token, whether a raise is in
    /// transit, and the floor.
    #[cfg(test)]
    pub(super) fn digest(&self, member: usize) -> (u8, bool, u8) {
        let small = |token: Option<Token>| token.map_or(0, |token| u8::try_from(token.get()).unwrap());
        let vote = self.votes[member].as_ref();
        (
            small(vote.and_then(|vote| vote.own)),
            vote.is_some_and(|vote| vote.raising),
            small(self.floor),
        )
    }

    fn given(&self) -> impl Iterator<Item = &Vote> {
        self.votes.iter().flatten()
    }

    /// Decides.
    ///
    /// The token of the quorum is the smallest to which a majority can be raised: the largest of the tokens
    /// of that majority. It is granted only when every one of them is known to have had its own token *there*
    /// while the lease stood: minted there, or raised. Members with a larger token of their own do not count.
    /// Then, of two grants that meet at a member, the one whose lease was there later has a larger token
    /// there, and so in the end: see the module's documentation.
    pub(super) fn step(&mut self) -> Step {
        if self.count() < self.majority {
            return Step::Wait;
        }
        let Some(target) = self.target() else {
            // Unfenced: a majority of grants suffices.
            return self.won(None, self.given());
        };
        self.floor = Some(target);
        let is_ready = |vote: &&Vote| vote.own == Some(target);
        if self.given().filter(is_ready).count() >= self.majority {
            return self.won(Some(target), self.given().filter(is_ready));
        }
        let mut lower = Vec::new();
        for (member, vote) in self.votes.iter_mut().enumerate() {
            if let Some(vote) = vote
                && vote.own < Some(target)
                && !vote.raising
            {
                vote.raising = true;
                lower.push(member);
            }
        }
        match lower.is_empty() {
            true => Step::Wait,
            false => Step::Raise(target, lower),
        }
    }

    /// `None` if the quorum is unfenced.
    fn target(&self) -> Option<Token> {
        if !self.fenced {
            return None;
        }
        let mut own: SmallVec<[_; USUAL]> = self.given().filter_map(|vote| vote.own).collect();
        own.sort_unstable();
        let least = own.get(self.majority - 1).copied();
        least.max(self.floor)
    }

    fn won<'a>(&self, token: Option<Token>, of: impl Iterator<Item = &'a Vote>) -> Step {
        let of: Vec<_> = of.collect();
        Step::Won(Won {
            token,
            life: life_of(of.iter().map(|vote| vote.life).collect(), self.majority),
            provisional: of.iter().any(|vote| vote.provisional),
        })
    }
}

/// More than half of them.
pub(super) fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// How long at least `needed` of these leases live: the `needed`-th longest, or zero if there are fewer.
pub(super) fn life_of(mut lives: Vec<Duration>, needed: usize) -> Duration {
    lives.sort_unstable_by(|a, b| b.cmp(a));
    let nth = needed.checked_sub(1).and_then(|n| lives.get(n));
    nth.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn t(n: u64) -> Token {
        Token::new(n).unwrap()
    }

    fn won(token: u64, life: u32) -> Step {
        let (token, life) = (Some(t(token)), MS * life);
        Step::Won(Won {
            token,
            life,
            provisional: false,
        })
    }

    impl Votes {
        fn of(members: usize, floor: Option<Token>) -> Self {
            Self::new(members, true, floor)
        }

        fn say(&mut self, member: usize, own: u64, life: u32) -> &mut Self {
            self.granted(member, Some(t(own)), MS * life, false);
            self
        }

        fn raise(&mut self, member: usize, to: u64) -> &mut Self {
            self.raised(member, t(to));
            self
        }
    }

    #[test]
    fn a_majority_is_more_than_half_of_all() {
        let of: Vec<_> = (1..=7).map(majority).collect();
        assert_eq!(of, [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn members_of_one_token_need_no_raise() {
        let mut v = Votes::of(3, None);
        assert_eq!(v.say(0, 7, 100).step(), Step::Wait);
        assert_eq!(v.say(2, 7, 90).step(), won(7, 90));
    }

    #[test]
    fn the_largest_token_is_written_back_before_it_is_granted() {
        let mut v = Votes::of(3, None);
        assert_eq!(v.say(0, 3, 100).say(1, 9, 100).step(), Step::Raise(t(9), vec![0]));
        assert_eq!(v.step(), Step::Wait);
        assert_eq!(v.raise(0, 9).step(), won(9, 100));
    }

    #[test]
    fn a_member_whose_lease_has_gone_does_not_count() {
        let mut v = Votes::of(3, None);
        assert_eq!(v.say(0, 3, 100).say(1, 9, 100).step(), Step::Raise(t(9), vec![0]));
        v.gone(0);
        assert_eq!(v.step(), Step::Wait);
        // The third replaces it.
        assert_eq!(v.say(2, 4, 80).step(), Step::Raise(t(9), vec![2]));
        assert_eq!(v.raise(2, 9).step(), won(9, 80));
    }

    #[test]
    fn late_larger_token_does_not_block_the_grant() {
        let mut v = Votes::of(3, None);
        assert_eq!(v.say(0, 3, 100).say(1, 4, 100).step(), Step::Raise(t(4), vec![0]));
        assert_eq!(v.say(2, 50, 10).step(), Step::Wait);
        assert_eq!(v.raise(0, 4).step(), won(4, 100));
    }

    #[test]
    fn regranted_lease_counts_with_its_new_token() {
        let mut v = Votes::of(3, None);
        assert_eq!(v.say(0, 3, 100).say(1, 9, 100).step(), Step::Raise(t(9), vec![0]));
        // A late copy of the request was granted there again.
        assert_eq!(v.raise(0, 12).step(), Step::Raise(t(12), vec![1]));
        assert_eq!(v.raise(1, 12).step(), won(12, 100));
    }

    #[test]
    fn repeated_request_gets_the_same_token() {
        // The second has been raised to it; the third was late the first time, with a larger token.
        let mut v = Votes::of(3, Some(t(9)));
        assert_eq!(
            v.say(0, 9, 50).say(2, 20, 100).step(),
            Step::Raise(t(20), vec![0])
        );
        let mut v = Votes::of(3, Some(t(9)));
        assert_eq!(v.say(0, 9, 50).say(1, 9, 60).say(2, 20, 100).step(), won(9, 50));
    }

    #[test]
    fn life_is_that_of_a_majority() {
        let mut v = Votes::of(5, None);
        v.say(0, 1, 100).say(1, 1, 20).say(2, 1, 60).say(3, 1, 80);
        assert_eq!(v.step(), won(1, 60));
        assert_eq!(life_of(vec![MS], 2), Duration::ZERO);
    }

    #[test]
    fn an_unfenced_quorum_grants_without_a_token() {
        let mut v = Votes::new(3, false, None);
        v.granted(0, None, MS, false);
        assert_eq!(v.step(), Step::Wait);
        v.granted(1, None, MS, true);
        let won = Won {
            token: None,
            life: MS,
            provisional: true,
        };
        assert_eq!(v.step(), Step::Won(won));
    }
}
