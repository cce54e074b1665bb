//! §12 The names in use, as an operator lists them.

use std::collections::BTreeSet;

use futures::future::{join_all, try_join, try_join_all};

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
    evidence ["listed" >= 11], bug "list_keeps_the_gone"
    "A list has each name that begins with the prefix and is held or waited for, once, and no other: no name \
        that is free again, and none that only looks alike."
    why "Who cleans up after a crash goes by the list; what it leaves out stays, what it makes up is trusted."
    check "Is the prefix a pattern to the store? Do keys outlive the lease?"
}
async fn names_in_use_are_listed(cx: Cx) -> Verdict {
    let (a, b, operator) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let of = |bytes: &[u8]| cx.name_bytes([b"in use", bytes].concat());
    let (all, ask) = (of(b""), cx.ask());
    // What stores take for a sign, the ends of the bytes, and what another length would be taken for.
    let endings: [&[u8]; 10] = [
        b"",
        b"/a",
        b"/ab",
        b"*",
        b"?",
        b"[a]",
        b"%",
        b"_\\",
        b"\0",
        b"\xff\xff",
    ];
    let names: BTreeSet<_> = endings.iter().map(|ending| of(ending)).collect();
    let elsewhere = [
        cx.name("in usf"),
        cx.name("in us"),
        cx.name("IN USE/a"),
        cx.name("x/in use"),
    ];
    let mut held = Vec::new();
    for name in names.iter().chain(&elsewhere) {
        held.push(a.is_granted(name, &ask, "a name to be listed").await?);
    }
    let seen = listed(&*operator, &all, "while all are held").await?;
    ensure!(seen == names, "held are {names:?}, and listed are {seen:?}");
    for (ending, within) in [(&b"*"[..], 1), (b"/a", 2), (b"\xff", 1), (b"/A", 0), (b"/abc", 0)] {
        let prefix = of(ending);
        let expected: BTreeSet<_> = names
            .iter()
            .filter(|n| n.as_bytes().starts_with(prefix.as_bytes()))
            .collect();
        assert_eq!(expected.len(), within, "the rule's own names");
        let seen = listed(&*operator, &prefix, "of a longer prefix").await?;
        ensure!(
            seen.iter().eq(expected.iter().copied()),
            "{} begin with {prefix}, and listed are {seen:?}",
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
    let next = cx
        .within(cx.prompt(), "B's wait, after A's release", waiting)
        .await?;
    let next = next.seen("B waits for A")?;
    let seen = listed(&*operator, &all, "after all but one were released").await?;
    ensure!(
        seen.iter().eq([&passed]),
        "{passed} is held alone, and listed are {seen:?}"
    );
    cx.evidence("listed");
    next.release().await.seen("B releases")?;
    if !cx.has(Need::Lease) {
        return Ok(());
    }
    // Nobody has touched a name since its lease ran out.
    let (ttl, gone) = (cx.short_ttl(), cx.connect().await?);
    let ask = ask.ttl(ttl);
    let held = gone
        .is_granted(&of(b"lapsing"), &ask, "a name whose holder vanishes")
        .await?;
    gone.vanish();
    cx.sleep(ttl + cx.skew(ttl) + cx.slack()).await;
    let seen = listed(&*operator, &all, "after the last lease had run out").await?;
    ensure!(seen.is_empty(), "nobody holds or waits, and listed are {seen:?}");
    drop(held);
    Ok(())
}

rule! { "12.15" Must phase 2 [List, Lock, Try] Both A D a_long_list_is_whole,
    evidence ["listed" >= 600, "came_and_went" >= 20], bug "list_ends_at_a_page"
    "A list of more names than a store tells at once has each that is held all the while, once, also while \
        others come and go."
    why "A list that ends at the first page, or skips where a page begins, is right in every small test."
    check "Where does the next page begin, and what if the name there has gone meanwhile?"
}
async fn a_long_list_is_whole(cx: Cx) -> Verdict {
    const MANY: usize = 600;
    let (a, b, operator) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (all, ask) = (cx.name("many"), cx.ask());
    let names: BTreeSet<_> = (0..MANY).map(|n| cx.name(format_args!("many/{n}"))).collect();
    let mut held = Vec::new();
    let in_order: Vec<_> = names.iter().collect();
    for some in in_order.chunks(50) {
        let granted = some
            .iter()
            .map(|name| a.is_granted(name, &ask, "one of many names"));
        held.extend(try_join_all(granted).await?);
    }
    let others = async {
        for n in 0..20 {
            let name = cx.name(format_args!("many/{}/other", n * 37 % MANY));
            let held = b.acquire(&name, &ask).await.seen("one that comes and goes")?;
            held.release().await.seen("one that comes and goes")?;
            cx.evidence("came_and_went");
        }
        Ok(())
    };
    let listing = listed(&*operator, &all, "while others come and go");
    let (seen, ()) = try_join(listing, others).await?;
    let missing: Vec<_> = names.difference(&seen).collect();
    ensure!(
        missing.is_empty(),
        "{} of {MANY} that are held are not listed, {:?} among them",
        missing.len(),
        missing.first()
    );
    cx.evidence_by("listed", seen.len() as u64);
    let seen = listed(&*operator, &all, "while nothing changes").await?;
    ensure!(seen == names, "{MANY} are held, and {} are listed", seen.len());
    for some in held.chunks(50) {
        let released = some.iter().map(|guard| guard.release());
        for released in join_all(released).await {
            released.seen("one of many is released")?;
        }
    }
    Ok(())
}
