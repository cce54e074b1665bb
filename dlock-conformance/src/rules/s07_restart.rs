//! §7, tokens under special conditions: restarts, clock steps, very large tokens, and raises.

use dlock_core::FenceGate;
use dlock_core::spi::{Acquire, Attempt, Raised, Release};

use super::prelude::*;
use super::probes::key_of_nobody;
use super::s07_resource::{admitted, gate_of, stale_is_refused};
use crate::hooks::Step;

rules! {
    tokens_survive_a_restart, tokens_survive_a_clock_step, tokens_grow_very_large,
    resource_survives_a_restart, a_raise_moves_the_counter,
}

/// Takes the lock and lets go of it: the token. Soon after a restart the store may be busy for a while.
async fn a_token(cx: &Cx, client: &dyn Subject, name: &LockName, when: &str) -> Verdict<Token> {
    let by = cx.now() + cx.prompt();
    let held = cx.free_by(client, name, &cx.ask(), by, when.to_owned()).await?;
    let token = token_of(&*held, when)?;
    held.release().await.seen(when)?;
    Ok(token)
}

fn larger(token: Token, last: Token, when: &str) -> Verdict {
    ensure!(
        token > last,
        "{when}: a grant has token {}, and one before it had {}",
        token.get(),
        last.get()
    );
    Ok(())
}

rule! { "7.06" Must phase 2 [Lock, Try, Fence, FenceDurable] Backend H D tokens_survive_a_restart,
    evidence ["restarts" >= 1], bug "token_in_memory"
    "Tokens increase across a restart of the store."
    why "A counter that starts again after a restart hands out tokens that the resource has seen. All new \
        holders are refused, or a stale one with an old token is admitted."
    check "Is the counter stored where a restart does not reset it, before its token is handed out?"
}
async fn tokens_survive_a_restart(cx: Cx) -> Verdict {
    let name = cx.name("across restarts");
    let mut last = None;
    for how in cx.restarts()? {
        // Clients of its own: one that was connected before may end with the server that it knew.
        let before = cx.connect().await?;
        for _ in 0..3 {
            let token = a_token(&cx, &*before, &name, "before a restart").await?;
            last.map_or(Ok(()), |last| larger(token, last, "before a restart"))?;
            last = Some(token);
        }
        cx.restart(how).await?;
        let after = cx.connect().await?;
        let when = format!("after a restart ({how:?})");
        let token = a_token(&cx, &*after, &name, &when).await?;
        last.map_or(Ok(()), |last| larger(token, last, &when))?;
        last = Some(token);
        cx.evidence("restarts");
    }
    Ok(())
}

rule! { "7.07" Must phase 2 [Lock, Try, Fence] Backend H D tokens_survive_a_clock_step,
    evidence ["steps" >= 2], bug "token_walltime"
    "Tokens increase when the server's clock is set back or forward."
    why "After the clock is set back, a token made from the time is smaller than the ones before. The \
        resource refuses the live holder for an hour."
    check "Is any part of the token a time?"
}
async fn tokens_survive_a_clock_step(cx: Cx) -> Verdict {
    let clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("across steps");
    let mut last = a_token(&cx, &*clients[0], &name, "before the clock was set").await?;
    // Back first: where the store's own time stands still meanwhile, it does so no longer afterwards.
    let hour = Duration::from_secs(3600);
    for step in [Step::Back(hour), Step::Forward(hour)] {
        cx.step_clock(step).await?;
        let when = format!("after the clock was set ({step:?})");
        let grown = async {
            for client in &clients {
                let token = a_token(&cx, &**client, &name, &when).await?;
                larger(token, last, &when)?;
                last = token;
            }
            Ok(())
        };
        let grown: Verdict = grown.await;
        if grown.is_err() && step == Step::Back(hour) {
            // Whatever has come of it, the clock goes back to where it was.
            cx.step_clock(Step::Forward(hour)).await?;
        }
        grown?;
        cx.evidence("steps");
    }
    Ok(())
}

rule! { "7.08" Must phase 2 [Lock, Try, Fence] Backend H D tokens_grow_very_large,
    evidence ["boundaries" >= 3], bug "token_i32_wrap"
    "Tokens increase past 2^31, 2^32 and 2^53, and the fenced resource distinguishes them there."
    why "A 32-bit counter wraps after some years, and one that passes through a floating-point number stops \
        increasing. Ordinary tests do not get that far."
    check "Which types does the token pass through: a 32-bit number, a float, JSON, the name of a sequential \
        node?"
}
async fn tokens_grow_very_large(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, resource) = (cx.name("grows"), cx.name("resource"));
    for (boundary, shown) in [(1_u64 << 31, "2^31"), (1 << 32, "2^32"), (1 << 53, "2^53")] {
        let to = boundary - 2;
        if !cx.set_counter(&name, to).await? {
            cx.note(format_args!("the counter was beyond {shown} before"));
        }
        let mut tokens: Vec<Token> = Vec::new();
        for client in [&a, &b, &a, &b] {
            let when = format!("about {shown}");
            let token = a_token(&cx, &**client, &name, &when).await?;
            ensure!(
                token.get() > to,
                "{when}: the counter was at {to}, and the next grant has token {}",
                token.get()
            );
            if let Some(last) = tokens.last() {
                larger(token, *last, &when)?;
            }
            tokens.push(token);
        }
        if cx.has(Need::Resource)
            && let Some(gate) = a.gate()
        {
            the_gate_counts_as_far(gate, &resource, &tokens, shown).await?;
        }
        cx.evidence("boundaries");
    }
    Ok(())
}

async fn the_gate_counts_as_far(
    gate: &dyn FenceGate,
    resource: &LockName,
    tokens: &[Token],
    shown: &str,
) -> Verdict {
    for token in tokens {
        let answer = gate.write(resource, *token, b"newer").await.seen("writes")?;
        let what = format!(
            "about {shown} a write with token {} after smaller ones",
            token.get()
        );
        admitted(answer, &what)?;
    }
    if let [.., before, last] = tokens {
        let answer = gate.write(resource, *before, b"stale").await.seen("writes")?;
        let what = format!("about {shown} a write with token {}", before.get());
        stale_is_refused(answer, *last, &what)?;
    }
    Ok(())
}

rule! { "7.14" Must phase 2 [Lock, Try, Fence, FenceDurable, Resource] Backend H D
        resource_survives_a_restart,
    evidence ["restarts" >= 1], bug "resource_forgets"
    "The fenced resource remembers the highest token across a restart of the store."
    why "Stale holders write right after a restart: they were disconnected, and retry as soon as the store \
        answers."
    check "Is the highest token stored with the value, in the same commit?"
}
async fn resource_survives_a_restart(cx: Cx) -> Verdict {
    let (name, resource) = (cx.name("lock"), cx.name("resource"));
    for how in cx.restarts()? {
        let before = cx.connect().await?;
        let stale = a_token(&cx, &*before, &name, "before a restart").await?;
        let newest = a_token(&cx, &*before, &name, "before a restart").await?;
        let gate = gate_of(&*before)?;
        let written = gate.write(&resource, newest, b"kept").await.seen("writes")?;
        admitted(written, "the first write")?;
        cx.restart(how).await?;
        let after = cx.connect().await?;
        let gate = gate_of(&*after).seen("after a restart")?;
        let answer = gate.write(&resource, stale, b"stale").await;
        let answer = answer.seen("writes with a token of before the restart")?;
        let what = format!("after a restart ({how:?}) a write with token {}", stale.get());
        stale_is_refused(answer, newest, &what)?;
        let value = gate.read(&resource).await.seen("reads")?;
        ensure!(
            value.as_ref().is_some_and(|v| v.value == b"kept"),
            "after a restart ({how:?}) the resource has {value:?}"
        );
        let again = gate.write(&resource, newest, b"kept").await.seen("writes")?;
        admitted(again, &format!("after a restart ({how:?}) the newest token"))?;
        cx.evidence("restarts");
    }
    Ok(())
}

rule! { "7.18" Must phase 2 [Lock, Try, Fence, Raise] Backend A D a_raise_moves_the_counter,
    evidence ["raised" >= 2, "stale_raises" >= 1], bug "raise_keeps_the_counter"
    "A raise increases the token of a held lease and the store's counter with it: no later grant has a \
        smaller token. It never lowers a token, and changes nothing for a lease that is over."
    why "A quorum writes the largest token back to its majority. If a member only confirms the write without \
        making it, the next holder gets a smaller token, and the resource refuses it."
    check "Does the raise write both the counter and the lease, and only while the lease is held?"
}
async fn a_raise_moves_the_counter(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let Some((store, fencing)) = a.backend().and_then(|store| Some((store, store.fencing()?))) else {
        not_run!("it is not a dlock backend, so it cannot be asked to raise a token");
    };
    let (name, ask) = (cx.name("raised"), cx.ask());
    let key = key_of_nobody(&cx, &name);
    let attempt = store.attempt(&Acquire::new(key.clone(), ask.ttl)).await;
    let first = match attempt.seen("taking the lease")? {
        Attempt::Granted(grant) => grant.token.map_or(1, Token::get),
        other => fail!("an attempt at a free name answers {other:?}"),
    };
    // Some stores make tokens of the time: these are a thousand seconds apart.
    let far = |times: u64| Token::new(first + times * 1_000_000_000).unwrap_or(Token::MIN);
    for (to, then) in [(2, 2), (1, 2), (3, 3)] {
        let what = format!("a raise to {:?}", far(to));
        let raised = fencing.raise(&key, far(to)).await.seen(&what)?;
        let then = far(then);
        ensure!(
            raised == Raised::Raised(then),
            "{what} answers {raised:?}; the token is {then:?} now"
        );
        cx.evidence("raised");
    }
    let released = store.release(&key, Release::Now).await;
    released.seen("releasing the lease")?;
    let what = "a raise of a lease that is over";
    let stale = fencing.raise(&key, far(9)).await.seen(what)?;
    ensure!(stale == Raised::NotHeld, "{what} answers {stale:?}");
    cx.evidence("stale_raises");
    let token = a_token(&cx, &*a, &name, "after a raise").await?;
    larger(token, far(3), "after a raise")
}
