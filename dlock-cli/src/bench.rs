//! `dlock bench`: measures what locks cost on a store.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use dlock::{Lock, LockOptions};
use serde_json::{Value, json};

use crate::args::Bench;
use crate::failure::{Failure, code};
use crate::look::say;
use crate::run::ended;
use crate::store::Store;

/// How long the name stays taken if this program is killed.
const TTL: Duration = Duration::from_secs(10);

/// A shorter measurement means nothing.
const LEAST: Duration = Duration::from_millis(300);

pub(crate) async fn main(store: &Store, bench: Bench) -> Result<u8, Failure> {
    if bench.length < LEAST {
        return Err(Failure::usage(format!("--for must be at least {LEAST:?}")));
    }
    let (one, two) = (store.connect(None).await?, store.connect(None).await?);
    let name = format!("dlock-bench-{}", std::process::id());
    let ttl = TTL.max(one.capabilities().min_ttl);
    let lock = |client: &dlock::Client, name: &str| client.lock(name)?.options(LockOptions::new().ttl(ttl));
    let (ours, theirs) = (lock(&one, &name)?, lock(&two, &name)?);
    let done = measured(&ours, &theirs, bench.length / 3).await;
    let done = done.and_then(|times| shown(store, bench.json, times.map(Figures::of)));
    // Also after a failure: closing releases what is held.
    let done = ended(&two, done).await;
    ended(&one, done).await
}

/// Measures round trips, pairs and hand-offs, for `length` each.
async fn measured(ours: &Lock, theirs: &Lock, length: Duration) -> Result<[Times; 3], Failure> {
    let held = ours.acquire().await?;
    let trips = timed("round trip", round_trips(theirs, length)).await?;
    held.release().await?;
    let pairs = timed("pair", pairs(ours, length)).await?;
    let last = std::sync::Mutex::new(None);
    let both = async {
        let (ours, theirs) =
            tokio::try_join!(turns(ours, 0, &last, length), turns(theirs, 1, &last, length))?;
        Ok::<_, Failure>([ours, theirs].concat())
    };
    Ok([trips, pairs, timed("hand-off", both).await?])
}

fn shown(store: &Store, as_json: bool, [trips, pairs, turns]: [Figures; 3]) -> Result<u8, Failure> {
    if as_json {
        let (trips, pairs, turns) = (trips.json(), pairs.json(), turns.json());
        let all = json!({ "store": store.shown(), "round_trip": trips, "pair": pairs, "hand_off": turns });
        say(&all.to_string())?;
    } else {
        say(&store.shown())?;
        say(&format!(
            "  round trip  {}  trying to acquire a lock that is held",
            trips.words()
        ))?;
        say(&format!(
            "  pair        {}  acquire and release without contention",
            pairs.words()
        ))?;
        say(&format!(
            "  hand-off    {}  from one client's release to the other client's guard",
            turns.words()
        ))?;
    }
    Ok(0)
}

type Times = Vec<Duration>;

async fn round_trips(lock: &Lock, length: Duration) -> Result<Times, Failure> {
    let (began, mut times) = (Instant::now(), Times::new());
    while began.elapsed() < length {
        let asked = Instant::now();
        if lock.try_acquire().await?.is_some() {
            return Err(Failure::new(
                code::LOST,
                "the store granted a lock while another client held it: it is not safe for locks",
            ));
        }
        times.push(asked.elapsed());
    }
    Ok(times)
}

async fn pairs(lock: &Lock, length: Duration) -> Result<Times, Failure> {
    let (began, mut times) = (Instant::now(), Times::new());
    while began.elapsed() < length {
        let asked = Instant::now();
        lock.acquire().await?.release().await?;
        times.push(asked.elapsed());
    }
    Ok(times)
}

/// One of two clients that pass the lock to each other. `last` is the client that released last, and when.
async fn turns(
    lock: &Lock,
    who: u8,
    last: &std::sync::Mutex<Option<(u8, Instant)>>,
    length: Duration,
) -> Result<Times, Failure> {
    let (began, mut times) = (Instant::now(), Times::new());
    let released = |at| {
        last.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .replace((who, at))
    };
    while began.elapsed() < length {
        let guard = lock.acquire().await?;
        let now = Instant::now();
        // Acquiring it again after its own release is no hand-off.
        times.extend(released(now).filter(|(by, _)| *by != who).map(|(_, at)| now - at));
        released(Instant::now());
        guard.release().await?;
    }
    Ok(times)
}

/// Shows the progress, at a terminal.
pub(crate) async fn timed<T>(what: &str, doing: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return doing.await;
    }
    let began = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(200));
    let mut doing = std::pin::pin!(doing);
    loop {
        tokio::select! {
            done = &mut doing => {
                eprint!("\r\x1b[K");
                return done;
            }
            _ = tick.tick() => eprint!("\r{what}: {:.1} s", began.elapsed().as_secs_f64()),
        }
    }
}

/// In milliseconds.
struct Figures {
    count: usize,
    middle: f64,
    high: f64,
}

impl Figures {
    fn of(mut times: Times) -> Self {
        times.sort_unstable();
        let at = |share: usize| {
            let time = times.get(times.len() * share / 100).or(times.last());
            time.map_or(0.0, |time| (time.as_secs_f64() * 1e6).round() / 1e3)
        };
        Self {
            count: times.len(),
            middle: at(50),
            high: at(99),
        }
    }

    fn words(&self) -> String {
        format!(
            "p50 {:>9.3} ms, p99 {:>9.3} ms, {:>6} times ",
            self.middle, self.high, self.count
        )
    }

    fn json(&self) -> Value {
        json!({ "count": self.count, "p50_ms": self.middle, "p99_ms": self.high })
    }
}
