//! §18 Quorum: a majority of several servers decides, whichever majority that is.
//!
//! The members are arranged in a ring. For each of them there is one client that reaches it and those after
//! it, as many as are a majority, and no others: so each member is in as many majorities as a majority has
//! members, and any two have one in common.

use super::faulty::patience;
use super::prelude::*;

rules! {
    no_majority_too_many, extension_needs_a_majority_of_all, tokens_increase_over_majorities,
}

/// A client, and the network that says which members it reaches.
struct Party {
    client: Client,
    net: Arc<dyn Network>,
    /// The members that it does not reach.
    away: Vec<FaultGuard>,
}

/// How many members there are, and how many are a majority.
fn members(cx: &Cx) -> Verdict<(usize, usize)> {
    match cx.claims().members {
        Some(members) if members >= 3 => Ok((members, members / 2 + 1)),
        members => Err(Failure::NotRun(format!(
            "it needs at least three members, and {members:?} are claimed"
        ))),
    }
}

/// A client that has reached all members, and from now on does not reach those.
async fn party(cx: &Cx, who: &str, unreached: impl Iterator<Item = usize>) -> Verdict<Party> {
    let net = cx.network()?;
    let client = cx.connect_over(&net).await?;
    let name = cx.name(format_args!("first-{who}"));
    let what = format!("{who}, while it reaches every member");
    client.cycles(&name, &cx.ask(), what).await?;
    let mut party = Party {
        client,
        net,
        away: Vec::new(),
    };
    for member in unreached {
        party.loses(member)?;
    }
    Ok(party)
}

impl Party {
    fn loses(&mut self, member: usize) -> Verdict {
        let Some(way) = self.net.server(member) else {
            return Err(Failure::Kit(format!(
                "member {member} cannot be cut off alone: `Claims::quorum` names more members than \
                    `Harness::servers` has servers, or the harness has networks of its own without \
                    `Network::server`"
            )));
        };
        let away = way.begin(Fault::Away);
        // One for the fault itself, and one for each connection that broke.
        if away.hits() < 2 {
            inconclusive!("the client had no connection to member {member} that could break");
        }
        self.away.push(away);
        Ok(())
    }
}

/// One client for each member: it reaches that one and those after it in the ring, as many as are a majority.
async fn ring(cx: &Cx) -> Verdict<Vec<Party>> {
    let (members, majority) = members(cx)?;
    let mut parties = Vec::new();
    for first in 0..members {
        let unreached = (first + majority..first + members).map(|member| member % members);
        parties.push(party(cx, &format!("client-{first}"), unreached).await?);
    }
    Ok(parties)
}

/// Whether a try is granted. A client that reaches only a bare majority may also answer `Unknown`.
async fn tries(cx: &Cx, party: &Party, name: &LockName, ask: &Ask) -> Option<Box<dyn Held>> {
    match party.client.try_acquire(name, ask).await {
        Ok(Some(held)) => Some(held),
        Ok(None) => {
            cx.evidence("refusals");
            None
        }
        Err(e) => {
            cx.note(format_args!("a try that reaches a bare majority: {e:?}"));
            None
        }
    }
}

async fn holds(cx: &Cx, party: &Party, name: &LockName, ask: &Ask, what: &str) -> Verdict<Box<dyn Held>> {
    let acquiring = party.client.acquire(name, ask);
    cx.done(patience(cx), what, acquiring).await
}

rule! { "18.01" Must phase 2 [Lock, Try, Wait, Quorum] Backend P D no_majority_too_many,
    evidence ["refusals" >= 6, "races" >= 3], bug "quorum_permits", budget 120 s
    "A quorum never has more holders than the mode allows, whichever majorities granted them."
    why "Two majorities share a member, and that member refuses the second holder. It does not refuse the \
        third holder of two permits: with three members, each sees only two of the holders."
    check "How many members must grant, out of which number: all members, or those that answered? Can one \
        member decide for all in some mode?"
}
async fn no_majority_too_many(cx: Cx) -> Verdict {
    let parties = ring(&cx).await?;
    let (_, majority) = members(&cx)?;
    let ask = cx.ask();
    for (first, holder) in parties.iter().enumerate() {
        let name = cx.name(format_args!("exclusive-{first}"));
        let held = holds(&cx, holder, &name, &ask, "acquiring over a bare majority").await?;
        for (n, other) in parties.iter().enumerate().filter(|(n, _)| *n != first) {
            let second = tries(&cx, other, &name, &ask).await;
            ensure!(
                second.is_none(),
                "client {n} was granted through its majority a lock that client {first} holds through \
                 another one"
            );
        }
        held.release().await.seen("releasing over a bare majority")?;
    }
    if cx.has(Need::Shared) {
        readers_and_a_writer(&cx, &parties).await?;
    }
    if cx.has(Need::Permits) {
        // Each member is in as many majorities: no member refuses a client, and more come than permits.
        permits(&cx, &parties, majority).await?;
    }
    for round in 0..cx.rounds(3, 30) {
        let name = cx.name(format_args!("race-{round}"));
        let tries = parties.iter().map(|party| tries(&cx, party, &name, &ask));
        let won = futures::future::join_all(tries).await;
        let won: Vec<_> = won.into_iter().flatten().collect();
        ensure!(
            won.len() <= 1,
            "round {round}: {} of {} simultaneous tries through different majorities were granted",
            won.len(),
            parties.len()
        );
        for held in won {
            held.release().await.seen("the winner releases")?;
        }
        cx.evidence("races");
    }
    Ok(())
}

async fn readers_and_a_writer(cx: &Cx, parties: &[Party]) -> Verdict {
    let (write, read) = (("writer", cx.ask()), ("reader", cx.ask().reader()));
    for (first, party) in parties.iter().enumerate() {
        let name = cx.name(format_args!("shared-{first}"));
        let other = &parties[(first + 1) % parties.len()];
        for (holder, (has, held), asking, (wants, ask)) in
            [(party, &read, other, &write), (other, &write, party, &read)]
        {
            let what = format!("a {has}'s acquire over a bare majority");
            let guard = holds(cx, holder, &name, held, &what).await?;
            ensure!(
                tries(cx, asking, &name, ask).await.is_none(),
                "a {wants} was granted through its majority a lock that a {has} holds through another one"
            );
            guard.released(format!("the {has} releases")).await?;
        }
    }
    Ok(())
}

async fn permits(cx: &Cx, parties: &[Party], limit: usize) -> Verdict {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    let (name, ask) = (cx.name("permits"), cx.ask().permit(limit));
    let mut held = Vec::new();
    for party in parties {
        held.extend(tries(cx, party, &name, &ask).await);
    }
    ensure!(
        held.len() <= limit as usize,
        "{} holders of {limit} permits, each over its own majority",
        held.len()
    );
    for permit in held {
        permit.release().await.seen("releasing a permit")?;
    }
    Ok(())
}

rule! { "18.02" Must phase 2 [Lock, Wait, Lease, Renew, PerGrantTtl, Quorum] Backend P T
        extension_needs_a_majority_of_all,
    evidence ["refused_renewals" >= 2, "lapsed" >= 1], bug "extend_counts_acquired"
    "A hold is extended only if a majority of all members has renewed it, however few had granted it."
    why "Three of five members granted and two of these renew, which is more than half of the three. The \
        other three members are also a majority, and free."
    check "The renewal must exceed half of which number?"
}
async fn extension_needs_a_majority_of_all(cx: Cx) -> Verdict {
    let (members, majority) = members(&cx)?;
    let (name, ttl) = (cx.name("extended"), cx.short_ttl());
    let ask = cx.ask().ttl(ttl);
    let mut a = party(&cx, "a", majority..members).await?;
    let b = party(&cx, "b", 0..majority - 1).await?;
    let held = holds(&cx, &a, &name, &ask, "A acquires over a bare majority").await?;
    held.renew().await.seen("A renews at all members that granted")?;
    // One fewer: possibly more than half of the members that granted, but not of all.
    a.loses(majority - 1)?;
    let deadline = held.deadline();
    // As long as it may be believed.
    while held.is_valid() {
        if held.renew().await.is_ok() {
            fail!(
                "a renewal that reached {} of {members} members was answered as a success, for a hold \
                    that {majority} had granted",
                majority - 1
            );
        }
        ensure!(
            held.deadline() <= deadline,
            "a renewal that reached {} of {members} members has moved the deadline",
            majority - 1
        );
        cx.evidence("refused_renewals");
        cx.sleep(ttl / 20).await;
    }
    cx.evidence("lapsed");
    // The others, with the one that A lost, are a majority where the number is odd, and free.
    if members - (majority - 1) >= majority {
        let by = cx.now() + cx.skew(ttl) + cx.slack();
        let when = "after the deadline of a hold that a minority has renewed";
        let next = cx.free_by(&*b.client, &name, &ask, by, when).await?;
        ensure!(!held.is_valid(), "A is valid again while B holds");
        next.release().await.seen("B releases")?;
    }
    Ok(())
}

rule! { "18.03" Must phase 2 [Lock, Wait, Fence, Quorum] Backend P D tokens_increase_over_majorities,
    evidence ["grants" >= 15, "majorities" >= 3], bug "no_write_back", budget 120 s
    "Tokens of a fenced quorum increase in the order of the grants, whichever majorities granted."
    why "Each server counts on its own. The next majority may share only one member that knows the last \
        token, and the majority after that may have no such member."
    check "Is the majority's largest token written back to all of its members, while the lock is held there, \
        before it is handed out?"
}
async fn tokens_increase_over_majorities(cx: Cx) -> Verdict {
    let parties = ring(&cx).await?;
    let (members, majority) = members(&cx)?;
    let ask = cx.ask();
    let mut rng = cx.rng();
    for first in 0..members {
        let name = cx.name(format_args!("counted-{first}"));
        // Three times through one majority, whose counters run ahead. Then through one that shares a single
        // member with it, and through one that shares others: which of them knows the last token?
        let mut order = vec![first, first, first, first + majority - 1, first + majority];
        order.extend((0..cx.rounds(5, 50)).map(|_| rng.below(members as u64) as usize));
        let mut last = None;
        for (n, by) in order.into_iter().map(|by| by % members).enumerate() {
            let held = holds(&cx, &parties[by], &name, &ask, "acquiring over a bare majority").await?;
            let token = token_of(&*held, "an acquire over a bare majority")?;
            ensure!(
                Some(token) > last,
                "grant {n}, over the majority from member {by} on, has token {}, and the one before it had \
                    {}",
                token.get(),
                last.map_or(0, dlock_core::Token::get)
            );
            last = Some(token);
            cx.evidence("grants");
            held.release().await.seen("releasing over a bare majority")?;
        }
        cx.evidence("majorities");
    }
    Ok(())
}
