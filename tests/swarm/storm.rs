//! What is done to the swarm.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dlock_conformance::Rng;

use crate::Plan;
use crate::child::NAME;
use crate::ledger::{Grant, Ledger};
use crate::monitor;
use crate::processes::{Told, Worker};
use dlock_testkit::RedisServer;

/// All that was seen.
pub(crate) struct Seen {
    pub(crate) ledger: Ledger,
    pub(crate) told: Vec<Told>,
    /// How late this machine was at worst: a thread that sleeps a millisecond at a time.
    pub(crate) late: Duration,
}

/// As long as this after the last grant could have run out, there must have been another.
const STUCK: Duration = Duration::from_secs(5);

/// How long is waited for one to get where it is to be hit.
const AIMING: Duration = Duration::from_secs(3);

struct Storm<'a> {
    plan: &'a Plan,
    url: String,
    ledger: Arc<Mutex<Ledger>>,
    workers: Vec<Worker>,
    told: Vec<Told>,
    rng: Rng,
    /// Whose stop ends when: by client.
    stopped: Vec<(usize, Instant)>,
    /// How many grants there were, and since when there were no more.
    grants: (usize, Instant),
}

fn text(e: std::io::Error) -> String {
    e.to_string()
}

pub(crate) fn storm(plan: &Plan) -> Result<Seen, String> {
    let server = RedisServer::start().map_err(text)?;
    let ledger = Arc::new(Mutex::new(Ledger::new(NAME)));
    let heard = Arc::clone(&ledger);
    let hear = move |command| {
        heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hear(&command)
    };
    monitor::listen(server.address(), hear).map_err(text)?;
    let late = lateness();
    let (ttl, window) = (plan.ttl.as_millis(), plan.window.as_millis());
    let mut storm = Storm {
        plan,
        url: format!("{}?ttl={ttl}ms&claim_window={window}ms&timeout=10s", server.url()),
        ledger,
        workers: Vec::new(),
        told: Vec::new(),
        rng: Rng::new(plan.seed),
        stopped: Vec::new(),
        grants: (0, Instant::now()),
    };
    storm.run().map_err(|why| {
        let ledger = storm.ledger();
        match ledger.wrong.first() {
            Some(wrong) => format!("{why}; before that: {wrong}"),
            None => why,
        }
    })?;
    let told = std::mem::take(&mut storm.told);
    // What was carried out has been heard when what came after it was: the server answers nothing more to
    // anybody.
    drop(server);
    std::thread::sleep(Duration::from_millis(200));
    let ledger = std::mem::take(&mut *storm.ledger());
    Ok(Seen {
        ledger,
        told,
        late: Duration::from_micros(late.load(Ordering::Relaxed)),
    })
}

impl Storm<'_> {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&mut self) -> Result<(), String> {
        let plan = self.plan;
        for n in 0..plan.processes {
            let waiters = plan.waiters * (n + 1) / plan.processes - plan.waiters * n / plan.processes;
            self.workers.push(self.start(waiters)?);
        }
        for worker in &mut self.workers {
            worker.connected().and_then(|()| worker.go()).map_err(text)?;
        }
        self.until("all have arrived", |ledger| ledger.arrived.len() >= plan.waiters)?;
        let mut kills = 0;
        for n in 0.. {
            if kills >= plan.kills {
                break;
            }
            let pause = self
                .rng
                .duration(Duration::from_millis(20), Duration::from_millis(250));
            self.sleep(pause)?;
            match n % 3 {
                2 => self.pause_one()?,
                _ => {
                    self.kill_one()?;
                    kills += 1;
                }
            }
        }
        while !self.stopped.is_empty() {
            self.sleep(Duration::from_millis(10))?;
        }
        for worker in &mut self.workers {
            worker.last().map_err(text)?;
        }
        while !self.workers.iter().all(Worker::has_ended) {
            self.sleep(Duration::from_millis(10))?;
        }
        for worker in self.workers.drain(..) {
            self.told.push(worker.bury().map_err(text)?);
        }
        Ok(())
    }

    /// A process with that many waiters.
    fn start(&self, waiters: usize) -> Result<Worker, String> {
        // A long hold is confirmed, and may be longer than a claim window.
        let long = self.plan.window.as_millis() * 4 / 3;
        let seed = self.rng.clone().bits() ^ (self.told.len() as u64) << 20 ^ self.workers.len() as u64;
        Worker::start(&format!("{waiters} {} {long} {}", seed >> 1, self.url)).map_err(text)
    }

    /// Sleeps, lets those go on whose stop is over, and looks whether anybody is granted yet.
    fn sleep(&mut self, pause: Duration) -> Result<(), String> {
        let until = Instant::now() + pause;
        loop {
            let now = Instant::now();
            for (n, until) in std::mem::take(&mut self.stopped) {
                match until <= now {
                    true => self.workers[n].go_on().map_err(text)?,
                    false => self.stopped.push((n, until)),
                }
            }
            let grants = self.ledger().grants.len();
            if grants > self.grants.0 {
                self.grants = (grants, now);
            }
            let limit = self.plan.ttl + STUCK;
            if now > self.grants.1 + limit {
                let ended = self.workers.iter().filter(|w| w.has_ended()).count();
                return Err(format!(
                    "nobody was granted for {limit:?}, and {} of {} processes have waiters yet",
                    self.workers.len() - ended,
                    self.workers.len()
                ));
            }
            if now >= until {
                return Ok(());
            }
            std::thread::sleep((until - now).min(Duration::from_millis(1)));
        }
    }

    fn until(&mut self, what: &str, so: impl Fn(&Ledger) -> bool) -> Result<(), String> {
        let limit = Instant::now() + Duration::from_secs(60);
        while !so(&self.ledger()) {
            if Instant::now() > limit {
                return Err(format!("not so after a minute: {what}"));
            }
            self.sleep(Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// One that runs and whose request the ledger shows, as soon as it shows one.
    fn aim(&mut self, at: impl Fn(&Ledger) -> Option<String>) -> Result<Option<usize>, String> {
        let limit = Instant::now() + AIMING;
        while Instant::now() < limit {
            let id = at(&self.ledger());
            let of = |id: String| self.workers.iter().position(|w| !w.is_stopped() && w.is_of(&id));
            if let Some(found) = id.and_then(of) {
                return Ok(Some(found));
            }
            self.sleep(Duration::from_micros(300))?;
        }
        Ok(None)
    }

    /// One that runs: the one that holds and was heard of, the one that holds by its claim window yet, the
    /// next one, or any.
    fn victim(&mut self, which: u64) -> Result<Option<usize>, String> {
        let held = |provisional: bool| {
            move |ledger: &Ledger| {
                let held = ledger.held().filter(|grant| grant.provisional == provisional);
                held.map(|grant: &Grant| grant.id.clone())
            }
        };
        match which {
            0 => self.aim(held(false)),
            1 => self.aim(held(true)),
            2 => self.aim(|ledger| ledger.next_in_line().cloned()),
            _ => {
                let running: Vec<_> = (0..self.workers.len())
                    .filter(|n| !self.workers[*n].is_stopped())
                    .collect();
                Ok((!running.is_empty()).then(|| running[self.rng.index(running.len())]))
            }
        }
    }

    fn kill_one(&mut self) -> Result<(), String> {
        let which = self.rng.below(5);
        let victim = match which {
            // Stopped before its turn, and killed in it: the claim that never comes.
            4 => self.stop_and_meet()?,
            _ => self.victim(which)?,
        };
        let Some(victim) = victim else { return Ok(()) };
        self.workers[victim].kill().map_err(text)?;
        self.stopped.retain(|(n, _)| *n != victim);
        let waiters = self.plan.waiters / self.plan.processes;
        let mut next = self.start(waiters)?;
        std::mem::swap(&mut self.workers[victim], &mut next);
        self.told.push(next.bury().map_err(text)?);
        let new = &mut self.workers[victim];
        new.connected().and_then(|()| new.go()).map_err(text)
    }

    /// Stops the next one in line, and waits until it is granted.
    fn stop_and_meet(&mut self) -> Result<Option<usize>, String> {
        let Some(victim) = self.victim(2)? else {
            return Ok(None);
        };
        self.workers[victim].stop().map_err(text)?;
        let limit = Instant::now() + AIMING;
        while Instant::now() < limit {
            let held = self.ledger().held().map(|grant| grant.id.clone());
            if held.is_some_and(|id| self.workers[victim].is_of(&id)) {
                break;
            }
            self.sleep(Duration::from_micros(300))?;
        }
        Ok(Some(victim))
    }

    /// Stopped for less than a claim window, for less than the ttl, or for longer.
    fn pause_one(&mut self) -> Result<(), String> {
        let which = self.rng.below(4);
        let Some(victim) = self.victim(which)? else {
            return Ok(());
        };
        let (window, ttl) = (self.plan.window, self.plan.ttl);
        let pause = match self.rng.below(3) {
            0 => self.rng.duration(Duration::from_millis(5), window / 2),
            1 => self.rng.duration(window, ttl / 2),
            _ => self.rng.duration(ttl, ttl * 3 / 2),
        };
        self.workers[victim].stop().map_err(text)?;
        self.stopped.push((victim, Instant::now() + pause));
        Ok(())
    }
}

/// Measures it until the program ends: the most so far, in microseconds.
fn lateness() -> Arc<AtomicU64> {
    let worst: Arc<AtomicU64> = Arc::default();
    let measured = Arc::clone(&worst);
    std::thread::spawn(move || {
        loop {
            let before = Instant::now();
            std::thread::sleep(Duration::from_millis(1));
            let late = before.elapsed().as_micros().saturating_sub(1000);
            measured.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    });
    worst
}
