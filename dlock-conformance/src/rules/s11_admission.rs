//! §11 Readers, writers and permits: who is admitted, and who is refused before queueing.

use super::prelude::*;

rules! {
    everyone_admissible_is_admitted, mismatched_permits_are_refused,
}

rule! { "11.14" Must phase 1 [Shared, Wait] Both A D everyone_admissible_is_admitted,
    evidence ["admitted_after_withdrawal" >= 2, "readers_admitted_by_one_release" >= 5],
    bug "admit_on_release_only"
    "When a waiter in front is cancelled or times out, the waiters behind it that are now admissible are \
        admitted at once. One release admits every admissible reader."
    why "If only releases run admission, readers stay blocked behind a writer that gave up long ago."
    check "Does the withdrawal of a queue entry run the same admission as a release?"
}
async fn everyone_admissible_is_admitted(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (read, write) = (cx.ask().reader(), cx.ask());
    let bound = cx.claims().wake_p99 + cx.claims().cancel_prompt + cx.slack();
    let queued = ms(30);
    for cancels in [true, false] {
        let name = cx.name(format!("withdrawn-{cancels}"));
        let reading = a.is_granted(&name, &read, "the first reader").await?;
        let patience = if cancels { cx.long_ttl() } else { ms(120) };
        let writer = cx.waits_for(&b, &name, &write, patience);
        cx.sleep(queued).await;
        let reader = cx.waits(&c, &name, &read);
        cx.sleep(queued).await;
        if cancels {
            ensure!(
                writer.cancel().await.is_none(),
                "the writer did not wait for the reader"
            );
        } else {
            refused(writer.await, ErrorKind::Timeout, "the writer behind a reader")?;
        }
        let how = if cancels { "was cancelled" } else { "timed out" };
        let doing = format!("admitting a reader beside a reader, after the writer before it {how}");
        let second = cx.done(bound, doing, reader).await?;
        ensure!(reading.is_valid(), "the first reader is not valid any more");
        cx.evidence("admitted_after_withdrawal");
        reading.release().await.seen("the first reader releases")?;
        second.release().await.seen("the second reader releases")?;
    }
    let name = cx.name("all");
    let writing = a.is_granted(&name, &write, "the writer").await?;
    let readers = [&b, &c].into_iter().cycle().take(8);
    let waiting: Vec<_> = readers.map(|client| cx.waits(client, &name, &read)).collect();
    cx.sleep(queued).await;
    writing.release().await.seen("the writer releases")?;
    let mut reading = Vec::new();
    for (i, reader) in waiting.into_iter().enumerate() {
        let what = format!("admitting reader {i} of 8, which one release admits together");
        reading.push(cx.done(bound, what, reader).await?);
        cx.evidence("readers_admitted_by_one_release");
    }
    ensure!(
        reading.iter().all(|r| r.is_valid()),
        "a reader is not valid beside the others"
    );
    Ok(())
}

async fn mismatched(cx: &Cx, client: &dyn Subject, name: &LockName, ask: &Ask, what: &str) -> Verdict {
    let limit = cx.claims().op_bound;
    let tried = cx
        .within(limit, what, client.try_acquire(name, ask))
        .await?
        .map(drop);
    let doing = format!("{what}: refusing to queue");
    let waited = cx
        .within(limit, doing, client.acquire_timeout(name, ask, limit * 4))
        .await?
        .map(drop);
    for (how, answer) in [("try_acquire", tried), ("a waiting acquire", waited)] {
        refused(answer, ErrorKind::InvalidInput, format_args!("{what}: {how}"))?;
        cx.evidence("mismatches_refused");
    }
    Ok(())
}

rule! { "11.15" Must phase 1 [Permits, Try, Wait] Both A D mismatched_permits_are_refused,
    evidence ["mismatches_refused" >= 4, "refusals_when_all_are_taken" >= 6], bug "mixed_limits"
    "Exactly n of n permits of a name can be held at once. While they are in use, asking for another count, \
        or for a reader, is InvalidInput before queueing. Once the name is free, any class may begin."
    why "Two deployments that disagree about the limit would each admit their own number of holders."
    check "Is the limit stored with the name while it is in use, and compared in the step that grants?"
}
async fn mismatched_permits_are_refused(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("permits");
    let three = cx.ask().permit(3);
    let first = a.is_granted(&name, &three, "the first of 3 permits").await?;
    let mut others = vec![
        (cx.ask().permit(5), "5 permits while 3 are in use"),
        (cx.ask().permit(2), "2 permits while 3 are in use"),
    ];
    if cx.has(Need::Shared) {
        others.push((cx.ask().reader(), "a reader while permits are in use"));
    }
    for (ask, what) in others {
        mismatched(&cx, &*b, &name, &ask, what).await?;
    }
    let second = b.is_granted(&name, &three, "the second of 3 permits").await?;
    first.release().await.seen("the first permit's release")?;
    second.release().await.seen("the second permit's release")?;
    // Nothing of the refused ones is left, and the class is free again.
    let then = "5 permits, once the name is free";
    b.passes(&name, &cx.ask().permit(5), then).await?;
    a.passes(&name, &cx.ask(), "exclusively, once the name is free")
        .await?;
    for n in [1, 3, 8] {
        n_are_held_and_no_more(&cx, &[&*a, &*b], n).await?;
    }
    Ok(())
}

/// One too many is refused, and one that is released makes room for one.
async fn n_are_held_and_no_more(cx: &Cx, clients: &[&dyn Subject; 2], n: u32) -> Verdict {
    let (name, ask) = (cx.name(format_args!("{n}-at-once")), cx.ask().permit(n));
    let client = |i: u32| clients[i as usize % 2];
    let mut held = Vec::new();
    for i in 0..n {
        let when = format!("with {i} of {n} permits taken");
        held.push(client(i).is_granted(&name, &ask, when).await?);
    }
    for round in 0..2 {
        for other in clients {
            let when = format!("round {round}: one more, with all {n} permits taken");
            other.is_refused(&name, &ask, when).await?;
            cx.evidence("refusals_when_all_are_taken");
        }
        let back = held.swap_remove(0);
        back.release().await.seen("a permit is given back")?;
        let when = format!("round {round}: with one of {n} permits given back");
        held.push(client(round).is_granted(&name, &ask, when).await?);
    }
    let what = "exclusively, beside permits";
    clients[0].is_refused(&name, &cx.ask(), what).await?;
    for permit in held {
        permit.release().await.seen("a permit's release")?;
    }
    Ok(())
}
