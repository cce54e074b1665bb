//! The base of both recipes: what all clones of a lock share, and how a script is run.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::spi::{Grant, LeaseKey, News, Probe, Signal, Unanswered};
use dlock_core::{Capabilities, Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::lock::Mutex;
use futures::stream::{BoxStream, pending};
use redis::{Cmd, Value};

use crate::connection::Connection;
use crate::failure::{Failed, nothing_done, perhaps_done, timed_out};
use crate::handoff::HandOffs;
use crate::keys::{bucket_of, channel, holder, holder_and_counter, id_bytes};
use crate::replicas::Replicas;
use crate::reply::Reply;
use crate::scripts::{Script, Scripts};
use crate::wait::Pushes;

/// The servers, as either recipe uses them.
pub(crate) struct Store {
    pub(crate) connection: Connection,
    /// The address without a password, for messages.
    pub(crate) at: Arc<str>,
    pub(crate) prefix: Arc<str>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) unanswered: Unanswered,
    pub(crate) capabilities: Capabilities,
    pub(crate) closed: AtomicBool,
}

impl Store {
    pub(crate) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "this Redis backend was closed")),
            false => Ok(()),
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.pushes.close();
        self.connection.close();
    }

    pub(crate) fn signals(&self) -> BoxStream<'static, Signal> {
        self.pushes.signals().chain(pending()).boxed()
    }

    /// A script with that many keys, which are its first arguments.
    pub(crate) fn call<'a>(&'a self, script: &'a Script, keys: usize) -> Call<'a> {
        // Enough for most: it is written once.
        let mut command = Cmd::with_capacity(10, 512);
        command.arg("EVALSHA").arg(&*script.hash).arg(keys);
        Call {
            store: self,
            script,
            command,
        }
    }

    /// A command that changes nothing.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value> {
        self.open()?;
        let answer = self.connection.ask(&mut command.clone(), None).await;
        answer.map_err(|e| nothing_done(e, &self.at))
    }

    /// Of a request that was sent, and not answered in its time.
    pub(crate) fn too_late(&self) -> Error {
        perhaps_done(Failed::sent(timed_out()), &self.at)
    }
}

/// Whether a key exists: a cheap look that changes nothing, where a full attempt is a script. If a waiter
/// waits for anything but its end, the answer says that asking is worth while.
pub(crate) struct Exists {
    store: Arc<Store>,
    exists: Cmd,
}

impl Exists {
    pub(crate) fn new(store: Arc<Store>, key: Vec<u8>) -> Arc<Self> {
        let exists = redis::cmd("EXISTS").arg(key).to_owned();
        Arc::new(Self { store, exists })
    }
}

#[async_trait]
impl Probe for Exists {
    async fn look(&self) -> Result<News> {
        Ok(match self.store.query(&self.exists).await? {
            Value::Int(1) => News::Nothing,
            _ => News::Changed,
        })
    }
}

/// What is asked of a script.
pub(crate) struct Call<'a> {
    store: &'a Store,
    script: &'a Script,
    command: Cmd,
}

impl Call<'_> {
    pub(crate) fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.command.arg(arg.as_ref());
        self
    }

    pub(crate) fn number(mut self, number: u64) -> Self {
        self.command.arg(number);
        self
    }

    /// Runs it once. Returns when it was sent, and the answer. The caller limits the time.
    pub(crate) async fn run(&mut self) -> Result<(Timestamp, Value)> {
        self.store.open()?;
        let sent = Timestamp::now();
        let answer = self
            .store
            .connection
            .ask(&mut self.command, Some(self.script))
            .await;
        Ok((sent, answer.map_err(|e| perhaps_done(e, &self.store.at))?))
    }

    /// The same, where the caller sets no time limit.
    pub(crate) async fn run_within(&mut self) -> Result<(Timestamp, Value)> {
        let store = self.store;
        let limit = store.runtime.sleep(store.connection.timeout());
        match select(pin!(self.run()), limit).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err(store.too_late()),
        }
    }

    /// Runs it, and reads the answer as a list.
    pub(crate) async fn ask(&mut self) -> Result<(Timestamp, Reply)> {
        let (sent, value) = self.run().await?;
        Ok((sent, Reply::new(value)?))
    }
}

/// What all clones of a lock share.
pub(crate) struct Backend {
    pub(crate) store: Arc<Store>,
    pub(crate) window: Duration,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) handoffs: HandOffs,
    /// The replicas that must acknowledge a grant, if any.
    pub(crate) replicas: Option<Arc<Replicas>>,
    /// In the names of its channels.
    client: u128,
    /// The channels for this client's grants: one, or on a cluster one for each bucket.
    channels: std::sync::Mutex<BTreeMap<u64, Arc<Channel>>>,
}

impl Deref for Backend {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// The channel for a client's grants.
pub(crate) struct Channel {
    pub(crate) name: Vec<u8>,
    subscribing: Mutex<()>,
    listens: AtomicBool,
}

impl Backend {
    pub(crate) fn new(
        store: Arc<Store>,
        window: Duration,
        scripts: Arc<Scripts>,
        replicas: Option<Arc<Replicas>>,
    ) -> Self {
        let mut random = [0; 16];
        store.runtime.fill_random(&mut random);
        Self {
            store,
            window,
            scripts,
            handoffs: HandOffs::default(),
            replicas,
            client: u128::from_ne_bytes(random),
            channels: std::sync::Mutex::default(),
        }
    }

    /// Where the holder of a name is: see [`holder`].
    pub(crate) fn holder(&self, name: &LockName) -> Vec<u8> {
        holder(&self.prefix, name)
    }

    /// A script on the keys of a name.
    pub(crate) fn keys_of<'a>(&'a self, script: &'a Script, name: &LockName) -> Call<'a> {
        let (holder, counter) = holder_and_counter(&self.prefix, name);
        self.call(script, 2).arg(holder).arg(counter)
    }

    /// A script on a name; its first argument is the claim window.
    pub(crate) fn on<'a>(&'a self, script: &'a Script, name: &LockName) -> Call<'a> {
        self.keys_of(script, name).number(millis(self.window))
    }

    /// A script on a lease; its first arguments are the id and the claim window.
    pub(crate) fn about<'a>(&'a self, script: &'a Script, key: &LeaseKey) -> Call<'a> {
        let call = self.keys_of(script, &key.name).arg(id_bytes(key.id));
        call.number(millis(self.window))
    }

    /// Has this client told of its grants of that name, and where. A subscription that is gone is made again
    /// by the connection.
    pub(crate) async fn listen(&self, name: &LockName) -> Result<Arc<Channel>> {
        let spread = self.connection.is_spread();
        let channel = {
            let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
            let bucket = if spread { bucket_of(name.as_bytes()) } else { 0 };
            let channel = channels.entry(bucket).or_insert_with(|| {
                Arc::new(Channel {
                    name: channel(&self.prefix, spread.then_some(name), self.client),
                    subscribing: Mutex::new(()),
                    listens: AtomicBool::new(false),
                })
            });
            Arc::clone(channel)
        };
        if !channel.listens.load(Ordering::Acquire) {
            let _alone = channel.subscribing.lock().await;
            if !channel.listens.load(Ordering::Acquire) {
                // Once for a client: not in the future of each request.
                Box::pin(self.subscribe(&channel.name)).await?;
                channel.listens.store(true, Ordering::Release);
            }
        }
        Ok(channel)
    }

    /// Reads a grant, behind its word.
    pub(crate) fn granted(&self, key: &LeaseKey, sent: Timestamp, reply: &mut Reply) -> Result<Grant> {
        let (token, life) = (reply.token()?, reply.life()?);
        self.pushes.anchor(sent, reply.number()?);
        Ok(Grant::new(key.clone(), Some(token), sent, life))
    }

    /// Reads a place in the queue, behind its word: when to ask again, and how many are ahead.
    pub(crate) fn queued(
        &self,
        sent: Timestamp,
        reply: &mut Reply,
    ) -> Result<(Option<Duration>, Option<u32>)> {
        let recheck_in = reply.recheck()?;
        self.pushes.anchor(sent, reply.number()?);
        Ok((recheck_in, u32::try_from(reply.number()?).ok()))
    }

    pub(crate) async fn subscribe(&self, channel: &[u8]) -> Result<()> {
        let subscribed = self.connection.subscribe(channel).await;
        subscribed.map_err(|e| nothing_done(e, &self.at))
    }
}

/// As the scripts take it: whole milliseconds, rounded up.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
