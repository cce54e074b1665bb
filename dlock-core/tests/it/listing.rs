//! The names in use: put together of the pages of a store, through a namespace and over shards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::combinators::{Namespaced, Shard, Sharded};
use dlock_core::spi::{self, Abandoned, Acquire, Attempt, LeaseKey, Page, Release, Released};
use dlock_core::{
    Capabilities, Capability, Change, Client, Error, ErrorKind, Inspection, LockName, Memory, Result, runtime,
};
use futures::executor::block_on;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};

fn name(text: impl AsRef<[u8]>) -> LockName {
    LockName::new(text).unwrap()
}

/// A store whose list has those pages. Where the next one begins is its number, and behind them is an error.
struct Paged {
    pages: Vec<&'static [&'static str]>,
    capabilities: Capabilities,
}

#[async_trait]
impl spi::Lock for Paged {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn watch(&self) -> Option<&dyn spi::Watch> {
        Some(self)
    }

    async fn attempt(&self, _: &Acquire) -> Result<Attempt> {
        unreachable!("nothing is locked")
    }

    async fn release(&self, _: &LeaseKey, _: Release) -> Result<Released> {
        unreachable!("nothing is locked")
    }

    async fn abandon(&self, _: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        unreachable!("nothing is locked")
    }
}

#[async_trait]
impl spi::Watch for Paged {
    async fn watch(&self, _: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        unreachable!("nobody watches")
    }

    async fn inspect(&self, _: &LockName) -> Result<Inspection> {
        unreachable!("nobody looks")
    }

    async fn force_release(&self, _: &LockName) -> Result<u32> {
        unreachable!("nothing is held")
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        assert_eq!(prefix, b"pre");
        let n = from.map_or(0, |from| from[0]);
        match self.pages.get(usize::from(n)) {
            Some(page) => Ok(Page::new(page.iter().map(name).collect(), Some(vec![n + 1]))),
            None => Err(Error::new(ErrorKind::Unavailable, "no more pages")),
        }
    }
}

fn paged(pages: Vec<&'static [&'static str]>, can_list: bool) -> Client {
    let capabilities = Capabilities::new("paged");
    let capabilities = if can_list {
        capabilities.with(Capability::List)
    } else {
        capabilities
    };
    let backend = Paged { pages, capabilities };
    Client::builder(Arc::new(backend), runtime::own_thread().unwrap())
        .build()
        .unwrap()
}

#[test]
fn each_name_is_listed_once_and_an_error_ends_the_list() {
    let client = paged(vec![&["b", "a"], &[], &["a", "c", "b"]], true);
    let told: Vec<_> = block_on(client.list("pre").unwrap().collect());
    let names: Vec<_> = told.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(names, ["b", "a", "c"]);
    let errors: Vec<_> = told.iter().filter_map(|told| told.as_ref().err()).collect();
    assert_eq!((told.len(), errors[0].kind()), (4, ErrorKind::Unavailable));
}

#[test]
fn pages_are_read_lazily() {
    let client = paged(vec![&["a"]], true);
    let mut names = client.list("pre").unwrap();
    assert_eq!(block_on(names.next()).unwrap().unwrap(), name("a"));
    block_on(client.close()).unwrap();
    assert_eq!(
        block_on(names.next()).unwrap().unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert!(block_on(names.next()).is_none());
}

#[test]
fn unclaimed_listing_sends_no_request() {
    assert_eq!(
        paged(vec![], false).list("pre").err().unwrap().kind(),
        ErrorKind::Unsupported
    );
}

#[test]
fn shards_and_namespaces_list_their_own() {
    let rt = runtime::own_thread().unwrap();
    let stores: Vec<_> = (0..3).map(|_| Memory::new(rt.clone())).collect();
    let shards = stores.iter().enumerate();
    let shards = shards
        .map(|(n, store)| Shard::new(n.to_string(), store.connect()))
        .collect();
    let sharded: Arc<dyn spi::Lock> =
        Arc::new(Sharded::new(shards, rt.clone(), Duration::from_secs(1)).unwrap());
    let client = |backend| Client::builder(backend, rt.clone()).build().unwrap();
    let inside = |namespace: &str| client(Arc::new(Namespaced::new(sharded.clone(), namespace).unwrap()));
    let list = |client: &Client, prefix: &str| -> BTreeSet<LockName> {
        block_on(client.list(prefix).unwrap().try_collect()).unwrap()
    };
    let names: BTreeSet<_> = (0..60).map(|n| name(format!("a/{n}"))).collect();
    let (one, other) = (inside("one"), inside("other"));
    let hold = |client: &Client, name: &LockName| block_on(client.lock(name).unwrap().acquire()).unwrap();
    let held: Vec<_> = names.iter().map(|name| hold(&one, name)).collect();
    let elsewhere = hold(&other, &name("a/elsewhere"));
    assert_eq!((list(&one, "a/"), list(&one, "")), (names.clone(), names));
    assert_eq!(list(&one, "b"), BTreeSet::new());
    assert_eq!(list(&other, "a"), BTreeSet::from([elsewhere.name().clone()]));
    // A shard that still has what is another's is not believed: nobody asks it for that name.
    let all = client(sharded.clone());
    let strays: Vec<_> = stores
        .iter()
        .map(|store| hold(&client(store.connect()), &name("stray")))
        .collect();
    let seen = list(&all, "stray");
    assert_eq!((seen.len(), list(&all, "").len()), (1, 62));
    drop((held, elsewhere, strays));
    let strange = block_on(sharded.watch().unwrap().list(b"", Some(b"?")));
    assert_eq!(strange.unwrap_err().kind(), ErrorKind::InvalidInput);
}
