//! §7 Fencing.

use std::sync::Mutex;

use dlock_core::Token;

use super::prelude::*;

rules! {
    every_grant_has_a_token, tokens_increase, tokens_increase_across_release, tokens_increase_across_expiry,
    tokens_increase_across_clients, token_and_grant_are_one_step,
}

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
        lock(&self.0).push(token);
    }

    fn take(&self) -> Vec<Token> {
        std::mem::take(&mut lock(&self.0))
    }
}

rule! { "7.01" Must phase 1 [Lock, Try, Wait, Fence] Both A D every_grant_has_a_token,
    evidence ["tokens" >= 20], bug "token_zero"
    "Every exclusive grant carries a fencing token, however it came about; none is absent or 0."
    why "A holder without a token cannot be told from a stale one by the resource, and is refused or, worse, \
        let in."
    check "Do hand-offs to waiters and immediate grants take the token from the same place?"
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
        cx.sleep(ms(8)).await;
        held.release().await.seen("A releases while B waits")?;
        let doing = "B waits for what A released";
        let handed = cx.done(cx.prompt(), doing, waiting).await?;
        token_of(&*handed, "a hand-off")?;
        handed.release().await.seen("B releases")?;
        let timed = b.acquire_timeout(&name, &ask, cx.long_ttl()).await;
        let timed = timed.seen("B acquires a free name")?;
        token_of(&*timed, "acquire_timeout")?;
        cx.evidence_by("tokens", 4);
    }
    Ok(())
}

rule! { "7.02" Must phase 1 [Lock, Wait, Fence] Both A X tokens_increase, evidence ["grants" >= 40],
    bug "token_repeats", budget 120 s
    "Tokens strictly increase in the order of the grants of a name."
    why "Two holders with one token are the same to the resource; a smaller one locks the new holder out."
    check "Is the counter incremented for each grant, in the same step?"
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
                let held = lane.acquire_timeout(&name, &ask, task.long_ttl()).await;
                let held = held.seen("acquire")?;
                order.push(token_of(&*held, "acquire_timeout")?);
                task.evidence("grants");
                task.sleep(rng.duration(Duration::ZERO, ms(2))).await;
                lane.release(&held).await.seen("release")?;
            }
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    increasing(&order.take())?;
    cx.check_history()
}

rule! { "7.03" Must phase 1 [Lock, Fence] Both A D tokens_increase_across_release, evidence ["grants" >= 20],
    bug "token_reset_on_release"
    "A token is larger than those of before the name was released and nobody was left at it."
    why "A counter that lives in the lock's record starts anew when the record is deleted."
    check "Where does the counter live while nobody holds the lock?"
}
async fn tokens_increase_across_release(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let name = cx.name("again");
    let mut tokens = Vec::new();
    for round in 0..cx.rounds(20, 200) {
        let held = a.acquire(&name, &cx.ask()).await;
        let held = held.seen(format_args!("round {round}: A acquires"))?;
        tokens.push(token_of(&*held, "acquire")?);
        let released = held.release().await;
        released.seen(format_args!("round {round}: A releases"))?;
        cx.evidence("grants");
    }
    increasing(&tokens)
}

rule! { "7.04" Must phase 1 [Lock, Try, Lease, Fence, PerGrantTtl] Both A T tokens_increase_across_expiry,
    evidence ["expiries" >= 3], bug "token_reset_on_expiry"
    "A token is larger than that of a lease which ended because its time ran out, be it the same client's."
    why "After an expiry the stale holder still lives: then of all times the token must tell the two apart."
    check "Does the counter live in the record that expires?"
}
async fn tokens_increase_across_expiry(cx: Cx) -> Verdict {
    let mut clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("lapsing");
    let ask = cx.ask().ttl(cx.ttl(ms(100)));
    let mut tokens = Vec::new();
    let mut stale = Vec::new();
    for round in 0..cx.rounds(4, 20) {
        let by = cx.now() + cx.slack();
        let when = format!("round {round}: the lease before has run out");
        let held = cx.free_by(&*clients[0], &name, &ask, by, when).await?;
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

rule! { "7.05" Must phase 1 [Lock, Fence] Both A X tokens_increase_across_clients,
    evidence ["changes_of_client" >= 20], bug "token_per_client"
    "Tokens of a name increase from one client to the next, also to one that connected later."
    why "A counter in the client is right in every test with one client, and in no other."
    check "Is the token made by the store, or by the client or its connection?"
}
async fn tokens_increase_across_clients(cx: Cx) -> Verdict {
    let mut clients = cx.clients(6).await?;
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

rule! { "7.09" Must phase 1 [Lock, Try, Fence] Both A X token_and_grant_are_one_step,
    evidence ["grants" >= 30, "refusals" >= 10], bug "token_before_grant" stochastic, budget 120 s
    "A larger token never belongs to an earlier grant. Tokens may be burnt; none is given twice."
    why "A token drawn before the lock is taken is overtaken by the one of somebody who was faster."
    check "Is the counter incremented by a request of its own before the one that takes the lock?"
}
async fn token_and_grant_are_one_step(cx: Cx) -> Verdict {
    let name: LockName = cx.name("raced");
    let rounds = cx.rounds(20, 150);
    let order = InOrder::default();
    // All are connected before the first one tries: to connect may take longer than all that one of them
    // does.
    let clients = cx.clients(6).await?;
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
                        task.sleep(rng.duration(Duration::ZERO, ms(1))).await;
                        lane.release(&held).await.seen("release")?;
                        grants += 1;
                    }
                    None => task.evidence("refusals"),
                }
                if grants == rounds {
                    break;
                }
                task.sleep(rng.duration(Duration::ZERO, ms(3))).await;
            }
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    increasing(&order.take())?;
    cx.check_history()
}
