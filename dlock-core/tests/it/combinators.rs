//! Namespaces and shards, over the memory backend.
#![cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use dlock_core::combinators::{Namespaced, Quorum, Shard, Sharded};
use dlock_core::memory::{Config, Memory};
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Lock, LostLeases, Page, Push, Release, Released,
    Renew, RenewItem, RenewOutcome, Signal, Wake, Watch,
};
use dlock_core::{
    Access, Capabilities, Capability, Change, Error, ErrorKind, Finding, Inspection, LockName, LossReason,
    Mode, RequestId, Result, Runtime, Severity, Token, runtime,
};
use futures::StreamExt as _;
use futures::executor::block_on;
use futures::future::pending;
use futures::stream::{self, BoxStream};

const TTL: Duration = Duration::from_secs(60);

fn rt() -> Arc<dyn Runtime> {
    runtime::own_thread().unwrap()
}

fn name(bytes: impl AsRef<[u8]>) -> LockName {
    LockName::new(bytes).unwrap()
}

fn key(bytes: impl AsRef<[u8]>, n: u64) -> LeaseKey {
    LeaseKey::new(name(bytes), RequestId::new(7, n))
}

fn request(key: &LeaseKey) -> Acquire {
    Acquire::new(key.clone(), TTL)
}

fn granted(backend: &dyn Lock, key: &LeaseKey) -> Grant {
    match block_on(backend.attempt(&request(key))).unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("{key:?}: {other:?}"),
    }
}

fn is_held(backend: &dyn Lock, key: &LeaseKey) -> bool {
    matches!(
        block_on(backend.attempt(&request(key))).unwrap(),
        Attempt::Held(_)
    )
}

/// A backend with faults of its own: it says what it is told to, and its renewals can hang.
struct Odd {
    inner: Arc<dyn Lock>,
    says: Vec<Signal>,
    /// An answer that never comes, where there is none.
    diagnosis: Option<Result<Vec<Finding>>>,
    renewal_hangs: bool,
}

impl Odd {
    fn on(store: &Memory) -> Self {
        Self {
            inner: store.connect(),
            says: Vec::new(),
            diagnosis: None,
            renewal_hangs: false,
        }
    }
}

#[async_trait]
impl Lock for Odd {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn renew(&self) -> Option<&dyn dlock_core::spi::Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn dlock_core::spi::RwLock> {
        self.inner.rwlock()
    }

    fn fencing(&self) -> Option<&dyn dlock_core::spi::Fencing> {
        self.inner.fencing()
    }

    fn watch(&self) -> Option<&dyn Watch> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        stream::iter(self.says.clone()).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.inner.attempt(request).await
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.inner.release(lease, how).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        self.inner.abandon(requests).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        match &self.diagnosis {
            Some(diagnosis) => diagnosis.clone(),
            None => pending().await,
        }
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}

#[async_trait]
impl Renew for Odd {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        if self.renewal_hangs {
            pending::<()>().await;
        }
        self.inner.renew().unwrap().renew(items).await
    }
}

#[async_trait]
impl Watch for Odd {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.inner.watch().unwrap().watch(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.inner.watch().unwrap().inspect(name).await
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.inner.watch().unwrap().force_release(name).await
    }

    /// One name a page; where the next one begins is how long the text is.
    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let mut names = self.inner.watch().unwrap().list(prefix, None).await?.names;
        names.sort();
        let n = from.map_or(0, |from| from.len() + 1);
        let next = (n + 1 < names.len()).then(|| vec![b'.'; n]);
        Ok(Page::new(names[n..].iter().take(1).cloned().collect(), next))
    }
}

fn in_namespace(store: &Memory, namespace: &str) -> Arc<dyn Lock> {
    Arc::new(Namespaced::new(store.connect(), namespace).unwrap())
}

#[test]
fn no_two_pairs_of_namespace_and_name_are_the_same_lock() {
    let store = Memory::new(rt());
    let pairs = [
        ("n", "a:b"),
        ("n:a", "b"),
        ("n", "a,b"),
        ("n,a", "b"),
        ("n", "b"),
        ("1:n", "b"),
        ("1:n,", "b"),
    ];
    for (n, (namespace, lock)) in pairs.into_iter().enumerate() {
        granted(&*in_namespace(&store, namespace), &key(lock, n as u64));
    }
    for (namespace, lock) in pairs {
        assert!(
            is_held(&*in_namespace(&store, namespace), &key(lock, 99)),
            "({namespace}, {lock})"
        );
    }
}

#[test]
fn namespaces_nest() {
    let store = Memory::new(rt());
    let outer = in_namespace(&store, "outer");
    let nested = Namespaced::new(outer.clone(), "inner").unwrap();
    let k = key("x", 1);
    assert_eq!(granted(&nested, &k).key, k);
    granted(&*outer, &key("x", 2));
    granted(&*in_namespace(&store, "inner"), &key("x", 3));
}

#[test]
fn namespace_shows_only_its_own_names() {
    let store = Memory::new(rt());
    let backend = in_namespace(&store, "shop");
    let (first, second) = (key("x", 1), key("x", 2));
    assert_eq!(granted(&*backend, &first).key, first);

    let queued = block_on(backend.attempt(&request(&second).with_queue(TTL))).unwrap();
    let Attempt::Queued(wait) = queued else {
        panic!("{queued:?}")
    };
    let Wake::Push(mut pushes) = wait.wake else {
        panic!("the memory backend pushes")
    };
    let renewed = block_on(
        backend
            .renew()
            .unwrap()
            .renew(&[RenewItem::lease(first.clone(), TTL)]),
    );
    assert!(matches!(renewed[..], [RenewOutcome::Renewed(_)]), "{renewed:?}");
    assert_eq!(
        block_on(backend.release(&first, Release::Now)).unwrap(),
        Released::Released
    );
    match block_on(pushes.next()) {
        Some(Push::Granted(grant)) => assert_eq!(grant.key, second),
        other => panic!("{other:?}"),
    }
    let renewed = block_on(
        backend
            .renew()
            .unwrap()
            .renew(&[RenewItem::queued(second.clone(), TTL)]),
    );
    match &renewed[..] {
        [RenewOutcome::Granted(grant)] => assert_eq!(grant.key, second),
        other => panic!("{other:?}"),
    }
    match block_on(backend.rwlock().unwrap().convert(&second, Mode::READER)).unwrap() {
        Converted::Done(grant) => assert_eq!(grant.key, second),
        other => panic!("{other:?}"),
    }
    let abandoned = block_on(backend.abandon(&[second.clone(), key("y", 3)]));
    assert!(
        matches!(
            abandoned[..],
            [Ok(Abandoned::WasGranted(_)), Ok(Abandoned::Nothing)]
        ),
        "{abandoned:?}"
    );
    let e = block_on(backend.attempt(&request(&second))).unwrap_err();
    assert!(e.name().is_none_or(|n| *n == second.name), "{e}");
}

#[test]
fn a_watcher_in_a_namespace_sees_and_ends_only_what_is_there() {
    let store = Memory::new(rt());
    let (mine, theirs) = (in_namespace(&store, "mine"), in_namespace(&store, "theirs"));
    granted(&*mine, &key("x", 1));
    granted(&*theirs, &key("x", 2));
    let watch = mine.watch().unwrap();
    let seen = block_on(watch.inspect(&name("x"))).unwrap();
    assert_eq!(
        seen.holders.iter().map(|h| h.id).collect::<Vec<_>>(),
        [key("x", 1).id]
    );
    let first = block_on(async { watch.watch(&name("x")).await.unwrap().next().await });
    assert!(matches!(first, Some(Ok(Change::Snapshot { now, .. })) if now == seen || now.holders.len() == 1));
    assert_eq!(block_on(watch.force_release(&name("x"))).unwrap(), 1);
    assert!(!is_held(&*mine, &key("x", 3)));
    assert!(is_held(&*theirs, &key("x", 3)));
}

#[test]
fn gate_resources_of_two_namespaces_are_two() {
    let store = Memory::new(rt());
    let (mine, theirs) = (in_namespace(&store, "mine"), in_namespace(&store, "theirs"));
    let (high, low) = (Token::new(9).unwrap(), Token::new(3).unwrap());
    let gate = |backend: &Arc<dyn Lock>, token| {
        let gate = backend.fencing().unwrap().gate().unwrap();
        block_on(gate.admit(&name("r"), token, Access::Exclusive))
            .unwrap()
            .is_admitted()
    };
    assert!(gate(&mine, high));
    assert!(gate(&theirs, low));
    assert!(!gate(&mine, low));
    let gate = mine.fencing().unwrap().gate().unwrap();
    assert!(
        block_on(gate.write(&name("r"), high, b"v"))
            .unwrap()
            .is_admitted()
    );
    assert_eq!(block_on(gate.read(&name("r"))).unwrap().unwrap().value, b"v");
    let other = theirs.fencing().unwrap().gate().unwrap();
    assert!(
        block_on(other.read(&name("r")))
            .unwrap()
            .unwrap()
            .value
            .is_empty()
    );
}

#[test]
fn losses_of_other_namespaces_are_not_reported() {
    let store = Memory::new(rt());
    let mut odd = Odd::on(&store);
    let these = |keys: Vec<LeaseKey>| Signal::Lost(LostLeases::These(keys), LossReason::SessionLost);
    odd.says = vec![
        these(vec![key("1:n,x", 1), key("1:m,x", 2), key("x", 3)]),
        these(vec![key("1:m,y", 4)]),
        Signal::Lost(LostLeases::All, LossReason::SessionLost),
        Signal::Lost(LostLeases::of(|k| *k == key("1:n,z", 5)), LossReason::SessionLost),
    ];
    let backend = Namespaced::new(Arc::new(odd), "n").unwrap();
    let told: Vec<_> = block_on(backend.signals().collect());
    match &told[..] {
        [
            Signal::Lost(LostLeases::These(keys), LossReason::SessionLost),
            Signal::Lost(LostLeases::All, _),
            Signal::Lost(lost, _),
        ] => {
            assert_eq!(*keys, [key("x", 1)]);
            assert!(lost.contains(&key("z", 5)) && !lost.contains(&key("z", 6)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn namespace_shortens_the_longest_name() {
    let store = Config::new().max_name_len(1024).connect(rt());
    let backend = in_namespace(&store, "shop");
    assert_eq!(backend.capabilities().max_name_len, 1024 - "4:shop,".len());
    granted(&*backend, &key(vec![b'x'; 1024 - "4:shop,".len()], 1));
    for bad in [String::new(), "n".repeat(1024)] {
        assert_eq!(
            Namespaced::new(store.connect(), bad).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
}

fn shards(ids: &[&str]) -> (Vec<Memory>, Vec<Shard>) {
    let stores: Vec<_> = ids.iter().map(|_| Memory::new(rt())).collect();
    let shards = ids
        .iter()
        .zip(&stores)
        .map(|(id, store)| Shard::new(*id, store.connect()))
        .collect();
    (stores, shards)
}

fn sharded(ids: &[&str]) -> Sharded {
    Sharded::new(shards(ids).1, rt(), TTL).unwrap()
}

#[test]
fn order_of_shards_does_not_matter() {
    let (stores, first) = shards(&["a", "b", "c"]);
    let second = ["c", "a", "b"]
        .into_iter()
        .zip([2, 0, 1])
        .map(|(id, n)| Shard::new(id, stores[n].connect()));
    let first = Sharded::new(first, rt(), TTL).unwrap();
    let second = Sharded::new(second.collect(), rt(), TTL).unwrap();
    for n in 0..200 {
        let (a, b) = (key(format!("name{n}"), 2 * n), key(format!("name{n}"), 2 * n + 1));
        granted(&first, &a);
        assert!(is_held(&second, &b));
    }
    let spread: Vec<_> = stores.iter().map(|store| store.sizes().names).collect();
    assert!(spread.iter().all(|n| *n > 40), "200 names are spread {spread:?}");
}

/// The hash is the agreement between versions of this crate. If this fails, two versions running side by side
/// would grant one name twice: mend the hash, not the test.
#[test]
fn names_stay_where_earlier_versions_look_for_them() {
    let backend = sharded(&["eu-1", "eu-2", "us-1"]);
    let at = |n: &str| backend.shard_of(&name(n)).to_owned();
    let found: Vec<_> = ["", "stock/42", "nightly", "\u{e9}", "orders:7"]
        .iter()
        .map(|n| at(&format!("x{n}")))
        .collect();
    assert_eq!(found, ["us-1", "eu-1", "us-1", "us-1", "eu-2"]);
}

#[test]
fn one_shard_more_takes_its_share_and_moves_nothing_else() {
    let before = sharded(&["a", "b", "c", "d"]);
    let after = sharded(&["a", "b", "c", "d", "e"]);
    let mut moved = 0;
    for n in 0..2000 {
        let n = name(format!("name{n}"));
        if before.shard_of(&n) != after.shard_of(&n) {
            assert_eq!(after.shard_of(&n), "e");
            moved += 1;
        }
    }
    assert!(
        (320..480).contains(&moved),
        "a fifth of 2000 is 400, moved {moved}"
    );
}

#[test]
fn findings_carry_the_name_of_their_store() {
    let store = Memory::new(rt());
    let says = |diagnosis| -> Arc<dyn Lock> {
        Arc::new(Odd {
            diagnosis,
            ..Odd::on(&store)
        })
    };
    let good = says(Some(Ok(vec![Finding::good("server", "well")])));
    let bad = says(Some(Err(Error::new(ErrorKind::PermissionDenied, "no right"))));
    let stores = [good, bad, says(None)];
    let shards = stores
        .iter()
        .zip(["a", "b", "c"])
        .map(|(store, id)| Shard::new(id, store.clone()));
    let patience = Duration::from_millis(20);
    let sharded = Sharded::new(shards.collect(), rt(), patience).unwrap();
    let quorum = Quorum::new(stores.to_vec(), rt(), patience).unwrap();
    let of = |backend: &dyn Lock| {
        let found = block_on(backend.diagnose()).unwrap();
        found
            .into_iter()
            .map(|finding| (finding.severity, finding.text))
            .collect::<Vec<_>>()
    };
    for (found, names) in [
        (of(&sharded), ["shard `a`", "shard `b`", "shard `c`"]),
        (of(&quorum), ["member 1", "member 2", "member 3"]),
    ] {
        let [well, refused, silent] = names;
        assert_eq!(
            found,
            [
                (Severity::Good, format!("{well}: well")),
                (Severity::Problem, format!("{refused}: no right")),
                (Severity::Problem, format!("{silent}: no answer within 20ms")),
            ]
        );
    }
    assert_eq!(block_on(store.connect().diagnose()).unwrap(), []);
}

#[test]
fn batches_over_shards_are_answered_in_order() {
    let backend = sharded(&["a", "b", "c"]);
    let keys: Vec<_> = (0..60).map(|n| key(format!("name{n}"), n)).collect();
    // Every other one is held; the answers must tell which.
    for held in keys.iter().step_by(2) {
        granted(&backend, held);
    }
    let items: Vec<_> = keys.iter().map(|k| RenewItem::lease(k.clone(), TTL)).collect();
    let lock: &dyn Lock = &backend;
    let answers = block_on(lock.renew().unwrap().renew(&items));
    assert_eq!(answers.len(), 60);
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            RenewOutcome::Renewed(_) => assert_eq!(n % 2, 0, "{n}"),
            RenewOutcome::Gone => assert_eq!(n % 2, 1, "{n}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    let answers = block_on(backend.abandon(&keys));
    assert_eq!(answers.len(), 60);
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(Abandoned::WasGranted(_)) => assert_eq!(n % 2, 0, "{n}"),
            Ok(Abandoned::Nothing) => assert_eq!(n % 2, 1, "{n}"),
            other => panic!("{n}: {other:?}"),
        }
    }
}

#[test]
fn hanging_shard_fails_no_renewal_of_another() {
    let (good, bad) = (Memory::new(rt()), Memory::new(rt()));
    let hanging = Odd {
        renewal_hangs: true,
        ..Odd::on(&bad)
    };
    let patience = Duration::from_millis(50);
    let list = vec![
        Shard::new("good", good.connect()),
        Shard::new("bad", Arc::new(hanging)),
    ];
    let backend = Sharded::new(list, rt(), patience).unwrap();
    let keys: Vec<_> = (0..40).map(|n| key(format!("name{n}"), n)).collect();
    for k in &keys {
        granted(&backend, k);
    }
    let items: Vec<_> = keys.iter().map(|k| RenewItem::lease(k.clone(), TTL)).collect();
    let started = Instant::now();
    let lock: &dyn Lock = &backend;
    let answers = block_on(lock.renew().unwrap().renew(&items));
    assert!(started.elapsed() >= patience && started.elapsed() < TTL / 2);
    let mut seen = [0, 0];
    for (k, answer) in keys.iter().zip(&answers) {
        match (backend.shard_of(&k.name), answer) {
            ("good", RenewOutcome::Renewed(_)) => seen[0] += 1,
            ("bad", RenewOutcome::Failed(e)) => {
                assert_eq!(e.kind(), ErrorKind::Unknown);
                assert!(e.to_string().contains("`bad`"), "{e}");
                seen[1] += 1;
            }
            other => panic!("{k:?}: {other:?}"),
        }
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
}

#[test]
fn the_loss_of_one_shard_is_that_of_its_names() {
    let (a, b) = (Memory::new(rt()), Memory::new(rt()));
    let mut odd = Odd::on(&a);
    odd.says = vec![
        Signal::Lost(LostLeases::All, LossReason::SessionLost),
        Signal::Lost(LostLeases::These(vec![key("x", 1)]), LossReason::SessionLost),
        Signal::Lost(LostLeases::of(|_| true), LossReason::SessionLost),
        Signal::Back,
    ];
    let list = vec![Shard::new("a", Arc::new(odd)), Shard::new("b", b.connect())];
    let backend = Sharded::new(list, rt(), TTL).unwrap();
    // The other shard's stream stays open and silent.
    let told: Vec<_> = block_on(backend.signals().take(4).collect());
    match &told[..] {
        [
            Signal::Lost(lost @ LostLeases::Where(_), LossReason::SessionLost),
            Signal::Lost(LostLeases::These(keys), _),
            Signal::Lost(all_of_its_own, _),
            Signal::Back,
        ] => {
            assert_eq!(*keys, [key("x", 1)]);
            let names: Vec<_> = (0..100).map(|n| key(format!("name{n}"), n)).collect();
            assert!(names.iter().any(|k| lost.contains(k)) && !names.iter().all(|k| lost.contains(k)));
            for k in &names {
                let is_there = backend.shard_of(&k.name) == "a";
                assert_eq!(
                    (lost.contains(k), all_of_its_own.contains(k)),
                    (is_there, is_there),
                    "{k:?}"
                );
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_part_finds_the_shard_of_its_name() {
    let backend = sharded(&["a", "b", "c"]);
    let lock: &dyn Lock = &backend;
    let permit = Mode::permit(NonZeroU32::new(2).unwrap());
    for n in 0..20 {
        let k = key(format!("name{n}"), n);
        granted(lock, &k);
        assert_eq!(
            block_on(lock.watch().unwrap().inspect(&k.name))
                .unwrap()
                .holders
                .len(),
            1
        );
        let done = block_on(lock.rwlock().unwrap().convert(&k, Mode::READER)).unwrap();
        assert!(matches!(done, Converted::Done(_)));
        let gate = lock.fencing().unwrap().gate().unwrap();
        assert!(
            block_on(gate.write(&k.name, Token::MIN, b"v"))
                .unwrap()
                .is_admitted()
        );
        assert_eq!(block_on(gate.read(&k.name)).unwrap().unwrap().value, b"v");
        let mixed = Acquire::new(key(format!("name{n}"), 100 + n), TTL).with_mode(permit);
        assert_eq!(
            block_on(lock.attempt(&mixed)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        assert_eq!(block_on(lock.watch().unwrap().force_release(&k.name)).unwrap(), 1);
        assert_eq!(
            block_on(lock.release(&k, Release::Now)).unwrap(),
            Released::NotHeld
        );
    }
    assert!(block_on(lock.close()).is_ok());
    assert_eq!(
        block_on(lock.attempt(&request(&key("x", 999))))
            .unwrap_err()
            .kind(),
        ErrorKind::Closed
    );
}

#[test]
fn a_part_that_one_shard_lacks_is_not_claimed() {
    let poor = Config::new()
        .without(Capability::Gate)
        .without(Capability::Queue)
        .connect(rt());
    let rich = Memory::new(rt());
    let list = vec![
        Shard::new("rich", rich.connect()),
        Shard::new("poor", poor.connect()),
    ];
    let backend = Sharded::new(list, rt(), TTL).unwrap();
    assert!(!backend.capabilities().has(Capability::Gate) && !backend.capabilities().has(Capability::Queue));
    let lock: &dyn Lock = &backend;
    assert!(lock.fencing().unwrap().gate().is_none());
}

#[test]
fn shards_behind_an_empty_page_are_listed() {
    let (a, b) = (Memory::new(rt()), Memory::new(rt()));
    let list = vec![
        Shard::new("a", Arc::new(Odd::on(&a))),
        Shard::new("b", Arc::new(Odd::on(&b))),
    ];
    let backend = Sharded::new(list, rt(), TTL).unwrap();
    let names: Vec<_> = (0..20).map(|n| name(format!("n{n:02}"))).collect();
    for name in &names {
        granted(&backend, &key(name.as_bytes(), 1));
    }
    let (mut listed, mut from, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = block_on(Watch::list(&backend, b"", from.as_deref())).unwrap();
        listed.extend(page.names);
        (from, pages) = (page.next, pages + 1);
        assert!(pages < 30, "it goes round");
        if from.is_none() {
            break;
        }
    }
    listed.sort();
    assert_eq!(listed, names);
}

#[test]
fn invalid_shard_lists_are_refused() {
    for ids in [&[][..], &["a", "a"], &["a", ""]] {
        assert_eq!(
            Sharded::new(shards(ids).1, rt(), TTL).unwrap_err().kind(),
            ErrorKind::InvalidInput,
            "{ids:?}"
        );
    }
    assert!(Sharded::new(shards(&["a"]).1, rt(), Duration::ZERO).is_err());
}
