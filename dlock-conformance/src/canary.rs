//! How late this machine is: a thread that sleeps one millisecond at a time and looks at the clock.

use crate::lock::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(1);
/// What is less is not kept.
const STALL: Duration = Duration::from_millis(2);

/// Measures stalls of the machine while rules run: a rule about time says nothing if the machine stood still.
#[derive(Debug)]
pub(crate) struct Canary {
    started: Instant,
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
        let (started, shared) = (Instant::now(), Arc::new(Shared::default()));
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("dlock-canary".to_owned())
                .spawn(move || shared.run(started))
                .ok()
        };
        Self {
            started,
            shared,
            thread,
        }
    }

    /// The worst stall since then. One that the canary has not woken from yet is one: after it the rule may
    /// run, fail and be judged before the canary does.
    pub(crate) fn worst_since(&self, then: Instant) -> Duration {
        let ticking = Duration::from_nanos(self.shared.ticking.load(Ordering::Relaxed));
        let now = self
            .started
            .elapsed()
            .saturating_sub(ticking)
            .saturating_sub(TICK);
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
    fn run(&self, started: Instant) {
        while !self.stop.load(Ordering::Relaxed) {
            let before = Instant::now();
            let since = before.saturating_duration_since(started).as_nanos();
            self.ticking
                .store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
            std::thread::sleep(TICK);
            let late = before.elapsed().saturating_sub(TICK);
            if late >= STALL {
                let mut stalls = lock(&self.stalls);
                stalls.push((Instant::now(), late));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_until_it_is_over_and_not_after() {
        let canary = Canary::start();
        let before = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        let shared = &canary.shared;
        shared
            .stalls
            .lock()
            .unwrap()
            .push((Instant::now(), Duration::from_secs(9)));
        assert_eq!(canary.worst_since(before), Duration::from_secs(9));
        std::thread::sleep(Duration::from_millis(5));
        assert!(canary.worst_since(Instant::now()) < Duration::from_secs(9));
        assert!(canary.p999() < Duration::from_secs(1));
    }

    #[test]
    fn a_stall_that_the_canary_has_not_woken_from_is_seen() {
        let asleep = Canary {
            started: Instant::now(),
            shared: Arc::default(),
            thread: None,
        };
        std::thread::sleep(Duration::from_millis(60));
        assert!(asleep.worst_since(Instant::now()) >= Duration::from_millis(50));
    }
}
