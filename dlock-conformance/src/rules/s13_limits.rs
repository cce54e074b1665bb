//! §13 Namespaces, many names, dead names and declared limits.

use super::prelude::*;
use super::s07_fencing::{clears_up, footprint};
use super::watching::observer;

rules! {
    namespaces_isolate, many_names_are_held, dead_names_leave_nothing, limits_are_exact, labels_come_back,
    labels_outlast_renewals,
}

/// What is held, by whom.
type Holding = (LockName, Client, Box<dyn Held>);

/// Namespace and name: pairs that are one text if they are joined carelessly, or almost.
fn pairs() -> Vec<(String, String)> {
    let joined = [":", "/", ",", "", ".", "\0"].into_iter();
    let joined = joined.flat_map(|by| {
        [
            ("n".to_owned(), format!("a{by}b")),
            (format!("n{by}a"), "b".to_owned()),
        ]
    });
    joined
        .chain(["N", "n "].map(|n| (n.to_owned(), "ab".to_owned())))
        .collect()
}

async fn inside(cx: &Cx, namespace: &str) -> Verdict<Client> {
    let client = cx.connect().await?;
    let namespace = format!("{}-{namespace}", cx.namespace());
    match client.in_namespace(&namespace) {
        Some(inside) => inside.seen(format_args!("entering the namespace {namespace:?}")),
        None => fail!("namespaces are claimed, and the subject has none"),
    }
}

rule! { "13.11" Must phase 2 [Lock, Try, Namespaces] Engine A D namespaces_isolate,
    evidence ["held_apart" >= 12], bug "namespace_concat"
    "Namespaces isolate: (`n`, `a:b`) and (`n:a`, `b`) are two locks, and so is every other pair that \
        becomes one string when joined."
    why "Two teams share one store. One day the name of one equals the namespace and name of the other."
    check "Are namespace and name joined with a separator that either of them may contain?"
}
async fn namespaces_isolate(cx: Cx) -> Verdict {
    let ask = cx.ask();
    let mut held: Vec<Holding> = Vec::new();
    let pairs = pairs();
    for (namespace, name) in &pairs {
        let (client, name) = (inside(&cx, namespace).await?, LockName::new(name)?);
        let what = format!("`{name}` in the namespace {namespace:?}");
        match client.try_acquire(&name, &ask).await {
            Ok(Some(guard)) => {
                held.push((name, client, guard));
                cx.evidence("held_apart");
            }
            Ok(None) => fail!(
                "{what} is refused although it is free there; held are {:?}",
                &pairs[..held.len()]
            ),
            // Control characters may be refused (13.05): what is not taken is not mistaken for others.
            Err(e) if e.kind() == ErrorKind::InvalidInput && name.to_string().contains("\\") => {}
            Err(e) => return Err(e).seen(what),
        }
    }
    // Clients that enter the same namespace in different ways share its locks.
    let again = inside(&cx, &pairs[0].0).await?;
    let shared = LockName::new(&pairs[0].1)?;
    let when = "in a namespace, where another client of it holds";
    again.is_refused(&shared, &ask, when).await?;
    if let Some(observe) = again.observe().filter(|_| cx.has(Need::Inspect)) {
        let elsewhere = LockName::new(&pairs[1].1)?;
        let seen = observe.inspect(&elsewhere).await.seen("inspecting")?;
        ensure!(
            seen.holders.is_empty(),
            "`{elsewhere}` is shown as held in a namespace where it is free"
        );
        if cx.has(Need::ForceRelease) {
            let ended = cx.force(&*again, &elsewhere).await?;
            ensure!(
                ended == 0,
                "{ended} holds of another namespace were ended by force"
            );
        }
    }
    // Each release ends its own.
    while let Some((name, client, guard)) = held.pop() {
        guard.release().await.seen("releasing")?;
        client.passes(&name, &ask, "after its own release").await?;
        for (other, _, guard) in &held {
            ensure!(guard.is_valid(), "`{other}` is lost by the release of `{name}`");
        }
    }
    Ok(())
}

rule! { "13.12" Must phase 2 [Lock, Try] Both A X many_names_are_held, evidence ["held_at_once" >= 64],
    bug "held_cap_1024", budget 120 s
    "One client holds 10,000 names at once (1,100 in a quick run), or as many as the declared limit allows. \
        Each grant has its own id, and each is released."
    why "A table sized for a thousand locks is full on the day that a tenant has more orders than that."
    check "Does a table, pool, descriptor or parameter list with a fixed size limit what a client holds?"
}
async fn many_names_are_held(cx: Cx) -> Verdict {
    const LANES: usize = 16;
    let limit = cx.claims().capabilities.max_held.unwrap_or(u64::MAX);
    let wanted = cx.rounds(1_100, 10_000);
    let count = wanted.min(usize::try_from(limit).unwrap_or(usize::MAX));
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.ttl(Duration::from_secs(600)));
    let tasks = cx.at_work(vec![a; LANES], &ask, move |worker, ask| async move {
        let (cx, lane, _, first) = worker;
        let mut held = Vec::new();
        for n in (first..count).step_by(LANES) {
            let (name, what) = (cx.name(n), format!("name {n} of {count}"));
            let guard = lane.client().is_granted(&name, &ask, what).await?;
            held.push((name, guard));
        }
        Ok::<_, Failure>(held)
    });
    let mut held: Vec<_> = all(tasks).await?.into_iter().flatten().collect();
    cx.evidence_by("held_at_once", held.len() as u64);
    let mut ids: Vec<String> = held.iter().map(|(_, guard)| guard.id()).collect();
    ids.sort_unstable();
    ids.dedup();
    ensure!(
        ids.len() == count,
        "{count} grants have {} different ids",
        ids.len()
    );
    for (name, guard) in &held {
        ensure!(guard.is_valid(), "`{name}` is lost while {count} names are held");
    }
    // The first and the last, and some between them.
    let step = (count / 50).max(1);
    for (name, _) in held.iter().step_by(step).chain(held.last()) {
        b.is_refused(name, &ask, format!("while A holds {count} names"))
            .await?;
    }
    let sample: Vec<LockName> = held.iter().step_by(step).map(|(name, _)| name.clone()).collect();
    let mut tasks = Vec::new();
    while !held.is_empty() {
        let part = held.split_off(held.len().saturating_sub(count.div_ceil(LANES)));
        tasks.push(cx.spawn(async move {
            for (name, guard) in part {
                guard.released(format!("releasing `{name}`, one of many")).await?;
            }
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    for name in sample {
        b.passes(&name, &ask, "after A has released all").await?;
    }
    Ok(())
}

/// Names whose use ends in every way but a plain release, which rule 7.16 covers.
async fn let_die(cx: &Cx, generation: u64, names: u64) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.ttl(ms(50)));
    let mut left = Vec::new();
    for n in 0..names {
        let name = cx.name(format_args!("{generation}-{n}"));
        let reader = n % 3 == 1 && cx.has(Need::Shared);
        let asks = if reader { ask.clone().reader() } else { ask.clone() };
        let what = "a name that was not used before";
        let held = a.is_granted(&name, &asks, what).await?;
        if n % 3 == 2 {
            let what = "trying a name that was just acquired";
            let granted = b.try_acquire(&name, &ask).await.seen(what)?;
            // Over a slow way it may have run out meanwhile.
            ensure!(
                granted.is_none() || !held.is_valid(),
                "`{name}`, which was just acquired, was granted although it is held"
            );
            left.extend(granted);
        }
        left.push(held);
        cx.evidence("dead_names");
    }
    if !a.vanish() {
        // It then releases expired locks automatically; some libraries do not.
        cx.note("a client cannot vanish: it kept its names");
    }
    // No guard is dropped before its lease has expired.
    cx.sleep(ask.ttl + cx.skew(ask.ttl)).await;
    drop(left);
    Ok(())
}

rule! { "13.13" Should phase 3 [Lock, Try, Lease, PerGrantTtl, ForgetsNames] Backend A T
        dead_names_leave_nothing,
    evidence ["dead_names" >= 400], bug "name_garbage"
    "What the store keeps for names that were not released and are no longer used is bounded by what is in \
        use, or its growth is declared."
    why "If a store cleans a name up only on its next use, it keeps the order number of every process that \
        was ever killed."
    check "What deletes the record of an expired lease if its name is never used again? If nothing does, \
        claim `without(Need::ForgetsNames)`."
}
async fn dead_names_leave_nothing(cx: Cx) -> Verdict {
    const GENERATIONS: u64 = 8;
    let names = cx.rounds(64, 1_000) as u64;
    let before = footprint(&cx).await?;
    for generation in 0..GENERATIONS {
        let_die(&cx, generation, names).await?;
    }
    // A store may clear up now and then; two generations are not yet all.
    let all = GENERATIONS * names;
    let ended = format!("{all} names that expired, {names} at a time,");
    clears_up(&cx, before, 2 * names, (&format!("{all} dead names"), &ended)).await
}

/// More than that is not tried out.
const MOST: u64 = 20_000;

rule! { "13.15" Must phase 2 [Lock, Try, Wait, Limits] Backend A D limits_are_exact,
    evidence ["limits_met" >= 1], bug "limit_off_by_10x", budget 120 s
    "The declared limits of holds per client and of waiters per name are reached at exactly the declared \
        number, with LimitReached at once. One that ends makes room for one."
    why "A user who plans with the declared limit hits a lower one, or finds none until the store is out of \
        memory."
    check "Is the declared number the one that is compared, and does every kind of end decrease the count?"
}
async fn limits_are_exact(cx: Cx) -> Verdict {
    let caps = &cx.claims().capabilities;
    let limits = [caps.max_held, caps.max_waiters];
    if limits.into_iter().flatten().all(|limit| limit > MOST) {
        not_run!("limits above {MOST} take too long to reach");
    }
    if let Some(most) = caps.max_held.filter(|n| *n <= MOST) {
        holds_are_limited(&cx, most).await?;
    }
    if let Some(most) = caps.max_waiters.filter(|n| *n <= MOST) {
        waits_are_limited(&cx, most).await?;
    }
    Ok(())
}

fn is_at_limit<T>(cx: &Cx, what: &str, answer: dlock_core::Result<T>) -> Verdict {
    match answer {
        Err(e) if e.kind() == ErrorKind::LimitReached => {
            cx.evidence("limits_met");
            Ok(())
        }
        Err(e) => fail!("{what} answers {e:?} rather than LimitReached"),
        Ok(_) => fail!("{what} is granted or refused as held, instead of answering LimitReached"),
    }
}

async fn holds_are_limited(cx: &Cx, most: u64) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.ttl(Duration::from_secs(600)));
    let mut held = Vec::new();
    for n in 0..most {
        let what = format!("hold {} of {most} that one client may have", n + 1);
        held.push(a.is_granted(&cx.name(n), &ask, what).await?);
    }
    let beyond = cx.name("one too many");
    let what = format!("one hold more than the {most} that are declared");
    let bound = cx.claims().op_bound;
    let tried = cx.within(bound, &what, a.try_acquire(&beyond, &ask));
    is_at_limit(cx, &what, tried.await?)?;
    let waited = cx.within(bound, &what, a.acquire(&beyond, &ask));
    is_at_limit(cx, &what, waited.await?)?;
    // It is that client's limit, and nothing was taken by asking.
    b.passes(&beyond, &ask, "another client, which holds nothing")
        .await?;
    if let Some(one) = held.pop() {
        one.release().await.seen("releasing one of all")?;
    }
    let when = "in the place of one that was released";
    held.push(a.is_granted(&beyond, &ask, when).await?);
    // At their limit, all of them can still be released.
    for guard in held {
        guard.release().await.seen("releasing one of all")?;
    }
    Ok(())
}

async fn waits_are_limited(cx: &Cx, most: u64) -> Verdict {
    const CONNECTIONS: usize = 4;
    let (holder, late) = (cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("crowded"), cx.ask());
    let held = holder.acquire(&name, &ask).await.seen("the holder acquires")?;
    let clients = cx.clients(CONNECTIONS).await?;
    let mut waiting = Vec::new();
    for (_, client) in (0..most).zip(clients.iter().cycle()) {
        waiting.push(cx.waits(client, &name, &ask));
    }
    cx.in_line(&*late, &name, u32::try_from(most).unwrap_or(u32::MAX))
        .await?;
    let what = format!("one waiter more than the {most} that are declared");
    let bound = cx.claims().op_bound;
    let waited = cx.within(bound, &what, late.acquire(&name, &ask));
    is_at_limit(cx, &what, waited.await?)?;
    let when = "a try, which does not wait, while the queue is full";
    late.is_refused(&name, &ask, when).await?;
    // One who goes makes room for one.
    if let Some(one) = waiting.pop() {
        drop(one.cancel().await);
    }
    let by = cx.now() + cx.claims().cancel_prompt + cx.slack();
    let next = loop {
        let mut next = cx.waits(&late, &name, &ask);
        match cx.timeout(ms(20), &mut next).await {
            None => break next,
            // A waiter that left is removed from the queue a little later.
            Some(Err(e)) if e.kind() == ErrorKind::LimitReached && cx.now() < by => {
                cx.sleep(ms(2)).await;
            }
            Some(answer) => fail!(
                "a waiter in the place of one that left does not wait: {:?}",
                answer.map(drop)
            ),
        }
    };
    drop(next.cancel().await);
    for task in waiting {
        drop(task.cancel().await);
    }
    held.release().await.seen("the holder releases")
}

/// Labels that something on the way might change, at most `max` bytes long.
fn labels(max: usize) -> Vec<String> {
    let plain = [
        "a",
        "nightly@web-3",
        "  spaces before and after  ",
        "it's; DROP TABLE locks; -- %s $1 {}",
        "tab\tand\r\nlines",
        "\u{e9} e\u{301} \u{1f512} \u{5d0}",
    ];
    let mut labels: Vec<String> = plain.into_iter().map(str::to_owned).collect();
    labels.push("x".repeat(max));
    // Two bytes per letter: a store that counts letters is wrong by half.
    labels.push("\u{e9}".repeat(max / 2));
    labels.retain(|label| !label.is_empty() && label.len() <= max);
    labels
}

rule! { "13.14" Must phase 3 [Lock, Try, OwnerLabel, Inspect] Both A D labels_come_back,
    evidence ["labels" >= 6], bug "label_truncated"
    "inspect returns an owner label of up to the declared length byte for byte. A longer one answers \
        InvalidInput, and nothing is held."
    why "Operators identify the holder by the label. Half of a host name is another host."
    check "Is the label cut, trimmed or written in another encoding on its way to the store?"
}
async fn labels_come_back(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let max = cx.claims().capabilities.max_owner_len;
    ensure!(max > 0, "labels are claimed, with a maximum length of 0");
    // Labels of more than 64 KiB prove no more than labels of that length.
    let longest = max.min(64 * 1024);
    let observer = observer(&*b)?;
    for (n, label) in labels(longest).into_iter().enumerate() {
        let name = cx.name(format_args!("labelled-{n}"));
        let ask = cx.ask().label(label.as_str());
        let held = a.is_granted(&name, &ask, "with a label").await?;
        let seen = observer.inspect(&name).await.seen("inspecting")?;
        let [holder] = &seen.holders[..] else {
            fail!("{} holders are shown of a lock that has one", seen.holders.len());
        };
        ensure!(
            holder.owner.as_deref() == Some(label.as_str()),
            "the label {label:?} of {} bytes comes back as {:?}",
            label.len(),
            holder.owner
        );
        held.release().await.seen("releasing")?;
        cx.evidence("labels");
    }
    if longest < max {
        return Ok(());
    }
    let name = cx.name("too long");
    let ask = cx.ask().label("x".repeat(max + 1));
    let what = format!("a label of {} bytes", max + 1);
    refused(a.try_acquire(&name, &ask).await, ErrorKind::InvalidInput, what)?;
    b.passes(&name, &cx.ask(), "after a label that is too long").await
}

rule! { "13.16" Must phase 3 [Lock, Try, OwnerLabel, Inspect, Renew] Both A D labels_outlast_renewals,
    evidence ["renewals" >= 3], bug "label_lost_by_renewal"
    "An owner label stays for as long as the hold, through renewals, and through conversions where they are \
        supported."
    why "A hold that lasts hours is inspected after many renewals, when someone asks who is in the way."
    check "Does a renewal rewrite the whole record, and does it know all of it?"
}
async fn labels_outlast_renewals(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let observer = observer(&*client)?;
    let (name, label) = (cx.name("labelled"), "nightly@web-3");
    let when = "with a label";
    let held = client.is_granted(&name, &cx.ask().label(label), when).await?;
    let shown = async |after: &str| -> Verdict {
        let seen = observer.inspect(&name).await.seen("inspecting")?;
        let owner = seen.holders.first().and_then(|holder| holder.owner.as_deref());
        ensure!(
            owner == Some(label),
            "after {after} the label {label:?} is shown as {owner:?}"
        );
        Ok(())
    };
    for n in 1..=3 {
        held.renew().await.seen("renewing")?;
        shown(&format!("renewal {n}")).await?;
        cx.evidence("renewals");
    }
    if cx.has(Need::Downgrade)
        && let Some(convert) = held.convert()
    {
        convert.downgrade().await.seen("downgrading")?;
        shown("a downgrade").await?;
    }
    held.release().await.seen("releasing")
}
