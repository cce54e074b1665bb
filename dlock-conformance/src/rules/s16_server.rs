//! The bodies of the rules of §16 that need access to the server: its restart, its clock, its replica, its
//! data.

use super::prelude::*;
use crate::hooks::Step;

rules! {
    a_restart_is_survived, a_clock_step_ends_nothing, a_fail_over_is_survived, foreign_data_is_no_lock,
    a_full_store_lets_holders_go,
}

rule! { "16.08" Must phase 2 [Lock, Try, Lease, SurvivesRestart] Backend H D a_restart_is_survived,
    evidence ["restarts" >= 1], bug "restart_forgets", budget 120 s
    "After a restart that the subject claims to survive, the server still knows a hold, with the same token, \
        or the holder learns of the loss before another client is granted."
    why "Lock servers are updated on working days. If that frees all locks, every job runs twice."
    check "Are holds stored before they are granted, and loaded before the first request is answered?"
}
async fn a_restart_is_survived(cx: Cx) -> Verdict {
    let ways = cx.restarts()?;
    let claimed = cx.claims().restart;
    if !ways.iter().any(|how| Some(*how) <= claimed) {
        not_run!(
            "holds are claimed to survive a restart ({claimed:?}), and the harness offers only {ways:?}"
        );
    }
    for how in ways {
        let name = cx.name(format_args!("{how:?}"));
        // Without auto-renewal: A's belief after the restart comes only from answers before it.
        let (a, ask) = (cx.connect().await?, cx.ask().ttl(cx.ttl(ms(800))));
        let held = a.acquire(&name, &ask).await.seen("A acquires")?;
        let token = held.token();
        cx.restart(how).await?;
        let b = cx.connect().await?;
        let what = format!("after a restart ({how:?}) while A held it");
        match through_a_restart(&cx, &*b, &name, &ask, &*held)
            .await
            .seen(&what)?
        {
            Through::Kept => {
                held.must_keep(token, &what)?;
                held.release().await.seen(format_args!("{what}: A releases"))?;
                let by = cx.now() + cx.slack();
                cx.passes_by(&*b, &name, &ask, by, format!("{what}: A released"))
                    .await?;
                cx.note(format_args!("{what}: kept"));
            }
            Through::ToldFirst => cx.note(format_args!("{what}: lost, and A knew it first")),
            Through::Stolen(taken) => {
                ensure!(
                    Some(how) > claimed,
                    "{what}: B was granted while A still believed that it held the lock"
                );
                cx.note(format_args!(
                    "{what}: B was granted while A still believed that it held the lock; surviving this is \
                     not claimed"
                ));
                // Even then A's guard does B no harm.
                let _ = held.release().await;
                let third = cx.connect().await?;
                let when = format!("{what}: B holds, and A has released");
                third.is_refused(&name, &ask, when).await?;
                taken.release().await.seen("B releases")?;
            }
        }
        cx.evidence("restarts");
    }
    Ok(())
}

/// What became of a hold.
enum Through {
    Kept,
    ToldFirst,
    Stolen(Box<dyn Held>),
}

/// B tries until A's hold is shown to go on, or A learns of its end, or B is granted.
async fn through_a_restart(
    cx: &Cx,
    b: &dyn Subject,
    name: &LockName,
    ask: &Ask,
    held: &dyn Held,
) -> Verdict<Through> {
    let from = cx.now();
    let mut tries = 0;
    loop {
        let granted = b.try_acquire(name, ask).await.seen("B tries")?;
        // Checked after the answer: a holder that knew before it knew in time.
        if let Some(taken) = granted {
            if held.is_valid() {
                return Ok(Through::Stolen(taken));
            }
            taken.release().await.seen("B releases")?;
            return Ok(Through::ToldFirst);
        }
        tries += 1;
        // Not at once: a server that forgot the hold may have to be asked more than once.
        if tries >= 5 && cx.has(Need::Renew) && held.renew().await.is_ok() {
            return Ok(Through::Kept);
        }
        ensure!(
            from.until(cx.now()) < ask.ttl * 2 + cx.slack() + cx.claims().give_up,
            "A's hold is neither renewed nor over, and B is still refused"
        );
        cx.sleep(ms(10)).await;
    }
}

rule! { "16.11" Must phase 2 [Lock, Try, Lease, PerGrantTtl] Backend H T a_clock_step_ends_nothing,
    evidence ["steps" >= 2], bug "server_walltime"
    "A step of the server's clock makes no lock immortal, and ends none early unless the store is declared \
        clock-sensitive. Tokens still increase."
    why "NTP sets clocks. A store that counts leases by the time of day frees all of them at once, or none \
        for an hour."
    check "Which clock counts leases: one that can be set, or a monotonic one?"
}
async fn a_clock_step_ends_nothing(cx: Cx) -> Verdict {
    let by = Duration::from_secs(1);
    // Back first: where the store's own time stands still meanwhile, it does so no longer afterwards.
    for step in [Step::Back(by), Step::Forward(by)] {
        let tried = across(&cx, step, by).await;
        if tried.is_err() && step == Step::Back(by) {
            // Whatever has come of it, the clock goes back to where it was.
            cx.step_clock(Step::Forward(by)).await?;
        }
        tried?;
        cx.evidence("steps");
    }
    Ok(())
}

async fn across(cx: &Cx, step: Step, by: Duration) -> Verdict {
    let sensitive = cx.claims().capabilities.clock_sensitive;
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name(format_args!("{step:?}")), cx.ask().ttl(cx.ttl(ms(600))));
    let asked = cx.now();
    let held = a.acquire(&name, &ask).await.seen("A acquires")?;
    let granted = cx.now();
    // A client that is awake gives its lease back at its deadline, and the store would never see it end.
    if !a.vanish() {
        cx.note("A cannot vanish, so A itself may end its lease");
    }
    cx.step_clock(step).await?;
    let (mut earliest, latest) = end_of(cx, asked, granted, ask.ttl);
    let mut latest = latest + cx.skew(ask.ttl);
    match step {
        Step::Forward(_) if sensitive => earliest = granted,
        Step::Back(_) if sensitive => latest = latest + by,
        _ => {}
    }
    let what = format!("A's lease, while the server's clock was set ({step:?})");
    let taken = granted_within(cx, &*b, (&name, &ask), (earliest, latest), "refusals", what).await?;
    cx.note(format_args!(
        "{step:?}: a lease of {:?} was over after {:?}",
        ask.ttl,
        granted.until(cx.now())
    ));
    taken.must_follow(cx, held.token(), format_args!("{step:?}: the next grant"))?;
    taken.release().await.seen("B releases")
}

/// As many as the evidence of rule 16.12 asks for.
const FAIL_OVERS: u64 = 5;

rule! { "16.12" Must phase 3 [Lock, Wait] Backend H X a_fail_over_is_survived,
    evidence ["fail_overs" >= 5, "grants" >= 20], bug "async_replica_grant" stochastic, budget 120 s
    "When another server takes over, repeatedly, histories are legal if that is claimed. Otherwise the \
        report says how many grants were double."
    why "A replica that lags behind does not know the latest grants, and grants those locks a second time."
    check "Does a grant wait until the replica has it?"
}
async fn a_fail_over_is_survived(cx: Cx) -> Verdict {
    // Before anything else: whether it can be done at all.
    cx.fail_over().await?;
    let rounds = cx.rounds(12, 200);
    // A release that the next server does not know leaves the lock held until it expires, in real time.
    let ask = match cx.is_virtual() {
        true => cx.ask(),
        false => cx.ask().ttl(cx.ttl(Duration::from_secs(1))),
    };
    let names: Vec<LockName> = (0..2).map(|n| cx.name(n)).collect();
    let inside: Arc<[AtomicU64; 2]> = Arc::default();
    let (doubles, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let shared = (names, ask, inside, doubles.clone(), done.clone());
    let clients = cx.clients(3).await?;
    let tasks = cx.at_work(clients, &shared, move |worker, shared| async move {
        let (cx, lane, mut rng, ..) = worker;
        let (names, ask, inside, doubles, done) = shared;
        // A real server takes its time to take over: the work goes on until enough of them have.
        for round in 0.. {
            let more = round >= rounds;
            if more && done.load(Ordering::Acquire) >= FAIL_OVERS {
                break;
            }
            let which = usize::from(rng.below(2) == 1);
            // Other rules check what an operation answers when the server goes away.
            let Ok(held) = lane.acquire_timeout(&names[which], &ask, cx.long_ttl()).await else {
                if more {
                    cx.sleep(ms(5)).await;
                }
                continue;
            };
            cx.evidence("grants");
            doubles.fetch_add(
                u64::from(inside[which].fetch_add(1, Ordering::AcqRel) > 0),
                Ordering::AcqRel,
            );
            cx.sleep(rng.duration(ms(2), ms(20))).await;
            inside[which].fetch_sub(1, Ordering::AcqRel);
            drop(lane.release(&held).await);
        }
        Ok::<(), Failure>(())
    });
    let others = {
        let (task, mut rng) = (cx.clone(), cx.rng());
        async move {
            loop {
                task.sleep(rng.duration(ms(10), ms(40))).await;
                if let Err(failure) = task.fail_over().await {
                    return failure;
                }
                task.evidence("fail_overs");
                done.fetch_add(1, Ordering::AcqRel);
            }
        }
    };
    let work = all(tasks);
    futures::pin_mut!(work, others);
    if let futures::future::Either::Right((failure, _)) = futures::future::select(work, others).await {
        return Err(failure);
    }
    let doubles = doubles.load(Ordering::Acquire);
    cx.note(format_args!("{doubles} grants while another client held"));
    match cx.check_history() {
        Err(Failure::Broken(what)) if !cx.has(Need::SafeFailover) => {
            cx.note(format_args!("not claimed to be safe: {what}"));
            cx.forgive();
            Ok(())
        }
        judged => judged,
    }
}

rule! { "16.14" Must phase 3 [Lock, Try, Wait] Backend H D foreign_data_is_no_lock,
    evidence ["spoiled_names" >= 2], bug "corrupt_panics"
    "Foreign data at a lock's key is answered with BackendData: no panic, no grant, and the data is not \
        overwritten. Other names are not affected."
    why "Two programs share a store and a key. A client that takes the other's data for a free lock destroys \
        it."
    check "What does the code do with an unreadable record: refuse it, or treat it as absent?"
}
async fn foreign_data_is_no_lock(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let foreign = format!("no lock {:016x}", cx.rng().bits());
    for was in ["free", "held"] {
        let name = cx.name(was);
        let held = match was {
            "free" => None,
            _ => Some(a.acquire(&name, &cx.ask()).await.seen("A acquires")?),
        };
        cx.spoil(&name, &foreign).await?;
        let tried = refuses(&cx, &*b, &name, held.as_deref(), was).await;
        let stands = cx.is_spoiled(&name, &foreign).await;
        // It goes, whatever has come of it.
        cx.mend(&name, &foreign).await?;
        tried?;
        ensure!(
            stands?,
            "foreign data at a name that was {was} is gone after a lock was requested there"
        );
        let by = cx.now() + cx.prompt();
        cx.passes_by(&*b, &name, &cx.ask(), by, "after the foreign data was removed")
            .await?;
        cx.evidence("spoiled_names");
    }
    Ok(())
}

async fn refuses(cx: &Cx, b: &dyn Subject, name: &LockName, held: Option<&dyn Held>, was: &str) -> Verdict {
    let ask = cx.ask();
    let (bound, unreadable) = (cx.prompt(), ErrorKind::BackendData);
    let what = format!("a try for a name that was {was} and has foreign data");
    let tried = cx.within(bound, &what, b.try_acquire(name, &ask)).await?;
    refused(tried, unreadable, what)?;
    let what = format!("an acquire of a name that was {was} and has foreign data");
    let waited = cx.within(bound, &what, b.acquire(name, &ask)).await?;
    refused(waited, unreadable, what)?;
    if cx.has(Need::Inspect)
        && let Some(observe) = b.observe()
    {
        let answer = observe.inspect(name).await;
        refused(answer, unreadable, "a look at a name that has foreign data")?;
    }
    if let Some(held) = held {
        ensure!(
            !cx.has(Need::Renew) || held.renew().await.is_err(),
            "A's hold was renewed although foreign data is stored there now"
        );
        ensure!(
            held.release().await.is_err(),
            "A's hold was released although foreign data is stored there now"
        );
    }
    let other = cx.name(format_args!("beside a name that was {was}"));
    b.passes(&other, &ask, "beside a name with foreign data").await
}

rule! { "16.16" Must phase 2 [Lock, Try, Wait] Backend H D a_full_store_lets_holders_go,
    evidence ["released" >= 2], bug "full_store_keeps_holders", budget 120 s
    "A full store refuses new requests with an error. Holders can still renew and release, and waiters are \
        still granted."
    why "A store that is out of memory refuses every write. If a release is one of them, the locks stay held \
        and the work that they guard stops too."
    check "Which step of a release needs space, and does it come after the step that frees some?"
}
async fn a_full_store_lets_holders_go(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let (plain, awaited, ask) = (cx.name("plain"), cx.name("awaited"), cx.ask());
    let held = a.acquire(&plain, &ask).await.seen("A acquires a free name")?;
    let handed = a.acquire(&awaited, &ask).await.seen("A acquires another")?;
    let waiting = cx.waits(&b, &awaited, &ask);
    cx.in_line(&*a, &awaited, 1).await?;
    cx.fill(&*b, &cx.name("new")).await?;
    let tried = let_go(&cx, &*held, &*handed).await;
    // Whatever has come of it.
    cx.make_room().await?;
    tried?;
    let next = cx.done(cx.prompt(), "the waiter of a lock that was released", waiting);
    next.await?.release().await.seen("B releases")?;
    b.passes(&plain, &ask, "A has released, and there is space again")
        .await
}

async fn let_go(cx: &Cx, held: &dyn Held, handed: &dyn Held) -> Verdict {
    if cx.has(Need::Renew) {
        answered(held.renew().await, "A renews while the store is full")?;
        cx.evidence("renewed");
    }
    for held in [held, handed] {
        answered(held.release().await, "A releases while the store is full")?;
        cx.evidence("released");
    }
    Ok(())
}
