//! §19 Election: leaders, those who follow them, and those who look on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dlock_core::{Client, Election, LockOptions, Token};
use futures::StreamExt as _;
use futures::future::pending;

use super::faulty::{faulty, patience, struck};
use super::prelude::*;
use crate::network::{Direction, Fault};

rules! {
    one_leader_at_a_time, the_next_leader_follows_in_time, leaders_are_seen_in_order,
    a_value_belongs_to_its_term, work_ends_before_another_begins,
}

/// The client of that subject, which elections are held with.
fn client(subject: &Arc<dyn Subject>) -> Verdict<&Client> {
    subject
        .client()
        .ok_or_else(|| Failure::NotRun("it is no client of dlock, and has no elections".to_owned()))
}

/// A candidate of that election, with that value where the store shows values.
fn candidate(
    cx: &Cx,
    subject: &Arc<dyn Subject>,
    name: &LockName,
    ttl: Duration,
    value: &str,
) -> Verdict<Election> {
    let election = client(subject)?.election(name).seen("an election")?;
    let election = election
        .options(LockOptions::new().ttl(ttl))
        .seen("its options")?;
    if !cx.has(Need::OwnerLabel) {
        return Ok(election);
    }
    election.value(value).seen("a candidate's value")
}

rule! { "19.01" Must phase 3 [Lock, Wait, Election] Engine A X one_leader_at_a_time,
    evidence ["terms" >= 30], bug "leaders_share", budget 120 s
    "Of all that campaign at most one leads at a time, and each leader has a larger token than the last one."
    why "Two schedulers that both believe to be the one run every job twice."
    check "Is a leadership an exclusive hold, and its end that of the hold?"
}
async fn one_leader_at_a_time(cx: Cx) -> Verdict {
    let name = cx.name("led");
    let (leading, tokens) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Mutex::new(Vec::<Token>::new())),
    );
    let mut tasks = Vec::new();
    for (n, subject) in cx.clients(4).await?.into_iter().enumerate() {
        let election = candidate(&cx, &subject, &name, cx.long_ttl(), &n.to_string())?;
        let (task, leading, tokens, mut rng) = (cx.clone(), leading.clone(), tokens.clone(), cx.rng());
        let rounds = cx.rounds(10, 200);
        tasks.push(cx.spawn(async move {
            for _ in 0..rounds {
                let leadership = election.campaign().await.seen("a candidate campaigns")?;
                let beside = leading.fetch_add(1, Ordering::SeqCst);
                ensure!(beside == 0, "candidate {n} leads beside {beside} others");
                lock(&tokens).extend(leadership.token());
                task.evidence("terms");
                task.sleep(rng.duration(Duration::ZERO, ms(3))).await;
                leading.fetch_sub(1, Ordering::SeqCst);
                match rng.below(3) {
                    0 => drop(leadership),
                    _ => leadership.resign().await.seen("a leader resigns")?,
                }
            }
            // It is of use as long as its election is.
            drop(subject);
            Ok::<(), Failure>(())
        }));
    }
    all(tasks).await?;
    let tokens = lock(&tokens);
    for two in tokens.windows(2) {
        ensure!(
            two[0] < two[1],
            "a leader has the token {:?}, and the one before it had {:?}",
            two[1],
            two[0]
        );
    }
    Ok(())
}

rule! { "19.02" Must phase 3 [Lock, Wait, Election] Engine A T the_next_leader_follows_in_time,
    evidence ["successions" >= 2], bug "resign_keeps_the_lock", budget 120 s
    "When a leader resigns the next one leads at once, and when it vanishes, after its ttl."
    why "A cluster without a leader does nothing; who waits for a ttl at each deployment has an outage at each."
    check "Does resigning release, or only stop to renew?"
}
async fn the_next_leader_follows_in_time(cx: Cx) -> Verdict {
    let ttl = cx.short_ttl();
    for how in ["resigns", "vanishes"] {
        let (a, b) = (cx.connect().await?, cx.connect().await?);
        let name = cx.name(how);
        let first = candidate(&cx, &a, &name, ttl, "a")?
            .campaign()
            .await
            .seen("A campaigns")?;
        let (lasts, token) = (first.ttl().min(cx.long_ttl()), first.token());
        let next = candidate(&cx, &b, &name, ttl, "b")?;
        let waiting = cx.spawn(async move { next.campaign().await });
        cx.in_line(&*b, &name, 1).await?;
        let bound = match how {
            "resigns" => {
                first.resign().await.seen("A resigns")?;
                cx.claims().wake_p99 + cx.slack()
            }
            _ => {
                if !a.vanish() {
                    inconclusive!("A cannot vanish");
                }
                lasts + cx.skew(lasts) + cx.claims().wake_p99 + cx.slack()
            }
        };
        let what = format!("the next leader, after A {how}");
        let second = cx.done(bound, &what, waiting).await?;
        ensure!(
            second.token() > token || !cx.has(Need::Fence),
            "{what}, has the token {:?}; A had {token:?}",
            second.token()
        );
        cx.evidence("successions");
        second.resign().await.seen("B resigns")?;
    }
    Ok(())
}

rule! { "19.03" Must phase 3 [Lock, Wait, Watch, OwnerLabel, Election] Engine A D leaders_are_seen_in_order,
    evidence ["leaders_seen" >= 2], bug "leader_told_at_its_end", budget 120 s
    "An observer sees leaders in the order of their tokens, none twice, none after a newer one, and the last \
        one always."
    why "A client that goes back to the leader before talks to a machine that serves nobody any more."
    check "What tells an observer that a change, or a snapshot, is older than what it has seen?"
}
async fn leaders_are_seen_in_order(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let name = cx.name("seen");
    let watched = candidate(&cx, &c, &name, cx.long_ttl(), "c")?;
    let mut leaders = watched.observe().await.seen("C observes")?;
    let terms = cx.rounds(8, 100);
    let (mut led, mut last) = (Vec::new(), None);
    for n in 0..terms {
        let who = if n % 2 == 0 { &a } else { &b };
        let election = candidate(&cx, who, &name, cx.long_ttl(), &n.to_string())?;
        let leadership = election.campaign().await.seen("a candidate campaigns")?;
        led.push((leadership.token(), n.to_string()));
        // Long enough for a store that looks for changes.
        cx.sleep(ms(70)).await;
        if n + 1 == terms {
            last = Some(leadership);
        } else {
            leadership.resign().await.seen("a leader resigns")?;
        }
    }
    let mut seen = Vec::new();
    while seen.last() != led.last() {
        let next = cx.within(cx.prompt(), "the last leader", leaders.next()).await?;
        let Some(leader) = next else {
            fail!("the stream of leaders ends before the last one");
        };
        let leader = leader.seen("the stream of leaders")?;
        let told = (
            leader.token,
            leader.value.as_deref().unwrap_or_default().to_owned(),
        );
        let at = led.iter().position(|one| *one == told);
        let before = seen
            .last()
            .and_then(|last| led.iter().position(|one| one == last));
        ensure!(
            at.is_some() && at > before,
            "the observer is told the leader {told:?} after {:?}; they led in this order: {led:?}",
            seen.last()
        );
        seen.push(told);
        cx.evidence("leaders_seen");
    }
    if let Some(last) = last {
        last.resign().await.seen("the last leader resigns")?;
    }
    // It is over, and told already.
    match cx.timeout(ms(100), leaders.next()).await {
        None => Ok(()),
        Some(more) => fail!("the observer is told {more:?} after the last leader has resigned"),
    }
}

rule! { "19.04" Must phase 3 [Lock, Wait, Inspect, OwnerLabel, Election] Engine A D a_value_belongs_to_its_term,
    evidence ["values" >= 6], bug "first_value_stays"
    "Who leads is shown with the value that it campaigned with, and with the token of that term."
    why "A value without its term sends clients to the address of a leader that was replaced."
    check "Is the value written in the step that grants, and with it alone?"
}
async fn a_value_belongs_to_its_term(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ttl) = (cx.name("valued"), cx.long_ttl());
    let looks = candidate(&cx, &c, &name, ttl, "c")?;
    let mut election = candidate(&cx, &a, &name, ttl, "first")?;
    for n in 0..cx.rounds(6, 60) {
        let value = format!("10.0.0.{n}:80");
        election = match n % 3 {
            // The same candidate with another value, and another one.
            0 | 1 => election.value(value.as_str()).seen("another value")?,
            _ => candidate(&cx, &b, &name, ttl, &value)?,
        };
        let leadership = election.campaign().await.seen("a candidate campaigns")?;
        let leader = looks.leader().await.seen("C asks who leads")?;
        let Some(leader) = leader else {
            fail!("nobody is shown to lead while {value} does");
        };
        ensure!(
            leader.value.as_deref() == Some(value.as_str()) && leader.token == leadership.token(),
            "the leader is {value} with {:?}, and is shown as {:?} with {:?}",
            leadership.token(),
            leader.value,
            leader.token
        );
        cx.evidence("values");
        leadership.resign().await.seen("it resigns")?;
        let left = looks.leader().await.seen("C asks who leads")?;
        ensure!(left.is_none(), "{left:?} is shown after the leader has resigned");
    }
    Ok(())
}

/// Says when it is dropped.
struct Work(Arc<AtomicBool>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

rule! { "19.05" Must phase 3 [Lock, Wait, Lease, AutoRenew, Election] Engine P T work_ends_before_another_begins,
    evidence ["cut_off" >= 1], bug "work_outlives_leadership", budget 120 s
    "When a leader is cut off, the future of its work is dropped before the next leader's work begins, and \
        it campaigns again when it is back."
    why "A renewal that hangs must not keep the work going: two schedulers run until somebody notices \
        (client-go)."
    check "What drops the work: the deadline, or the answer to a renewal?"
}
async fn work_ends_before_another_begins(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (name, ttl) = (cx.name("worked"), cx.short_ttl());
    let (first, second) = (
        candidate(&cx, &f.a, &name, ttl, "a")?,
        candidate(&cx, &f.b, &name, ttl, "b")?,
    );
    let working = Arc::new(AtomicBool::new(false));
    let terms = Arc::new(AtomicUsize::new(0));
    let leads = cx.spawn({
        let (working, terms) = (working.clone(), terms.clone());
        async move {
            first
                .lead(|_| {
                    working.store(true, Ordering::SeqCst);
                    let (work, term) = (Work(working.clone()), terms.fetch_add(1, Ordering::SeqCst));
                    async move {
                        if term == 0 {
                            pending::<()>().await;
                        }
                        drop(work);
                    }
                })
                .await
        }
    });
    let by = cx.now() + cx.prompt();
    while terms.load(Ordering::SeqCst) == 0 {
        ensure!(cx.now() < by, "the only candidate does not lead");
        cx.sleep(ms(2)).await;
    }
    let follows = cx.spawn({
        let working = working.clone();
        async move {
            second
                .lead(|_| std::future::ready(working.load(Ordering::SeqCst)))
                .await
        }
    });
    cx.in_line(&*f.b, &name, 1).await?;
    let hole = f.net.begin(Fault::BlackHole(Direction::Both));
    struck(&cx, &hole, "A's renewals are lost").await?;
    let limit = ttl * 2 + cx.skew(ttl) + cx.claims().wake_p99 + patience(&cx);
    let beside = cx
        .done(limit, "the next leader, after A was cut off", follows)
        .await?;
    ensure!(!beside, "the work of A goes on while the next leader's begins");
    cx.evidence("cut_off");
    hole.heal();
    let again = cx.done(limit, "A, which leads again when it is back", leads);
    again.await?;
    ensure!(
        terms.load(Ordering::SeqCst) == 2,
        "A led {} times, and not once more after it was back",
        terms.load(Ordering::SeqCst)
    );
    Ok(())
}
