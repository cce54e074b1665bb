//! §11 Readers, writers and permits: downgrade and upgrade.

use super::prelude::*;
use crate::subject::{Convert, Upgraded};

rules! {
    downgrade_is_one_step, downgrade_admits_readers, upgraders_never_deadlock, failed_upgrade_keeps_the_read,
}

/// The part of a guard that changes its mode, where that is claimed.
fn converts(held: &dyn Held) -> Verdict<&dyn Convert> {
    held.convert()
        .ok_or_else(|| Failure::Broken("a guard has no conversions although they are claimed".to_owned()))
}

/// A conversion can at most restart the ttl: a longer deadline would outlive the lease in the store.
fn within_its_ttl(held: &dyn Held, ttl: Duration, what: &str) -> Verdict {
    let left = held.remaining();
    ensure!(left <= ttl, "{what} has {left:?} left, and its ttl was {ttl:?}");
    Ok(())
}

rule! { "11.10" Must phase 3 [Shared, Downgrade, Wait] Backend A X downgrade_is_one_step,
    evidence ["writers_waiting" >= 5, "looks" >= 20], bug "downgrade_gap"
    "A downgrade is atomic: no waiting writer is granted between the exclusive hold and the shared one."
    why "A holder that writes, downgrades and reads its own data back would read another writer's data."
    check "Is the mode changed by one request, or by a release and an acquire?"
}
async fn downgrade_is_one_step(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (read, write) = (cx.ask().reader(), cx.ask());
    let mut rng = cx.rng();
    let bound = cx.claims().wake_p99 + cx.slack();
    for (round, name) in cx.names(6, 60).enumerate() {
        // What a writer writes as soon as it is admitted.
        let written = Arc::new(AtomicU64::new(0));
        let held = a.is_granted(&name, &write, "the first writer").await?;
        let writer = cx.spawn({
            let (b, name, write, written) = (b.clone(), name.clone(), write.clone(), written.clone());
            async move {
                let held = b.acquire(&name, &write).await?;
                written.store(1, Ordering::SeqCst);
                held.release().await
            }
        });
        cx.in_line(&*c, &name, 1).await?;
        cx.evidence("writers_waiting");
        let reader = rng.one_in(2).then(|| cx.waits(&c, &name, &read));
        cx.sleep(rng.duration(Duration::ZERO, ms(3))).await;
        let (token, ttl) = (held.token(), held.ttl());
        converts(&*held)?.downgrade().await.seen("the downgrade")?;
        within_its_ttl(&*held, ttl, "a downgrade")?;
        for look in 0..4 {
            ensure!(
                written.load(Ordering::SeqCst) == 0,
                "round {round}: a writer was admitted after the downgrade, while the downgraded hold lasts"
            );
            held.must_be_valid(format_args!(
                "round {round}: the guard is not valid after its downgrade"
            ))?;
            held.must_keep(token, format_args!("round {round}: the downgrade"))?;
            if look == 2 {
                c.is_refused(&name, &write, "a writer, beside a downgraded hold")
                    .await?;
            }
            cx.evidence("looks");
            cx.sleep(ms(2)).await;
        }
        held.release().await.seen("the downgraded hold is released")?;
        let what = "admitting the waiting writer, after the downgraded hold";
        cx.done(bound * 2, what, async {
            // In whichever order these two are granted.
            match reader {
                Some(reader) => {
                    let reads = async { reader.await?.release().await };
                    futures::future::try_join(writer, reads).await.map(drop)
                }
                None => writer.await,
            }
        })
        .await?;
    }
    Ok(())
}

rule! { "11.16" Must phase 3 [Shared, Downgrade, Wait] Backend A T downgrade_admits_readers,
    evidence ["readers_admitted" >= 3], bug "downgrade_admits_nobody"
    "A downgrade admits the waiting readers at once."
    why "If only the next request admits them, the readers wait for as long as the former writer keeps \
        reading."
    check "Does a conversion admit the next waiters, as a release does?"
}
async fn downgrade_admits_readers(cx: Cx) -> Verdict {
    let clients = cx.clients(3).await?;
    // Longer than the wait may take: the end of a lease admits as well.
    let (write, read) = (cx.ask().ttl(cx.long_ttl()), cx.ask().ttl(cx.long_ttl()).reader());
    for name in cx.names(3, 20) {
        let held = clients[0].is_granted(&name, &write, "the writer").await?;
        let mut reader = cx.waits(&clients[1], &name, &read);
        cx.in_line(&*clients[2], &name, 1).await?;
        let early = cx.timeout(ms(5), &mut reader).await;
        ensure!(
            early.is_none(),
            "a reader was admitted, or refused, while the writer holds"
        );
        converts(&*held)?.downgrade().await.seen("the downgrade")?;
        // No other client uses the name, since any request might admit the readers.
        let bound = cx.claims().wake_p99 + cx.slack();
        cx.served(bound, "admitting a reader after a downgrade", reader)
            .await?;
        cx.evidence("readers_admitted");
        held.release().await.seen("the downgraded hold is released")?;
    }
    Ok(())
}

rule! { "11.11" Must phase 3 [Shared, Upgrade, Try] Backend A D upgraders_never_deadlock,
    evidence ["upgraded" >= 4, "told_of_the_deadlock" >= 4], bug "upgrade_deadlock"
    "When several readers upgrade at once, each is answered, and at most one keeps waiting: one wins, or the \
        others get WouldDeadlock. The winner holds exclusively, with a new token where tokens exist, for no \
        longer than its ttl."
    why "Two readers that each wait for the other to leave wait for ever."
    check "Does the second upgrader notice that another upgrade is in progress?"
}
async fn upgraders_never_deadlock(cx: Cx) -> Verdict {
    let clients = cx.clients(3).await?;
    let (read, write) = (cx.ask().reader(), cx.ask());
    let bound = cx.claims().op_bound;
    for (round, name) in cx.names(4, 40).enumerate() {
        let upgraders = 2 + round % 2;
        let mut tasks = Vec::new();
        let mut reading = Vec::new();
        for client in &clients[..upgraders] {
            reading.push(client.is_granted(&name, &read, "a reader").await?);
        }
        let newest = reading.iter().filter_map(|held| held.token()).max();
        for (i, held) in reading.into_iter().enumerate() {
            let (task, other) = (cx.clone(), clients[(i + 1) % clients.len()].clone());
            let (name, read) = (name.clone(), read.clone());
            tasks.push(cx.spawn(async move {
                let cx = task;
                let ttl = held.ttl();
                loop {
                    match converts(&*held)?.try_upgrade().await.seen("an upgrade")? {
                        Upgraded::Done => {
                            cx.evidence("upgraded");
                            held.must_follow(&cx, newest, format_args!("round {round}: an upgrade"))?;
                            within_its_ttl(&*held, ttl, "an upgrade")?;
                            let when = "a reader, beside an upgraded one";
                            other.is_refused(&name, &read, when).await?;
                            held.release().await.seen("the upgraded reader releases")?;
                            return Ok::<bool, Failure>(true);
                        }
                        Upgraded::WouldDeadlock => {
                            cx.evidence("told_of_the_deadlock");
                            held.release().await.seen("a reader that gives up releases")?;
                            return Ok(false);
                        }
                        // As a reader that waits for the others to leave.
                        Upgraded::Busy => cx.sleep(ms(3)).await,
                    }
                }
            }));
        }
        let what = format!("{upgraders} readers that upgrade, each until it wins or gets WouldDeadlock");
        let mut won = 0;
        for answer in cx.within(bound, &what, join_all(tasks)).await? {
            won += u32::from(answer?);
        }
        ensure!(won >= 1, "{what}: every one of them got WouldDeadlock");
        clients[0].passes(&name, &write, "after all upgraders").await?;
    }
    Ok(())
}

rule! { "11.12" Must phase 3 [Shared, Upgrade, Try] Both A D failed_upgrade_keeps_the_read,
    evidence ["failed_upgrades" >= 4], bug "failed_upgrade_drops_read"
    "An upgrade that fails, for whatever reason, leaves the shared hold as it was."
    why "A reader that loses its hold through a failed upgrade reads on without a lock."
    check "Is the shared hold given up before the exclusive one is certain?"
}
async fn failed_upgrade_keeps_the_read(cx: Cx) -> Verdict {
    let (a, b, w) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (read, write) = (cx.ask().reader(), cx.ask());
    for name in cx.names(2, 20) {
        let first = a.is_granted(&name, &read, "the first reader").await?;
        let second = b.is_granted(&name, &read, "the second reader").await?;
        let token = first.token();
        for (who, held) in [("first", &first), ("second", &second)] {
            match converts(&**held)?.try_upgrade().await.seen("an upgrade")? {
                Upgraded::Done => fail!("the {who} reader was upgraded beside another"),
                Upgraded::Busy | Upgraded::WouldDeadlock => cx.evidence("failed_upgrades"),
            }
            held.must_be_valid(format_args!(
                "the {who} reader is not valid after an upgrade that failed"
            ))?;
            if cx.has(Need::Renew) {
                let renewed = held.renew().await;
                renewed.seen(format_args!(
                    "the {who} reader renews after an upgrade that failed"
                ))?;
            }
        }
        first.must_keep(token, "an upgrade that failed")?;
        second.release().await.seen("the second reader releases")?;
        is_lost(second.release().await, "the second release of a reader")?;
        let when = "a writer, beside a reader whose upgrade failed";
        w.is_refused(&name, &write, when).await?;
        first.release().await.seen("the first reader releases")?;
        w.passes(&name, &write, "a writer, after both readers").await?;
    }
    Ok(())
}
