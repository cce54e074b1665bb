//! The admission rule is written three times: in Rust, for memory, SQLite and MySQL, in PL/pgSQL and in Lua.
//! The same operations in the same order get the same answers from each store as from the reference.
//!
//! Nothing in it runs out: what depends on that is left to the rules and to the tests of each backend. Tokens
//! are compared by their order, since some stores take them from their clocks.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use dlock::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Lock, Raised, Release, Released, RenewItem,
    RenewOutcome,
};
use dlock::{LockName, Mode, RequestId, Token};
use dlock_testkit::{MariaDbServer, PostgresServer, RedisServer};

/// Longer than a run takes, by far.
const TTL: Duration = Duration::from_secs(300);

/// How far apart two stores may be that are asked one after the other.
const SLACK: Duration = Duration::from_secs(20);

/// A sequence of numbers that is the same for the same seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

#[derive(Debug)]
enum Step {
    Attempt(Acquire),
    AttemptAgain(usize),
    AskAgain(usize),
    Renew(usize),
    Release(usize),
    Keep(usize),
    Abandon(usize),
    Convert(usize, Mode),
    Raise(usize),
    Force,
    Inspect,
}

/// An answer, with tokens as they are, and for how long it holds, if it does.
#[derive(Clone, Debug)]
struct Said {
    word: String,
    tokens: Vec<Token>,
    life: Option<Duration>,
}

fn said(word: impl Into<String>, tokens: impl IntoIterator<Item = Token>) -> Said {
    Said {
        word: word.into(),
        tokens: tokens.into_iter().collect(),
        life: None,
    }
}

fn granted(word: &str, grant: &Grant) -> Said {
    let life = Some(grant.expires_in);
    Said {
        life,
        ..said(word, grant.token)
    }
}

fn failed(e: dlock_core::Error) -> Said {
    said(format!("{:?}", e.kind()), None)
}

async fn attempted(lock: &dyn Lock, a: &Acquire) -> Said {
    match lock.attempt(a).await {
        Ok(Attempt::Granted(g)) => granted("granted", &g),
        Ok(Attempt::Queued(w)) => said(format!("queued behind {:?}", w.ahead), None),
        Ok(Attempt::Held(_)) => said("held", None),
        Ok(other) => panic!("{other:?}"),
        Err(e) => failed(e),
    }
}

async fn answer(lock: &dyn Lock, step: &Step, all: &[Acquire], name: &LockName, high: Token) -> Said {
    match step {
        Step::Attempt(a) => attempted(lock, a).await,
        Step::AttemptAgain(n) => attempted(lock, &all[*n]).await,
        Step::AskAgain(n) | Step::Renew(n) => {
            let key = all[*n].key.clone();
            let item = match step {
                Step::Renew(_) => RenewItem::lease(key, all[*n].ttl),
                _ => RenewItem::queued(key, TTL),
            };
            match lock.renew().unwrap().renew(&[item]).await.remove(0) {
                RenewOutcome::Renewed(r) => Said {
                    life: Some(r.expires_in),
                    ..said("renewed", None)
                },
                RenewOutcome::Granted(g) => granted("granted", &g),
                RenewOutcome::Queued { ahead, .. } => said(format!("queued behind {ahead:?}"), None),
                RenewOutcome::Gone => said("gone", None),
                RenewOutcome::Failed(e) => failed(e),
                other => panic!("{other:?}"),
            }
        }
        Step::Release(n) | Step::Keep(n) => {
            let how = match step {
                Step::Keep(_) => Release::KeepFor(TTL),
                _ => Release::Now,
            };
            match lock.release(&all[*n].key, how).await {
                Ok(Released::Released) => said("released", None),
                Ok(other) => said(format!("{other:?}"), None),
                Err(e) => failed(e),
            }
        }
        Step::Abandon(n) => match lock.abandon(std::slice::from_ref(&all[*n].key)).await.remove(0) {
            Ok(Abandoned::WasGranted(token)) => said("was granted", token),
            Ok(other) => said(format!("{other:?}"), None),
            Err(e) => failed(e),
        },
        Step::Convert(n, to) => match lock.rwlock().unwrap().convert(&all[*n].key, *to).await {
            Ok(Converted::Done(g)) => granted("converted", &g),
            Ok(other) => said(format!("{other:?}"), None),
            Err(e) => failed(e),
        },
        Step::Raise(n) => match lock.fencing().unwrap().raise(&all[*n].key, high).await {
            Ok(Raised::Raised(token)) => said("raised", Some(token)),
            Ok(other) => said(format!("{other:?}"), None),
            Err(e) => failed(e),
        },
        Step::Force => {
            let many = lock.watch().unwrap().force_release(name).await.unwrap();
            said(format!("forced {many}"), None)
        }
        Step::Inspect => {
            let mut seen = lock.watch().unwrap().inspect(name).await.unwrap();
            seen.holders.sort_by_key(|h| (h.token, h.id));
            let who: Vec<_> = seen
                .holders
                .iter()
                .map(|h| (h.id, h.mode, h.owner.clone()))
                .collect();
            let tokens: Vec<_> = seen.holders.iter().filter_map(|h| h.token).collect();
            said(format!("{} wait, held by {who:?}", seen.waiting), tokens)
        }
    }
}

fn mode(dice: &mut Dice) -> Mode {
    match dice.throw(8) {
        0..=2 => Mode::Exclusive,
        3..=5 => Mode::READER,
        6 => Mode::permit(NonZeroU32::new(2).unwrap()),
        _ => Mode::permit(NonZeroU32::new(3).unwrap()),
    }
}

fn next(dice: &mut Dice, all: &mut Vec<Acquire>, name: &LockName, client: u64) -> Step {
    let old = |dice: &mut Dice, all: &[Acquire]| {
        // The last ones are those that may still be there.
        let back = dice.throw(12.min(all.len() as u64)) as usize;
        all.len() - 1 - back
    };
    if all.is_empty() || dice.throw(5) < 2 {
        let key = LeaseKey::new(name.clone(), RequestId::new(client.into(), all.len() as u64));
        let ttl = TTL * (1 + dice.throw(3) as u32);
        let mut a = Acquire::new(key, ttl).with_mode(mode(dice));
        if dice.throw(4) > 0 {
            a = a.with_queue(TTL).with_priority(1 + dice.throw(10) as u8);
        }
        if dice.throw(3) == 0 {
            a = a.with_owner(format!("owner {}", dice.throw(9)).into());
        }
        all.push(a.clone());
        return Step::Attempt(a);
    }
    let n = old(dice, all);
    match dice.throw(20) {
        0 => Step::AttemptAgain(n),
        1..=4 => Step::AskAgain(n),
        5 | 6 => Step::Renew(n),
        7..=12 => Step::Release(n),
        // It is in the way of all that follows.
        13 if dice.throw(3) == 0 => Step::Keep(n),
        13 => Step::Release(n),
        14 | 15 => Step::Abandon(n),
        16 | 17 => Step::Convert(n, mode(dice)),
        18 => Step::Inspect,
        _ => match dice.throw(4) {
            0 => Step::Force,
            1 => Step::Raise(n),
            _ => Step::Inspect,
        },
    }
}

/// Tokens of one are tokens of the other: always the same one for the same one, in the same order.
#[derive(Default)]
struct Pairs(BTreeMap<Token, Token>);

impl Pairs {
    fn add(&mut self, ours: Token, theirs: Token) -> bool {
        let known = *self.0.entry(ours).or_insert(theirs);
        let before = self.0.range(..ours).next_back().is_none_or(|(_, t)| *t < theirs);
        let after = self.0.range(ours..).nth(1).is_none_or(|(_, t)| theirs < *t);
        known == theirs && before && after
    }
}

async fn compare(what: &str, store: &dyn Lock, seed: u64, steps: usize) {
    let memory = dlock::connect("memory://").await.unwrap();
    let memory = &**memory.backend();
    let mut dice = Dice(seed);
    let name = LockName::new(format!("n{seed}")).unwrap();
    let (mut all, mut pairs, mut story) = (Vec::new(), Pairs::default(), Vec::new());
    let mut released = HashSet::new();
    for n in 0..steps {
        let step = match next(&mut dice, &mut all, &name, seed) {
            // Who releases twice, or asks again after it released, has not heard the first answer. Some
            // stores remember that themselves.
            Step::Release(n) | Step::Keep(n) | Step::AttemptAgain(n) if released.contains(&n) => {
                Step::Inspect
            }
            step => step,
        };
        // Larger than any clock, and each time more.
        let high = Token::new((1 << 60) + (seed << 20) + n as u64).unwrap();
        let ours = answer(memory, &step, &all, &name, high).await;
        let theirs = answer(store, &step, &all, &name, high).await;
        if let Step::Release(n) | Step::Keep(n) = &step
            && ours.word == "released"
        {
            released.insert(*n);
        }
        story.push(format!("{step:?}: {ours:?}"));
        let as_long = match (ours.life, theirs.life) {
            (Some(ours), Some(theirs)) => ours.abs_diff(theirs) < SLACK,
            (ours, theirs) => ours == theirs,
        };
        let alike = ours.word == theirs.word && ours.tokens.len() == theirs.tokens.len() && as_long;
        let mut tokens = ours.tokens.iter().zip(&theirs.tokens);
        let same = alike && tokens.all(|(a, b)| pairs.add(*a, *b));
        let last = story.len().saturating_sub(20);
        assert!(
            same,
            "seed {seed}, step {n}: {what} says {theirs:?}\n{}",
            story[last..].join("\n")
        );
    }
}

async fn compare_all(what: &str, url: &str, seeds: Range<u64>) {
    let store = dlock::connect(url).await.unwrap();
    for seed in seeds {
        compare(what, &**store.backend(), seed, 120).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_answers_as_memory_does() {
    compare_all("SQLite", "sqlite::memory:", 0..24).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_answers_as_memory_does() {
    let server = RedisServer::start().unwrap();
    compare_all("Redis", &server.url(), 0..24).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_answers_as_memory_does() {
    let server = PostgresServer::start().unwrap();
    compare_all("PostgreSQL", &server.url(), 0..16).await;
    compare_all("PostgreSQL", &format!("{}?pooler=true", server.url()), 16..24).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_answers_as_memory_does() {
    let server = MariaDbServer::start().unwrap();
    compare_all("MariaDB", &server.url(), 0..24).await;
}
