//! §7 Fencing, the part about the fenced resource.

use dlock_core::{Access, Admission, FenceGate, FencedValue};

use super::prelude::*;

rules! {
    resource_refuses_stale_tokens, check_and_write_are_one_step, a_zombie_is_refused,
}

pub(super) fn gate_of(client: &dyn Subject) -> Verdict<&dyn FenceGate> {
    match client.gate() {
        Some(gate) => Ok(gate),
        None => fail!("a fenced resource is claimed, and `gate()` gives none"),
    }
}

/// Tokens of `n` grants of one name, in the order of the grants. All writers but the last are stale.
async fn tokens(cx: &Cx, client: &dyn Subject, name: &LockName, n: usize) -> Verdict<Vec<Token>> {
    let mut tokens = Vec::new();
    for _ in 0..n {
        let held = client.acquire(name, &cx.ask()).await.seen("a client acquires")?;
        tokens.push(token_of(&*held, "acquire")?);
        held.release().await.seen("it releases")?;
    }
    Ok(tokens)
}

async fn read(gate: &dyn FenceGate, resource: &LockName) -> Verdict<FencedValue> {
    match gate.read(resource).await.seen("reads the resource")? {
        Some(value) => Ok(value),
        None => fail!("the resource has no value after it was written"),
    }
}

/// One writer, or reader, at the resource.
struct AtResource<'a> {
    gate: &'a dyn FenceGate,
    resource: &'a LockName,
}

impl AtResource<'_> {
    async fn admits(&self, token: Token, value: &[u8], what: &str) -> Verdict {
        let answer = self.gate.write(self.resource, token, value).await;
        admitted(answer.seen("writes")?, what)
    }

    async fn refuses(&self, token: Token, highest: Token, what: &str) -> Verdict {
        let answer = self.gate.write(self.resource, token, b"stale").await;
        stale_is_refused(answer.seen("writes")?, highest, what)
    }

    /// Without a write.
    async fn asks(&self, token: Token, access: Access) -> Verdict<Admission> {
        let answer = self.gate.admit(self.resource, token, access).await;
        answer.seen("asks to be admitted")
    }
}

pub(super) fn admitted(answer: Admission, what: &str) -> Verdict {
    match answer {
        Admission::Admitted => Ok(()),
        refused => fail!("{what} was not admitted: {refused:?}"),
    }
}

pub(super) fn stale_is_refused(answer: Admission, highest: Token, what: &str) -> Verdict {
    ensure!(
        answer == Admission::Refused { highest },
        "{what} should be refused because of token {}; the answer was {answer:?}",
        highest.get()
    );
    Ok(())
}

rule! { "7.12" Must phase 1 [Lock, Fence, Resource] Both A D resource_refuses_stale_tokens,
    evidence ["stale_writes" >= 6], bug "resource_accepts_stale"
    "The fenced resource refuses a token below the highest that it has seen, accepts the same one again, and \
        refuses neither of two live readers. Each resource is independent, however many there are."
    why "The fence is the last line of defence. The lock cannot prevent a paused holder's write, the \
        resource can."
    check "Is the highest token stored with the value, and is a reader refused only because of a writer's \
        token?"
}
async fn resource_refuses_stale_tokens(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, resource) = (cx.name("lock"), cx.name("resource"));
    let [here, there] = [gate_of(&*a)?, gate_of(&*b)?].map(|gate| AtResource {
        gate,
        resource: &resource,
    });
    let [old, mid, new, newest] = tokens(&cx, &*a, &name, 4).await?[..] else {
        return Err(Failure::Kit("four tokens were taken".to_owned()));
    };
    here.admits(old, b"old", "the first write").await?;
    here.admits(old, b"again", "a second write with the same token")
        .await?;
    there.admits(new, b"new", "a write with a larger token").await?;
    for (token, what) in [
        (old, "a write with the oldest token"),
        (mid, "a write with a token that was never used"),
    ] {
        here.refuses(token, new, what).await?;
        cx.evidence("stale_writes");
    }
    let what = "a stale writer that asks to be admitted";
    stale_is_refused(here.asks(mid, Access::Exclusive).await?, new, what)?;
    stale_is_refused(here.asks(mid, Access::Shared).await?, new, "a stale reader")?;
    cx.evidence_by("stale_writes", 2);
    there.admits(new, b"newer", "the holder's second write").await?;
    let value = read(here.gate, &resource).await?;
    ensure!(
        value.value == b"newer",
        "the resource has {:?} after the last admitted write of \"newer\"",
        String::from_utf8_lossy(&value.value)
    );
    // An admission counts like a write.
    let what = "the next holder, which asks before it writes";
    admitted(here.asks(newest, Access::Exclusive).await?, what)?;
    let what = "a write of the holder before one that was admitted";
    there.refuses(new, newest, what).await?;
    cx.evidence("stale_writes");
    if cx.has(Need::Shared) {
        live_readers(&cx, [&*a, &*b], &name, &here, newest).await?;
    }
    resources_are_independent(&cx, &*a, old, new).await
}

/// Each resource has its own highest token, whatever its name and however many others there are.
async fn resources_are_independent(cx: &Cx, client: &dyn Subject, old: Token, new: Token) -> Verdict {
    let gate = gate_of(client)?;
    let long = "x".repeat(200);
    let [first, in_case, at_its_end] = ["one", "One", "two"].map(|end| cx.name(format!("{long}-{end}")));
    for (resource, token, what) in [
        (&first, new, "the first write to a resource"),
        (&in_case, old, "a write to a resource that differs in case"),
        (&at_its_end, old, "a write to a resource that differs at its end"),
    ] {
        AtResource { gate, resource }.admits(token, b"mine", what).await?;
    }
    for other in 0..cx.rounds(150, 2_000) {
        let resource = &cx.name(format_args!("other-{other}"));
        let other = AtResource { gate, resource };
        let what = "a write to one of many resources";
        other.admits(old, b"other", what).await?;
    }
    let resource = &first;
    let first = AtResource { gate, resource };
    let what = "a stale write, after writes to many other resources";
    first.refuses(old, new, what).await?;
    cx.evidence("stale_writes");
    Ok(())
}

/// Two readers at the same time: neither is refused because of the other, the writer before them is.
async fn live_readers(
    cx: &Cx,
    [a, b]: [&dyn Subject; 2],
    name: &LockName,
    resource: &AtResource<'_>,
    writer: Token,
) -> Verdict {
    let ask = cx.ask().reader();
    let first = a.is_granted(name, &ask, "for a reader").await?;
    let second = b.is_granted(name, &ask, "for a second reader").await?;
    let (t1, t2) = (
        token_of(&*first, "a reader")?,
        token_of(&*second, "a second reader")?,
    );
    // The later one first: the earlier one is not stale, it still holds.
    for (token, what) in [
        (t1.max(t2), "a live reader"),
        (t1.min(t2), "a live reader with the smaller token"),
    ] {
        admitted(resource.asks(token, Access::Shared).await?, what)?;
    }
    // A reader may have the token of the writer before it. Then it bars no other.
    if t1.max(t2) > writer {
        let what = "a write of the writer before a reader that was admitted";
        resource.refuses(writer, t1.max(t2), what).await?;
        cx.evidence("stale_writes");
    }
    Ok(())
}

fn encode(token: Token) -> Vec<u8> {
    token.get().to_string().into_bytes()
}

rule! { "7.13" Must phase 1 [Lock, Fence, Resource] Both A X check_and_write_are_one_step,
    evidence ["races" >= 10, "reads" >= 10], bug "resource_check_then_write" stochastic, budget 120 s
    "The resource checks the token and writes in one step: no older write lands after a newer one."
    why "Between a separate check and write, a newer holder can write. The older write then overwrites it."
    check "Is the comparison part of the statement that writes?"
}
async fn check_and_write_are_one_step(cx: Cx) -> Verdict {
    let a = cx.connect().await?;
    let clients = cx.clients(4).await?;
    let name = cx.name("lock");
    let mut rng = cx.rng();
    for round in 0..cx.rounds(12, 200) {
        let resource = cx.name(format_args!("resource-{round}"));
        let mut writers = tokens(&cx, &*a, &name, clients.len()).await?;
        rng.shuffle(&mut writers);
        let writes = clients.iter().zip(&writers).map(|(client, &token)| {
            let (cx, resource) = (&cx, &resource);
            let pause = rng.duration(Duration::ZERO, Duration::from_micros(300));
            async move {
                let gate = gate_of(&**client)?;
                cx.sleep(pause).await;
                let answer = gate
                    .write(resource, token, &encode(token))
                    .await
                    .seen("a writer writes")?;
                let seen = read(gate, resource).await?;
                let stored = seen.max_exclusive;
                ensure!(
                    stored.is_some_and(|t| encode(t) == seen.value),
                    "the value was written with token {}, and the highest admitted token is {stored:?}",
                    String::from_utf8_lossy(&seen.value)
                );
                ensure!(
                    !answer.is_admitted() || stored >= Some(token),
                    "the write with token {} was admitted, and afterwards the resource has the value of \
                        {stored:?}",
                    token.get()
                );
                cx.evidence("reads");
                Ok::<_, Failure>(answer.is_admitted().then_some(token))
            }
        });
        let admitted = try_join_all(writes).await?;
        let highest = admitted.into_iter().flatten().max();
        let last = read(gate_of(&*a)?, &resource).await?;
        ensure!(
            highest.is_some_and(|t| encode(t) == last.value),
            "round {round}: the last value was written with token {}, and the highest admitted token is \
                {highest:?}",
            String::from_utf8_lossy(&last.value)
        );
        cx.evidence("races");
    }
    Ok(())
}

rule! { "7.15" Must phase 1 [Lock, Wait, Try, Lease, Fence, Resource] Backend C T a_zombie_is_refused,
    evidence ["stories" >= 2, "late_writes" >= 4], bug "zombie_write_wins"
    "A holder that is stopped for longer than its ttl, while another client is granted and writes, is \
        refused when it continues and writes."
    why "This is the case that fencing exists for: a paused process, and two writers."
    check "Does the resource compare the token of the write itself, or the token of its latest caller?"
}
async fn a_zombie_is_refused(cx: Cx) -> Verdict {
    let (b, a) = (cx.connect().await?, cx.child().await?);
    let gate = gate_of(&*b)?;
    for round in 0..cx.rounds(2, 10) {
        let (name, resource) = (cx.name(round), cx.name(format_args!("resource-{round}")));
        let ask = cx.ask().ttl(cx.short_ttl());
        let held = a.wait_for(&name, &ask, Some(cx.claims().op_bound)).await;
        let held = held.seen("A acquires")?.value;
        let old = token_of(&held, "A")?;
        let first = a.write(&resource, old, b"A's first").await;
        admitted(first.seen("A writes")?.value, "A's write under its lock")?;
        // A has no request in flight, and sends none on its own: it is not within a transaction.
        let stopped = a.stop()?;
        let by = stopped.answered + ask.ttl + cx.slack();
        let when = "A is stopped for longer than its ttl";
        let next = cx.free_by(&*b, &name, &cx.ask(), by, when).await?;
        let new = token_of(&*next, "B")?;
        let written = gate.write(&resource, new, b"B's").await.seen("B writes")?;
        admitted(written, "the newest holder's write")?;
        // Sent before A continues: the first thing that A does. And again, like a client that retries.
        let late = [
            a.write(&resource, old, b"A's late one"),
            a.write(&resource, old, b"A's late one, again"),
        ];
        a.resume()?;
        for answer in late {
            let answer = cx.within(cx.claims().op_bound, "A's late write", answer).await?;
            let answer = answer.seen("A continues, and writes")?.value;
            let what = format!(
                "A was stopped for longer than its ttl, and its late write with token {}",
                old.get()
            );
            stale_is_refused(answer, new, &what)?;
            cx.evidence("late_writes");
        }
        let value = read(gate, &resource).await?;
        ensure!(
            value.value == b"B's",
            "the resource holds {:?} after a late write that was refused",
            String::from_utf8_lossy(&value.value)
        );
        let again = gate.write(&resource, new, b"B's second").await;
        admitted(again.seen("B writes again")?, "B's second write")?;
        next.release().await.seen("B releases")?;
        drop(held.release().await);
        cx.evidence("stories");
    }
    Ok(())
}
