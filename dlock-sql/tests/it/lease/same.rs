//! The admission rule is written twice: in Rust, for memory, SQLite and MySQL, and in PL/pgSQL. The same
//! operations in the same order get the same answers.
//!
//! Nothing in it runs out: what depends on when is left to the contract. Tokens are compared by their order,
//! since PostgreSQL takes them from its clock.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;

use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Lock, Raised, Release, Released, RenewItem, RenewOutcome,
};
use dlock_core::{LockName, Mode, Token};
use dlock_sql::{lease, sqlite};

use super::site::*;

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

/// An answer, with tokens as they are; what is a time is left out.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    word: String,
    tokens: Vec<Token>,
}

fn said(word: impl Into<String>, tokens: impl IntoIterator<Item = Token>) -> Said {
    Said {
        word: word.into(),
        tokens: tokens.into_iter().collect(),
    }
}

fn failed(e: dlock_core::Error) -> Said {
    said(format!("{:?}", e.kind()), None)
}

async fn attempted(lock: &dyn Lock, a: &Acquire) -> Said {
    match lock.attempt(a).await {
        Ok(Attempt::Granted(g)) => said("granted", g.token),
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
                Step::Renew(_) => RenewItem::lease(key, TTL),
                _ => RenewItem::queued(key, TTL),
            };
            match renew(lock, item).await {
                RenewOutcome::Renewed(_) => said("renewed", None),
                RenewOutcome::Granted(g) => said("granted", g.token),
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
            Ok(Converted::Done(g)) => said("converted", g.token),
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

fn next(dice: &mut Dice, all: &mut Vec<Acquire>, name: &str) -> Step {
    let old = |dice: &mut Dice, all: &[Acquire]| {
        // The last ones are those that may still be there.
        let back = dice.throw(12.min(all.len() as u64)) as usize;
        all.len() - 1 - back
    };
    if all.is_empty() || dice.throw(5) < 2 {
        let mut a = ask(name).with_mode(mode(dice));
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

async fn compare(postgres: &dyn Lock, sqlite: &dyn Lock, seed: u64, steps: usize) {
    let mut dice = Dice(seed);
    let name = format!("n{seed}");
    let stored = LockName::new(&name).unwrap();
    let (mut all, mut pairs, mut story) = (Vec::new(), Pairs::default(), Vec::new());
    let mut released = HashSet::new();
    for n in 0..steps {
        let step = match next(&mut dice, &mut all, &name) {
            // Who releases twice, or asks again after it released, has not heard the first answer. SQLite
            // remembers that itself.
            Step::Release(n) | Step::Keep(n) | Step::AttemptAgain(n) if released.contains(&n) => {
                Step::Inspect
            }
            step => step,
        };
        // Larger than any clock, and each time more.
        let high = Token::new((1 << 60) + (seed << 20) + n as u64).unwrap();
        let ours = answer(sqlite, &step, &all, &stored, high).await;
        let theirs = answer(postgres, &step, &all, &stored, high).await;
        if let Step::Release(n) | Step::Keep(n) = &step
            && ours.word == "released"
        {
            released.insert(*n);
        }
        story.push(format!("{step:?}: {ours:?}"));
        let same = ours.word == theirs.word
            && ours.tokens.len() == theirs.tokens.len()
            && ours
                .tokens
                .iter()
                .zip(&theirs.tokens)
                .all(|(a, b)| pairs.add(*a, *b));
        let last = story.len().saturating_sub(14);
        assert!(
            same,
            "seed {seed}, step {n}: PostgreSQL says {theirs:?}\n{}",
            story[last..].join("\n")
        );
    }
}

#[test]
fn postgres_and_sqlite_answer_the_same() {
    run(On::Tokio, async |runtime| {
        let sqlite = sqlite::Config::memory().connect(runtime.clone()).await.unwrap();
        for pooled in [false, true] {
            let mut config = lease::Config::from_postgres_options(postgres().await);
            if pooled {
                config = config.behind_pooler();
            }
            let postgres = config.connect(runtime.clone()).await.unwrap();
            for seed in 0..4 {
                let seed = seed + if pooled { 100 } else { 0 };
                compare(&*postgres, &sqlite, seed, 120).await;
            }
        }
    });
}
