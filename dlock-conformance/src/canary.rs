//! Measures how late this machine is, with a thread that sleeps two milliseconds at a time and reads the
//! clock, and how late its disk is, with a thread that writes a few bytes through to it.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::lock::lock;
use crate::nanos::nanos;

const TICK: Duration = Duration::from_millis(2);
/// How often the disk is tried, and how long a write takes at most on an idle disk.
const DISK_TICK: Duration = Duration::from_millis(25);
/// Shorter stalls are not recorded.
const STALL: Duration = Duration::from_millis(2);

/// Measures stalls of the machine while rules run. A rule about time proves nothing if the machine stalled.
#[derive(Debug)]
pub(crate) struct Canary {
    started: Instant,
    tick: Duration,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// When the latest tick began, in nanoseconds since the start.
    ticking: AtomicU64,
    /// Each stall: until when, and how long.
    stalls: Mutex<Vec<(Instant, Duration)>>,
    /// All latenesses, in microseconds, in buckets of powers of two.
    buckets: Mutex<[u64; 32]>,
}

impl Canary {
    pub(crate) fn start() -> Self {
        Self::ticking(TICK, || thread::sleep(TICK))
    }

    /// Of the disk on which that folder is.
    pub(crate) fn of_disk(folder: &Path) -> io::Result<Self> {
        let path = folder.join("canary");
        let mut file = File::create(&path)?;
        // The file is removed at once.
        std::fs::remove_file(path)?;
        Ok(Self::ticking(DISK_TICK, move || {
            thread::sleep(DISK_TICK / 2);
            // A full disk is not late.
            let _ = file.write_all(b"tick").and_then(|()| file.sync_data());
        }))
    }

    /// One whose ticks take no longer than that if nothing stalls.
    fn ticking(tick: Duration, work: impl FnMut() + Send + 'static) -> Self {
        let (started, shared) = (Instant::now(), Arc::new(Shared::default()));
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("dlock-canary".to_owned())
                .spawn(move || shared.run(started, tick, work))
                .ok()
        };
        Self {
            started,
            tick,
            shared,
            thread,
        }
    }

    /// The worst stall since then. This includes one that the canary has not woken from yet: the rule may
    /// run, fail and be judged before the canary wakes.
    pub(crate) fn worst_since(&self, then: Instant) -> Duration {
        let ticking = Duration::from_nanos(self.shared.ticking.load(Ordering::Relaxed));
        let now = self.started.elapsed().saturating_sub(ticking + self.tick);
        let stalls = lock(&self.shared.stalls);
        let later = stalls.iter().rev().take_while(|stall| stall.0 >= then);
        later.map(|stall| stall.1).max().unwrap_or_default().max(now)
    }

    /// The lateness that 999 of 1000 ticks stayed below.
    pub(crate) fn p999(&self) -> Duration {
        let buckets = lock(&self.shared.buckets);
        let all: u64 = buckets.iter().sum();
        let mut above = all / 1000;
        for (power, count) in buckets.iter().enumerate().rev() {
            if *count > above {
                return Duration::from_micros(1 << power);
            }
            above -= count;
        }
        Duration::ZERO
    }
}

impl Shared {
    fn run(&self, started: Instant, tick: Duration, mut work: impl FnMut()) {
        while !self.stop.load(Ordering::Relaxed) {
            let before = Instant::now();
            let since = nanos(before.saturating_duration_since(started));
            self.ticking.store(since, Ordering::Relaxed);
            work();
            let late = before.elapsed().saturating_sub(tick);
            if late >= STALL {
                lock(&self.stalls).push((Instant::now(), late));
            }
            let power = (u64::BITS - (late.as_micros() as u64).leading_zeros()).min(31) as usize;
            lock(&self.buckets)[power] += 1;
        }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends within a tick; it cannot panic.
            let _ = thread.join();
        }
    }
}
