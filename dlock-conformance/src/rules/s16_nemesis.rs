//! §16, everything at once: a seeded schedule of faults against several clients, and then none.
//!
//! Other rules test single faults. This one looks for the effect of two of them together: a stop while a
//! reply is in flight, or a cut during the abandon of an acquire whose connection was cut. It judges three
//! things. The history is legal, and no stale token was admitted, whatever happened. After the last fault,
//! every client gets every name within its bound.

use super::prelude::*;
use crate::agent::Child;
use crate::checker::Check;
use crate::history::Lane;

rules! {
    all_at_once_and_then_healed,
}

/// The number of clients with their own networks, and with their own processes, if possible.
const OF_EACH: usize = 3;
const NAMES: usize = 2;

/// The number of grants that proves something. The rule's evidence has the same number.
const ENOUGH: u64 = 20;

/// How much longer they are waited for.
const LONGER: Duration = Duration::from_secs(30);

type Slot = Arc<Mutex<Option<Arc<Child>>>>;

/// Whatever may be had; a failure for any other reason is one.
fn if_offered<T>(had: Verdict<T>) -> Verdict<Option<T>> {
    match had {
        Ok(had) => Ok(Some(had)),
        Err(Failure::NotRun(_)) => Ok(None),
        Err(other) => Err(other),
    }
}

/// What the clients and the nemesis share.
#[derive(Clone)]
struct Stage {
    cx: Cx,
    names: Arc<Vec<LockName>>,
    /// There are no more faults, and the workers come to an end.
    over: Arc<AtomicBool>,
    fenced: bool,
}

impl Stage {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// One client that works until the end, or until its requests no longer succeed (`gone`).
    async fn work(&self, client: &Client, mut rng: Rng, gone: impl Fn() -> bool) {
        let (cx, lane) = (&self.cx, self.cx.lane(client));
        while !self.is_over() && !gone() {
            self.turn(&lane, &mut rng).await;
            cx.sleep(rng.duration(Duration::ZERO, ms(4))).await;
        }
    }

    /// Other rules check the outcome of one operation under these circumstances.
    async fn turn(&self, lane: &Lane, rng: &mut Rng) {
        let (cx, name) = (&self.cx, &self.names[rng.index(NAMES)]);
        let mut ask = cx.ask().ttl(cx.short_ttl());
        if cx.has(Need::AutoRenew) && rng.one_in(3) {
            ask = ask.auto_renew();
        }
        let Ok(held) = lane.acquire_timeout(name, &ask, ask.ttl * 3).await else {
            return;
        };
        cx.evidence("grants");
        // Without checking the guard: fencing exists for this.
        if let Some(token) = held.token().filter(|_| self.fenced) {
            for _ in 0..=rng.below(2) {
                if let Ok(admission) = lane.write(name, token).await {
                    cx.evidence(if admission.is_admitted() {
                        "writes"
                    } else {
                        "stale_writes"
                    });
                }
                cx.sleep(rng.duration(Duration::ZERO, ms(8))).await;
            }
        }
        match rng.below(4) {
            0 => lane.drop_guard(held),
            // A slow one.
            1 => {
                cx.sleep(ask.ttl / 2).await;
                lane.drop_guard(held);
            }
            _ => drop(lane.release(&held).await),
        }
    }

    /// A client in a process of its own, in one after the other if they are killed.
    async fn lives(self, slot: Slot, mut rng: Rng) -> Verdict {
        while !self.is_over() {
            let child = self.cx.child().await?;
            *lock(&slot) = Some(Arc::clone(&child));
            let client: Client = child;
            let gone = || lock(&slot).is_none();
            self.work(&client, rng.fork(), gone).await;
        }
        Ok(())
    }
}

struct Nemesis {
    stage: Stage,
    rng: Rng,
    networks: Vec<Arc<dyn Network>>,
    processes: Vec<Slot>,
    /// The faults that are at work, and until when.
    at_work: Vec<(Timestamp, FaultGuard)>,
    stopped: Vec<(Timestamp, Arc<Child>)>,
}

impl Nemesis {
    /// For that long, or longer if grants are slow (a database on a busy disk), until there are enough of
    /// them. The rule's evidence judges the number, so this gives up eventually.
    async fn rage(mut self, length: Duration) -> Verdict {
        let cx = self.stage.cx.clone();
        let from = cx.now();
        let goes_on = || {
            let so_far = from.until(cx.now());
            so_far < length || (so_far < length + LONGER && cx.counted("grants") < ENOUGH)
        };
        while goes_on() {
            self.relent(false)?;
            let kinds = [self.networks.len(), self.processes.len()];
            let victim = self.rng.index(kinds[0] + kinds[1]);
            match self.networks.get(victim).cloned() {
                Some(net) => self.trouble(&*net),
                None => self.strike(victim - kinds[0])?,
            }
            cx.sleep(self.rng.duration(ms(5), ms(60))).await;
        }
        self.relent(true)
    }

    /// Ends what has been at work for long enough, or all of it.
    fn relent(&mut self, all: bool) -> Verdict {
        let now = self.stage.cx.now();
        for (_, fault) in self.at_work.extract_if(.., |(until, _)| all || *until <= now) {
            self.stage.cx.evidence_by("struck", fault.hits());
        }
        for (_, child) in self.stopped.extract_if(.., |(until, _)| all || *until <= now) {
            child.resume()?;
        }
        Ok(())
    }

    fn trouble(&mut self, net: &dyn Network) {
        let (cx, rng) = (&self.stage.cx, &mut self.rng);
        let ttl = cx.short_ttl();
        let way = [Direction::ToServer, Direction::ToClient, Direction::Both][rng.index(3)];
        let fault = match rng.below(8) {
            0 => Fault::Delay(way, rng.duration(Duration::ZERO, ttl / 2)),
            1 => Fault::BlackHole(way),
            2 => Fault::Hold(way),
            3 => Fault::SwallowNextReply,
            4 => Fault::DeliverLate,
            5 => Fault::Away,
            n => {
                let how = if n == 6 { Cut::Reset } else { Cut::Fin };
                cx.evidence_by("struck", net.cut(how) as u64);
                return;
            }
        };
        // Long ones, too: a holder is to lose its lease now and then.
        let until = cx.now() + rng.duration(Duration::ZERO, ttl * 3 / 2);
        self.at_work.push((until, net.begin(fault)));
    }

    /// A process is stopped for a while, or killed.
    fn strike(&mut self, victim: usize) -> Verdict {
        let cx = &self.stage.cx;
        let is_stopped = |child: &Arc<Child>| self.stopped.iter().any(|(_, other)| Arc::ptr_eq(child, other));
        let mut slot = lock(&self.processes[victim]);
        let Some(child) = slot.clone().filter(|child| !is_stopped(child)) else {
            return Ok(());
        };
        cx.evidence("struck");
        if self.rng.one_in(4) {
            *slot = None;
            child.kill()?;
        } else {
            child.stop()?;
            let ttl = cx.short_ttl();
            let until = cx.now() + self.rng.duration(Duration::ZERO, ttl * 3 / 2);
            drop(slot);
            self.stopped.push((until, child));
        }
        Ok(())
    }
}

rule! { "16.15" Must phase 2 [Lock, Wait, Lease, PerGrantTtl] Both P X all_at_once_and_then_healed,
    evidence ["grants" >= 20, "struck" >= 10, "recovered" >= 2], bug "no_recover_after_heal", budget 300 s
    "Under a random schedule of every fault at once the history is legal and no stale token is admitted. \
        After the last fault, every client gets every name within its bound."
    why "Code was written for each fault alone. No code was written for two of them together."
    check "Which two faults were active at the time that the drawing shows?"
}
async fn all_at_once_and_then_healed(cx: Cx) -> Verdict {
    let names: Vec<LockName> = (0..NAMES).map(|n| cx.name(format_args!("name-{n}"))).collect();
    let stage = Stage {
        cx: cx.clone(),
        names: Arc::new(names),
        over: Arc::default(),
        fenced: cx.has(Need::Fence) && cx.has(Need::Resource),
    };
    let (mut networks, mut clients) = (Vec::new(), Vec::new());
    if let Some(first) = if_offered(cx.network())? {
        networks.push(first);
        for _ in 1..OF_EACH {
            networks.push(cx.network()?);
        }
    }
    for net in &networks {
        clients.push(cx.connect_over(net).await?);
    }
    // A client without faults.
    clients.push(cx.connect().await?);
    let mut processes: Vec<Slot> = Vec::new();
    if if_offered(cx.child().await)?.is_some() {
        processes.extend((0..OF_EACH).map(|_| Slot::default()));
    } else if networks.is_empty() {
        not_run!(
            "it needs a network before the server or processes that can be killed, and the harness offers \
                neither"
        );
    }
    let mut work: Vec<Task<Verdict>> = Vec::new();
    for client in &clients {
        let (stage, client, rng) = (stage.clone(), Arc::clone(client), cx.rng());
        work.push(cx.spawn(async move {
            stage.work(&client, rng, || false).await;
            Ok(())
        }));
    }
    for slot in &processes {
        work.push(cx.spawn(stage.clone().lives(Arc::clone(slot), cx.rng())));
    }
    let nemesis = Nemesis {
        stage: stage.clone(),
        rng: cx.rng(),
        networks,
        processes,
        at_work: Vec::new(),
        stopped: Vec::new(),
    };
    let (quick, full) = if cx.is_virtual() { (15, 60) } else { (4, 60) };
    let length = Duration::from_secs(cx.rounds(quick, full) as u64);
    nemesis.rage(length).await?;
    stage.over.store(true, Ordering::SeqCst);
    healed(&cx, &stage.names, &clients, work).await?;
    cx.check_history()?;
    if stage.fenced {
        cx.check(Check::Resource)?;
    }
    Ok(())
}

/// From now on there are no faults: the work ends, and every client gets every name.
async fn healed(cx: &Cx, names: &[LockName], clients: &[Client], work: Vec<Task<Verdict>>) -> Verdict {
    let ask = cx.ask().ttl(cx.short_ttl());
    let bound = ask.ttl * 4 + cx.claims().give_up + cx.slack();
    let by = cx.now() + bound;
    for (n, task) in work.into_iter().enumerate() {
        let what = format!("client {n} ends its work, after the last fault");
        cx.within(cx.now().until(by), what, task).await??;
    }
    let bound = ask.ttl + cx.prompt();
    for name in names {
        for (n, client) in clients.iter().enumerate() {
            let when = format!("after all faults were healed: client {n} of those that were there");
            let held = answered(client.acquire_timeout(name, &ask, bound).await, &when)?;
            cx.evidence("recovered");
            answered(held.release().await, &when)?;
        }
    }
    Ok(())
}
