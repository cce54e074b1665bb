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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Node {
    counter: u8,
    /// Of which client, with which token, and with which it was minted.
    lease: Option<(u8, u8, u8)>,
}

/// What a member answers: with which token it has the lease, and with which it was minted, or no.
type Answer = Option<(u8, u8)>;

/// A request to one member and its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Message {
    #[default]
    None,
    /// On its way; for a raise, to that token.
    Sent(u8),
    Answered(Answer),
    /// Heard, or lost.
    Over,
}

/// The two requests that a member may be sent.
const ATTEMPT: usize = 0;
const RAISE: usize = 1;

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
    messages: [[Message; 2]; MEMBERS],
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

type Line = (Node, [([Message; 2], u8, u8, u8, bool); 2]);
type Key = ([Line; MEMBERS], [(Stage, u8, u8); 2], u8, u8, bool);

fn no_votes() -> Votes {
    Votes::new(MEMBERS, true, None)
}

impl State {
    fn new(rules: Rules) -> Self {
        let client = Client {
            stage: Stage::NotYet,
            after: 0,
            messages: Default::default(),
            stray: [0; MEMBERS],
            minted: [0; MEMBERS],
            votes: no_votes(),
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
                (c.messages[n], c.stray[n], c.minted[n], own, raising)
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

    /// A request, or a copy of it, is carried out.
    fn carry_out(&mut self, client: usize, n: usize, request: usize, to: u8, rules: Rules) -> Answer {
        let node = &mut self.nodes[n];
        let held = node
            .lease
            .as_mut()
            .map(|(holder, token, minted)| (*holder as usize == client, token, *minted));
        match (request, held) {
            (ATTEMPT, Some((is_own, token, minted))) => is_own.then_some((*token, minted)),
            (ATTEMPT, None) => {
                node.counter += 1;
                node.lease = Some((client as u8, node.counter, node.counter));
                Some((node.counter, node.counter))
            }
            (_, Some((true, token, minted))) => {
                *token = to.max(*token);
                node.counter = node.counter.max(to);
                Some((*token, minted))
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
                            true => c.messages[n][RAISE] = Message::Sent(to.get() as u8),
                            // As if it had been.
                            false => c.votes.raised(n, to),
                        }
                    }
                    if rules.write_back {
                        return Ok(());
                    }
                }
                Step::Won(won) => {
                    return self.complete(client, won.token.map_or(0, |t| t.get() as u8), rules);
                }
            }
        }
    }

    fn complete(&mut self, client: usize, token: u8, rules: Rules) -> Result<(), String> {
        let c = &self.clients[client];
        let stands = |n: &usize| {
            let is_it = |(holder, _, minted)| holder as usize == client && minted == c.minted[*n];
            c.votes.digest(*n).0 == token && self.nodes[*n].lease.is_some_and(is_it)
        };
        let believed = (0..MEMBERS).filter(stands).count() >= MAJORITY;
        let (after, other) = (c.after, self.token_of(1 - client));
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
        if token == other {
            return Err(format!("token {token} was granted twice"));
        }
        match believed && token < other {
            true => Err(format!(
                "token {token} is believed, and {other} was granted before"
            )),
            false => Ok(()),
        }
    }

    /// 0 if it was not granted.
    fn token_of(&self, client: usize) -> u8 {
        match self.clients[client].stage {
            Stage::Done(token) => token,
            _ => 0,
        }
    }

    /// Every state that may come next.
    fn next(&self, rules: Rules, all: &mut Vec<Self>) -> Result<(), String> {
        for client in 0..2 {
            self.next_of(client, rules, all)?;
        }
        let nobody_holds = self.nodes.iter().all(|node| node.lease.is_none());
        let may_forget = match rules.forgets {
            Forgets::Never => false,
            Forgets::AnyTime => true,
            Forgets::WhileNobodyHolds | Forgets::AndIsToldTheOthers => nobody_holds,
        };
        for n in 0..MEMBERS {
            if self.nodes[n].lease.is_some() {
                let mut next = self.clone();
                next.nodes[n].lease = None;
                all.push(next);
            }
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
        if c.stage == Stage::NotYet || self.repeats > 0 && c.stage == Stage::Asking && !is_swift {
            let mut next = self.clone();
            let other = self.token_of(1 - client);
            let c = &mut next.clients[client];
            if c.stage == Stage::NotYet {
                (c.stage, c.after) = (Stage::Asking, other);
            } else {
                next.repeats -= 1;
                c.votes = no_votes();
            }
            for n in 0..MEMBERS {
                let [_, raise] = std::mem::replace(&mut c.messages[n], [Message::Sent(0), Message::None]);
                if let Message::Sent(to) = raise {
                    c.stray[n] = to;
                }
            }
            all.push(next);
        }
        if c.stage == Stage::NotYet {
            return Ok(());
        }
        for n in 0..MEMBERS {
            for request in [ATTEMPT, RAISE] {
                match c.messages[n][request] {
                    Message::Sent(to) => {
                        let mut next = self.clone();
                        let answer = next.carry_out(client, n, request, to, rules);
                        if is_swift {
                            next.hear(client, n, request, answer, rules, all)?;
                        } else {
                            next.clients[client].messages[n][request] = Message::Answered(answer);
                            all.push(next);
                        }
                    }
                    Message::Answered(answer) => self.hear(client, n, request, answer, rules, all)?,
                    Message::None | Message::Over => {}
                }
            }
            if self.copies > 0 {
                let mut next = self.clone();
                next.copies -= 1;
                next.carry_out(client, n, ATTEMPT, 0, rules);
                all.push(next);
            }
            if c.stray[n] > 0 {
                let mut next = self.clone();
                next.clients[client].stray[n] = 0;
                next.carry_out(client, n, RAISE, c.stray[n], rules);
                all.push(next);
            }
        }
        Ok(())
    }

    /// The answer is heard, or lost.
    fn hear(
        &self,
        client: usize,
        n: usize,
        request: usize,
        answer: Answer,
        rules: Rules,
        all: &mut Vec<Self>,
    ) -> Result<(), String> {
        let lost = (client == 0 || !rules.swift).then_some(None);
        for heard in [answer].into_iter().chain(lost) {
            let mut next = self.clone();
            let c = &mut next.clients[client];
            c.messages[n][request] = Message::Over;
            let heard = heard.and_then(|(token, minted)| Some((Token::new(token.into())?, minted)));
            match (request, heard) {
                _ if c.stage != Stage::Asking => {}
                (ATTEMPT, Some((token, minted))) => {
                    c.minted[n] = minted;
                    c.votes.granted(n, Some(token), Duration::ZERO, false);
                    next.decide(client, rules)?;
                }
                (ATTEMPT, None) => {}
                (_, Some((token, _))) => {
                    c.votes.raised(n, token);
                    next.decide(client, rules)?;
                }
                (_, None) => {
                    c.votes.gone(n);
                    next.decide(client, rules)?;
                }
            }
            all.push(next);
        }
        Ok(())
    }
}

/// How many states there are, and how many of them have both acquisitions granted; or the first thing that is
/// wrong. What is right in the rules is changed by `change`.
fn explore(change: impl FnOnce(&mut Rules)) -> Result<(usize, usize), String> {
    let mut rules = Rules {
        write_back: true,
        holder_check: true,
        forgets: Forgets::Never,
        copies: 0,
        repeats: 0,
        swift: false,
        only_believed: false,
    };
    change(&mut rules);
    let first = State::new(rules);
    let mut seen = HashSet::<Key, foldhash::fast::RandomState>::default();
    seen.insert(first.key());
    let (mut open, mut both) = (vec![first], 0);
    let mut next = Vec::new();
    while let Some(state) = open.pop() {
        both += usize::from((0..2).all(|client| state.token_of(client) > 0));
        state.next(rules, &mut next)?;
        open.extend(next.drain(..).filter(|state| seen.insert(state.key())));
    }
    Ok((seen.len(), both))
}

#[track_caller]
fn must_hold(change: impl FnOnce(&mut Rules)) {
    let (states, both) = explore(change).unwrap();
    // Where nobody gets anything, everything is in order.
    assert!(both > 1_000, "{states} states, {both} with two grants");
}

#[test]
fn tokens_are_distinct_and_in_the_order_of_the_grants() {
    must_hold(|_| ());
}

#[test]
fn tokens_are_ordered_when_copies_are_granted_late() {
    must_hold(|rules| (rules.copies, rules.swift) = (1, true));
}

#[test]
fn tokens_are_ordered_when_an_attempt_is_repeated() {
    must_hold(|rules| (rules.repeats, rules.swift) = (1, true));
}

#[test]
fn tokens_are_unordered_without_write_back() {
    explore(|rules| rules.write_back = false).unwrap_err();
}

#[test]
fn tokens_are_unordered_without_lease_check() {
    explore(|rules| rules.holder_check = false).unwrap_err();
}

#[test]
fn tokens_are_unordered_if_a_member_forgets_its_counter() {
    explore(|rules| rules.forgets = Forgets::AnyTime).unwrap_err();
}

#[test]
fn delayed_restart_does_not_keep_tokens_ordered() {
    explore(|rules| (rules.forgets, rules.only_believed) = (Forgets::WhileNobodyHolds, true)).unwrap_err();
}

#[test]
fn restoring_its_counter_keeps_tokens_ordered() {
    must_hold(|rules| {
        rules.forgets = Forgets::AndIsToldTheOthers;
        (rules.only_believed, rules.swift) = (true, true);
    });
}
