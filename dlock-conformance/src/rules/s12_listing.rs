//! §12 The names in use, as an operator lists them.

use std::collections::BTreeSet;

use futures::future::try_join;

use super::prelude::*;
use super::watching::observer;

rules! {
    names_in_use_are_listed, a_long_list_is_whole,
}

/// What is listed, each name once.
async fn listed(client: &dyn Subject, prefix: &LockName, when: &str) -> Verdict<BTreeSet<LockName>> {
    let list = observer(client)?.list(prefix.as_bytes()).await;
    let list = list.seen(format_args!("listing, {when}"))?;
    let names: BTreeSet<_> = list.iter().cloned().collect();
    ensure!(
        names.len() == list.len(),
        "{when}: {} names are listed, and some of them twice: {} are different",
        list.len(),
        names.len()
    );
    Ok(names)
}

rule! { "12.14" Must phase 2 [List, Lock, Try, Wait] Both A D names_in_use_are_listed,
    evidence ["listed" >= 9], bug "list_keeps_the_gone"
    "A list has, exactly once, each name that begins with the prefix and is held or waited for. It has no \
        name that is free again, and none that only resembles the prefix."
    why "A clean-up after a crash uses the list. Names that it omits stay locked, and names that it invents \
        are trusted."
    check "Does the store treat the prefix as a pattern? Do keys outlive the lease?"
}
async fn names_in_use_are_listed(cx: Cx) -> Verdict {
    let (a, b, operator) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let of = |bytes: &[u8]| cx.name_bytes([b"in use", bytes].concat());
    let (all, ask) = (of(b""), cx.ask());
    // What stores take for a sign, the ends of the bytes, and what another length would be taken for.
    let endings = b"|/a|/ab|*|?|[a]|%|_\\|\0|\xff\xff".split(|byte| *byte == b'|');
    let elsewhere = ["in usf", "in us", "IN USE/a", "x/in use"].map(|name| cx.name(name));
    let (mut held, mut names) = (Vec::new(), BTreeSet::new());
    for ending in endings {
        let name = of(ending);
        match a.try_acquire(&name, &ask).await {
            // As 13.02 and 13.05 allow.
            Err(e) if e.kind() == ErrorKind::InvalidInput && matches!(ending, b"\0" | b"\xff\xff") => {
                continue;
            }
            tried => match tried.seen("a name to be listed")? {
                Some(guard) => held.push(guard),
                None => fail!("`{name}` was refused although it is free"),
            },
        }
        names.insert(name);
    }
    for name in &elsewhere {
        let when = "a name that only resembles the prefix";
        held.push(a.is_granted(name, &ask, when).await?);
    }
    let seen = listed(&*operator, &all, "while all are held").await?;
    ensure!(seen == names, "{names:?} are held, and {seen:?} are listed");
    for ending in [&b"*"[..], b"/a", b"\xff", b"/A", b"/abc"] {
        let prefix = of(ending);
        let expected: BTreeSet<_> = names
            .iter()
            .filter(|n| n.as_bytes().starts_with(prefix.as_bytes()))
            .collect();
        let seen = listed(&*operator, &prefix, "of a longer prefix").await?;
        ensure!(
            seen.iter().eq(expected.iter().copied()),
            "{} begin with {prefix}, and {seen:?} are listed",
            expected.len()
        );
    }
    cx.evidence_by("listed", seen.len() as u64);
    // One of them passes to a waiter, and the others end.
    let passed = of(b"/a");
    let waiting = cx.waits(&b, &passed, &ask);
    cx.in_line(&*operator, &passed, 1).await?;
    for guard in held {
        guard.release().await.seen("A releases")?;
    }
    let then = "B's wait, after A's release";
    let next = cx.within(cx.prompt(), then, waiting).await?;
    let next = next.seen("B waits for A")?;
    let seen = listed(&*operator, &all, "after all but one were released").await?;
    ensure!(
        seen.iter().eq([&passed]),
        "only {passed} is held, and {seen:?} are listed"
    );
    cx.evidence("listed");
    next.release().await.seen("B releases")?;
    if !cx.has(Need::Lease) {
        return Ok(());
    }
    // No client has used the name since its lease expired.
    let (ttl, gone) = (cx.short_ttl(), cx.connect().await?);
    let ask = ask.ttl(ttl);
    let doing = "a name whose holder vanishes";
    let held = gone.is_granted(&of(b"lapsing"), &ask, doing).await?;
    gone.vanish();
    cx.sleep(ttl + cx.skew(ttl) + cx.slack()).await;
    let seen = listed(&*operator, &all, "after the last lease had expired").await?;
    ensure!(seen.is_empty(), "every name is free, and {seen:?} are listed");
    drop(held);
    Ok(())
}

rule! { "12.15" Must phase 2 [List, Lock, Try] Both A D a_long_list_is_whole,
    evidence ["listed" >= 2500, "came_and_went" >= 16], bug "list_ends_at_a_page"
    "A list of more names than the store returns at once has, exactly once, each name that is held all the \
        while, even if other names come and go."
    why "A list that ends at the first page, or skips names between pages, is right in every small test."
    check "Where does the next page begin, and what if the name there is gone by then?"
}
async fn a_long_list_is_whole(cx: Cx) -> Verdict {
    // More than two pages of any store that is known.
    const MANY: usize = 2_500;
    const OTHERS: usize = 8;
    const LISTS: usize = 3;
    let (b, operator) = (cx.connect().await?, cx.connect().await?);
    // Some claims allow a single client fewer locks.
    let holders = cx.clients(4).await?;
    let (all, ask) = (cx.name("many"), cx.ask());
    let names: BTreeSet<_> = (0..MANY).map(|n| cx.name(format_args!("many/{n}"))).collect();
    let mut held = Vec::new();
    let in_order: Vec<_> = names.iter().collect();
    for (n, some) in in_order.chunks(50).enumerate() {
        let granted = some
            .iter()
            .map(|name| holders[n % 4].is_granted(name, &ask, "one of many names"));
        held.extend(try_join_all(granted).await?);
    }
    // Some that were there at one page and are not at the next one, so that what is behind them moves up. A
    // list that is over at once has no such middle.
    for _ in 0..LISTS {
        let (is_over, gone_within) = (AtomicBool::new(false), AtomicU64::new(0));
        let comes_and_goes = async |first: usize| {
            for n in (first..).step_by(OTHERS) {
                let name = cx.name(format_args!("many/{}/other", n * 37 % MANY));
                let held = b.acquire(&name, &ask).await.seen("one that comes and goes")?;
                held.release().await.seen("one that comes and goes")?;
                cx.evidence("came_and_went");
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                gone_within.fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        };
        let listing = async {
            let seen = listed(&*operator, &all, "while others come and go").await;
            is_over.store(true, Ordering::SeqCst);
            seen
        };
        let (seen, _) = try_join(listing, try_join_all((0..OTHERS).map(comes_and_goes))).await?;
        let missing: Vec<_> = names.difference(&seen).collect();
        ensure!(
            missing.is_empty(),
            "{} of {MANY} that are held are not listed, {:?} among them",
            missing.len(),
            missing.first()
        );
        if gone_within.into_inner() >= OTHERS as u64 {
            break;
        }
    }
    let seen = listed(&*operator, &all, "while nothing changes").await?;
    cx.evidence_by("listed", seen.len() as u64);
    ensure!(seen == names, "{MANY} are held, and {} are listed", seen.len());
    for some in held.chunks(50) {
        let released = some.iter().map(|guard| guard.release());
        for released in join_all(released).await {
            released.seen("one of many is released")?;
        }
    }
    Ok(())
}
