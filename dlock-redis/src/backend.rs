//! The one connection of a client, and what is asked on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, ErrorKind, LockName, Result, Runtime, Timestamp};
use futures::lock::Mutex;
use redis::{Cmd, Value};

use crate::connection::Connection;
use crate::failure::{nothing_done, perhaps_done};
use crate::handoff::HandOffs;
use crate::keys::{bucket_of, channel, holder, holder_and_counter, id_bytes};
use crate::replicas::Replicas;
use crate::reply::Reply;
use crate::scripts::{Script, Scripts};
use crate::subscriptions::Subscriptions;
use crate::wait::Pushes;

pub(crate) struct Backend {
    pub(crate) connection: Connection,
    /// The address without a password, for messages.
    pub(crate) at: Arc<str>,
    pub(crate) prefix: Arc<str>,
    pub(crate) window: Duration,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) pushes: Arc<Pushes>,
    /// Which names are watched.
    pub(crate) subscriptions: Subscriptions,
    pub(crate) handoffs: HandOffs,
    /// Who has to acknowledge a grant, if anybody.
    pub(crate) replicas: Option<Arc<Replicas>>,
    /// Where this client is told what it was granted, but for the bucket.
    pub(crate) client: u128,
    /// The channels that it is told on, by bucket on a cluster.
    pub(crate) channels: std::sync::Mutex<BTreeMap<u64, Arc<Channel>>>,
    pub(crate) closed: AtomicBool,
}

/// Where a client is told what it was granted.
pub(crate) struct Channel {
    pub(crate) name: Vec<u8>,
    subscribing: Mutex<()>,
    listens: AtomicBool,
}

/// What is asked of a script.
pub(crate) struct Call<'a> {
    backend: &'a Backend,
    script: &'a Script,
    command: Cmd,
}

impl Backend {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one field, and there is one caller"
    )]
    pub(crate) fn new(
        connection: Connection,
        scripts: Arc<Scripts>,
        at: Arc<str>,
        prefix: Arc<str>,
        window: Duration,
        runtime: Arc<dyn Runtime>,
        pushes: Arc<Pushes>,
        replicas: Option<Arc<Replicas>>,
    ) -> Self {
        let mut random = [0; 16];
        runtime.fill_random(&mut random);
        Self {
            connection,
            scripts,
            at,
            prefix,
            window,
            runtime,
            pushes,
            subscriptions: Subscriptions::default(),
            handoffs: HandOffs::default(),
            replicas,
            client: u128::from_ne_bytes(random),
            channels: std::sync::Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Closed, "this Redis backend was closed")),
            false => Ok(()),
        }
    }

    /// Where the holder of a name is: see [`holder`].
    pub(crate) fn holder(&self, name: &LockName) -> Vec<u8> {
        holder(&self.prefix, name)
    }

    /// A script on a name.
    pub(crate) fn on<'a>(&'a self, script: &'a Script, name: &LockName) -> Call<'a> {
        let (holder, counter) = holder_and_counter(&self.prefix, name);
        self.call(script, 2).arg(holder).arg(counter)
    }

    /// A script on a lease; its first argument is the id.
    pub(crate) fn about<'a>(&'a self, script: &'a Script, key: &LeaseKey) -> Call<'a> {
        self.on(script, &key.name).arg(id_bytes(key.id))
    }

    /// A script on so many keys, which come first of what it is given.
    pub(crate) fn call<'a>(&'a self, script: &'a Script, keys: usize) -> Call<'a> {
        // Enough for most: it is written once.
        let mut command = Cmd::with_capacity(10, 512);
        command.arg("EVALSHA").arg(&script.hash).arg(keys);
        Call {
            backend: self,
            script,
            command,
        }
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
                self.subscribe(&channel.name).await?;
                channel.listens.store(true, Ordering::Release);
            }
        }
        Ok(channel)
    }

    pub(crate) async fn subscribe(&self, channel: &[u8]) -> Result<()> {
        let subscribed = self.connection.subscribe(channel).await;
        subscribed.map_err(|e| nothing_done(e, &self.at))
    }

    pub(crate) async fn unsubscribe(&self, channel: &[u8]) {
        self.connection.unsubscribe(channel).await;
    }

    /// A command that changes nothing.
    pub(crate) async fn query(&self, command: &Cmd) -> Result<Value> {
        self.open()?;
        let answer = self.connection.query(command).await;
        answer.map_err(|e| nothing_done(e, &self.at))
    }
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

    /// The claim window.
    pub(crate) fn window(self) -> Self {
        let window = millis(self.backend.window);
        self.number(window)
    }

    /// Runs it: when it was sent, and the answer. Whoever calls limits the time.
    pub(crate) async fn run(self) -> Result<(Timestamp, Value)> {
        let c = self.backend;
        c.open()?;
        let sent = Timestamp::now();
        let answer = c.connection.invoke(self.script, &self.command).await;
        Ok((sent, answer.map_err(|e| perhaps_done(e, &c.at))?))
    }

    /// The same, for what runs where nobody limits the time.
    pub(crate) async fn run_within(self) -> Result<(Timestamp, Value)> {
        let c = self.backend;
        c.open()?;
        let sent = Timestamp::now();
        let answer = c
            .connection
            .within(c.connection.invoke(self.script, &self.command))
            .await;
        Ok((sent, answer.map_err(|e| perhaps_done(e, &c.at))?))
    }

    /// Runs it, and reads the answer as a list.
    pub(crate) async fn ask(self) -> Result<(Timestamp, Reply)> {
        let (sent, value) = self.run().await?;
        Ok((sent, Reply::new(value)?))
    }
}

/// As the scripts take it: whole milliseconds, rounded up.
pub(crate) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
