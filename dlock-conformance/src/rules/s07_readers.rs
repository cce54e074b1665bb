//! §7, the rules about readers' tokens and about what dead names leave behind.

use std::sync::Mutex;

use dlock_core::Token;

use super::prelude::*;

rules! {
    readers_tokens_lie_between, dead_names_keep_no_tokens,
}

/// Between two looks at how much a store keeps.
const LOOK_EVERY: Duration = ms(20);

/// What each holder was given, in the order in which they held.
type Given = Arc<Mutex<Vec<(bool, Token)>>>;

rule! { "7.11" Must phase 2 [Lock, Wait, Fence, Shared, FencedReads] Both A X readers_tokens_lie_between,
    evidence ["read_tokens" >= 20, "write_tokens" >= 12], bug "read_token_stale"
    "A reader's token is at least that of the last writer before it, and smaller than that of the next one."
    why "A resource that has seen the writer's token refuses a reader with an older one; one with a newer \
        one would lock the next writer out."
    check "Is the reader's token read in the step that grants, or kept from an earlier one?"
}
async fn readers_tokens_lie_between(cx: Cx) -> Verdict {
    in_turn(&cx).await?;
    all_at_once(&cx).await
}

/// A writer, readers beside one another, a writer.
async fn in_turn(cx: &Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    for round in 0..cx.rounds(4, 40) {
        let name = cx.name(round);
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
                let released = guard.release().await;
                released.seen(format_args!("round {round}: releasing"))?;
            }
        }
        between(&given)?;
    }
    Ok(())
}

async fn all_at_once(cx: &Cx) -> Verdict {
    let name = cx.name("mixed");
    let given = Given::default();
    let rounds = cx.rounds(10, 150);
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let (client, task, name, given) = (cx.connect().await?, cx.clone(), name.clone(), given.clone());
        let mut rng = cx.rng();
        tasks.push(cx.spawn(async move {
            let (cx, lane) = (task.clone(), task.lane(&client));
            for _ in 0..rounds {
                let writes = rng.one_in(3);
                let ask = if writes { cx.ask() } else { cx.ask().reader() };
                let held = lane.acquire(&name, &ask).await.seen("acquiring")?;
                // While it is held: whoever conflicts with it comes before or after, in the list as in truth.
                note(&cx, &given, writes, token_of(&*held, "a grant")?);
                cx.sleep(rng.duration(Duration::ZERO, ms(2))).await;
                lane.release(&held).await.seen("releasing")?;
            }
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    between(&given)?;
    cx.check_history()
}

fn note(cx: &Cx, given: &Given, writes: bool, token: Token) {
    lock(&given).push((writes, token));
    cx.evidence(if writes { "write_tokens" } else { "read_tokens" });
}

/// Breaks the rule unless each writer's token is above all before it, and each reader's at least that of the
/// last writer.
fn between(given: &Given) -> Verdict {
    let given = lock(&given);
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
    "What a store keeps for the tokens of names that nobody uses any more is bounded, or its growth is \
        declared."
    why "One counter for each name that ever was fills the store with 25 million keys that nothing will ever \
        delete (Redisson 6510)."
    check "Where does a name's counter live, and what deletes it?"
}
async fn dead_names_keep_no_tokens(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let names = cx.rounds(200, 5_000) as u64;
    // What the first names make the store set up is not what each name leaves.
    use_up(&cx, &*a, 0..names).await?;
    let before = counted(&cx, &*a).await?;
    use_up(&cx, &*a, names..names * 2).await?;
    // A store may clear up a little later.
    let by = cx.now() + cx.claims().op_bound;
    loop {
        let after = footprint(&cx).await?;
        if after <= before + names / 10 {
            cx.note(format_args!(
                "{names} dead names: from {before} records to {after}"
            ));
            return Ok(());
        }
        ensure!(
            cx.now() < by,
            "{names} names that were used once and let go left {} records behind",
            after - before
        );
        cx.sleep(LOOK_EVERY).await;
    }
}

/// What the store keeps when nobody does anything, of a harness that counts: names that are held are kept
/// somewhere.
async fn counted(cx: &Cx, client: &dyn crate::Subject) -> Verdict<u64> {
    const HELD: u64 = 20;
    let mut seen = (0, 0);
    // A store may clear up just then, and keep less with them than before; not again and again.
    for round in 0..3 {
        let before = settled(cx).await?;
        let mut held = Vec::new();
        for n in 0..HELD {
            let name = cx.name(format_args!("held-{round}-{n}"));
            held.push(
                client
                    .acquire(&name, &cx.ask())
                    .await
                    .seen("A acquires a free name")?,
            );
        }
        // A member of a quorum that nobody waited for may have its part a little later.
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
        "the harness counts {} records, and {} with {HELD} names held: it does not count what the store \
            keeps",
        seen.0, seen.1
    )))
}

/// What the store keeps when nobody does anything: a release that was answered may still be carried out at
/// some member of a quorum that nobody waited for, and what is read meanwhile counts a record that is not
/// there to stay.
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
        held.release().await.seen("A releases it for good")?;
        cx.evidence("dead_names");
    }
    Ok(())
}

pub(super) async fn footprint(cx: &Cx) -> Verdict<u64> {
    match cx.footprint().await {
        Some(Ok(records)) => Ok(records),
        Some(Err(e)) => Err(Failure::Kit(format!(
            "the harness could not count what its store keeps: {e}"
        ))),
        None => Err(Failure::NotRun(
            "the harness does not count what its store keeps".to_owned(),
        )),
    }
}
