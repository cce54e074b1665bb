//! §7 Fencing.

use super::prelude::*;

rules! {
    every_grant_has_a_token, tokens_increase, tokens_increase_across_release, tokens_increase_across_expiry,
    tokens_increase_across_clients, token_and_grant_are_one_step, readers_tokens_lie_between,
    dead_names_keep_no_tokens, tokens_increase_in_a_long_run,
}

/// Breaks the rule unless each is larger than the one before it.
fn increasing(tokens: &[Token]) -> Verdict {
    for (n, pair) in tokens.windows(2).enumerate() {
        ensure!(
            pair[0] != pair[1],
            "grants {} and {} have the same token, {}",
            n + 1,
            n + 2,
            pair[0].get()
        );
        ensure!(
            pair[0] < pair[1],
            "grant {} has token {}, and grant {} after it has the smaller token {}",
            n + 1,
            pair[0].get(),
            n + 2,
            pair[1].get()
        );
    }
    Ok(())
}

/// Tokens in the order of their grants: each holder adds its own while it holds.
type InOrder = Arc<Mutex<Vec<Token>>>;

rule! { "7.01" Must phase 1 [Lock, Try, Wait, Fence] Both A D every_grant_has_a_token,
    evidence ["tokens" >= 20], bug "token_zero"
    "Every exclusive grant carries a fencing token, however the grant was made. None is absent or 0."
    why "The resource cannot distinguish a holder without a token from a stale one. It refuses the holder \
        or, worse, admits the stale one."
    check "Do hand-offs to waiters and immediate grants take the token from the same place?"
}
async fn every_grant_has_a_token(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    for name in cx.names(5, 50) {
        let tried = a.is_granted(&name, &ask, "a free name").await?;
        token_of(&*tried, "try_acquire")?;
        tried.release().await.seen("A releases")?;
        let held = a.acquire(&name, &ask).await.seen("A acquires")?;
        token_of(&*held, "acquire")?;
        let waiting = cx.waits_for(&b, &name, &ask, cx.long_ttl());
        cx.sleep(ms(8)).await;
        held.release().await.seen("A releases while B waits")?;
        let handed = cx.done(cx.prompt(), "B waits for A's lock", waiting).await?;
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
    why "To the resource, two holders with the same token are one. A smaller token locks the new holder out."
    check "Is the counter incremented for each grant, in the same step? (A clock is no counter: it repeats.)"
}
async fn tokens_increase(cx: Cx) -> Verdict {
    let rounds = cx.rounds(10, 250);
    let order = InOrder::default();
    let shared = (cx.name("contended"), order.clone());
    let clients = cx.clients(4).await?;
    let tasks = cx.at_work(clients, &shared, move |worker, (name, order)| async move {
        let (cx, lane, mut rng, ..) = worker;
        let ask = cx.ask();
        for _ in 0..rounds {
            let held = lane.acquire_timeout(&name, &ask, cx.long_ttl()).await;
            let held = held.seen("acquire")?;
            lock(&order).push(token_of(&*held, "acquire_timeout")?);
            cx.evidence("grants");
            cx.sleep(rng.duration(Duration::ZERO, ms(2))).await;
            lane.release(&held).await.seen("release")?;
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    increasing(&lock(&order))?;
    cx.check_history()
}

rule! { "7.03" Must phase 1 [Lock, Fence] Both A D tokens_increase_across_release, evidence ["grants" >= 20],
    bug "token_reset_on_release"
    "Tokens still increase after a name was released and had neither a holder nor a waiter."
    why "A counter in the lock's record starts again when the record is deleted."
    check "Where is the counter kept while the lock is free?"
}
async fn tokens_increase_across_release(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let name = cx.name("again");
    let mut tokens = Vec::new();
    for round in 0..cx.rounds(20, 200) {
        let held = a.acquire(&name, &cx.ask()).await;
        let held = held.seen(format_args!("round {round}: A acquires"))?;
        tokens.push(token_of(&*held, "acquire")?);
        held.released(format!("round {round}: A releases")).await?;
        cx.evidence("grants");
    }
    increasing(&tokens)
}

rule! { "7.17" Must phase 2 [Lock, Try, Fence] Both A D tokens_increase_in_a_long_run,
    evidence ["grants" >= 1000], bug "token_falls_rarely", budget 300 s
    "Tokens increase over a thousand grants and more: none decreases or repeats."
    why "A counter that is read from a replica, cached or rounded is wrong once in a thousand grants. A test \
        of forty grants does not notice."
    check "Is there a path to a grant that does not read the token from where it is counted?"
}
async fn tokens_increase_in_a_long_run(cx: Cx) -> Verdict {
    let clients = cx.clients(2).await?;
    let (name, ask) = (cx.name("long"), cx.ask());
    let mut tokens = Vec::new();
    for client in clients.iter().cycle().take(cx.rounds(1100, 10_000)) {
        let held = client.is_granted(&name, &ask, "a free name").await?;
        tokens.push(token_of(&*held, "try_acquire")?);
        held.release().await.seen("the holder releases")?;
        cx.evidence("grants");
    }
    increasing(&tokens)
}

rule! { "7.04" Must phase 1 [Lock, Try, Lease, Fence, PerGrantTtl] Both A T tokens_increase_across_expiry,
    evidence ["expiries" >= 3], bug "token_reset_on_expiry"
    "Tokens increase after a lease has expired, even if the same client acquires again."
    why "After an expiry the stale holder is still running. That is when the token must distinguish the two."
    check "Is the counter in the record that expires?"
}
async fn tokens_increase_across_expiry(cx: Cx) -> Verdict {
    let mut clients = [cx.connect().await?, cx.connect().await?];
    let name = cx.name("lapsing");
    let ask = cx.ask().ttl(cx.ttl(ms(100)));
    let mut tokens = Vec::new();
    let mut stale = Vec::new();
    for round in 0..cx.rounds(4, 20) {
        let by = cx.now() + cx.slack();
        let when = format!("round {round}: the lease before has expired");
        let held = cx.free_by(&*clients[0], &name, &ask, by, when).await?;
        tokens.push(token_of(&*held, "try_acquire")?);
        stale.push(held);
        if round > 0 {
            cx.evidence("expiries");
        }
        // Not a sleep: an awake client releases at its deadline, and the store sees no expiry.
        cx.stall(ask.ttl + cx.skew(ask.ttl));
        // Sometimes another client is next, sometimes the same one again: its old token is just as stale.
        if round % 2 == 0 {
            clients.swap(0, 1);
        }
    }
    increasing(&tokens)
}

rule! { "7.05" Must phase 1 [Lock, Fence] Both A X tokens_increase_across_clients,
    evidence ["changes_of_client" >= 20], bug "token_per_client"
    "Tokens of a name increase from one client to the next, also to a client that connects later."
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
    "A later grant has the larger token. Tokens may be skipped, and none is given twice."
    why "If the token is drawn before the lock is taken, a faster client can take the lock first with a \
        larger token."
    check "Is the counter incremented by a separate request, before the one that takes the lock?"
}
async fn token_and_grant_are_one_step(cx: Cx) -> Verdict {
    let rounds = cx.rounds(20, 150);
    let order = InOrder::default();
    let shared = (cx.name("raced"), order.clone());
    // All connect before the first one tries: that may take longer than all that one of them does.
    let clients = cx.clients(6).await?;
    let tasks = cx.at_work(clients, &shared, move |worker, (name, order)| async move {
        let (cx, lane, mut rng, ..) = worker;
        let mut ask = cx.ask();
        let mut grants = 0;
        for _ in 0..rounds * 10 {
            if cx.has(Need::Priority) {
                ask = ask.priority(1 + rng.below(10) as u8);
            }
            // Tries, not waits: clients race for a grant only while the name is free for an instant.
            match lane.try_acquire(&name, &ask).await.seen("try_acquire")? {
                Some(held) => {
                    lock(&order).push(token_of(&*held, "try_acquire")?);
                    cx.evidence("grants");
                    // For a moment: else a store that takes a microsecond would refuse no client.
                    cx.sleep(rng.duration(Duration::ZERO, ms(1))).await;
                    lane.release(&held).await.seen("release")?;
                    grants += 1;
                }
                None => cx.evidence("refusals"),
            }
            if grants == rounds {
                break;
            }
            cx.sleep(rng.duration(Duration::ZERO, ms(3))).await;
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    increasing(&lock(&order))?;
    cx.check_history()
}

/// The pause between two counts of the store's records.
const LOOK_EVERY: Duration = ms(20);

/// What each holder was given, in the order in which they held.
type Given = Arc<Mutex<Vec<(bool, Token)>>>;

rule! { "7.11" Must phase 2 [Lock, Wait, Fence, Shared, FencedReads] Both A X readers_tokens_lie_between,
    evidence ["read_tokens" >= 20, "write_tokens" >= 12], bug "read_token_stale"
    "A reader's token is at least that of the last writer before it, and smaller than that of the next one."
    why "If the reader's token is too small, a resource that has seen the writer's refuses the reader. If it \
        is too large, it locks the next writer out."
    check "Is the reader's token read in the step that grants, or cached from an earlier one?"
}
async fn readers_tokens_lie_between(cx: Cx) -> Verdict {
    in_turn(&cx).await?;
    all_at_once(&cx).await
}

/// A writer, readers beside one another, a writer.
async fn in_turn(cx: &Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    for (round, name) in cx.names(4, 40).enumerate() {
        let given = Given::default();
        for writes in [true, false, true, false, true] {
            let ask = if writes { cx.ask() } else { cx.ask().reader() };
            let clients = if writes { vec![&a] } else { vec![&b, &a, &b] };
            let mut held = Vec::new();
            for client in clients {
                let guard = client.acquire(&name, &ask).await;
                let guard = guard.seen(format_args!("round {round}: acquiring"))?;
                note(cx, &given, writes, token_of(&*guard, "a grant")?);
                held.push(guard);
            }
            for guard in held {
                guard.released(format!("round {round}: releasing")).await?;
            }
        }
        between(&given)?;
    }
    Ok(())
}

async fn all_at_once(cx: &Cx) -> Verdict {
    let (given, rounds) = (Given::default(), cx.rounds(10, 150));
    let shared = (cx.name("mixed"), given.clone());
    let clients = cx.clients(5).await?;
    let tasks = cx.at_work(clients, &shared, move |worker, (name, given)| async move {
        let (cx, lane, mut rng, ..) = worker;
        for _ in 0..rounds {
            let writes = rng.one_in(3);
            let ask = if writes { cx.ask() } else { cx.ask().reader() };
            let held = lane.acquire(&name, &ask).await.seen("acquiring")?;
            // While it is held: conflicting grants come before or after it, as in reality.
            note(&cx, &given, writes, token_of(&*held, "a grant")?);
            cx.sleep(rng.duration(Duration::ZERO, ms(2))).await;
            lane.release(&held).await.seen("releasing")?;
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await?;
    between(&given)?;
    cx.check_history()
}

fn note(cx: &Cx, given: &Given, writes: bool, token: Token) {
    lock(given).push((writes, token));
    cx.evidence(if writes { "write_tokens" } else { "read_tokens" });
}

/// Each writer's token is above all before it, and each reader's at least the last writer's.
fn between(given: &Given) -> Verdict {
    let given = lock(given);
    let (mut highest, mut written) = (0, 0);
    for (n, (writes, token)) in given.iter().enumerate() {
        let token = token.get();
        if *writes {
            ensure!(
                token > highest,
                "grant {n}, a writer's, has token {token}, and one before it has {highest}"
            );
            written = token;
        } else {
            ensure!(
                token >= written,
                "grant {n}, a reader's, has token {token}, and the last writer before it had {written}"
            );
        }
        highest = highest.max(token);
    }
    Ok(())
}

rule! { "7.16" Should phase 3 [Lock, Fence, BoundedTokens] Both A T dead_names_keep_no_tokens,
    evidence ["dead_names" >= 400], bug "fence_key_leak"
    "The space that a store uses for the tokens of unused names is bounded, or its growth is declared."
    why "With one counter for every name ever used, a store fills up with 25 million keys that nothing \
        deletes (Redisson 6510)."
    check "Where is a name's counter, and what deletes it? If nothing does, claim \
        `without(Need::BoundedTokens)`."
}
async fn dead_names_keep_no_tokens(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let names = cx.rounds(200, 5_000) as u64;
    // The first names make the store set things up, which is not a leftover of each name.
    use_up(&cx, &*a, 0..names).await?;
    let before = counted(&cx, &*a).await?;
    use_up(&cx, &*a, names..names * 2).await?;
    let left = format!("{names} names that were used once and released");
    clears_up(&cx, before, names / 10, (&format!("{names} dead names"), &left)).await
}

/// Waits until there are only so many more records than before: a store may clear up a little later.
pub(super) async fn clears_up(cx: &Cx, before: u64, more: u64, (names, ended): (&str, &str)) -> Verdict {
    let by = cx.now() + cx.claims().op_bound;
    loop {
        let after = footprint(cx).await?;
        if after <= before + more {
            cx.note(format_args!("{names}: from {before} records to {after}"));
            return Ok(());
        }
        ensure!(cx.now() < by, "{ended} left {} records behind", after - before);
        cx.sleep(LOOK_EVERY).await;
    }
}

/// The number of records at rest, from a harness that counts: held names must have records.
async fn counted(cx: &Cx, client: &dyn crate::Subject) -> Verdict<u64> {
    const HELD: u64 = 20;
    let mut seen = (0, 0);
    // A store may clear up just then, and keep less with them than before; not again and again.
    for round in 0..3 {
        let before = settled(cx).await?;
        let mut held = Vec::new();
        for n in 0..HELD {
            let name = cx.name(format_args!("held-{round}-{n}"));
            held.push(client.takes(&name, &cx.ask(), "A acquires a free name").await?);
        }
        // A quorum member that was not waited for may act a little later.
        let by = cx.now() + cx.claims().op_bound;
        let mut with = footprint(cx).await?;
        while with < before + HELD && cx.now() < by {
            cx.sleep(LOOK_EVERY).await;
            with = footprint(cx).await?;
        }
        for held in held {
            held.release().await.seen("A releases it")?;
        }
        if with >= before + HELD {
            return Ok(before);
        }
        seen = (before, with);
    }
    Err(Failure::Kit(format!(
        "the harness counts {} records, and {} with {HELD} names held: it does not count the store's records",
        seen.0, seen.1
    )))
}

/// The number of records at rest. A quorum member that was not waited for may still carry out a confirmed
/// release, so an earlier count may include a record that goes away.
async fn settled(cx: &Cx) -> Verdict<u64> {
    const ALIKE: u32 = 10;
    let by = cx.now() + cx.claims().op_bound;
    let (mut records, mut alike) = (footprint(cx).await?, 0);
    while alike < ALIKE && cx.now() < by {
        cx.sleep(LOOK_EVERY).await;
        let now = footprint(cx).await?;
        alike = if now == records { alike + 1 } else { 0 };
        records = now;
    }
    Ok(records)
}

async fn use_up(cx: &Cx, client: &dyn crate::Subject, names: std::ops::Range<u64>) -> Verdict {
    for n in names {
        let held = client.acquire(&cx.name(n), &cx.ask()).await;
        let held = held.seen("A acquires a new name")?;
        token_of(&*held, "a grant")?;
        held.release().await.seen("A releases it for the last time")?;
        cx.evidence("dead_names");
    }
    Ok(())
}

pub(super) async fn footprint(cx: &Cx) -> Verdict<u64> {
    match cx.footprint().await {
        Some(Ok(records)) => Ok(records),
        Some(Err(e)) => Err(Failure::Kit(format!(
            "the harness could not count the records of its store: {e}"
        ))),
        None => Err(Failure::NotRun(
            "the harness does not count the records of its store".to_owned(),
        )),
    }
}
