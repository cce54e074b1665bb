//! The bodies of rules about a client that is cut off while others are not: 3.09, 16.13.

use futures::future::{join_all, join3};

use super::faulty::{faulty, patience, struck};
use super::prelude::*;
use crate::network::{Direction, Fault};

rules! {
    lapsed_place_is_not_granted, partition_costs_one_client,
}

/// How long is waited for it to be in line, once the first answer is there: the rest of its requests are on
/// their way.
const IN_LINE: Duration = ms(50);

rule! { "3.09" Must phase 2 [Lock, Wait, Try, Lease, PerGrantTtl] Both P T lapsed_place_is_not_granted,
    evidence ["lapsed_places" >= 1, "held_back" >= 1], bug "stale_waiter_granted", budget 120 s
    "A waiter that was cut off until its place in line lapsed is not granted by that place: not by the \
        store, which passes on to those who are there, and not by its own belief when it is back."
    why "A waiter that takes the end of the wait for the grant, when it was its own session that ended, is a \
        second holder (etcd 11456)."
    check "When the wait ends, does the waiter ask whether its own entry is still there, or only whether \
        those before it have gone?"
}
async fn lapsed_place_is_not_granted(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    let (long, short) = (cx.ask(), cx.ask().ttl(cx.short_ttl()));
    let faults = [Fault::Hold(Direction::Both), Fault::BlackHole(Direction::Both)];
    for fault in &faults[..cx.rounds(1, 2)] {
        let name = cx.name(format_args!("{fault:?}"));
        let before = f.b.acquire(&name, &long).await.seen("B acquires a free name")?;
        let answered = f.net.traffic().replies;
        let mut waiting = f.a_acquires(&cx, &name, &short, None);
        let by = cx.now() + cx.claims().op_bound;
        while f.net.traffic().replies == answered {
            if cx.now() >= by {
                inconclusive!("A, which waits, was not answered");
            }
            cx.sleep(ms(1)).await;
        }
        // To get in line may take more than one request.
        cx.sleep(IN_LINE).await;
        let away = f.net.begin(*fault);
        struck(&cx, &away, "A, which waits, is not heard any more").await?;
        // Nothing has kept its place since.
        cx.sleep(short.ttl + cx.skew(short.ttl)).await;
        ensure!(!waiting.is_done(), "A does not wait while B holds");
        cx.evidence("lapsed_places");
        match before.release().await {
            Ok(()) => {}
            // A was cut off in the midst of a request, and keeps the store busy for a while; B says it again
            // by itself.
            Err(e) if e.kind() == ErrorKind::Unknown => cx.sleep(patience(&cx)).await,
            Err(e) => return Err(e).seen("B releases"),
        }
        let by = cx.now() + cx.slack();
        let when = "after B's release, with a waiter whose place had lapsed";
        let taken = cx.free_by(&*c, &name, &long, by, when).await?;
        let what = "A, whose place in line lapsed while it was cut off,";
        // Now it is back, and the name is C's.
        away.heal();
        let early = cx.timeout(short.ttl, &mut waiting).await;
        match &early {
            Some(Ok(_)) => fail!("{what} was granted while C holds"),
            Some(Err(_)) => cx.evidence("waits_ended"),
            None => cx.evidence("waits_gone_on"),
        }
        cx.evidence("held_back");
        taken.release().await.seen("C releases what it was granted")?;
        if early.is_none() {
            match cx.within(patience(&cx) + short.ttl, what, waiting).await? {
                Ok(held) => {
                    ensure!(held.is_valid(), "{what} was given a guard that is not valid");
                    let released = held.release().await;
                    released.seen("A releases what it was granted in the end")?;
                }
                Err(e) => cx.note(format_args!("{what} was told {:?}", e.kind())),
            }
        }
    }
    Ok(())
}

rule! { "16.13" Must phase 2 [Lock, Wait, Lease, AutoRenew, LossSignal] Both P T partition_costs_one_client,
    evidence ["lost" >= 3, "handed_over" >= 3, "undisturbed" >= 10, "back_again" >= 1],
    bug "partition_blocks_all", budget 120 s
    "A client that is cut off loses its locks, each by the deadline; those who wait for them have them by \
        the ttl plus slack, and all others go on as if nothing was."
    why "One machine behind a broken switch must not be able to stop everybody else."
    check "Does anything in the store wait for a client: for its answer to an expiry, for room in its \
        connection, for a lock that is held meanwhile?"
}
async fn partition_costs_one_client(cx: Cx) -> Verdict {
    const LOCKS: usize = 3;
    let f = faulty(&cx).await?;
    let c = cx.connect().await?;
    let (plain, renewing) = (cx.ask(), cx.ask().ttl(cx.short_ttl()).auto_renew());
    let ways = [Direction::Both, Direction::ToServer];
    for way in &ways[..cx.rounds(1, 2)] {
        let names: Vec<_> = (0..LOCKS).map(|n| cx.name(format_args!("{way:?}-{n}"))).collect();
        let mut held = Vec::new();
        for name in &names {
            held.push(f.a.acquire(name, &renewing).await.seen("A acquires")?);
        }
        let waiting: Vec<_> = names.iter().map(|name| cx.waits(&f.b, name, &plain)).collect();
        // Long enough that B waits, and that A has renewed.
        cx.sleep(renewing.ttl / 2).await;
        ensure!(
            !waiting.iter().any(|waiting| waiting.is_done()),
            "B does not wait while A holds"
        );
        let hole = f.net.begin(Fault::BlackHole(*way));
        let from = cx.now();
        let ttl = held[0].ttl();
        let by = from + ttl + cx.skew(ttl) + cx.slack();
        let lost = join_all(held.iter().map(|held| cx.timeout(from.until(by), held.lost())));
        let handed_over = join_all(waiting.into_iter().map(|task| {
            let cx = &cx;
            async move {
                let what = "B's wait for a lock of the client that is cut off";
                let held = cx.done(from.until(by), what, task).await?;
                cx.evidence("handed_over");
                held.release().await.seen("B releases")
            }
        }));
        let undisturbed = async {
            let mut n = 0;
            while cx.now() < by {
                let name = cx.name(format_args!("{way:?}-others-{n}"));
                let what = "C, which is not cut off, acquires what nobody holds";
                let held = cx.within(cx.claims().op_bound, what, c.acquire(&name, &plain));
                held.await?.seen(what)?.release().await.seen("C releases")?;
                cx.evidence("undisturbed");
                cx.sleep(ms(5)).await;
                n += 1;
            }
            Ok::<(), Failure>(())
        };
        let (lost, handed_over, undisturbed) = join3(lost, handed_over, undisturbed).await;
        undisturbed?;
        handed_over.into_iter().collect::<Verdict<()>>()?;
        if hole.hits() == 0 {
            inconclusive!("nothing of the client that was cut off was lost");
        }
        for reason in lost {
            ensure!(
                reason.is_some(),
                "a guard of the client that is cut off was not lost by {:?} after that",
                from.until(by)
            );
            cx.evidence("lost");
        }
        hole.heal();
        let what = "the client that was cut off, once it is not";
        let again = f.a.acquire(&names[0], &plain);
        let again = cx.done(patience(&cx) + ttl, what, again).await?;
        again.release().await.seen("A releases again")?;
        cx.evidence("back_again");
    }
    Ok(())
}
