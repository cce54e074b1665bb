//! §7 Fencing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::{LockName, Token};

use super::s07_readers::{dead_names_keep_no_tokens, readers_tokens_lie_between};
use super::s07_resource::{check_and_write_are_one_step, resource_refuses_stale_tokens};
use super::s07_restart::{
    resource_survives_a_restart, tokens_grow_very_large, tokens_survive_a_clock_step,
    tokens_survive_a_restart,
};
use super::s10_reentrancy::reentry_keeps_the_token;
use super::tokens::token_of;
use crate::claims::Need;
use crate::cx::Cx;
use crate::ensure;
use crate::rule::{Rule, rule};
use crate::verdict::{Failure, Seen, Verdict};

pub(super) static RULES: &[Rule] = &[
    rule! {
        "7.01" MUST phase 1 [Lock, Try, Wait, Fence]
        layer: Both, access: A, test: D,
        title: "every grant has a token",
        statement: "Every exclusive grant carries a fencing token, however it came about; none is absent or \
            0.",
        intent: "A holder without a token cannot be told from a stale one by the resource, and is refused \
            or, worse, let in.",
        check_first: "Do hand-offs to waiters and immediate grants take the token from the same place?",
        evidence: ["tokens" >= 20],
        budget: 60 s,
        bug: "token_zero" deterministic
        => every_grant_has_a_token
    },
    rule! {
        "7.02" MUST phase 1 [Lock, Wait, Fence]
        layer: Both, access: A, test: X,
        title: "tokens increase",
        statement: "Tokens strictly increase in the order of the grants of a name.",
        intent: "Two holders with one token are the same to the resource; a smaller one locks the new \
            holder out.",
        check_first: "Is the counter incremented for each grant, in the same step?",
        evidence: ["grants" >= 40],
        budget: 120 s,
        bug: "token_repeats" deterministic
        => tokens_increase
    },
    rule! {
        "7.03" MUST phase 1 [Lock, Fence]
        layer: Both, access: A, test: D,
        title: "tokens increase across release",
        statement: "A token is larger than those of before the name was released and nobody was left at it.",
        intent: "A counter that lives in the lock's record starts anew when the record is deleted.",
        check_first: "Where does the counter live while nobody holds the lock?",
        evidence: ["grants" >= 20],
        budget: 60 s,
        bug: "token_reset_on_release" deterministic
        => tokens_increase_across_release
    },
    rule! {
        "7.04" MUST phase 1 [Lock, Try, Lease, Fence, PerGrantTtl]
        layer: Both, access: A, test: T,
        title: "tokens increase across expiry",
        statement: "A token is larger than that of a lease which ended because its time ran out, be it the \
            same client's.",
        intent: "After an expiry the stale holder still lives: then of all times the token must tell the \
            two apart.",
        check_first: "Does the counter live in the record that expires?",
        evidence: ["expiries" >= 3],
        budget: 60 s,
        bug: "token_reset_on_expiry" deterministic
        => tokens_increase_across_expiry
    },
    rule! {
        "7.05" MUST phase 1 [Lock, Fence]
        layer: Both, access: A, test: X,
        title: "tokens increase across clients",
        statement: "Tokens of a name increase from one client to the next, also to one that connected later.",
        intent: "A counter in the client is right in every test with one client, and in no other.",
        check_first: "Is the token made by the store, or by the client or its connection?",
        evidence: ["changes_of_client" >= 20],
        budget: 60 s,
        bug: "token_per_client" deterministic
        => tokens_increase_across_clients
    },
    rule! {
        "7.06" MUST phase 2 [Lock, Try, Fence, FenceDurable]
        layer: Backend, access: H, test: D,
        title: "tokens survive a restart",
        statement: "Tokens increase across a restart of the store.",
        intent: "A counter that begins again after a restart gives the next holders tokens that the \
            resource has seen: all are refused, or a zombie with an old one is let in.",
        check_first: "Is the counter stored where the restart reaches nothing, before its token is handed \
            out?",
        evidence: ["restarts" >= 1],
        budget: 60 s,
        bug: "token_in_memory" deterministic
        => tokens_survive_a_restart
    },
    rule! {
        "7.07" MUST phase 2 [Lock, Try, Fence]
        layer: Backend, access: H, test: D,
        title: "tokens survive a clock step",
        statement: "Tokens increase across steps of the server's clock, back and forward.",
        intent: "A token made of the time is smaller than those before it after the clock was set back: the \
            live holder is refused for an hour.",
        check_first: "Is any part of the token a time?",
        evidence: ["steps" >= 2],
        budget: 60 s,
        bug: "token_walltime" deterministic
        => tokens_survive_a_clock_step
    },
    rule! {
        "7.08" MUST phase 2 [Lock, Try, Fence]
        layer: Backend, access: H, test: D,
        title: "tokens grow very large",
        statement: "Tokens increase past 2^31, 2^32 and 2^53, and the fenced resource tells them apart \
            there.",
        intent: "A counter of 32 bits wraps after some years of use, and one that passes through a floating \
            point number stands still; nobody tests that far.",
        check_first: "Which types does the token pass through on its way: a 32 bit number, a float, JSON, a \
            sequential node's name?",
        evidence: ["boundaries" >= 3],
        budget: 60 s,
        bug: "token_i32_wrap" deterministic
        => tokens_grow_very_large
    },
    rule! {
        "7.09" MUST phase 1 [Lock, Try, Fence]
        layer: Both, access: A, test: X,
        title: "token and grant are one step",
        statement: "A larger token never belongs to an earlier grant. Tokens may be burnt; none is given \
            twice.",
        intent: "A token drawn before the lock is taken is overtaken by the one of somebody who was faster.",
        check_first: "Is the counter incremented by a request of its own before the one that takes the lock?",
        evidence: ["grants" >= 30, "refusals" >= 10],
        budget: 120 s,
        bug: "token_before_grant" stochastic
        => token_and_grant_are_one_step
    },
    rule! {
        "7.10" MUST phase 2 [Fence, Reentrant, Wait]
        layer: Engine, access: A, test: D,
        title: "reentry keeps the token",
        statement: "Every level of a re-entrant hold has the token of the hold; the next grant has a larger \
            one.",
        intent: "A new token on re-entry makes the outer level a stale holder of its own lock, which the \
            resource refuses.",
        check_first: "Does re-entry draw a token, or show that of the lease?",
        evidence: ["reentries" >= 20],
        budget: 60 s,
        bug: "token_bump_on_reenter" deterministic
        => reentry_keeps_the_token
    },
    rule! {
        "7.11" MUST phase 2 [Lock, Wait, Fence, Shared, FencedReads]
        layer: Both, access: A, test: X,
        title: "readers' tokens lie between",
        statement: "A reader's token is at least that of the last writer before it, and smaller than that \
            of the next one.",
        intent: "A resource that has seen the writer's token refuses a reader with an older one; one with a \
            newer one would lock the next writer out.",
        check_first: "Is the reader's token read in the step that grants, or kept from an earlier one?",
        evidence: ["read_tokens" >= 20, "write_tokens" >= 12],
        budget: 60 s,
        bug: "read_token_stale" deterministic
        => readers_tokens_lie_between
    },
    rule! {
        "7.12" MUST phase 1 [Lock, Fence, Resource]
        layer: Both, access: A, test: D,
        title: "resource refuses stale tokens",
        statement: "The fenced resource refuses a token below the highest seen, accepts the same one again, \
            and refuses neither of two live readers; each resource by itself, however many there are.",
        intent: "It is the last line: what the lock cannot prevent, a paused holder's write, is stopped \
            here.",
        check_first: "Is the highest token kept with the value, and are readers barred by writers only?",
        evidence: ["stale_writes" >= 6],
        budget: 60 s,
        bug: "resource_accepts_stale" deterministic
        => resource_refuses_stale_tokens
    },
    rule! {
        "7.13" MUST phase 1 [Lock, Fence, Resource]
        layer: Both, access: A, test: X,
        title: "check and write are one step",
        statement: "The resource's check of the token and its write are one step: no older write lands \
            after a newer one.",
        intent: "Between a check and a write of its own a newer holder's write fits, and is then \
            overwritten.",
        check_first: "Is the comparison part of the statement that writes?",
        evidence: ["races" >= 10, "reads" >= 10],
        budget: 120 s,
        bug: "resource_check_then_write" stochastic
        => check_and_write_are_one_step
    },
    rule! {
        "7.14" MUST phase 2 [Lock, Try, Fence, FenceDurable, Resource]
        layer: Backend, access: H, test: D,
        title: "resource survives a restart",
        statement: "The fenced resource remembers the highest token across a restart of the store.",
        intent: "A restart is when stale holders write: they were cut off, and try again as soon as the \
            store answers.",
        check_first: "Is the highest token stored with the value, in the same commit?",
        evidence: ["restarts" >= 1],
        budget: 60 s,
        bug: "resource_forgets" deterministic
        => resource_survives_a_restart
    },
    rule! {
        "7.15" MUST phase 1 [Lock, Wait, Try, Lease, Fence, Resource]
        layer: Backend, access: C, test: T,
        title: "a zombie is refused",
        statement: "A holder that was stopped for longer than its ttl, while another was granted and wrote, \
            is refused when it goes on and writes.",
        intent: "The story that fencing is for: a pause of the process, and two who write.",
        check_first: "Does the resource compare the token of the write itself, or that of whoever asks last?",
        evidence: ["stories" >= 2, "late_writes" >= 4],
        budget: 60 s,
        bug: "zombie_write_wins" deterministic
        => super::s07_zombie::a_zombie_is_refused
    },
    rule! {
        "7.16" SHOULD phase 3 [Lock, Fence, BoundedTokens]
        layer: Both, access: A, test: T,
        title: "dead names keep no tokens",
        statement: "What a store keeps for the tokens of names that nobody uses any more is bounded, or its \
            growth is declared.",
        intent: "One counter for each name that ever was fills the store with 25 million keys that nothing \
            will ever delete (Redisson 6510).",
        check_first: "Where does a name's counter live, and what deletes it?",
        evidence: ["dead_names" >= 400],
        budget: 60 s,
        bug: "fence_key_leak" deterministic
        => dead_names_keep_no_tokens
    },
];

/// Breaks the rule unless each is larger than the one before it.
fn increasing(tokens: &[Token]) -> Verdict {
    for (n, pair) in tokens.windows(2).enumerate() {
        ensure!(
            pair[0] < pair[1],
            "grant {} has token {}, and grant {} after it has token {}",
            n + 1,
            pair[0].get(),
            n + 2,
            pair[1].get()
        );
    }
    Ok(())
}

/// Tokens in the order in which they were granted: each is put in by its holder, while it holds.
#[derive(Clone, Default)]
struct InOrder(Arc<Mutex<Vec<Token>>>);

impl InOrder {
    fn push(&self, token: Token) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(token);
    }

    fn take(&self) -> Vec<Token> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn every_grant_has_a_token(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for round in 0..cx.rounds(5, 50) {
        let name = cx.name(round);
        let tried = cx.expect_free(&*a, &name, &ask, "a free name").await?;
        token_of(&*tried, "try_acquire")?;
        tried.release().await.seen("A releases")?;
        let held = a.acquire(&name, &ask).await.seen("A acquires")?;
        token_of(&*held, "acquire")?;
        let waiting = {
            let (b, name, ask, limit) = (b.clone(), name.clone(), ask.clone(), cx.long_ttl());
            cx.spawn(async move { b.acquire_timeout(&name, &ask, limit).await })
        };
        cx.sleep(Duration::from_millis(8)).await;
        held.release().await.seen("A releases while B waits")?;
        let handed = cx
            .within(
                cx.claims().op_bound + cx.slack(),
                "B waits for what A released",
                waiting,
            )
            .await?
            .seen("B acquires")?;
        token_of(&*handed, "a hand-off")?;
        handed.release().await.seen("B releases")?;
        let timed = b
            .acquire_timeout(&name, &ask, cx.long_ttl())
            .await
            .seen("B acquires a free name")?;
        token_of(&*timed, "acquire_timeout")?;
        cx.evidence_by("tokens", 4);
    }
    Ok(())
}

async fn tokens_increase(cx: Cx) -> Verdict {
    let name = cx.name("contended");
    let rounds = cx.rounds(10, 250);
    let order = InOrder::default();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (client, task, order, name) = (cx.connect().await?, cx.clone(), order.clone(), name.clone());
        let mut rng = cx.rng();
        tasks.push(cx.spawn(async move {
            let (lane, ask) = (task.lane(&client), task.ask());
            for _ in 0..rounds {
                let held = lane
                    .acquire_timeout(&name, &ask, task.long_ttl())
                    .await
                    .seen("acquire")?;
                order.push(token_of(&*held, "acquire_timeout")?);
                task.evidence("grants");
                task.sleep(rng.duration(Duration::ZERO, Duration::from_millis(2)))
                    .await;
                lane.release(&held).await.seen("release")?;
            }
            Ok::<(), Failure>(())
        }));
    }
    for task in tasks {
        task.await?;
    }
    increasing(&order.take())?;
    cx.check_history()
}

async fn tokens_increase_across_release(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let name = cx.name("again");
    let mut tokens = Vec::new();
    for round in 0..cx.rounds(20, 200) {
        let held = a
            .acquire(&name, &cx.ask())
            .await
            .seen(format_args!("round {round}: A acquires"))?;
        tokens.push(token_of(&*held, "acquire")?);
        held.release()
            .await
            .seen(format_args!("round {round}: A releases"))?;
        cx.evidence("grants");
    }
    increasing(&tokens)
}

async fn tokens_increase_across_expiry(cx: Cx) -> Verdict {
    let mut clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("lapsing");
    let ask = cx.ask().ttl(cx.ttl(Duration::from_millis(100)));
    let mut tokens = Vec::new();
    let mut stale = Vec::new();
    for round in 0..cx.rounds(4, 20) {
        let by = cx.now() + cx.slack();
        let held = cx
            .free_by(
                &*clients[0],
                &name,
                &ask,
                by,
                format!("round {round}: the lease before has run out"),
            )
            .await?;
        tokens.push(token_of(&*held, "try_acquire")?);
        stale.push(held);
        if round > 0 {
            cx.evidence("expiries");
        }
        // Not a sleep: a client that is awake gives the lease back at its deadline, and the store never sees
        // it expire.
        cx.stall(ask.ttl + cx.skew(ask.ttl));
        // Now another client is next, now the same one again: it is no less stale to itself.
        if round % 2 == 0 {
            clients.swap(0, 1);
        }
    }
    increasing(&tokens)
}

async fn tokens_increase_across_clients(cx: Cx) -> Verdict {
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(cx.connect().await?);
    }
    let name = cx.name("passed-on");
    let ask = cx.ask();
    let mut tokens = Vec::new();
    let mut rng = cx.rng();
    for _ in 0..cx.rounds(4, 100) {
        rng.shuffle(&mut clients);
        // Somebody new each time round.
        clients[0] = cx.connect().await?;
        for client in &clients {
            let held = client.acquire(&name, &ask).await.seen("a client acquires")?;
            tokens.push(token_of(&*held, "acquire")?);
            held.release().await.seen("it releases")?;
            cx.evidence("changes_of_client");
        }
    }
    increasing(&tokens)
}

async fn token_and_grant_are_one_step(cx: Cx) -> Verdict {
    let name: LockName = cx.name("raced");
    let rounds = cx.rounds(20, 150);
    let order = InOrder::default();
    // All are connected before the first one tries: to connect may take longer than all that one of them
    // does.
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(cx.connect().await?);
    }
    let mut tasks = Vec::new();
    for client in clients {
        let (task, order, name) = (cx.clone(), order.clone(), name.clone());
        let mut rng = cx.rng();
        tasks.push(cx.spawn(async move {
            let (lane, mut ask) = (task.lane(&client), task.ask());
            let mut grants = 0;
            for _ in 0..rounds * 10 {
                if task.claims().has(Need::Priority) {
                    ask = ask.priority(1 + rng.below(10) as u8);
                }
                // Tries, and not waits: the name must be free for an instant for a grant to be raced for.
                match lane.try_acquire(&name, &ask).await.seen("try_acquire")? {
                    Some(held) => {
                        order.push(token_of(&*held, "try_acquire")?);
                        task.evidence("grants");
                        // Held for a moment, or nobody would ever be refused where the store takes a
                        // microsecond.
                        task.sleep(rng.duration(Duration::ZERO, Duration::from_millis(1)))
                            .await;
                        lane.release(&held).await.seen("release")?;
                        grants += 1;
                    }
                    None => task.evidence("refusals"),
                }
                if grants == rounds {
                    break;
                }
                task.sleep(rng.duration(Duration::ZERO, Duration::from_millis(3)))
                    .await;
            }
            Ok::<(), Failure>(())
        }));
    }
    for task in tasks {
        task.await?;
    }
    increasing(&order.take())?;
    cx.check_history()
}
