//! Kills and stops, round by round.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dlock::{ErrorKind, FenceGate, LockName, Timestamp, Token};
use dlock_conformance::agent::{Child, Churn, Steps};
use dlock_conformance::{Ask, Cx, Held, Rng, Seen as _, Subject, Verdict, ensure, fail};

use crate::judge::Record;
use crate::transaction::File;

const PROCESSES: usize = 3;
/// As long as this, others do not always come first.
const STARVED: Duration = Duration::from_secs(30);
const HOLD: Duration = Duration::from_millis(6);

static ROUNDS: AtomicU64 = AtomicU64::new(20);

static SHARED_MEMORY: OnceLock<PathBuf> = OnceLock::new();

/// Which of its files tells who writes to the store.
pub(crate) fn set_shared_memory(file: PathBuf) {
    let _ = SHARED_MEMORY.set(file);
}

fn shared_memory() -> PathBuf {
    SHARED_MEMORY.get().cloned().unwrap_or_default()
}

pub(crate) fn set_rounds(rounds: u64) {
    ROUNDS.store(rounds, Ordering::Relaxed);
}

/// A process at work.
struct Worker {
    /// Never the same again.
    number: u64,
    child: Arc<Child>,
    steps: Steps,
}

/// Everything that the rounds share.
struct Storm {
    cx: Cx,
    name: LockName,
    resource: LockName,
    ask: Ask,
    parent: Arc<dyn Subject>,
    record: Record,
    workers: Vec<Worker>,
    rng: Rng,
    /// The next number of a process, or of a hold of the parent's.
    next: u64,
    late: Lateness,
    file: File,
    slowest: Duration,
}

pub(crate) async fn storm(cx: Cx) -> Verdict {
    let mut storm = Storm {
        name: cx.name("lock"),
        resource: cx.name("resource"),
        ask: cx.ask().ttl(Duration::from_millis(400)).auto_renew(),
        parent: cx.connect().await?,
        record: Record::default(),
        workers: Vec::new(),
        rng: cx.rng(),
        next: 1,
        late: Lateness::measure(),
        file: File {
            shared_memory: shared_memory(),
        },
        slowest: Duration::ZERO,
        cx,
    };
    for _ in 0..PROCESSES {
        storm.start().await?;
    }
    for round in 0..ROUNDS.load(Ordering::Relaxed) {
        storm.round().await.seen(format_args!("round {round}"))?;
        storm.collect();
        storm.cx.evidence("rounds");
    }
    storm.end().await
}

impl Storm {
    async fn start(&mut self) -> Verdict {
        let child = self.cx.child().await?;
        let churn = Churn::new(&self.name, &self.resource, &self.ask, HOLD, self.rng.bits());
        let steps = child.churn(churn);
        let number = self.next;
        self.next += 1;
        self.workers.push(Worker { number, child, steps });
        Ok(())
    }

    fn collect(&mut self) {
        for worker in &mut self.workers {
            for (step, _) in worker.steps.so_far() {
                self.record.add(worker.number, step);
            }
        }
    }

    /// Writes down the last words of one that was killed: what it told is in its pipe yet.
    async fn bury(&mut self, victim: usize) {
        let mut gone = self.workers.swap_remove(victim);
        while let Some((step, _)) = gone.steps.next().await {
            self.record.add(gone.number, step);
        }
    }

    /// Any of them; every other time the one that holds.
    fn victim(&mut self) -> usize {
        let any = self.rng.index(self.workers.len());
        if self.rng.one_in(2) {
            return any;
        }
        self.collect();
        let holder = self
            .workers
            .iter()
            .position(|worker| self.record.holds(worker.number));
        holder.unwrap_or(any)
    }

    /// How long after a signal the lock may be taken: the victim's lease, and what this machine is late by.
    /// The others hold for milliseconds each.
    fn bound(&self) -> Duration {
        self.ask.ttl + self.cx.slack() + HOLD * 20 + self.late.worst() * 4
    }

    async fn round(&mut self) -> Verdict {
        self.late.forget();
        let pause = self.rng.duration(Duration::ZERO, Duration::from_millis(60));
        self.cx.sleep(pause).await;
        let victim = self.victim();
        match self.rng.below(5) {
            0 | 1 => self.kill(victim).await,
            2 => self.short_stop(victim).await,
            _ => self.long_stop(victim).await,
        }
    }

    /// Counts whether it held, as far as it told.
    fn hit(&mut self, victim: usize) {
        self.collect();
        if self.record.holds(self.workers[victim].number) {
            self.cx.evidence("hit while it held");
        }
    }

    async fn kill(&mut self, victim: usize) -> Verdict {
        let killed = self.workers[victim].child.kill()?;
        self.cx.evidence("kills");
        self.hit(victim);
        let taken = self.take(killed.asked).await?;
        ensure!(
            taken,
            "the lock of a process that was killed is not free {:?} later",
            self.bound()
        );
        self.bury(victim).await;
        self.start().await
    }

    async fn short_stop(&mut self, victim: usize) -> Verdict {
        let stopped = self.workers[victim].child.stop()?;
        self.cx.evidence("stops");
        self.hit(victim);
        let pause = self.rng.duration(Duration::ZERO, self.ask.ttl / 2);
        self.cx.sleep_until(stopped.answered + pause).await;
        let resumed = self.workers[victim].child.resume()?;
        let taken = self.take(resumed.asked).await?;
        ensure!(
            taken,
            "the lock is not free {:?} after a stop of {pause:?}",
            self.bound()
        );
        Ok(())
    }

    /// Stopped until another has had the lock, or nobody can.
    async fn long_stop(&mut self, victim: usize) -> Verdict {
        let stopped = self.workers[victim].child.stop()?;
        self.cx.evidence("stops");
        self.hit(victim);
        let taken = self.take(stopped.asked).await?;
        if taken {
            self.cx.evidence("stopped until another held");
            self.workers[victim].child.resume()?;
            return Ok(());
        }
        // Not free although the lease is over. The one excuse: it sits in a transaction. That others run into
        // something proves nothing (`Unknown` may come of a fault of their own), so the kernel is asked who
        // has the right to write.
        let pid = self.workers[victim].child.pid();
        match self.file.is_written_by(pid) {
            Some(true) => {}
            Some(false) => {
                fail!(
                    "the lock of process {pid}, which is stopped, is not free after {:?}, and it is in no \
                        write transaction; locks of the file: {}",
                    self.bound(),
                    self.file.locks()
                )
            }
            None => self.cx.evidence("excused by what others run into alone"),
        }
        // And then no lock at all can be had. `Unknown` if others of this client wait for the file before it.
        let other = self.cx.name("another lock");
        match self.parent.try_acquire(&other, &self.cx.ask()).await {
            Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {}
            other => fail!(
                "the lock of a stopped process is not free after {:?}, and a try for another answers {:?}",
                self.bound(),
                other.map(|held| held.is_some())
            ),
        }
        self.cx.evidence("stopped inside a write transaction");
        let (until, how) = match self.rng.one_in(2) {
            true => (self.workers[victim].child.resume()?.asked, "went on"),
            false => (self.workers[victim].child.kill()?.asked, "was killed"),
        };
        // What was granted before the stop may have been told a little later.
        let from = stopped.answered + Duration::from_millis(100) + self.late.worst() * 2;
        let taken = self.take(until).await?;
        ensure!(
            taken,
            "a process that was stopped in a transaction {how}, and the lock is not free {:?} later",
            self.bound()
        );
        self.collect();
        let granted = self.record.granted_between(from, until);
        ensure!(
            granted == 0,
            "{granted} were granted while a process was stopped in a transaction"
        );
        if how == "was killed" {
            self.bury(victim).await;
            self.start().await?;
        }
        Ok(())
    }

    /// Waits for the lock, writes, and releases it; `false` if there is no grant within the bound, counted
    /// from `from` and then from each grant of another: it was free for them, and the next of them may be the
    /// one that keeps it.
    async fn take(&mut self, from: Timestamp) -> Verdict<bool> {
        let (ask, key, mut since) = (self.ask.clone(), (0, self.next), from);
        self.next += 1;
        loop {
            let left = self.cx.now().until(since + self.bound());
            let held = match self.parent.acquire_timeout(&self.name, &ask, left).await {
                Ok(held) => held,
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Timeout | ErrorKind::Unavailable | ErrorKind::Unknown
                    ) =>
                {
                    if e.kind() == ErrorKind::Unknown {
                        self.cx.evidence("the parent was told `Unknown`");
                    }
                    self.collect();
                    if self.record.last_grant() > since {
                        since = self.record.last_grant();
                        self.cx.evidence("others came before the parent");
                    }
                    // The bound grows with what the machine was late by meanwhile.
                    if self.cx.now() < since + self.bound() {
                        ensure!(
                            self.cx.now() < from + STARVED,
                            "others are granted again and again, and for {STARVED:?} the parent is not"
                        );
                        continue;
                    }
                    return Ok(false);
                }
                Err(e) => fail!("the parent acquires: {e} ({:?})", e.kind()),
            };
            let at = self.cx.now();
            self.slowest = self.slowest.max(from.until(at));
            let token = held.token().map_or(0, Token::get);
            self.record.granted(key, token, at, held.deadline().as_nanos());
            let wrote = self.write(&*held).await;
            self.record.released(key, self.cx.now());
            wrote?;
            match held.release().await {
                Ok(()) => {}
                // This machine was so late that its own lease ran out, or that the file was never free. It
                // was granted, which is what was asked.
                Err(e) if is_late(&e) => self.cx.evidence("the parent itself was too late"),
                Err(e) => fail!("the parent releases: {e} ({:?})", e.kind()),
            }
            return Ok(true);
        }
    }

    async fn write(&mut self, held: &dyn Held) -> Verdict {
        let gate: Option<&dyn FenceGate> = self.parent.gate();
        let (Some(gate), Some(token)) = (gate, held.token()) else {
            fail!("SQLite has tokens and a gate");
        };
        let began = self.cx.now();
        let answer = match gate.write(&self.resource, token, b"parent").await {
            Ok(answer) => answer,
            Err(e) if is_late(&e) => {
                self.cx.evidence("the parent itself was too late");
                return Ok(());
            }
            Err(e) => fail!("the parent writes: {e} ({:?})", e.kind()),
        };
        ensure!(
            answer.is_admitted() || !held.is_valid(),
            "the write of a valid guard was refused: {answer:?}"
        );
        if answer.is_admitted() {
            self.record.wrote(token.get(), began, self.cx.now());
        }
        Ok(())
    }

    async fn end(mut self) -> Verdict {
        while !self.workers.is_empty() {
            self.workers[0].child.kill()?;
            self.bury(0).await;
        }
        let cx = &self.cx;
        cx.evidence_by("grants", self.record.grants());
        cx.evidence_by("writes admitted", self.record.writes());
        cx.evidence_by("late writes refused", self.record.refused);
        for (why, n) in &self.record.failed {
            cx.note(format!("{n} times a process was told: {why}"));
        }
        cx.note(format!(
            "a ttl of {:?}; the slowest hand-over after a signal took {:?}",
            self.ask.ttl, self.slowest
        ));
        self.record.judge()
    }
}

/// What comes of a busy machine, and says nothing of the lock.
fn is_late(e: &dlock::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::Lost | ErrorKind::Unknown | ErrorKind::Unavailable
    )
}

/// How late this machine is: a thread that sleeps a millisecond at a time.
struct Lateness {
    worst: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Lateness {
    fn measure() -> Self {
        let lateness = Self {
            worst: Arc::default(),
            stop: Arc::default(),
        };
        let (worst, stop) = (lateness.worst.clone(), lateness.stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let before = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                let late = before.elapsed().as_micros().saturating_sub(1000);
                worst.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        lateness
    }

    fn worst(&self) -> Duration {
        Duration::from_micros(self.worst.load(Ordering::Relaxed))
    }

    fn forget(&self) {
        self.worst.store(0, Ordering::Relaxed);
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
