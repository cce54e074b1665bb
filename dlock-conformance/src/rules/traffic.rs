//! The bodies of rules that count network traffic and wake-ups: 2.12, 5.12, 8.10.

use futures::channel::mpsc;
use futures::{FutureExt, StreamExt};

use super::faulty::faulty;
use super::prelude::*;

rules! {
    round_trips_are_few, renewals_leave_time_for_another, one_release_wakes_few,
}

rule! { "2.12" Should phase 2 [Lock, Try] Both P D round_trips_are_few,
    evidence ["cycles" >= 100, "round_trips" >= 20], bug "chatty_acquire"
    "To acquire an uncontended lock and release it costs at most the claimed number of round trips, for a \
        try and a wait, for a new name and a known one."
    why "With a distant store, round trips are the cost of a lock. A check before the grant and another \
        after it make the lock three times as slow."
    check "Which requests are sent besides the acquire and the release: a check before, a confirmation \
        after, a keep-alive for each lock?"
}
async fn round_trips_are_few(cx: Cx) -> Verdict {
    // Other messages of a client, such as a keep-alive, fall into some of the batches only. So do messages
    // that a busy machine sends in two parts. Only what belongs to a cycle is in all batches.
    const BATCHES: std::ops::RangeInclusive<usize> = 3..=12;
    let f = faulty(&cx).await?;
    let ask = cx.ask();
    let cycles = cx.rounds(10, 100);
    let claimed = u64::from(cx.claims().round_trips);
    for (fresh, tries) in [(false, false), (false, true), (true, false), (true, true)] {
        let what = format!(
            "{} of {}",
            if tries { "a try" } else { "an acquire" },
            if fresh {
                "a new name"
            } else {
                "one name repeatedly"
            }
        );
        let most = claimed * cycles as u64;
        let mut least = u64::MAX;
        for batch in 1..=*BATCHES.end() {
            let before = f.net.traffic().requests;
            for cycle in 0..cycles {
                let name = match fresh {
                    true => cx.name(format_args!("{tries}-{batch}-{cycle}")),
                    false => cx.name(tries),
                };
                let held = match tries {
                    true => f.a.is_granted(&name, &ask, "only A uses the store").await?,
                    false => f.a.acquire(&name, &ask).await.seen("A acquires")?,
                };
                held.release().await.seen("A releases")?;
                cx.evidence("cycles");
            }
            least = least.min(f.net.traffic().requests - before);
            if batch >= *BATCHES.start() && least <= most {
                break;
            }
        }
        cx.evidence_by("round_trips", least);
        cx.note(format_args!(
            "{what} and its release, {cycles} times: {least} round trips"
        ));
        ensure!(
            least <= most,
            "{what} and its release cost {least} round trips in {cycles} cycles; `Claims::round_trips` \
                claims {claimed} per cycle"
        );
    }
    Ok(())
}

rule! { "5.12" Should phase 2 [Lock, Lease, AutoRenew] Engine P T renewals_leave_time_for_another,
    evidence ["renewals" >= 12], bug "renew_at_95pct", budget 120 s
    "A guard with auto-renewal renews at least twice per ttl, and clients that start together do not renew \
        in step for ever."
    why "A client that renews at the last moment loses its lock to one lost packet. A thousand clients that \
        reconnected together hit the store together, three times per ttl."
    check "What is the renewal period, is it counted from the last send, and is part of it random?"
}
async fn renewals_leave_time_for_another(cx: Cx) -> Verdict {
    const CLIENTS: usize = 4;
    let ask = cx.ask().ttl(cx.ttl(ms(600))).auto_renew();
    // All connect before the first one acquires: the traffic is not watched meanwhile.
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let net = cx.network()?;
        clients.push((cx.connect_over(&net).await?, net));
    }
    let (mut held, mut sent) = (Vec::new(), Vec::new());
    for (n, (client, net)) in clients.iter().enumerate() {
        let what = format!("client {n} acquires");
        held.push(client.acquire(&cx.name(n), &ask).await.seen(what)?);
        sent.push(Sent::new(&cx, net.clone()));
    }
    let ttl = held.iter().map(|h| h.ttl()).max().unwrap_or(ask.ttl);
    let until = cx.now() + ttl * 11 / 5;
    while cx.now() < until {
        sent.iter_mut().for_each(|sent| sent.look(&cx));
        cx.sleep(ms(1)).await;
    }
    let end = cx.now();
    ensure!(
        held.iter().all(|h| h.is_valid()),
        "a guard with auto-renewal is not valid after {:?}",
        ttl * 11 / 5
    );
    let mut gaps = Vec::new();
    for (n, sent) in sent.iter().enumerate() {
        cx.evidence_by("renewals", sent.at.len() as u64 - 1);
        let between: Vec<_> = sent.at.windows(2).map(|two| two[0].until(two[1])).collect();
        let open = sent.at.last().map(|last| last.until(end));
        let most = between.iter().copied().chain(open).max().unwrap_or_default();
        ensure!(
            most <= ttl / 2 + cx.slack(),
            "client {n} sent nothing for {most:?} of a ttl of {ttl:?}: if one renewal is lost, there is no \
                time for another"
        );
        gaps.extend(between);
    }
    let (Some(shortest), Some(longest)) = (gaps.iter().min(), gaps.iter().max()) else {
        inconclusive!("no client renewed twice");
    };
    cx.note(format_args!(
        "{} renewals, {shortest:?} to {longest:?} apart, of a ttl of {ttl:?}",
        gaps.len()
    ));
    ensure!(
        *longest - *shortest >= *longest / 50,
        "{} renewals of {CLIENTS} clients are {shortest:?} to {longest:?} apart: clients that start together \
            renew in step for ever",
        gaps.len()
    );
    for held in held {
        held.release().await.seen("a client releases")?;
    }
    Ok(())
}

/// The times at which a network carried requests, found by polling it often.
struct Sent {
    net: Arc<dyn Network>,
    requests: u64,
    at: Vec<Timestamp>,
}

impl Sent {
    /// From now on; the acquire of now is the first.
    fn new(cx: &Cx, net: Arc<dyn Network>) -> Self {
        Self {
            requests: net.traffic().requests,
            net,
            at: vec![cx.now()],
        }
    }

    fn look(&mut self, cx: &Cx) {
        let requests = self.net.traffic().requests;
        if requests > self.requests {
            self.requests = requests;
            self.at.push(cx.now());
        }
    }
}

/// The number of waiters.
const CROWD: usize = 16;
/// How many of them one release may wake.
const FEW: usize = 3;
/// How many requests it may cause: its own, and two of each of those.
const FEW_REQUESTS: u64 = 7;

rule! { "8.10" Should phase 3 [Lock, Wait, BoundedWakes] Both A D one_release_wakes_few,
    evidence ["releases" >= 2], bug "herd_wakeup", budget 120 s
    "One release wakes only a few waiters, however many there are: counted as polled tasks within one \
        client, and as requests across clients."
    why "If each release wakes every waiter, the store answers a thousand requests to grant one lock. The \
        next release comes before the last answer."
    check "Does the notification of a release go to the next waiter in the queue, or to every waiter of the \
        name?"
}
async fn one_release_wakes_few(cx: Cx) -> Verdict {
    let b = cx.connect().await?;
    let one = vec![cx.connect().await?; CROWD];
    one_client(&cx, &*b, &one).await?;
    let Some(net) = cx.network_if_any("the requests of many clients are not counted")? else {
        return Ok(());
    };
    let mut many = Vec::new();
    for _ in 0..CROWD {
        many.push(cx.connect_over(&net).await?);
    }
    many_clients(&cx, &*b, &many, &*net).await
}

/// One client that waits in many tasks: how many of these are polled?
async fn one_client(cx: &Cx, b: &dyn Subject, clients: &[Client]) -> Verdict {
    let (name, ask) = (cx.name("one client"), cx.ask());
    let mut held = b.acquire(&name, &ask).await.seen("B acquires")?;
    let mut crowd = Crowd::gather(cx, b, &name, &ask, clients).await?;
    for _ in 0..cx.rounds(2, 10) {
        let quiet = crowd.polled_during(cx).await;
        crowd.all_wait()?;
        // If all waiters are woken all the time, the bound below would excuse everything.
        if quiet + FEW > crowd.waiting {
            inconclusive!(
                "{quiet} of {} waiters in one client are woken without any release; if each waiter polls, do \
                    not claim `BoundedWakes`",
                crowd.waiting
            );
        }
        let before = crowd.polls();
        held.release().await.seen("the holder releases")?;
        held = crowd.next(cx).await?;
        cx.sleep(window(cx)).await;
        let woken = crowd.polled_since(&before);
        cx.evidence("releases");
        ensure!(
            woken <= quiet + FEW,
            "one release woke {woken} of {} waiters in one client; {quiet} were woken in the same time \
                without one",
            crowd.waiting + 1
        );
    }
    crowd.disperse().await;
    held.release().await.seen("the last holder releases")
}

/// Many clients with one wait each: how many requests are there?
async fn many_clients(cx: &Cx, b: &dyn Subject, clients: &[Client], net: &dyn Network) -> Verdict {
    let (name, ask) = (cx.name("many clients"), cx.ask());
    let mut held = b.acquire(&name, &ask).await.seen("B acquires")?;
    let mut crowd = Crowd::gather(cx, b, &name, &ask, clients).await?;
    if net.traffic().requests < clients.len() as u64 {
        inconclusive!("the requests of {} clients were not counted", clients.len());
    }
    // A herd comes with each release; other messages, such as keep-alives, fall into some rounds only.
    let (mut least, mut quiet_then, mut most_quiet) = (u64::MAX, 0, 0);
    for _ in 0..cx.rounds(3, 10) {
        let before = net.traffic().requests;
        cx.sleep(window(cx)).await;
        let quiet = net.traffic().requests - before;
        crowd.all_wait()?;
        held.release().await.seen("the holder releases")?;
        held = crowd.next(cx).await?;
        cx.sleep(window(cx)).await;
        if quiet > crowd.waiting as u64 {
            most_quiet = quiet.max(most_quiet);
            continue;
        }
        let caused = net.traffic().requests - before - quiet;
        cx.evidence("releases");
        if caused.saturating_sub(quiet) < least {
            (least, quiet_then) = (caused.saturating_sub(quiet), quiet);
        }
    }
    if least == u64::MAX {
        inconclusive!(
            "{} waiting clients sent {most_quiet} requests without any release; if each waiter polls, do not \
                claim `BoundedWakes`",
            crowd.waiting
        );
    }
    ensure!(
        least <= FEW_REQUESTS,
        "one release caused {} requests of {} waiting clients; {quiet_then} were sent in the same time \
            without one",
        least + quiet_then,
        crowd.waiting + 1
    );
    crowd.disperse().await;
    held.release().await.seen("the last holder releases")
}

/// How long something is waited for that should not happen.
fn window(cx: &Cx) -> Duration {
    cx.claims().wake_p99.min(ms(100))
}

type Granted = dlock_core::Result<Box<dyn Held>>;

/// The waiters of one name, and how often each was polled.
struct Crowd {
    polls: Vec<Arc<AtomicU64>>,
    tasks: Vec<Task<()>>,
    granted: mpsc::UnboundedReceiver<Granted>,
    waiting: usize,
}

impl Crowd {
    /// Each client waits once; returns when all do.
    async fn gather(
        cx: &Cx,
        observer: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        clients: &[Client],
    ) -> Verdict<Self> {
        let (tell, granted) = mpsc::unbounded();
        let mut crowd = Self {
            polls: Vec::new(),
            tasks: Vec::new(),
            granted,
            waiting: clients.len(),
        };
        for client in clients {
            let polls = Arc::new(AtomicU64::new(0));
            crowd.polls.push(polls.clone());
            let (client, name, ask, tell) = (client.clone(), name.clone(), ask.clone(), tell.clone());
            crowd.tasks.push(cx.spawn(async move {
                let mut acquiring = client.acquire(&name, &ask);
                let polled = std::future::poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    acquiring.poll_unpin(cx)
                });
                // If the rule has ended, the receiver is gone and the guard is dropped.
                let _ = tell.unbounded_send(polled.await);
            }));
        }
        let in_line = u32::try_from(clients.len()).unwrap_or(u32::MAX);
        cx.in_line(observer, name, in_line).await?;
        // The answers to the last of them are on their way.
        cx.sleep(window(cx)).await;
        Ok(crowd)
    }

    /// Only the waiters that were taken from it were granted.
    fn all_wait(&self) -> Verdict {
        let granted = self.tasks.iter().filter(|task| task.is_done()).count();
        ensure!(
            granted + self.waiting <= self.tasks.len(),
            "{granted} of {} waiters were granted, with one release for {} of them",
            self.tasks.len(),
            self.tasks.len() - self.waiting
        );
        Ok(())
    }

    fn polls(&self) -> Vec<u64> {
        self.polls.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }

    fn polled_since(&self, before: &[u64]) -> usize {
        let now = self.polls();
        now.iter()
            .zip(before)
            .filter(|(now, before)| now > before)
            .count()
    }

    async fn polled_during(&self, cx: &Cx) -> usize {
        let before = self.polls();
        cx.sleep(window(cx)).await;
        self.polled_since(&before)
    }

    /// The next one that is granted.
    async fn next(&mut self, cx: &Cx) -> Verdict<Box<dyn Held>> {
        let bound = cx.claims().wake_p99 + cx.slack() * 2;
        let what = "the grant of one of the waiters, after a release";
        match cx.within(bound, what, self.granted.next()).await? {
            Some(granted) => {
                self.waiting -= 1;
                granted.seen("one of the waiters")
            }
            None => fail!("{what}: no waiter is left"),
        }
    }

    /// They give up.
    async fn disperse(self) {
        for task in self.tasks {
            let _: Option<()> = task.cancel().await;
        }
    }
}
