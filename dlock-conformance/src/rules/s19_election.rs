//! §19 Elections: who leads, who is shown as the leader, and what happens to a leader's work.

use std::ops::ControlFlow;

use dlock_core::runtime::yield_now;
use dlock_core::{Election, Held as Leader, Holder, Leadership, Result};
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::faulty::{faulty, patience, struck};
use super::prelude::*;

rules! {
    one_leads_at_a_time, next_leads_within_the_bound, observers_see_leaders_in_order,
    value_belongs_to_its_token, work_ends_before_the_next_begins, who_steps_down_goes_last,
    leading_goes_on_after_a_loss, observers_outlive_a_cut, cut_off_work_ends_before_the_next,
    a_paused_leader_does_no_more,
}

/// The election of that name, as that client asks for it.
fn election(client: &dyn Subject, name: &LockName, ask: &Ask) -> Verdict<Election> {
    match client.election(name, ask) {
        Some(election) => election.seen("a handle to an election"),
        None => fail!("elections are claimed, and the subject has none"),
    }
}

/// A candidate campaigns in a task.
fn campaigns(cx: &Cx, election: &Election) -> Task<Result<Leadership>> {
    let election = election.clone();
    cx.spawn(async move { election.campaign().await })
}

rule! { "19.01" Must phase 3 [Lock, Wait, Election] Both A X one_leads_at_a_time,
    evidence ["leaderships" >= 18], bug "campaign_shared", budget 120 s
    "Of all candidates one leads at a time, however the leadership before it ended, and its token is larger \
        than all before it."
    why "A service that runs where its leader is runs twice if there are two leaders."
    check "In which mode does a campaign acquire, and what has been released when a leadership is resigned?"
}
async fn one_leads_at_a_time(cx: Cx) -> Verdict {
    let name = cx.name("leader");
    let leads: Arc<Mutex<(bool, Option<Token>)>> = Arc::default();
    let (rounds, clients) = (cx.rounds(6, 60), cx.clients(3).await?);
    let tasks = cx.at_work(clients, &(name, leads), move |worker, (name, leads)| async move {
        let (cx, lane, mut rng, ..) = worker;
        let client = lane.client();
        let election = election(&**client, &name, &cx.ask())?;
        for _ in 0..rounds {
            let leadership = election.campaign().await.seen("a campaign")?;
            {
                let mut leads = lock(&leads);
                let (others, newest) = std::mem::replace(&mut *leads, (true, leadership.token()));
                ensure!(!others, "two lead at once");
                ensure!(
                    newest.is_none() || leadership.token() > newest,
                    "a leader with token {:?} came after one with {newest:?}",
                    leadership.token()
                );
            }
            cx.evidence("leaderships");
            cx.sleep(rng.duration(Duration::ZERO, ms(3))).await;
            let lost = leadership.loss();
            ensure!(leadership.is_valid(), "a leadership is lost: {lost:?}");
            lock(&leads).0 = false;
            match rng.below(3) {
                0 => leadership.resign().await.seen("a leader resigns")?,
                1 => leadership.step_down().await.seen("a leader steps down")?,
                _ => drop(leadership),
            }
        }
        Ok::<(), Failure>(())
    });
    all(tasks).await.map(|_| ())
}

rule! { "19.02" Must phase 3 [Lock, Wait, Lease, AutoRenew, Election] Both A T next_leads_within_the_bound,
    evidence ["successions" >= 4], bug "resign_forgets", budget 120 s
    "When a leader resigns, steps down or is dropped, the next one leads at once. When it dies, the next one \
        leads as soon as its lease is over."
    why "Between two leaders the work is not done."
    check "What does the next candidate wait for: the release of the former leader, or the end of its lease?"
}
async fn next_leads_within_the_bound(cx: Cx) -> Verdict {
    let b = cx.connect().await?;
    let ask = cx.ask().ttl(cx.steady_ttl()).auto_renew();
    for end in ["resigned", "stepped down", "was dropped", "died"] {
        let a = cx.connect().await?;
        let name = cx.name(end);
        let leadership = election(&*a, &name, &ask)?.campaign().await.seen("A campaigns")?;
        let mut next = campaigns(&cx, &election(&*b, &name, &ask)?);
        cx.in_line(&*b, &name, 1).await?;
        let early = cx.timeout(ms(20), &mut next).await;
        ensure!(early.is_none() || !leadership.is_valid(), "B leads beside A");
        let mut bound = cx.claims().wake_p99 + cx.slack();
        match end {
            "resigned" => leadership.resign().await.seen("A resigns")?,
            // Where there is no queue it waits for others to come.
            "stepped down" => {
                bound += cx.claims().op_bound;
                cx.spawn(leadership.step_down()).detach();
            }
            "was dropped" => {
                bound += cx.claims().drop_prompt;
                drop(leadership);
            }
            _ => {
                a.vanish();
                bound += leadership.ttl() + cx.skew(leadership.ttl());
            }
        }
        let what = format!("the campaign of B after A {end}");
        let next = cx.done(bound, what, next).await?;
        next.resign().await.seen("B resigns")?;
        cx.evidence("successions");
    }
    Ok(())
}

/// A stream of leaders.
type Leaders = BoxStream<'static, Result<Holder>>;

/// The next leader in the stream.
async fn told(cx: &Cx, leaders: &mut Leaders, limit: Duration, who: &str) -> Verdict<Holder> {
    let what = format!("{who} sees a leader");
    match cx.within(limit, &what, leaders.next()).await? {
        Some(leader) => leader.seen(what),
        None => fail!("{who}: the stream of leaders has ended"),
    }
}

async fn observe(election: &Election) -> Verdict<Leaders> {
    election.observe().await.seen("observing an election")
}

rule! { "19.03" Must phase 3 [Lock, Wait, Fence, Watch, Election] Both A D observers_see_leaders_in_order,
    evidence ["leaders_told" >= 24], bug "leader_told_again", budget 120 s
    "An observer sees the current leader first and then each later one: each once, with its token, in the \
        order of the tokens, and always the last one."
    why "Requests go to the leader that the observer saw last. If that is an old one, they go to a process \
        that no longer leads."
    check "Which changes of the lock mean a new leader, and which ones the leader that was already reported?"
}
async fn observers_see_leaders_in_order(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let (name, ask) = (cx.name("leader"), cx.ask());
    let [a, b, c] = [a, b, c].map(|client| election(&*client, &name, &ask));
    let (a, b, c) = (a?, b?, c?);
    let bound = cx.prompt();
    let mut early = observe(&c).await?;
    for round in 0..cx.rounds(12, 100) {
        let candidate = if round % 2 == 0 { &a } else { &b };
        let leadership = candidate.campaign().await.seen("a campaign")?;
        let mut late = observe(&c).await?;
        for (who, leaders) in [("an early observer", &mut early), ("a late one", &mut late)] {
            let leader = told(&cx, leaders, bound, who).await?;
            ensure!(
                leader.token == leadership.token(),
                "{who} sees token {:?}, and the leader has {:?}",
                leader.token,
                leadership.token()
            );
            cx.evidence("leaders_told");
        }
        leadership.resign().await.seen("a leader resigns")?;
    }
    // Only the last one waits for the observer.
    for round in 0..9 {
        let candidate = if round % 2 == 0 { &a } else { &b };
        let leadership = candidate.campaign().await.seen("a campaign")?;
        leadership.resign().await.seen("a leader resigns")?;
    }
    let last = a.campaign().await.seen("the last campaign")?;
    let mut before = None;
    while before != last.token() {
        let leader = told(&cx, &mut early, bound, "an observer of many").await?;
        ensure!(
            leader.token > before && leader.token <= last.token(),
            "after token {before:?} an observer sees {:?}; the last leader has {:?}",
            leader.token,
            last.token()
        );
        before = leader.token;
    }
    last.resign().await.seen("the last leader resigns")
}

rule! { "19.04" Must phase 3 [Lock, Wait, Fence, Watch, Inspect, OwnerLabel, Election] Both A D
        value_belongs_to_its_token,
    evidence ["values_told" >= 24], bug "value_of_the_last", budget 120 s
    "The current leader and the stream of leaders show each leader with the value that it campaigned with."
    why "The value is the address that clients connect to. Paired with another leader's token, it sends them \
        to the wrong one."
    check "Do a leader's value and token come from one grant, or is each the newest known?"
}
async fn value_belongs_to_its_token(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("leader");
    let observer = election(&*b, &name, &cx.ask())?;
    let mut leaders = observe(&observer).await?;
    for round in 0..cx.rounds(12, 100) {
        let value = format!("10.0.0.{round}:80");
        let candidate = election(if round % 2 == 0 { &*a } else { &*b }, &name, &cx.ask())?;
        let candidate = candidate.value(&*value).seen("a candidate with a value")?;
        let leadership = candidate.campaign().await.seen("a campaign")?;
        let looked = observer.leader().await.seen("a query of the leader")?;
        let Some(looked) = looked else {
            fail!("round {round}: no leader is shown");
        };
        let leader = told(&cx, &mut leaders, cx.prompt(), "an observer").await?;
        for (way, leader) in [("a look", looked), ("the stream", leader)] {
            ensure!(
                leader.token == leadership.token() && leader.owner.as_deref() == Some(&*value),
                "round {round}: {way} shows {:?} with token {:?}, and the leader is `{value}` with {:?}",
                leader.owner,
                leader.token,
                leadership.token()
            );
            cx.evidence("values_told");
        }
        leadership.resign().await.seen("a leader resigns")?;
        let left = observer.leader().await.seen("a query after a resignation")?;
        ensure!(
            left.is_none(),
            "round {round}: {left:?} is shown as the leader after it resigned"
        );
    }
    Ok(())
}

/// The work of leaders, whose futures are dropped: how often it began, ended, and ran beside another's.
#[derive(Default)]
struct Work {
    begun: AtomicU64,
    ended: AtomicU64,
    beside: AtomicU64,
    leader: Mutex<Option<Leader>>,
}

/// Work that is being done; it ends when this is dropped.
struct AtWork(Arc<Work>);

impl AtWork {
    /// Answers as well how often work began before.
    fn begin(work: &Arc<Work>, leader: Leader) -> (Self, u64) {
        let before = lock(&work.leader).replace(leader);
        if before.is_some_and(|leader| leader.is_valid()) {
            work.beside.fetch_add(1, Ordering::SeqCst);
        }
        let begun = work.begun.fetch_add(1, Ordering::SeqCst);
        (Self(Arc::clone(work)), begun)
    }

    /// The work so far ends, at the latest as late as this machine may be.
    async fn takes_over(&self, cx: &Cx, begun: u64) {
        let by = cx.now() + cx.slack();
        if !cx
            .comes(by, || self.0.ended.load(Ordering::SeqCst) >= begun)
            .await
        {
            self.0.beside.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// A candidate leads in a task until work has begun that often, or beside other work.
fn leads(cx: &Cx, election: Election, work: &Arc<Work>, most: u64) -> Task<Result<()>> {
    let (cx, work) = (cx.clone(), Arc::clone(work));
    cx.clone().spawn(async move {
        let lead = election.lead(|leader| {
            let (cx, (at_work, begun)) = (cx.clone(), AtWork::begin(&work, leader));
            async move {
                at_work.takes_over(&cx, begun).await;
                let work = &at_work.0;
                while work.begun.load(Ordering::SeqCst) < most && work.beside.load(Ordering::SeqCst) == 0 {
                    cx.sleep(ms(2)).await;
                }
                ControlFlow::Break(())
            }
        });
        lead.await
    })
}

rule! { "19.05" Must phase 3 [Lock, Wait, Lease, Election] Both A T work_ends_before_the_next_begins,
    evidence ["works_cut_short" >= 5], bug "work_outlives_the_lease", budget 120 s
    "When a leadership expires, it is over before the next one begins, and its work is cancelled."
    why "Work that continues after its leader was replaced is done twice, by two leaders that each believe \
        to be the only one."
    check "What ends the work of a leader: its deadline, or the notification that it is over?"
}
async fn work_ends_before_the_next_begins(cx: Cx) -> Verdict {
    let (name, ask) = (cx.name("leader"), cx.ask().ttl(cx.short_ttl()));
    let work = Arc::default();
    let (rounds, mut tasks) = (cx.rounds(6, 40), Vec::new());
    for _ in 0..3 {
        let election = election(&*cx.connect().await?, &name, &ask)?;
        tasks.push(leads(&cx, election, &work, rounds as u64));
    }
    for task in tasks {
        task.await.seen("leading")?;
    }
    let beside = work.beside.load(Ordering::SeqCst);
    ensure!(
        beside == 0,
        "{beside} times a leadership began while the one before was valid, or its work went on"
    );
    // The last of each was not.
    cx.evidence_by("works_cut_short", work.begun.load(Ordering::SeqCst) - 3);
    Ok(())
}

rule! { "19.06" Must phase 3 [Lock, Wait, Fair, Election] Both A D who_steps_down_goes_last,
    evidence ["rounds" >= 3], bug "step_down_in_word", budget 120 s
    "A leader that steps down and campaigns again leads after all waiting candidates."
    why "A leader that should be replaced, for example for maintenance, must not be elected again at once."
    check "When step_down returns, has the store admitted the next leader?"
}
async fn who_steps_down_goes_last(cx: Cx) -> Verdict {
    let (a, b, c) = (cx.connect().await?, cx.connect().await?, cx.connect().await?);
    let bound = cx.claims().wake_p99 + cx.slack();
    for round in 0..cx.rounds(3, 20) {
        let (name, ask) = (cx.name(round), cx.ask());
        let first = election(&*a, &name, &ask)?;
        let leadership = first.campaign().await.seen("A campaigns")?;
        let mut others = Vec::new();
        for (n, client) in (1..).zip([&b, &c]) {
            others.push(campaigns(&cx, &election(&**client, &name, &ask)?));
            cx.in_line(&*a, &name, n).await?;
        }
        leadership.step_down().await.seen("A steps down")?;
        others.push(campaigns(&cx, &first));
        for (who, campaign) in ["B", "C", "A again"].into_iter().zip(others) {
            let what = format!("round {round}: the campaign of {who} after A stepped down");
            let leadership = cx.done(bound, what, campaign).await?;
            leadership.resign().await.seen(format_args!("{who} resigns"))?;
        }
        cx.evidence("rounds");
    }
    Ok(())
}

rule! { "19.07" Must phase 3 [Lock, Wait, Lease, MaximumHold, Election] Both A D leading_goes_on_after_a_loss,
    evidence ["leaderships" >= 4], bug "lead_ends_at_a_loss", budget 120 s
    "A candidate in `lead` campaigns again after a loss and after stepping down, and ends with the client."
    why "If a service's only candidate gives up at the first loss, the service has no leader from then on."
    check "Which errors of a campaign, and which ends of a leadership, end the loop?"
}
async fn leading_goes_on_after_a_loss(cx: Cx) -> Verdict {
    let client = cx.connect().await?;
    let ask = cx.ask().auto_renew().max_hold(ms(60));
    let election = election(&*client, &cx.name("leader"), &ask)?;
    let work = Arc::new(Work::default());
    let (task, counted) = (cx.clone(), Arc::clone(&work));
    let leading = cx.spawn(async move {
        election
            .lead(|leader| {
                let (cx, (at_work, _)) = (task.clone(), AtWork::begin(&counted, leader));
                async move {
                    // Every second one steps down before it is lost.
                    let round = at_work.0.begun.load(Ordering::SeqCst);
                    cx.sleep(if round % 2 == 0 {
                        ms(5)
                    } else {
                        cx.claims().give_up
                    })
                    .await;
                    ControlFlow::<()>::Continue(())
                }
            })
            .await
    });
    let by = cx.now() + cx.prompt() + Duration::from_secs(8);
    while work.begun.load(Ordering::SeqCst) < 4 {
        ensure!(!leading.is_done(), "`lead` ended although its client is open");
        let begun = work.begun.load(Ordering::SeqCst);
        ensure!(
            cx.now() < by,
            "after {begun} leaderships there was no further one"
        );
        cx.sleep(ms(5)).await;
    }
    cx.evidence_by("leaderships", work.begun.load(Ordering::SeqCst));
    client.close().await.seen("the client closes")?;
    let ended = cx.within(cx.prompt(), "`lead` of a closed client", leading);
    refused(ended.await?, ErrorKind::Closed, "`lead` of a closed client")?;
    let (begun, ended) = (&work.begun, &work.ended);
    ensure!(
        begun.load(Ordering::SeqCst) == ended.load(Ordering::SeqCst),
        "work goes on after its client was closed"
    );
    Ok(())
}

rule! { "19.08" Must phase 3 [Lock, Wait, Fence, Watch, Election] Both P D observers_outlive_a_cut,
    evidence ["cuts" >= 3], bug "leader_told_after_a_cut", budget 180 s
    "A stream of leaders survives a broken connection and a temporary outage of the store: it then reports \
        the current leader, and none twice."
    why "A router whose stream died sends everything to the last leader for ever."
    check "What opens a new watch after a stream of changes has ended, and how is its first item handled?"
}
async fn observers_outlive_a_cut(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    for how in ["reset", "closed", "away"] {
        let (name, ask) = (cx.name(how), cx.ask());
        let candidate = election(&*f.b, &name, &ask)?;
        let first = candidate.campaign().await.seen("B campaigns")?;
        let mut leaders = observe(&election(&*f.a, &name, &ask)?).await?;
        let told_first = told(&cx, &mut leaders, cx.prompt(), "an observer").await?;
        ensure!(
            told_first.token == first.token(),
            "the first item is not the leader"
        );
        let limit = patience(&cx) + cx.claims().op_bound;
        match how {
            "away" => {
                let away = f.net.begin(Fault::Away);
                nothing_is_told(&cx, &mut leaders, ms(200), how).await?;
                away.heal();
            }
            how => f.cut(if how == "reset" { Cut::Reset } else { Cut::Fin })?,
        }
        // It may notice, and open a new watch, while the first one still leads.
        nothing_is_told(&cx, &mut leaders, limit / 4, how).await?;
        first.resign().await.seen("B resigns")?;
        let second = candidate.campaign().await.seen("B campaigns again")?;
        let leader = told(&cx, &mut leaders, limit, "an observer whose connection broke").await?;
        ensure!(
            leader.token == second.token(),
            "{how}: the stream shows token {:?}, and the new leader has {:?}",
            leader.token,
            second.token()
        );
        second.resign().await.seen("B resigns")?;
        cx.evidence("cuts");
    }
    Ok(())
}

/// For that long there is no new leader, and none is reported.
async fn nothing_is_told(cx: &Cx, leaders: &mut Leaders, limit: Duration, how: &str) -> Verdict {
    match cx.timeout(limit, leaders.next()).await {
        None => Ok(()),
        Some(None) => fail!("{how}: the stream of leaders has ended"),
        Some(Some(again)) => {
            let again = again.seen(format_args!("{how}: an observer whose connection broke"))?;
            fail!(
                "{how}: {:?} was reported, although there is no new leader",
                again.token
            );
        }
    }
}

rule! { "19.09" Must phase 3 [Lock, Wait, Lease, AutoRenew, Election] Both P T
        cut_off_work_ends_before_the_next,
    evidence ["successions" >= 1], bug "renewed_work_goes_on", budget 120 s
    "The work of a leader that is cut off from the store is cancelled before another one leads, which \
        happens as soon as its lease is over."
    why "A leader that cannot renew believes that it leads for as long as its requests hang, and works \
        beside the next one."
    check "Is the work ended by the clock, or by the answer to a renewal?"
}
async fn cut_off_work_ends_before_the_next(cx: Cx) -> Verdict {
    let f = faulty(&cx).await?;
    let (name, ask) = (cx.name("leader"), cx.ask().ttl(cx.short_ttl()).auto_renew());
    let work = Arc::default();
    // To the end.
    let cut_off = leads(&cx, election(&*f.a, &name, &ask)?, &work, u64::MAX);
    let next = election(&*f.b, &name, &ask)?;
    let by = cx.now() + cx.prompt();
    let begun = cx.comes(by, || work.begun.load(Ordering::SeqCst) > 0).await;
    ensure!(begun, "A does not lead");
    let hole = f.net.begin(Fault::BlackHole(Direction::Both));
    let next = campaigns(&cx, &next);
    struck(&cx, &hole, "a renewal of A is lost on the way").await?;
    let bound = ask.ttl + cx.skew(ask.ttl) + cx.claims().wake_p99 + cx.slack();
    let when = "the campaign of B after A was cut off";
    let next = cx.done(bound, when, next).await?;
    let (at_work, begun) = AtWork::begin(&work, next.held());
    at_work.takes_over(&cx, begun).await;
    let beside = work.beside.load(Ordering::SeqCst);
    ensure!(beside == 0, "B leads while A still leads or works");
    next.resign().await.seen("B resigns")?;
    cx.evidence("successions");
    hole.heal();
    let _ = cut_off.cancel().await;
    Ok(())
}

rule! { "19.10" Must phase 3 [Lock, Wait, Lease, Election] Both A T a_paused_leader_does_no_more,
    evidence ["pauses" >= 3], bug "paused_work_goes_on", budget 60 s
    "A leader that is paused past its lease is replaced, and its work makes no further step when it \
        continues."
    why "After a live migration or a long garbage collection, a process continues in the middle of the work \
        of a leadership that ended long ago."
    check "After a pause, is the deadline checked before the work continues, or does a separate timer fire?"
}
async fn a_paused_leader_does_no_more(cx: Cx) -> Verdict {
    let (name, ttl) = (cx.name("leader"), cx.short_ttl());
    let ask = cx.ask().ttl(ttl);
    let (paused, next) = (cx.connect().await?, cx.connect().await?);
    let paused = election(&*paused, &name, &ask)?;
    let next = election(&*next, &name, &cx.ask().ttl(cx.long_ttl()))?;
    let mut round = 0;
    while round < cx.rounds(3, 20) {
        let [terms, pauses, steps] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let (own, term, pause, step) = (cx.clone(), terms.clone(), pauses.clone(), steps.clone());
        let candidate = paused.clone();
        let leads = cx.spawn(async move {
            let lead = candidate.lead(|_| async {
                if term.fetch_add(1, Ordering::SeqCst) > 0 {
                    return ControlFlow::Break(());
                }
                // Until the other candidate waits.
                own.sleep(ms(20)).await;
                pause.fetch_add(1, Ordering::SeqCst);
                // If other threads run the other tasks, they go on in the meantime. A thread of tokio that
                // woke up for a single task has woken no other thread, so no thread would drive the network
                // and the timers during the stall. The second of two new tasks wakes one.
                let awake = [(); 2].map(|()| own.spawn(own.runtime().sleep(ms(1))));
                own.stall(ttl + own.skew(ttl) + own.slack());
                drop(awake);
                step.fetch_add(1, Ordering::SeqCst);
                yield_now().await;
                step.fetch_add(1, Ordering::SeqCst);
                ControlFlow::Break(())
            });
            lead.await
        });
        let by = cx.now() + cx.prompt();
        while terms.load(Ordering::SeqCst) == 0 {
            ensure!(cx.now() < by, "round {round}: A does not lead");
            cx.pause().await;
        }
        let leadership = campaigns(&cx, &next);
        let bound = (ttl + cx.skew(ttl) + cx.slack()) * 2 + cx.claims().wake_p99;
        let doing = "the campaign of B, while A is paused";
        let leadership = cx.done(bound, doing, leadership).await?;
        // On a busy machine its lease may be over before it stalls.
        if pauses.load(Ordering::SeqCst) == 0 {
            let _ = leads.cancel().await;
            leadership.resign().await.seen("B resigns")?;
            continue;
        }
        let by = cx.now() + bound;
        let gone_on = cx.comes(by, || steps.load(Ordering::SeqCst) > 0).await;
        ensure!(gone_on, "A continues: not done after {bound:?}");
        cx.sleep(cx.slack()).await;
        let taken = steps.load(Ordering::SeqCst);
        ensure!(
            taken == 1,
            "round {round}: A was paused past its lease, and its work took {taken} steps afterwards instead \
                of one"
        );
        cx.evidence("pauses");
        let _ = leads.cancel().await;
        leadership.resign().await.seen("B resigns")?;
        round += 1;
    }
    Ok(())
}
