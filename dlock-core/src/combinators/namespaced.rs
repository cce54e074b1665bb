use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::ready;
use futures::stream::BoxStream;

use crate::capabilities::Capabilities;
use crate::diagnosis::Finding;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::{Access, Admission, FenceGate, FencedValue};
use crate::inspection::{Change, Inspection};
use crate::mode::Mode;
use crate::name::LockName;
use crate::spi::{
    Abandoned, Acquire, Attempt, Converted, Fencing, Grant, LeaseKey, Lock, LostLeases, Page, Push, Raised,
    Release, Released, Renew, RenewItem, RenewOutcome, RwLock, Signal, Wait, Wake, Watch, capabilities_of,
};
use crate::token::{Strength, Token};

/// A backend whose lock names and gate resources are in a namespace of a larger store.
///
/// A name is stored as `<length of the namespace>:<namespace>,<name>`, so no two pairs of namespace and name
/// have the same stored name, whatever bytes they contain. Namespaces can be nested.
/// [`stored_name`](Self::stored_name) returns the stored form, for code that uses the store beside `dlock`,
/// such as a fence gate inside your own transaction. The prefix counts towards the store's longest name
/// ([`Capabilities::max_name_len`]).
///
/// A program that uses the store *without* a namespace could ask for a name of that very form. So let all
/// programs of one store use namespaces, or none.
///
/// # Examples
/// ```
/// # dlock_core::doc(|_| async {
/// # use dlock_core as dlock;
/// use std::sync::Arc;
/// use dlock::combinators::Namespaced;
/// use dlock::{Client, Memory, runtime};
/// let runtime = runtime::own_thread()?;
/// let store = Memory::new(runtime.clone());
/// let of = |namespace: &str| {
///     let backend = Namespaced::new(store.connect(), namespace)?;
///     Client::builder(Arc::new(backend), runtime.clone()).build()
/// };
/// let (shop, billing) = (of("shop")?, of("billing")?);
/// let ours = shop.lock("nightly")?.acquire().await?;
/// assert!(billing.lock("nightly")?.try_acquire().await?.is_some());
/// assert!(of("shop")?.lock("nightly")?.try_acquire().await?.is_none());
/// # drop(ours);
/// # Ok(()) });
/// ```
pub struct Namespaced {
    inner: Arc<dyn Lock>,
    prefix: Box<[u8]>,
    capabilities: Capabilities,
}

impl Namespaced {
    /// Creates a view of `inner` through `namespace`.
    ///
    /// # Errors
    /// `InvalidInput` if the namespace is empty, or so long that the store has no room for a name after it.
    pub fn new(inner: Arc<dyn Lock>, namespace: impl AsRef<[u8]>) -> Result<Self> {
        let prefix = prefix(namespace.as_ref())?;
        let capabilities = capabilities_of(&*inner);
        let room = capabilities.max_name_len.saturating_sub(prefix.len());
        if room == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the namespace leaves no room for a name in the store: choose a shorter one",
            ));
        }
        let capabilities = capabilities.with_max_name_len(room);
        Ok(Self {
            inner,
            prefix: prefix.into(),
            capabilities,
        })
    }

    /// Returns the name under which the store has a lock or gate resource of `namespace`.
    ///
    /// # Errors
    /// `InvalidInput` if the namespace is empty.
    ///
    /// # Examples
    /// ```
    /// # use dlock_core as dlock;
    /// use dlock::LockName;
    /// use dlock::combinators::Namespaced;
    /// let stored = Namespaced::stored_name("shop", &LockName::new("stock")?)?;
    /// assert_eq!(stored.as_bytes(), b"4:shop,stock");
    /// # Ok::<(), dlock_core::Error>(())
    /// ```
    pub fn stored_name(namespace: impl AsRef<[u8]>, name: &LockName) -> Result<LockName> {
        LockName::new([&*prefix(namespace.as_ref())?, name.as_bytes()].concat())
    }

    fn inside(&self, name: &LockName) -> LockName {
        name_inside(&self.prefix, name)
    }

    fn key_inside(&self, key: &LeaseKey) -> LeaseKey {
        inside(&self.prefix, key)
    }

    /// Replaces the store's name in an error by the name that the caller used.
    fn error(&self, e: Error) -> Error {
        e.map_name(|stored| strip(&self.prefix, stored))
    }

    fn with_outer_name<T>(&self, answer: Result<T>) -> Result<T> {
        answer.map_err(|e| self.error(e))
    }

    fn part<P>(&self, part: Option<P>, what: &str) -> Result<P> {
        part.ok_or_else(|| {
            let message = format!("the backend {} has no {what}", self.capabilities.backend);
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    fn inner_gate(&self) -> Result<&dyn FenceGate> {
        self.part(self.inner.fencing().and_then(Fencing::gate), "fence gate")
    }

    fn inner_watch(&self) -> Result<&dyn Watch> {
        self.part(self.inner.watch(), "watch")
    }
}

fn prefix(namespace: &[u8]) -> Result<Vec<u8>> {
    if namespace.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "a namespace needs at least one byte",
        ));
    }
    Ok([format!("{}:", namespace.len()).as_bytes(), namespace, b","].concat())
}

fn name_inside(prefix: &[u8], name: &LockName) -> LockName {
    LockName::new([prefix, name.as_bytes()].concat()).expect("a prefix is not empty")
}

fn inside(prefix: &[u8], key: &LeaseKey) -> LeaseKey {
    LeaseKey::new(name_inside(prefix, &key.name), key.id)
}

/// The name without the prefix; `None` if it belongs to another namespace.
fn strip(prefix: &[u8], stored: &LockName) -> Option<LockName> {
    LockName::new(stored.as_bytes().strip_prefix(prefix)?).ok()
}

/// A grant answers one request, so it has the key of that request.
fn rename(mut grant: Grant, ours: &LeaseKey) -> Grant {
    grant.key = ours.clone();
    grant
}

fn rename_pushes(mut wait: Wait, ours: LeaseKey) -> Wait {
    if let Wake::Push(pushes) = wait.wake {
        let renamed = pushes.map(move |push| match push {
            Push::Granted(grant) => Push::Granted(rename(grant, &ours)),
            other => other,
        });
        wait.wake = Wake::Push(renamed.boxed());
    }
    wait
}

impl fmt::Debug for Namespaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespaced")
            .field("prefix", &String::from_utf8_lossy(&self.prefix))
            .field("backend", &self.capabilities.backend)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Lock for Namespaced {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        self.inner.renew().map(|_| self as _)
    }

    fn rwlock(&self) -> Option<&dyn RwLock> {
        self.inner.rwlock().map(|_| self as _)
    }

    fn fencing(&self) -> Option<&dyn Fencing> {
        self.inner.fencing().map(|_| self as _)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        self.inner.watch().map(|_| self as _)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        let prefix = self.prefix.clone();
        // A shared connection has leases of other namespaces too; their losses are dropped.
        let ours = move |signal| {
            ready(match signal {
                Signal::Lost(LostLeases::These(keys), reason) => {
                    let keys: Vec<_> = keys
                        .into_iter()
                        .filter_map(|key| Some(LeaseKey::new(strip(&prefix, &key.name)?, key.id)))
                        .collect();
                    (!keys.is_empty()).then_some(Signal::Lost(LostLeases::These(keys), reason))
                }
                Signal::Lost(lost @ LostLeases::Where(_), reason) => {
                    let prefix = prefix.clone();
                    let is_lost = move |key: &LeaseKey| lost.contains(&inside(&prefix, key));
                    Some(Signal::Lost(LostLeases::of(is_lost), reason))
                }
                other => Some(other),
            })
        };
        self.inner.signals().filter_map(ours).boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        let ours = &request.key;
        let mut inside = request.clone();
        inside.key = self.key_inside(ours);
        Ok(match self.with_outer_name(self.inner.attempt(&inside).await)? {
            Attempt::Granted(grant) => Attempt::Granted(rename(grant, ours)),
            Attempt::Queued(wait) => Attempt::Queued(rename_pushes(wait, ours.clone())),
            Attempt::Held(wait) => Attempt::Held(rename_pushes(wait, ours.clone())),
        })
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        self.with_outer_name(self.inner.release(&self.key_inside(lease), how).await)
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let inside: Vec<_> = requests.iter().map(|key| self.key_inside(key)).collect();
        let answers = self.inner.abandon(&inside).await;
        answers
            .into_iter()
            .map(|answer| self.with_outer_name(answer))
            .collect()
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.with_outer_name(self.inner.diagnose().await)
    }

    async fn close(&self) -> Result<()> {
        self.with_outer_name(self.inner.close().await)
    }
}

#[async_trait]
impl Renew for Namespaced {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let renew = match self.part(self.inner.renew(), "renewal") {
            Ok(renew) => renew,
            Err(e) => return vec![RenewOutcome::Failed(e); items.len()],
        };
        let mut inside = items.to_vec();
        for item in &mut inside {
            item.key = self.key_inside(&item.key);
        }
        let answers = renew.renew(&inside).await;
        let answers = answers.into_iter().zip(items).map(|(answer, item)| match answer {
            RenewOutcome::Granted(grant) => RenewOutcome::Granted(rename(grant, &item.key)),
            RenewOutcome::Failed(e) => RenewOutcome::Failed(self.error(e)),
            other => other,
        });
        answers.collect()
    }
}

#[async_trait]
impl RwLock for Namespaced {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let part = self.part(self.inner.rwlock(), "conversion")?;
        Ok(
            match self.with_outer_name(part.convert(&self.key_inside(lease), to).await)? {
                Converted::Done(grant) => Converted::Done(rename(grant, lease)),
                other => other,
            },
        )
    }
}

#[async_trait]
impl Fencing for Namespaced {
    fn strength(&self) -> Strength {
        // Only called where the inner part exists, whose strength is the claimed one.
        self.capabilities.strength.unwrap_or(Strength::WhileStateSurvives)
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        self.inner.fencing()?.gate().map(|_| self as _)
    }

    async fn raise(&self, lease: &LeaseKey, to: Token) -> Result<Raised> {
        let part = self.part(self.inner.fencing(), "fencing")?;
        self.with_outer_name(part.raise(&self.key_inside(lease), to).await)
    }
}

#[async_trait]
impl FenceGate for Namespaced {
    async fn admit(&self, resource: &LockName, token: Token, access: Access) -> Result<Admission> {
        self.with_outer_name(
            self.inner_gate()?
                .admit(&self.inside(resource), token, access)
                .await,
        )
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        self.with_outer_name(
            self.inner_gate()?
                .write(&self.inside(resource), token, value)
                .await,
        )
    }

    async fn read(&self, resource: &LockName) -> Result<Option<FencedValue>> {
        self.with_outer_name(self.inner_gate()?.read(&self.inside(resource)).await)
    }
}

#[async_trait]
impl Watch for Namespaced {
    async fn watch(&self, name: &LockName) -> Result<BoxStream<'static, Result<Change>>> {
        let changes = self.with_outer_name(self.inner_watch()?.watch(&self.inside(name)).await)?;
        let prefix = self.prefix.clone();
        let ours = move |e: Error| e.map_name(|stored| strip(&prefix, stored));
        Ok(changes.map(move |change| change.map_err(&ours)).boxed())
    }

    async fn inspect(&self, name: &LockName) -> Result<Inspection> {
        self.with_outer_name(self.inner_watch()?.inspect(&self.inside(name)).await)
    }

    async fn force_release(&self, name: &LockName) -> Result<u32> {
        self.with_outer_name(self.inner_watch()?.force_release(&self.inside(name)).await)
    }

    async fn list(&self, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let inside = [&*self.prefix, prefix].concat();
        let page = self.with_outer_name(self.inner_watch()?.list(&inside, from).await)?;
        let names = page.names.iter().filter_map(|stored| strip(&self.prefix, stored));
        Ok(Page::new(names.collect(), page.next))
    }
}
