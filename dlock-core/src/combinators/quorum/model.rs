//! The argument of the tokens, checked in every order of events: three members, two acquisitions, the
//! decisions of `votes.rs`.
//!
//! At any moment any of these may happen next: a client begins; a request that is on its way arrives, however
//! late; a copy of it arrives once more, and nobody hears the answer; an answer is heard, or lost; a client
//! asks all over again under the same key, whatever became of what it asked before; a lease is over, released
//! or run out. What a client cannot know it does not know. So a run of the real thing, with whatever delays,
//! losses, crashes of clients, pauses and clocks, is one of these, as far as it concerns two acquisitions and
//! members that remember.

use std::collections::HashSet;
use std::time::Duration;

use super::votes::{Step, Votes};
use crate::token::Token;

const MEMBERS: usize = 3;
const MAJORITY: usize = 2;

/// What is switched on; each switch that is not as it should be must break the order.
#[derive(Clone, Copy)]
struct Rules {
    /// The largest token is raised on the members that granted with a smaller one.
    write_back: bool,
    /// A member raises only while the lease stands there.
    holder_check: bool,
    forgets: Forgets,
    /// How many copies of attempts arrive, unheard: one more way to be granted each.
    copies: u8,
    /// How often an attempt is repeated under its key.
    repeats: u8,
    /// The second client's requests arrive and are heard in one step, in any order, and none is lost: fewer
    /// states, where there are too many.
    swift: bool,
    /// Grants of which a lease is over by the time that they are complete count for nothing, as in the
    /// engine.
    only_believed: bool,
}

/// Whether one member loses its data, once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgets {
    Never,
    /// At any time: counter and lease.
    AnyTime,
    /// Its counter, and only while nobody holds anything anywhere: as after a delayed restart.
    WhileNobodyHolds,
    /// The same, but its counter is set to the largest of the others before it comes back.
    AndIsToldTheOthers,
}

const SOUND: Rules = Rules {
    write_back: true,
    holder_check: true,
    forgets: Forgets::Never,
    copies: 0,
    repeats: 0,
    swift: false,
    only_believed: false,
};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Node {
    counter: u8,
    /// Of which client, with which token, and with which it was minted.
    lease: Option<(u8, u8, u8)>,
}

/// A request to one member and its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Message {
    #[default]
    None,
    /// On its way; for a raise, to that token.
    Sent(u8),
    /// Answered: with which token, and with which it was minted, or no.
    Answered(Option<(u8, u8)>),
    /// Heard, or lost.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    NotYet,
    Asking,
    Done(u8),
    /// It was complete too late.
    Failed,
}

#[derive(Clone)]
struct Client {
    stage: Stage,
    /// The token that the other one had when this one began.
    after: u8,
    attempts: [Message; MEMBERS],
    raises: [Message; MEMBERS],
    /// Raises of an attempt that was repeated since: to which token. Nobody hears their answers.
    stray: [u8; MEMBERS],
    /// Which lease was heard of.
    minted: [u8; MEMBERS],
    votes: Votes,
}

#[derive(Clone)]
struct State {
    nodes: [Node; MEMBERS],
    clients: [Client; 2],
    /// What may happen yet.
    copies: u8,
    repeats: u8,
    forgot: bool,
}

type Line = (Node, [(Message, Message, u8, u8, u8, bool); 2]);
type Key = ([Line; MEMBERS], [(Stage, u8, u8); 2], u8, u8, bool);

impl State {
    fn new(rules: Rules) -> Self {
        let client = Client {
            stage: Stage::NotYet,
            after: 0,
            attempts: Default::default(),
            raises: Default::default(),
            stray: [0; MEMBERS],
            minted: [0; MEMBERS],
            votes: Votes::new(MEMBERS, true, None),
        };
        Self {
            nodes: Default::default(),
            clients: [client.clone(), client],
            copies: rules.copies,
            repeats: rules.repeats,
            forgot: rules.forgets == Forgets::Never,
        }
    }

    /// What tells states apart. The members are alike, so their order does not.
    fn key(&self) -> Key {
        let mut lines: [Line; MEMBERS] = std::array::from_fn(|n| {
            let of = self.clients.each_ref().map(|c| {
                let (own, raising, _) = c.votes.digest(n);
                (c.attempts[n], c.raises[n], c.stray[n], c.minted[n], own, raising)
            });
            (self.nodes[n], of)
        });
        lines.sort_unstable();
        let clients = self
            .clients
            .each_ref()
            .map(|c| (c.stage, c.after, c.votes.digest(0).2));
        (lines, clients, self.copies, self.repeats, self.forgot)
    }

    /// A copy of the attempt, or the attempt itself, is carried out.
    fn grant(&mut self, client: usize, n: usize) -> Option<(u8, u8)> {
        let node = &mut self.nodes[n];
        match node.lease {
            Some((holder, token, minted)) => (holder as usize == client).then_some((token, minted)),
            None => {
                node.counter += 1;
                node.lease = Some((client as u8, node.counter, node.counter));
                Some((node.counter, node.counter))
            }
        }
    }

    fn raise(&mut self, client: usize, n: usize, to: u8, rules: Rules) -> Option<(u8, u8)> {
        let node = &mut self.nodes[n];
        match &mut node.lease {
            Some((holder, token, minted)) if *holder as usize == client => {
                *token = to.max(*token);
                node.counter = node.counter.max(to);
                Some((*token, *minted))
            }
            _ if rules.holder_check => None,
            _ => {
                node.counter = node.counter.max(to);
                Some((to, to))
            }
        }
    }

    /// The client acts on what it has heard. What is wrong with what it comes to.
    fn decide(&mut self, client: usize, rules: Rules) -> Result<(), String> {
        loop {
            let c = &mut self.clients[client];
            match c.votes.step() {
                Step::Wait => return Ok(()),
                Step::Raise(to, members) => {
                    for n in members {
                        match rules.write_back {
                            true => c.raises[n] = Message::Sent(to.get() as u8),
                            // As if it had been.
                            false => c.votes.raised(n, to),
                        }
                    }
                    if rules.write_back {
                        return Ok(());
                    }
                }
                Step::Won(won) => {
                    let token = won.token.map_or(0, Token::get);
                    return self.complete(client, token, rules);
                }
            }
        }
    }

    fn complete(&mut self, client: usize, token: u64, rules: Rules) -> Result<(), String> {
        let c = &self.clients[client];
        let stands = |n: &usize| {
            let lease = self.nodes[*n].lease;
            u64::from(c.votes.digest(*n).0) == token
                && lease
                    .is_some_and(|(holder, _, minted)| holder as usize == client && minted == c.minted[*n])
        };
        let believed = (0..MEMBERS).filter(stands).count() >= MAJORITY;
        let (after, token) = (c.after, token as u8);
        let other = match self.clients[1 - client].stage {
            Stage::Done(other) => Some(other),
            _ => None,
        };
        if rules.only_believed && !believed {
            self.clients[client].stage = Stage::Failed;
            return Ok(());
        }
        self.clients[client].stage = Stage::Done(token);
        if token <= after {
            return Err(format!(
                "token {token} was granted to one that asked after {after} was granted"
            ));
        }
        match other {
            Some(other) if other == token => Err(format!("token {token} was granted twice")),
            Some(other) if believed && token < other => Err(format!(
                "token {token} is believed, and {other} was granted before"
            )),
            _ => Ok(()),
        }
    }

    /// Every state that may come next.
    fn next(&self, rules: Rules, all: &mut Vec<Self>) -> Result<(), String> {
        for client in 0..2 {
            self.next_of(client, rules, all)?;
        }
        let nobody_holds = self.nodes.iter().all(|node| node.lease.is_none());
        for n in 0..MEMBERS {
            if self.nodes[n].lease.is_some() {
                let mut next = self.clone();
                next.nodes[n].lease = None;
                all.push(next);
            }
            let may_forget = match rules.forgets {
                Forgets::Never => false,
                Forgets::AnyTime => true,
                Forgets::WhileNobodyHolds | Forgets::AndIsToldTheOthers => nobody_holds,
            };
            if may_forget && !self.forgot {
                let mut next = self.clone();
                next.forgot = true;
                next.nodes[n] = Node::default();
                if rules.forgets == Forgets::AndIsToldTheOthers {
                    next.nodes[n].counter = next.nodes.iter().map(|node| node.counter).max().unwrap_or(0);
                }
                all.push(next);
            }
        }
        Ok(())
    }

    fn next_of(&self, client: usize, rules: Rules, all: &mut Vec<Self>) -> Result<(), String> {
        let c = &self.clients[client];
        let is_swift = rules.swift && client == 1;
        if c.stage == Stage::NotYet {
            let mut next = self.clone();
            let other = match self.clients[1 - client].stage {
                Stage::Done(token) => token,
                _ => 0,
            };
            let c = &mut next.clients[client];
            (c.stage, c.after) = (Stage::Asking, other);
            c.attempts = [Message::Sent(0); MEMBERS];
            all.push(next);
            return Ok(());
        }
        if self.repeats > 0 && c.stage == Stage::Asking && !is_swift {
            let mut next = self.clone();
            next.repeats -= 1;
            let c = &mut next.clients[client];
            c.votes = Votes::new(MEMBERS, true, None);
            c.attempts = [Message::Sent(0); MEMBERS];
            for n in 0..MEMBERS {
                if let Message::Sent(to) = std::mem::take(&mut c.raises[n]) {
                    c.stray[n] = to;
                }
            }
            all.push(next);
        }
        for n in 0..MEMBERS {
            match c.attempts[n] {
                Message::Sent(_) => {
                    let mut next = self.clone();
                    let answer = next.grant(client, n);
                    if is_swift {
                        next.hear_attempt(client, n, answer, rules, all)?;
                    } else {
                        next.clients[client].attempts[n] = Message::Answered(answer);
                        all.push(next);
                    }
                }
                Message::Answered(answer) => self.hear_attempt(client, n, answer, rules, all)?,
                Message::None | Message::Over => {}
            }
            if self.copies > 0 {
                let mut next = self.clone();
                next.copies -= 1;
                next.grant(client, n);
                all.push(next);
            }
            if c.stray[n] > 0 {
                let mut next = self.clone();
                next.clients[client].stray[n] = 0;
                next.raise(client, n, c.stray[n], rules);
                all.push(next);
            }
            match c.raises[n] {
                Message::Sent(to) => {
                    let mut next = self.clone();
                    let answer = next.raise(client, n, to, rules);
                    if is_swift {
                        next.hear_raise(client, n, answer, rules, all)?;
                    } else {
                        next.clients[client].raises[n] = Message::Answered(answer);
                        all.push(next);
                    }
                }
                Message::Answered(answer) => self.hear_raise(client, n, answer, rules, all)?,
                Message::None | Message::Over => {}
            }
        }
        Ok(())
    }

    /// The answer is lost, or heard.
    fn hear_attempt(
        &self,
        client: usize,
        n: usize,
        answer: Option<(u8, u8)>,
        rules: Rules,
        all: &mut Vec<Self>,
    ) -> Result<(), String> {
        let mut lost = self.clone();
        lost.clients[client].attempts[n] = Message::Over;
        if client == 0 || !rules.swift || answer.is_none() {
            all.push(lost.clone());
        }
        if let (Some((token, minted)), Stage::Asking) = (answer, self.clients[client].stage) {
            let mut heard = lost;
            let c = &mut heard.clients[client];
            c.minted[n] = minted;
            c.votes
                .granted(n, Token::new(token.into()), Duration::ZERO, false);
            heard.decide(client, rules)?;
            all.push(heard);
        }
        Ok(())
    }

    fn hear_raise(
        &self,
        client: usize,
        n: usize,
        answer: Option<(u8, u8)>,
        rules: Rules,
        all: &mut Vec<Self>,
    ) -> Result<(), String> {
        let lost = (client == 0 || !rules.swift).then_some(None);
        for heard in [answer].into_iter().chain(lost) {
            let mut next = self.clone();
            let c = &mut next.clients[client];
            c.raises[n] = Message::Over;
            if c.stage == Stage::Asking {
                match heard.and_then(|(token, _)| Token::new(token.into())) {
                    Some(token) => c.votes.raised(n, token),
                    None => c.votes.gone(n),
                }
                next.decide(client, rules)?;
            }
            all.push(next);
        }
        Ok(())
    }
}

/// How many states there are, and how many of them have both acquisitions granted; or the first thing that is
/// wrong.
fn explore(rules: Rules) -> Result<(usize, usize), String> {
    let first = State::new(rules);
    let mut seen = HashSet::<Key, foldhash::fast::RandomState>::default();
    seen.insert(first.key());
    let (mut open, mut both) = (vec![first], 0);
    let mut next = Vec::new();
    while let Some(state) = open.pop() {
        let done = |c: &Client| matches!(c.stage, Stage::Done(_));
        both += usize::from(state.clients.iter().all(done));
        state.next(rules, &mut next)?;
        open.extend(next.drain(..).filter(|state| seen.insert(state.key())));
    }
    Ok((seen.len(), both))
}

#[track_caller]
fn must_hold(rules: Rules) {
    let (states, both) = explore(rules).unwrap();
    // Where nobody gets anything, everything is in order.
    assert!(both > 1_000, "{states} states, {both} with two grants");
}

#[test]
fn tokens_are_distinct_and_in_the_order_of_the_grants() {
    must_hold(SOUND);
}

#[test]
fn so_they_are_when_copies_of_requests_are_granted_late() {
    must_hold(Rules {
        copies: 1,
        swift: true,
        ..SOUND
    });
}

#[test]
fn so_they_are_when_an_attempt_is_repeated() {
    must_hold(Rules {
        repeats: 1,
        swift: true,
        ..SOUND
    });
}

#[test]
fn without_the_write_back_they_are_not() {
    let rules = Rules {
        write_back: false,
        ..SOUND
    };
    assert!(explore(rules).is_err());
}

#[test]
fn without_the_check_that_the_lease_stands_they_are_not() {
    let rules = Rules {
        holder_check: false,
        ..SOUND
    };
    assert!(explore(rules).is_err());
}

#[test]
fn when_a_member_forgets_its_counter_they_are_not() {
    let rules = Rules {
        forgets: Forgets::AnyTime,
        ..SOUND
    };
    assert!(explore(rules).is_err());
}

#[test]
fn nor_when_it_stays_away_until_all_leases_are_over() {
    let rules = Rules {
        forgets: Forgets::WhileNobodyHolds,
        only_believed: true,
        ..SOUND
    };
    assert!(explore(rules).is_err());
}

#[test]
fn when_it_is_told_the_counters_of_the_others_before_it_comes_back_they_are() {
    let rules = Rules {
        forgets: Forgets::AndIsToldTheOthers,
        only_believed: true,
        swift: true,
        ..SOUND
    };
    must_hold(rules);
}
