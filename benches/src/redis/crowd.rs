//! With many at one lock.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use dlock_core::{Guard, Lock};
use futures::future::join_all;

use super::stats::{Counted, Meter};

/// One who wants a lock again and again.
pub trait Contender {
    /// What shows that it has it.
    type Held;

    /// Waits until it has it.
    fn acquire(&mut self) -> impl Future<Output = Self::Held>;

    /// Gives it back.
    fn release(&mut self, held: Self::Held) -> impl Future<Output = ()>;
}

impl Contender for Lock {
    type Held = Guard;

    async fn acquire(&mut self) -> Guard {
        Lock::acquire(self).await.expect("it is waited for")
    }

    async fn release(&mut self, guard: Guard) {
        guard.release().await.expect("it was held");
    }
}

/// What each of a crowd does, and for how long that is watched.
#[derive(Clone, Copy, Debug)]
pub struct Spell {
    /// How long each keeps the lock.
    pub hold: Duration,
    /// How long each waits after a release before it wants it again.
    pub think: Duration,
    /// How long it counts.
    pub length: Duration,
}

/// What a crowd at one lock has shown.
#[derive(Debug, Default)]
pub struct Seen {
    /// How often each had it.
    pub each: Vec<u64>,
    /// How often it went from one to *another*. Who takes back what it has just released has handed over
    /// nothing.
    pub handoffs: u64,
    /// Of each hand-off: from the call of the release to the return of the other's acquire.
    pub gaps: Vec<Duration>,
    /// What the server ran meanwhile.
    pub counted: Counted,
    /// How long that was.
    pub took: Duration,
    /// How much of it somebody had the lock.
    pub held: Duration,
}

impl Seen {
    /// How often anybody had it.
    pub fn grants(&self) -> u64 {
        self.each.iter().sum()
    }

    /// The share of the time that somebody had it.
    pub fn busy(&self) -> f64 {
        self.held.as_secs_f64() / self.took.as_secs_f64()
    }

    /// How often they had it who had it most and least.
    pub fn turns(&self) -> (u64, u64) {
        let (most, least) = (self.each.iter().max(), self.each.iter().min());
        (*most.unwrap_or(&0), *least.unwrap_or(&0))
    }
}

/// What all of a crowd write down.
#[derive(Default)]
struct Notes {
    /// Who released last, and when.
    before: Option<(usize, Instant)>,
    handoffs: u64,
    gaps: Vec<Duration>,
    held: Duration,
    counted: [Option<Counted>; 2],
}

/// All of them at one lock.
///
/// What is counted begins when everybody has had time to come in. It ends before the first goes, so those who
/// still wait have sent what they sent: at most one try of each, which is in the count and whose hand-off is
/// not.
pub async fn crowd<C: Contender>(server: &impl Meter, who: Vec<C>, spell: Spell) -> Seen {
    let Spell { hold, think, length } = spell;
    let starts = Instant::now() + Duration::from_millis(200 + 4 * who.len() as u64);
    let ends = starts + length;
    let book: Mutex<Notes> = Mutex::default();
    let notes = &|| book.lock().expect("no panic");
    let each = join_all(who.into_iter().enumerate().map(|(n, mut lock)| async move {
        let mut times = 0_u64;
        loop {
            let held = lock.acquire().await;
            let now = Instant::now();
            let before = notes().before.take();
            if now >= starts && now < ends {
                notes().counted[0].get_or_insert_with(|| server.counted());
                times += 1;
                if let Some((other, at)) = before
                    && other != n
                {
                    let mut notes = notes();
                    notes.handoffs += 1;
                    notes.gaps.push(now - at);
                }
            }
            if now >= ends {
                notes().counted[1].get_or_insert_with(|| server.counted());
                lock.release(held).await;
                return times;
            }
            if !hold.is_zero() {
                tokio::time::sleep(hold).await;
            }
            let until = Instant::now();
            if now >= starts {
                notes().held += until - now;
            }
            notes().before = Some((n, until));
            lock.release(held).await;
            if !think.is_zero() {
                tokio::time::sleep(think).await;
            }
        }
    }))
    .await;
    let notes = book.into_inner().expect("no panic");
    let [first, last] = notes.counted.map(Option::unwrap_or_default);
    Seen {
        each,
        handoffs: notes.handoffs,
        gaps: notes.gaps,
        counted: last.since(&first),
        took: length,
        held: notes.held,
    }
}
