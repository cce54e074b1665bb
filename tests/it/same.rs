//! The admission rule is written three times: in Rust, for memory, SQLite and MySQL, in PL/pgSQL and in Lua.
//! The same operations in the same order get the same answers from each store as from the reference.
//!
//! What runs out has done so before the next step, or does not in the whole run: claim windows above all,
//! which are left to the rules and to the tests of each backend. Tokens are compared by their order, since
//! some stores take them from their clocks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dlock::memory;
use dlock::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Lock, Push, Raised, Release, Released,
    RenewItem, RenewOutcome, Wake,
};
use dlock::{Access, Admission, Change, Holder, LockName, Mode, RequestId, Result, Token};
use dlock_testkit::{MariaDbServer, PostgresServer, RedisServer};
use futures::future::join_all;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};

/// Longer than a run takes, by far.
const TTL: Duration = Duration::from_secs(900);

/// How long a place in the queue lasts. In the databases that is also what it becomes at most, until the
/// lease is confirmed.
const QUEUE_TTL: Duration = Duration::from_secs(300);

/// In Redis that is a claim window. No longer one can be set.
const WINDOW: Duration = Duration::from_secs(60);

/// Larger than any clock, and each time more: of some stores all names have one counter.
static HIGH: AtomicU64 = AtomicU64::new(1 << 60);

/// Over before the next step.
const BRIEF: Duration = Duration::from_millis(20);

/// How long a story is.
const STEPS: usize = 160;

/// How far apart two stores may be that are asked one after the other.
const SLACK: Duration = Duration::from_secs(120);

/// How long what a store tells may be under way.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

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
    Renew(usize, Duration),
    RenewMany(Vec<RenewItem>),
    Release(usize),
    Keep(usize, Duration),
    Abandon(usize),
    Convert(usize, Mode),
    Raise(usize, Token),
    Admit(Token, Access),
    Write(Token),
    Force,
    Inspect,
}

impl Step {
    /// Something of it runs out at once.
    fn is_brief(&self) -> bool {
        match self {
            Self::Attempt(a) => a.ttl == BRIEF || a.queue_ttl == BRIEF,
            Self::Keep(_, time) => *time == BRIEF,
            _ => false,
        }
    }

    /// The requests that it is about.
    fn about(&self) -> Vec<usize> {
        match self {
            Self::RenewMany(items) => items.iter().map(|i| i.key.id.sequence() as usize).collect(),
            Self::AttemptAgain(n)
            | Self::AskAgain(n)
            | Self::Renew(n, _)
            | Self::Release(n)
            | Self::Keep(n, _)
            | Self::Abandon(n)
            | Self::Convert(n, _)
            | Self::Raise(n, _) => vec![*n],
            _ => Vec::new(),
        }
    }
}

/// An answer, with tokens as they are, and for how long what it tells of lasts.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    word: String,
    tokens: Vec<Token>,
    lives: Vec<Duration>,
}

fn said(word: impl Into<String>, tokens: impl IntoIterator<Item = Token>) -> Said {
    Said {
        word: word.into(),
        tokens: tokens.into_iter().collect(),
        lives: Vec::new(),
    }
}

fn failed(e: dlock_core::Error) -> Said {
    // Whether the name is in it is the store's business: the engine puts it there.
    let text = e.to_string();
    said(text.split(" (lock `").next().unwrap_or(&text), None)
}

fn of_holders(word: &str, holders: &[Holder]) -> Said {
    let who = holders.iter().map(|h| (h.id, h.mode, h.owner.clone()));
    let who: Vec<_> = who.collect();
    Said {
        lives: holders.iter().map(|h| h.expires_in).collect(),
        ..said(format!("{word} {who:?}"), holders.iter().filter_map(|h| h.token))
    }
}

fn of_change(change: Result<Change>) -> Said {
    match change.unwrap() {
        Change::Granted(holder) => of_holders("granted", &[holder]),
        Change::Snapshot { mut now, skipped } => {
            now.holders.sort_by_key(|h| (h.token, h.id));
            of_holders(&format!("{skipped}, {} wait, held by", now.waiting), &now.holders)
        }
        other => said(format!("{other:?}"), None),
    }
}

type Pushed = HashMap<usize, BoxStream<'static, Push>>;

/// One of the two that are compared, as one name of it is used.
struct Side<'a> {
    /// Several clients of the same store.
    clients: &'a [Arc<dyn Lock>],
    name: LockName,
    /// What the store pushes to those who wait.
    pushed: Pushed,
    /// What it tells of the name, if it is watched, and what it has told.
    changes: Option<BoxStream<'static, Result<Change>>>,
    told: Vec<Said>,
}

impl<'a> Side<'a> {
    async fn new(clients: &'a [Arc<dyn Lock>], name: &LockName, watched: bool) -> Self {
        let watch = clients[0].watch().unwrap();
        Self {
            clients,
            name: name.clone(),
            pushed: Pushed::new(),
            changes: match watched {
                true => Some(watch.watch(name).await.unwrap()),
                false => None,
            },
            told: Vec::new(),
        }
    }

    fn client(&self, n: usize) -> &'a dyn Lock {
        &*self.clients[n % self.clients.len()]
    }

    /// Takes what it has told until now.
    fn listen(&mut self) {
        while let Some(Some(change)) = self.changes.as_mut().and_then(|c| c.next().now_or_never()) {
            self.told.push(of_change(change));
        }
    }

    /// Waits until it has reported that many.
    async fn listen_for(&mut self, many: usize) {
        while self.told.len() < many
            && let Some(changes) = &mut self.changes
            && let Ok(change) = tokio::time::timeout(TOLD_WITHIN, changes.next()).await
        {
            self.told.push(of_change(change.unwrap()));
        }
        self.listen();
    }

    /// The grants that were pushed to that request, after that many have come.
    async fn grants(&mut self, n: usize, many: usize) -> Option<Vec<Said>> {
        let pushes = self.pushed.get_mut(&n)?;
        let mut grants = Vec::new();
        while let Some(push) = match grants.len() < many {
            true => tokio::time::timeout(TOLD_WITHIN, pushes.next())
                .await
                .ok()
                .flatten(),
            false => pushes.next().now_or_never().flatten(),
        } {
            if let Push::Granted(grant) = push {
                grants.push(said("pushed", grant.token));
            }
        }
        Some(grants)
    }

    /// In most stores a request claims its grant by asking for it. In the reference it must renew.
    async fn granted(&self, n: usize, word: &str, grant: &Grant, ttl: Duration) -> Said {
        let mut life = grant.expires_in;
        if grant.provisional {
            let renew = RenewItem::lease(grant.key.clone(), ttl);
            let renewed = self.client(n).renew().unwrap().renew(&[renew]).await;
            let [RenewOutcome::Renewed(renewed)] = &renewed[..] else {
                panic!("{renewed:?}")
            };
            life = renewed.expires_in;
        }
        Said {
            lives: vec![life],
            ..said(word, grant.token)
        }
    }

    async fn attempted(&mut self, n: usize, a: &Acquire) -> Said {
        match self.client(n).attempt(a).await {
            Ok(Attempt::Granted(g)) => self.granted(n, "granted", &g, a.ttl).await,
            Ok(Attempt::Queued(w)) => {
                if let Wake::Push(pushes) = w.wake {
                    self.pushed.insert(n, pushes);
                }
                said(format!("queued behind {:?}", w.ahead), None)
            }
            Ok(Attempt::Held(_)) => said("held", None),
            Ok(other) => panic!("{other:?}"),
            Err(e) => failed(e),
        }
    }

    async fn renewed(&self, n: usize, items: &[RenewItem], all: &[Acquire]) -> Said {
        let mut answer = said("", None);
        let outcomes = self.client(n).renew().unwrap().renew(items).await;
        for (item, outcome) in items.iter().zip(outcomes) {
            let one = match outcome {
                RenewOutcome::Renewed(r) => Said {
                    lives: vec![r.expires_in],
                    ..said("renewed", None)
                },
                RenewOutcome::Granted(g) => {
                    let ttl = all.iter().find(|a| a.key == item.key).unwrap().ttl;
                    self.granted(n, "granted", &g, ttl).await
                }
                RenewOutcome::Queued { ahead, .. } => said(format!("queued behind {ahead:?}"), None),
                RenewOutcome::Gone => said("gone", None),
                RenewOutcome::Failed(e) => failed(e),
                other => panic!("{other:?}"),
            };
            answer.word += &format!("{}, ", one.word);
            answer.tokens.extend(one.tokens);
            answer.lives.extend(one.lives);
        }
        answer
    }

    async fn answer(&mut self, step: &Step, all: &[Acquire]) -> Said {
        let passed = |admission: Admission| said(format!("{admission:?}"), None);
        match step {
            Step::Attempt(a) => self.attempted(all.len() - 1, a).await,
            Step::AttemptAgain(n) => self.attempted(*n, &all[*n]).await,
            Step::AskAgain(n) => {
                let item = RenewItem::queued(all[*n].key.clone(), QUEUE_TTL);
                self.renewed(*n, &[item], all).await
            }
            Step::Renew(n, ttl) => {
                let item = RenewItem::lease(all[*n].key.clone(), *ttl);
                self.renewed(*n, &[item], all).await
            }
            Step::RenewMany(items) => {
                self.renewed(step.about().first().map_or(0, |n| *n), items, all)
                    .await
            }
            Step::Release(n) | Step::Keep(n, _) => {
                let how = match step {
                    Step::Keep(_, time) => Release::KeepFor(*time),
                    _ => Release::Now,
                };
                match self.client(*n).release(&all[*n].key, how).await {
                    Ok(Released::Released) => said("released", None),
                    Ok(other) => said(format!("{other:?}"), None),
                    Err(e) => failed(e),
                }
            }
            Step::Abandon(n) => {
                let key = std::slice::from_ref(&all[*n].key);
                match self.client(*n).abandon(key).await.remove(0) {
                    Ok(Abandoned::WasGranted(token)) => said("was granted", token),
                    Ok(other) => said(format!("{other:?}"), None),
                    Err(e) => failed(e),
                }
            }
            Step::Convert(n, to) => {
                let key = &all[*n].key;
                match self.client(*n).rwlock().unwrap().convert(key, *to).await {
                    Ok(Converted::Done(g)) => self.granted(*n, "converted", &g, all[*n].ttl).await,
                    Ok(other) => said(format!("{other:?}"), None),
                    Err(e) => failed(e),
                }
            }
            Step::Raise(n, to) => {
                let key = &all[*n].key;
                match self.client(*n).fencing().unwrap().raise(key, *to).await {
                    Ok(Raised::Raised(token)) => said("raised", Some(token)),
                    Ok(other) => said(format!("{other:?}"), None),
                    Err(e) => failed(e),
                }
            }
            Step::Admit(token, access) => {
                let gate = self.client(0).fencing().unwrap().gate().unwrap();
                passed(gate.admit(&self.name, *token, *access).await.unwrap())
            }
            Step::Write(token) => {
                let gate = self.client(1).fencing().unwrap().gate().unwrap();
                let value = format!("written with {token}");
                let passed = gate.write(&self.name, *token, value.as_bytes()).await.unwrap();
                said(
                    format!("{passed:?}, {:?}", gate.read(&self.name).await.unwrap()),
                    None,
                )
            }
            Step::Force => {
                let watch = self.client(0).watch().unwrap();
                let many = watch.force_release(&self.name).await.unwrap();
                said(format!("forced {many}"), None)
            }
            Step::Inspect => {
                let mut seen = self.client(1).watch().unwrap().inspect(&self.name).await.unwrap();
                seen.holders.sort_by_key(|h| (h.token, h.id));
                of_holders(&format!("{} wait, held by", seen.waiting), &seen.holders)
            }
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
        let brief = dice.throw(12);
        let ttl = match brief {
            0 => BRIEF,
            _ => TTL * (1 + dice.throw(3) as u32),
        };
        let mut a = Acquire::new(key, ttl).with_mode(mode(dice));
        // Nobody is given later what is over at once.
        if brief > 0 && dice.throw(4) > 0 {
            let queue_ttl = if brief == 1 { BRIEF } else { QUEUE_TTL };
            a = a.with_queue(queue_ttl).with_priority(1 + dice.throw(10) as u8);
        }
        if dice.throw(3) == 0 {
            a = a.with_owner(format!("owner {}", dice.throw(9)).into());
        }
        all.push(a.clone());
        return Step::Attempt(a);
    }
    let n = old(dice, all);
    let another_ttl = |dice: &mut Dice, n: usize| match dice.throw(4) {
        0 => all[n].ttl * 3,
        1 => all[n].ttl / 2,
        _ => all[n].ttl,
    };
    match dice.throw(24) {
        0 => Step::AttemptAgain(n),
        1..=4 => Step::AskAgain(n),
        5 | 6 => Step::Renew(n, another_ttl(dice, n)),
        7..=12 => Step::Release(n),
        13 => match dice.throw(6) {
            // It is in the way of all that follows.
            0 => Step::Keep(n, QUEUE_TTL * 2),
            1 | 2 => Step::Keep(n, BRIEF),
            _ => Step::Release(n),
        },
        14 | 15 => Step::Abandon(n),
        16 => Step::Convert(n, mode(dice)),
        17 => Step::Convert(n, Mode::Exclusive),
        18 => Step::Inspect,
        19 => {
            // Nobody renews one twice in one request, or those of another client.
            let which: BTreeSet<_> = (0..4).map(|_| old(dice, all)).collect();
            let items = which.into_iter().filter(|other| other % 2 == n % 2).map(|n| {
                let key = all[n].key.clone();
                match dice.throw(2) {
                    0 => RenewItem::queued(key, QUEUE_TTL),
                    _ => RenewItem::lease(key, another_ttl(dice, n)),
                }
            });
            Step::RenewMany(items.collect())
        }
        20 | 21 => {
            // In the order of their digits they are in another one.
            let of = [9, 10, 99, 100, 1_000, 1_001][dice.throw(6) as usize];
            let token = Token::new(of).unwrap();
            match dice.throw(3) {
                0 => Step::Admit(token, Access::Exclusive),
                1 => Step::Admit(token, Access::Shared),
                _ => Step::Write(token),
            }
        }
        _ => match dice.throw(5) {
            0 => Step::Force,
            1 => Step::Raise(n, Token::MIN),
            2 => Step::Raise(n, Token::new(HIGH.fetch_add(1 << 20, Ordering::Relaxed)).unwrap()),
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

fn alike(ours: &Said, theirs: &Said, pairs: &mut Pairs) -> bool {
    let as_long = ours
        .lives
        .iter()
        .zip(&theirs.lives)
        .all(|(a, b)| a.abs_diff(*b) < SLACK);
    let tokens = ours.tokens.iter().zip(&theirs.tokens);
    ours.word == theirs.word
        && ours.tokens.len() == theirs.tokens.len()
        && ours.lives.len() == theirs.lives.len()
        && as_long
        && tokens.into_iter().all(|(a, b)| pairs.add(*a, *b))
}

async fn compare(what: &str, store: &[Arc<dyn Lock>], window: Duration, tells: bool, seed: u64) {
    let config = memory::Config::new().claim_window(Some(window));
    let memory = [config.connect(dlock::runtime::detect().unwrap()).connect()];
    let mut dice = Dice(seed);
    let name = LockName::new(format!("n{seed}")).unwrap();
    let watched = tells && seed.is_multiple_of(2);
    let mut ours = Side::new(&memory, &name, watched).await;
    let mut theirs = Side::new(store, &name, watched).await;
    let (mut all, mut pairs, mut story) = (Vec::new(), Pairs::default(), Vec::new());
    let (mut released, mut lapsed) = (HashSet::new(), HashSet::new());
    let mut follows = None;
    for n in 0..STEPS {
        let step = match follows
            .take()
            .unwrap_or_else(|| next(&mut dice, &mut all, &name, seed))
        {
            // Who releases twice, or asks again after it released, has not heard the first answer. Some
            // stores remember that themselves.
            Step::Release(n) | Step::Keep(n, _) | Step::AttemptAgain(n) if released.contains(&n) => {
                Step::Inspect
            }
            // Some stores let it come back as long as nobody has met it.
            step if step.about().iter().any(|n| lapsed.contains(n)) => Step::Inspect,
            step => step,
        };
        let answers = [ours.answer(&step, &all).await, theirs.answer(&step, &all).await];
        if let Step::Release(n) | Step::Keep(n, _) = &step
            && answers[0].word == "released"
        {
            released.insert(*n);
        }
        if let Step::Attempt(a) = &step
            && (a.queue_ttl, answers[0].word.starts_with("queued")) == (BRIEF, true)
        {
            lapsed.insert(all.len() - 1);
            // Here everybody meets it.
            follows = Some(if dice.throw(2) == 0 {
                Step::Inspect
            } else {
                Step::Force
            });
        }
        if let (Step::Convert(n, Mode::Exclusive), "Busy") = (&step, &*answers[0].word) {
            // Another one who shares wants to be alone as well, or gives it up.
            let seen = memory[0].watch().unwrap().inspect(&name).await.unwrap();
            let others = seen.holders.iter().map(|h| h.id.sequence() as usize);
            let others: Vec<_> = others.filter(|other| other != n).collect();
            let other = others[dice.throw(others.len() as u64) as usize];
            follows = match dice.throw(4) {
                0 => None,
                1 => Some(Step::Convert(*n, all[*n].mode)),
                2 => Some(Step::Release(other)),
                _ => Some(Step::Convert(other, Mode::Exclusive)),
            };
        }
        if step.is_brief() {
            tokio::time::sleep(BRIEF * 5 / 4).await;
        }
        ours.listen();
        theirs.listen();
        story.push(format!("{step:?}: {:?}", answers[0]));
        let last = story.len().saturating_sub(20);
        assert!(
            alike(&answers[0], &answers[1], &mut pairs),
            "seed {seed}, step {n}: {what} says {:?}\n{}",
            answers[1],
            story[last..].join("\n")
        );
    }
    theirs.listen_for(ours.told.len()).await;
    for told in [&mut ours.told, &mut theirs.told] {
        // Those that end in one step do so in no order.
        let ends = |a: &Said, b: &Said| a.tokens.is_empty() && b.tokens.is_empty();
        told.chunk_by_mut(ends)
            .for_each(|ended| ended.sort_by(|a, b| a.word.cmp(&b.word)));
    }
    for n in 0..ours.told.len().max(theirs.told.len()) {
        let same = match (ours.told.get(n), theirs.told.get(n)) {
            (Some(ours), Some(theirs)) => alike(ours, theirs, &mut pairs),
            _ => false,
        };
        let told = [&ours.told[n..], &theirs.told[n..]].map(|told| &told[..told.len().min(3)]);
        assert!(same, "seed {seed}: {what} tells {told:?}\n{}", story.join("\n"));
    }
    for n in 0..all.len() {
        let Some(expected) = ours.grants(n, 0).await else {
            continue;
        };
        if let Some(grants) = theirs.grants(n, expected.len()).await {
            let same = expected.len() == grants.len()
                && expected.iter().zip(&grants).all(|(a, b)| alike(a, b, &mut pairs));
            assert!(
                same,
                "seed {seed}: {what} pushes {grants:?} to {n}, not {expected:?}\n{}",
                story.join("\n")
            );
        }
    }
}

/// Many names at the same time, so that requests travel together where they do.
async fn compare_all(what: &str, url: &str, window: Duration, tells: bool, seeds: Range<u64>) {
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(dlock::connect(url).await.unwrap().backend().clone());
    }
    let clients = &clients;
    join_all(seeds.map(|seed| compare(what, clients, window, tells, seed))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_answers_as_memory_does() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/locks.sqlite", dir.path().display());
    compare_all("SQLite", &url, QUEUE_TTL, false, 0..16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_answers_as_memory_does() {
    let server = RedisServer::start().unwrap();
    let url = format!("{}?claim_window=60s", server.url());
    compare_all("Redis", &url, WINDOW, true, 0..32).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_answers_as_memory_does() {
    let server = PostgresServer::start().unwrap();
    // Makes the tables. After each change of them what must be true of them is looked at.
    drop(dlock::connect(server.url()).await.unwrap());
    server
        .ask(include_str!("../../dlock-sql/tests/it/lease/invariants.sql"))
        .unwrap();
    compare_all("PostgreSQL", &server.url(), QUEUE_TTL, true, 0..24).await;
    compare_all(
        "PostgreSQL",
        &format!("{}?pooler=true", server.url()),
        QUEUE_TTL,
        true,
        24..32,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_answers_as_memory_does() {
    let server = MariaDbServer::start().unwrap();
    compare_all("MariaDB", &server.url(), QUEUE_TTL, false, 0..16).await;
}
