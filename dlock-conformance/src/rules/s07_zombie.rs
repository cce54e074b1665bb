//! §7 Fencing, the part about a holder that comes back.

use dlock_core::Admission;

use super::prelude::*;

rules! {
    a_zombie_is_refused,
}

rule! { "7.15" Must phase 1 [Lock, Wait, Try, Lease, Fence, Resource] Backend C T a_zombie_is_refused,
    evidence ["stories" >= 2, "late_writes" >= 4], bug "zombie_write_wins"
    "A holder that was stopped for longer than its ttl, while another was granted and wrote, is refused when \
        it goes on and writes."
    why "The story that fencing is for: a pause of the process, and two who write."
    check "Does the resource compare the token of the write itself, or that of whoever asks last?"
}
async fn a_zombie_is_refused(cx: Cx) -> Verdict {
    let (b, a) = (cx.connect().await?, cx.child().await?);
    let Some(gate) = b.gate() else {
        fail!("a fenced resource is claimed, and `gate()` gives none");
    };
    for round in 0..cx.rounds(2, 10) {
        let (name, resource) = (cx.name(round), cx.name(format_args!("resource-{round}")));
        let ask = cx.ask().ttl(cx.short_ttl());
        let held = a.wait_for(&name, &ask, Some(cx.claims().op_bound)).await;
        let held = held.seen("A acquires")?.value;
        let old = token_of(&held, "A")?;
        let first = a
            .write(&resource, old, b"A's first")
            .await
            .seen("A writes")?
            .value;
        ensure!(
            first.is_admitted(),
            "A's write under its lock was refused: {first:?}"
        );
        // A does nothing in the store now, and will not by itself: it can be stopped in no transaction.
        let stopped = a.stop()?;
        let by = stopped.answered + ask.ttl + cx.slack();
        let when = "A is stopped for longer than its ttl";
        let next = cx.free_by(&*b, &name, &cx.ask(), by, when).await?;
        let new = token_of(&*next, "B")?;
        let written = gate.write(&resource, new, b"B's").await.seen("B writes")?;
        ensure!(
            written.is_admitted(),
            "the newest holder's write was refused: {written:?}"
        );
        // On its way before A goes on: the first thing that it does. And once more, as one who was not told
        // tries again.
        let late = [
            a.write(&resource, old, b"A's late one"),
            a.write(&resource, old, b"A's late one, again"),
        ];
        a.resume()?;
        for answer in late {
            let answer = cx.within(cx.claims().op_bound, "A's late write", answer).await?;
            let answer = answer.seen("A goes on, and writes")?.value;
            ensure!(
                answer == Admission::Refused { highest: new },
                "A was stopped for longer than its ttl, B was granted and wrote with token {}; A's late \
                    write with token {} was to be refused, and was answered {answer:?}",
                new.get(),
                old.get()
            );
            cx.evidence("late_writes");
        }
        let value = gate.read(&resource).await.seen("B reads")?;
        let value = value.ok_or_else(|| Failure::Broken("B's value is gone".to_owned()))?;
        ensure!(
            value.value == b"B's",
            "the resource holds {:?} after a late write that was refused",
            String::from_utf8_lossy(&value.value)
        );
        let again = gate
            .write(&resource, new, b"B's second")
            .await
            .seen("B writes again")?;
        ensure!(again.is_admitted(), "B's second write was refused: {again:?}");
        next.release().await.seen("B releases")?;
        drop(held.release().await);
        cx.evidence("stories");
    }
    Ok(())
}
