use std::fmt;
use std::future::Future;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use event_listener::{Event, EventListener};
use futures::future::{self, Either};
use futures::stream::{BoxStream, StreamExt as _, select_all};
use siphasher::sip::SipHasher24;

use super::diagnosis::of_each;
use super::shared_claims::shared_claims;
use crate::capabilities::Capabilities;
use crate::diagnosis::Finding;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Access, Admission, FenceGate, FencedValue};
use crate::inspection::{Change, Inspection};
use crate::mode::Mode;
use crate::name::LockName;
use crate::runtime::Runtime;
use crate::spi::{
    Abandoned, Acquire, Attempt, Converted, Fencing, LeaseKey, Lock, LostLeases, Page, Raised, Release,
    Released, Renew, RenewItem, RenewOutcome, RwLock, Signal, Watch,
};
use crate::timestamp::Timestamp;
use crate::token::{Strength, Token};

/// A backend of several backends, each of which stores a part of the names.
///
/// A name belongs to the shard with the highest rendezvous hash of (shard id, name), which is a fixed hash.
/// So every process that knows the same shards, in any order, looks for a name in the same place. Adding one
/// shard moves 1/N of the names to it and no others.
///
/// # What must hold
///
/// * **All processes know the same shards, by the same ids.** Two that disagree look for a name in two
///   places, and both get the lock. Change the list only while nothing is held.
/// * A name that moves to another shard meets another counter: its tokens start again, possibly lower, and a
///   fence gate that saw higher ones refuses them. Gate resources are distributed in the same way and may
///   move too.
/// * A shard that is away makes its own names unavailable and no others.
///
/// # Capabilities
///
/// It claims what every shard claims; its limits are the tightest of any shard.
///
/// # Signals
///
/// If a shard reports that *all* its leases are lost, the leases of its names are lost ([`LostLeases::of`])
/// and the others stand. Losses that name leases are passed on unchanged.
///
/// *The idea of the hash: "A Name-Based Mapping Scheme for Rendezvous", D. Thaler and C. Ravishankar, 1996.*
///
/// # Examples
/// ```
/// # dlock_core::doc(|_| async {
/// # use dlock_core as dlock;
/// use std::sync::Arc;
/// use std::time::Duration;
/// use dlock::combinators::{Shard, Sharded};
/// use dlock::{Client, Memory, runtime};
/// let runtime = runtime::own_thread()?;
/// let (east, west) = (Memory::new(runtime.clone()), Memory::new(runtime.clone()));
/// let shards = vec![Shard::new("east", east.connect()), Shard::new("west", west.connect())];
/// let backend = Sharded::new(shards, runtime.clone(), Duration::from_secs(1))?;
/// let client = Client::builder(Arc::new(backend), runtime).build()?;
/// client.lock("stock/42")?.acquire().await?.release().await?;
/// # Ok(()) });
/// ```
pub struct Sharded {
    shards: Arc<[Shard]>,
    capabilities: Capabilities,
    runtime: Arc<dyn Runtime>,
    patience: Duration,
}

/// The minimum wait for renewals of very short leases; the engine waits a little longer.
const SHORTEST_WAIT: Duration = Duration::from_millis(75);

/// One of the backends of [`Sharded`], with the id by which every process knows it.
#[derive(Clone)]
pub struct Shard {
    id: Arc<str>,
    backend: Arc<dyn Lock>,
}

impl Shard {
    /// Creates a shard. The id decides which names the shard stores, so never change it, even if the store
    /// moves to another address.
    pub fn new(id: impl Into<Arc<str>>, backend: Arc<dyn Lock>) -> Self {
        Self {
            id: id.into(),
            backend,
        }
    }

    /// The score of this shard for a name. Never change this function: processes of different versions must
    /// agree on it.
    fn score(&self, name: &LockName) -> u64 {
        let mut hash = SipHasher24::new_with_keys(0x646c_6f63_6b2d_7368, 0x6172_642d_7631_0000);
        // The length separates id and name, so that (`a`, `bc`) and (`ab`, `c`) have different scores.
        hash.write(&(self.id.len() as u64).to_le_bytes());
        hash.write(self.id.as_bytes());
        hash.write(name.as_bytes());
        hash.finish()
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({} on {})", self.id, self.backend.capabilities().backend)
    }
}

impl Sharded {
    /// Distributes the names over `shards`.
    ///
    /// A batch, such as a renewal, goes to all its shards at once and is answered as a whole. `patience` is
    /// how long the answers of the fast shards wait for a slow one before the items of that one fail as
    /// [`ErrorKind::Unknown`]. It must be well below the client's operation timeout; a third of that is a
    /// good choice. Renewals wait for a seventh of their shortest ttl if that is less, so that a shard that
    /// hangs does not delay the others.
    ///
    /// # Errors
    /// `InvalidInput` if there is no shard, if an id is empty or used twice, if `patience` is zero, or if the
    /// shards cannot form one backend: leases mixed with sessions, or ranges of ttl that do not overlap.
    pub fn new(shards: Vec<Shard>, runtime: Arc<dyn Runtime>, patience: Duration) -> Result<Self> {
        let bad = |message: String| Err(Error::new(ErrorKind::InvalidInput, message));
        for (n, shard) in shards.iter().enumerate() {
            if shard.id.is_empty() {
                return bad("a shard id needs at least one character".into());
            }
            if shards[..n].iter().any(|other| other.id == shard.id) {
                return bad(format!("two shards have the id `{}`", shard.id));
            }
        }
        if patience.is_zero() {
            return bad("`patience` must be more than zero".into());
        }
        let capabilities = shared_claims("sharded", shards.iter().map(|shard| &*shard.backend))?;
        Ok(Self {
            shards: shards.into(),
            capabilities,
            runtime,
            patience,
        })
    }

    /// Returns the id of the shard that stores this name.
    pub fn shard_of(&self, name: &LockName) -> &str {
        &self.shards[self.index_of(name)].id
    }

    fn index_of(&self, name: &LockName) -> usize {
        owner_of(&self.shards, name)
    }

    fn all_have(&self, part: impl Fn(&dyn Lock) -> bool) -> bool {
        self.shards.iter().all(|shard| part(&*shard.backend))
    }

    fn backend(&self, name: &LockName) -> &dyn Lock {
        &*self.shards[self.index_of(name)].backend
    }

    /// Sends each item to the shard of its name, to all shards at once, and returns the answers in the order
    /// of the items.
    async fn split<'a, I, A, F>(
        &'a self,
        items: &[I],
        patience: Duration,
        name: impl Fn(&I) -> &LockName,
        ask: impl Fn(&'a dyn Lock, Vec<I>) -> F,
        failed: impl Fn(Error) -> A,
    ) -> Vec<A>
    where
        I: Clone,
        F: Future<Output = Vec<A>> + Send,
    {
        let mut batches = vec![Vec::new(); self.shards.len()];
        for (n, item) in items.iter().enumerate() {
            batches[self.index_of(name(item))].push(n);
        }
        // While no shard has answered, a slow one delays nothing.
        let (answered, started) = (Event::new(), self.runtime.now());
        let asked = self
            .shards
            .iter()
            .zip(batches)
            .filter(|(_, batch)| !batch.is_empty())
            .map(|(shard, batch)| {
                let answers = ask(&*shard.backend, batch.iter().map(|n| items[*n].clone()).collect());
                let (failed, answered) = (&failed, &answered);
                let slow = Box::pin(self.too_late(answered.listen(), started, patience));
                async move {
                    let answers = match future::select(std::pin::pin!(answers), slow).await {
                        Either::Left((answers, _)) => {
                            answered.notify(usize::MAX);
                            answers
                        }
                        Either::Right(_) => Vec::new(),
                    };
                    // A request that a shard did not answer may have taken effect, so its outcome is not
                    // known.
                    let silent = || {
                        let message = format!("the shard `{}` did not answer in time", shard.id);
                        failed(Error::new(ErrorKind::Unknown, message))
                    };
                    batch
                        .into_iter()
                        .zip(answers.into_iter().chain(std::iter::repeat_with(silent)))
                        .collect::<Vec<_>>()
                }
            });
        let mut answers: Vec<_> = future::join_all(asked).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(n, _)| *n);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// How long the answers that are there wait for the others. If the first one took long, the others get a
    /// little longer.
    async fn too_late(&self, answered: EventListener, started: Timestamp, patience: Duration) {
        answered.await;
        let took = started.until(self.runtime.now());
        self.runtime
            .sleep(patience.saturating_sub(took).max(took / 8))
            .await;
    }

    fn missing(&self, name: &LockName, part: &str) -> Error {
        let id = self.shard_of(name);
        Error::new(ErrorKind::Unsupported, format!("the shard `{id}` has no {part}")).with_name(name)
    }

    fn gate_of(&self, resource: &LockName) -> Result<&dyn FenceGate> {
        let gate = self.backend(resource).fencing().and_then(Fencing::gate);
        gate.ok_or_else(|| self.missing(resource, "fence gate"))
    }

    fn watch_of(&self, name: &LockName) -> Result<&dyn Watch> {
        self.backend(name)
            .watch()
            .ok_or_else(|| self.missing(name, "watch"))
    }
}

fn owner_of(shards: &[Shard], name: &LockName) -> usize {
    // The id breaks ties, so that the order of the list does not matter.
    let by_score = |n: &usize| (shards[*n].score(name), &shards[*n].id);
    (0..shards.len())
        .max_by_key(by_score)
        .expect("checked in `new`: there is a shard")
}

impl fmt::Debug for Sharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharded")
            .field("shards", &self.shards)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Lock for Sharded {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.all_have(|backend| backend.renew().is_some()).then_some(self)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.all_have(|backend| backend.rwlock().is_some())
            .then_some(self)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.all_have(|backend| backend.fencing().is_some())
            .then_some(self)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        self.all_have(|backend| backend.watch().is_some()).then_some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let of_one = |(n, shard): (usize, &Shard)| {
            let shards = self.shards.clone();
            shard.backend.signals().map(move |signal| match signal {
                Signal::Lost(LostLeases::All, reason) => {
                    let shards = shards.clone();
                    let is_there = move |key: &LeaseKey| owner_of(&shards, &key.name) == n;
                    Signal::Lost(LostLeases::of(is_there), reason)
                }
                // Only leases of the names that this shard stores.
                Signal::Lost(lost @ LostLeases::Where(_), reason) => {
                    let shards = shards.clone();
                    let is_lost =
                        move |key: &LeaseKey| owner_of(&shards, &key.name) == n && lost.contains(key);
                    Signal::Lost(LostLeases::of(is_lost), reason)
                }
                other => other,
            })
        };
        select_all(self.shards.iter().enumerate().map(of_one)).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.backend(&request.key.name).attempt(request).await
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.backend(&lease.name).release(lease, how).await
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        self.split(requests, self.patience, |key| &key.name, abandon_all, Err)
            .await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let shards = self.shards.iter();
        let shards = shards.map(|shard| (format!("shard `{}`", shard.id), &*shard.backend));
        Ok(of_each(shards, &*self.runtime, self.patience).await)
    }

    async fn close(&self) -> Result<()> {
        // Closes all, even if one fails, and returns the first error.
        let closed = future::join_all(self.shards.iter().map(|shard| shard.backend.close())).await;
        closed.into_iter().collect()
    }
}

async fn abandon_all(backend: &dyn Lock, keys: Vec<LeaseKey>) -> Vec<Result<Abandoned>> {
    backend.abandon(&keys).await
}

#[async_trait]
impl Renew for Sharded {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        // Longer than a shard of several stores takes to answer for the stores that it reached, and well
        // within the engine's time limit for a batch.
        let shortest = items.iter().map(|item| item.ttl).min().unwrap_or_default();
        let patience = self.patience.min((shortest / 7).max(SHORTEST_WAIT));
        self.split(
            items,
            patience,
            |item| &item.key.name,
            renew_all,
            RenewOutcome::Failed,
        )
        .await
    }
}

async fn renew_all(backend: &dyn Lock, items: Vec<RenewItem>) -> Vec<RenewOutcome> {
    match backend.renew() {
        Some(part) => part.renew(&items).await,
        None => {
            let e = Error::new(ErrorKind::Unsupported, "the shard cannot renew leases");
            vec![RenewOutcome::Failed(e); items.len()]
        }
    }
}

#[async_trait]
impl RwLock for Sharded {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let part = self.backend(&lease.name).rwlock();
        part.ok_or_else(|| self.missing(&lease.name, "conversion"))?
            .convert(lease, to)
            .await
    }
}

#[async_trait]
impl Fencing for Sharded {
    fn strength(&self) -> Strength {
        // Only called where every shard has the part; the claimed strength is the weakest one.
        self.capabilities.strength.unwrap_or(Strength::WhileStateSurvives)
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.all_have(|backend| backend.fencing().is_some_and(|part| part.gate().is_some()))
            .then_some(self)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let part = self.backend(&lease.name).fencing();
        part.ok_or_else(|| self.missing(&lease.name, "fencing"))?
            .raise(lease, to)
            .await
    }
}

#[async_trait]
impl FenceGate for Sharded {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.gate_of(resource)?.admit(resource, token, access).await
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.gate_of(resource)?.write(resource, token, value).await
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.gate_of(resource)?.read(resource).await
    }
}

#[async_trait]
impl Watch for Sharded {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        self.watch_of(name)?.watch(name).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.watch_of(name)?.inspect(name).await
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.watch_of(name)?.force_release(name).await
    }

    /// Lists one shard after the other. A page starts with the number of its shard and the shard's own start,
    /// which a byte separates, since it may be empty.
    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let (shard, from) = match from.map(|from| from.split_first_chunk()) {
            None => (0, None),
            Some(Some((shard, from))) => (
                u32::from_be_bytes(*shard),
                from.split_first().map(|(_, from)| from),
            ),
            Some(None) => {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    "no page of a sharded backend",
                ));
            }
        };
        let n = shard as usize;
        let Some(watch) = self.shards.get(n).and_then(|one| one.backend.watch()) else {
            return Ok(Page::default());
        };
        let page = watch.list(prefix, from).await?;
        let next = match page.next {
            Some(from) => [&shard.to_be_bytes(), &b":"[..], &from].concat(),
            None => (shard + 1).to_be_bytes().to_vec(),
        };
        // Names that a shard still has, but that belong to another shard by now, are skipped.
        let names = page
            .names
            .into_iter()
            .filter(|name| owner_of(&self.shards, name) == n);
        Ok(Page::new(names.collect(), Some(next)))
    }
}
