//! What can be done to Redis, for the rules that need hands at the store.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_conformance::hooks::{Hooks, Offer, Restart, Step, Vitals};
use dlock_core::{Error, ErrorKind, LockName, Result};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::BoxFuture;

use dlock_testkit::{RedisCluster, RedisPair, RedisSentinel, RedisServer, Value};

/// Whose hands.
#[derive(Clone)]
#[allow(dead_code)] // who includes this has one of them
pub(crate) enum Store {
    /// It can be restarted, and its clock set if it has one of its own.
    One(Arc<RedisServer>),
    /// The same, and it can fail over, behind one address.
    Pair(Arc<RedisPair>),
    /// It can only fail over, to another address.
    Sentinel(Arc<RedisSentinel>),
    /// All of it can be restarted, and its clocks set if they are its own. Each name is on another node.
    Cluster(Arc<RedisCluster>),
}

impl Store {
    /// Does something with the server that answers at the moment for that key.
    fn serving<T>(&self, key: &[u8], work: impl FnOnce(&RedisServer) -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::One(server) => work(server),
            Self::Pair(pair) => work(pair.serving()),
            Self::Sentinel(all) => work(all.serving()?),
            Self::Cluster(cluster) => {
                let node = cluster.master_of(cluster.slot(key)?)?;
                work(&cluster.nodes()[node])
            }
        }
    }

    /// Those that have names: the one that answers, or all nodes.
    fn masters(&self) -> io::Result<Vec<&RedisServer>> {
        Ok(match self {
            Self::One(server) => vec![&**server],
            Self::Pair(pair) => vec![pair.serving()],
            Self::Sentinel(all) => vec![all.serving()?],
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
        })
    }

    /// All of its servers.
    fn servers(&self) -> &[RedisServer] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Pair(pair) => pair.servers(),
            Self::Sentinel(all) => all.servers(),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    fn look(&self) -> io::Result<Vitals> {
        let masters = self.masters()?;
        let runs = masters.iter().map(|server| server.run_id());
        let runs = runs.collect::<io::Result<Vec<_>>>()?;
        let clock = masters.first().map(|server| server.time()).transpose()?;
        let vitals = Vitals::new().run(runs.join(" ")).clock(clock.unwrap_or_default());
        Ok(match self {
            Self::One(_) | Self::Cluster(_) => vitals,
            Self::Pair(pair) => vitals.leader(pair.leader()),
            Self::Sentinel(all) => vitals.leader(all.leader()?),
        })
    }
}

/// The hooks of a server that has locks of `dlock-redis` under that prefix.
pub(crate) struct RedisHooks {
    store: Store,
    prefix: String,
    /// How many names were spoiled, each in another way than the one before.
    spoiled: AtomicUsize,
}

/// Blocking work, on a thread of its own once it is polled. Dropped, it is left to end.
fn apart<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> BoxFuture<'static, Result<T>> {
    async move {
        let (tell, told) = oneshot::channel();
        std::thread::spawn(move || drop(tell.send(work())));
        let done = told
            .await
            .unwrap_or_else(|_| Err(io::Error::other("it panicked")));
        done.map_err(|e| {
            Error::new(ErrorKind::Unavailable, "the server could not be tampered with").with_source(e)
        })
    }
    .boxed()
}

// --- where dlock-redis keeps a name ---

// Written down a second time on purpose: clients that differ in it do not exclude one another, so a change of
// the layout must fail somewhere, and here it does. There is no state where these rules look for it then.

/// `<prefix>{<bucket>}`.
fn bucket(prefix: &str, name: &LockName) -> Vec<u8> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in name.as_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{prefix}{{{:02x}}}", (hash ^ (hash >> 32)) & 0xff).into_bytes()
}

/// How many of those there are, and thus counters of tokens at most.
const BUCKETS: i64 = 256;

fn key(prefix: &str, kind: &str, name: &LockName) -> Vec<u8> {
    let length = format!(":{}:", name.as_bytes().len());
    [
        &bucket(prefix, name),
        length.as_bytes(),
        name.as_bytes(),
        kind.as_bytes(),
    ]
    .concat()
}

fn counter(prefix: &str, name: &LockName) -> Vec<u8> {
    [&bucket(prefix, name), &b":t"[..]].concat()
}

/// The exclusive holder, the entries, the queue, those who share.
fn state(prefix: &str, name: &LockName) -> [Vec<u8>; 4] {
    ["", ":e", ":q", ":s"].map(|kind| key(prefix, kind, name))
}

fn remove(server: &RedisServer, keys: &[Vec<u8>; 4]) -> io::Result<()> {
    let [x, e, q, s] = keys;
    server.ask(&[b"DEL", x.as_slice(), e, q, s]).map(drop)
}

/// All that a key has, in whatever form.
fn everything(server: &RedisServer, key: &[u8]) -> io::Result<Vec<u8>> {
    let kind = server.ask(&[b"TYPE", key])?.text();
    let all = match kind.as_str() {
        "string" => server.ask(&[b"GET", key])?,
        "hash" => server.ask(&[b"HGETALL", key])?,
        "list" => server.ask(&[b"LRANGE", key, b"0", b"-1"])?,
        "zset" => server.ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])?,
        "none" => Value::Nothing,
        other => Value::Bytes(format!("something of the type {other}").into_bytes()),
    };
    let mut bytes = Vec::new();
    append(&mut bytes, &all);
    Ok(bytes)
}

fn append(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bytes(b) => {
            bytes.extend_from_slice(b);
            bytes.push(b'\n');
        }
        Value::List(values) => values.iter().for_each(|v| append(bytes, v)),
        Value::Nothing | Value::Number(_) | Value::Error(_) => {}
    }
}

/// Counts in the server: keys of one value once, others by what they have; and channels. Apart from these the
/// counters of the tokens.
///
/// Keys that expire are not counted: tombstones of abandoned requests, which live for a minute, as many as
/// earlier rules abandoned; nor the channel of a client's grants (`}/c/`, on a cluster one of 256), which
/// goes with the client.
const COUNT: &str = "
local n, counters = 0, 0
local function listened_to(channels)
  local n = 0
  for _, channel in ipairs(channels) do
    if not channel:find('}/c/', 1, true) then n = n + 1 end
  end
  return n
end
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind = redis.call('TYPE', key).ok
  if #key == #ARGV[1] + 6 and key:sub(-3) == '}:t' then counters = counters + 1
  elseif key:find('}:t:', 1, true) and redis.call('PTTL', key) > 0 then
  elseif kind == 'hash' then n = n + redis.call('HLEN', key)
  elseif kind == 'zset' then n = n + redis.call('ZCARD', key)
  else n = n + 1 end
end
for _, kind in ipairs({'CHANNELS', 'SHARDCHANNELS'}) do
  n = n + listened_to(redis.pcall('PUBSUB', kind, ARGV[1] .. '*'))
end
return {n, counters}";

/// How many keys a server has, for a store that is all that is there.
#[allow(dead_code)] // who includes this may have none
pub(crate) fn keys(server: Arc<RedisServer>) -> BoxFuture<'static, Result<u64>> {
    apart(move || {
        let keys = server.ask(&["DBSIZE"])?.number()?;
        u64::try_from(keys).map_err(io::Error::other)
    })
}

impl RedisHooks {
    pub(crate) fn new(store: Store, prefix: &str) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
            spoiled: AtomicUsize::new(0),
        }
    }

    /// Does something with the server that answers for that name.
    fn hand<T: Send + 'static>(
        &self,
        name: &LockName,
        work: impl FnOnce(&RedisServer) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let (store, bucket) = (self.store.clone(), bucket(&self.prefix, name));
        apart(move || store.serving(&bucket, work))
    }

    /// How many records the servers keep: for [`Harness::footprint`](dlock_conformance::Harness::footprint).
    /// The counters are a table of fixed size, whether its places have been used or not, as long as there are
    /// no more of them than that.
    pub(crate) fn footprint(&self) -> BoxFuture<'static, Result<u64>> {
        let (store, prefix) = (self.store.clone(), self.prefix.clone());
        apart(move || {
            let (mut records, mut counters) = (0, 0);
            for server in store.masters()? {
                let counted = server.ask(&["EVAL", COUNT, "0", &prefix])?.list()?;
                let counted: Vec<i64> = counted.iter().map(Value::number).collect::<io::Result<_>>()?;
                records += counted.first().copied().unwrap_or_default();
                counters += counted.get(1).copied().unwrap_or_default();
            }
            u64::try_from(records + counters.max(BUCKETS)).map_err(io::Error::other)
        })
    }
}

impl Hooks for RedisHooks {
    fn vitals(&self) -> Offer<'_, Vitals> {
        let store = self.store.clone();
        Some(apart(move || store.look()))
    }

    /// Of a pair: of the master, before anybody takes its place. Of a cluster: of all of it.
    fn restart(&self, how: Restart) -> Offer<'_> {
        if let Store::Sentinel(_) = self.store {
            // They would take its place.
            return None;
        }
        let store = self.store.clone();
        Some(apart(move || {
            let servers = store.masters()?;
            for server in &servers {
                match how {
                    Restart::InOrder => server.stop_in_order()?,
                    Restart::Crash => server.crash()?,
                }
            }
            servers.iter().try_for_each(|server| server.start_again())?;
            match &store {
                Store::Cluster(cluster) => cluster.wait_until_ok(),
                _ => Ok(()),
            }
        }))
    }

    fn fail_over(&self) -> Offer<'_> {
        let store = self.store.clone();
        match store {
            Store::One(_) | Store::Cluster(_) => None,
            Store::Pair(pair) => Some(apart(move || pair.fail_over())),
            Store::Sentinel(all) => Some(apart(move || all.fail_over())),
        }
    }

    /// Of all, as those of machines that ask the same time server.
    fn step_clock(&self, step: Step) -> Offer<'_> {
        if !self.store.servers().iter().all(|server| server.clock().is_ok()) {
            return None;
        }
        let store = self.store.clone();
        let whole = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let by = match step {
            Step::Forward(by) => whole(by),
            Step::Back(by) => -whole(by),
        };
        Some(apart(move || {
            store
                .servers()
                .iter()
                .try_for_each(|server| server.clock()?.step(by))?;
            match &store {
                // To each of its nodes the others have been silent for that long.
                Store::Cluster(cluster) => cluster.wait_until_ok(),
                _ => Ok(()),
            }
        }))
    }

    /// Full is what has more in it than it may.
    fn fill(&self, full: bool) -> Offer<'_> {
        let store = self.store.clone();
        let most = if full { "1" } else { "0" };
        Some(apart(move || {
            let limit = |server: &RedisServer| server.ask(&["CONFIG", "SET", "maxmemory", most]).map(drop);
            store.servers().iter().try_for_each(limit)
        }))
    }

    fn set_counter<'a>(&'a self, name: &'a LockName, to: u64) -> Offer<'a> {
        let key = counter(&self.prefix, name);
        Some(self.hand(name, move |server| {
            server
                .ask(&[b"SET", key.as_slice(), to.to_string().as_bytes()])
                .map(drop)
        }))
    }

    fn counter<'a>(&'a self, name: &'a LockName) -> Offer<'a, u64> {
        let key = counter(&self.prefix, name);
        Some(
            self.hand(name, move |server| {
                match server.ask(&[b"GET", key.as_slice()])? {
                    Value::Nothing => Ok(0),
                    digits => digits.text().parse().map_err(io::Error::other),
                }
            }),
        )
    }

    /// In turns: other text where the holder is, another type there, another type where those who wait are.
    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        let keys = state(&self.prefix, name);
        let with = with.to_owned();
        // Not before it is polled: whether there is a hook is asked by asking for it.
        let spoil = async move {
            let way = self.spoiled.fetch_add(1, Ordering::Relaxed) % 3;
            self.hand(name, move |server| {
                remove(server, &keys)?;
                let [holder, entries, ..] = &keys;
                let (how, at) = [("SET", holder), ("RPUSH", holder), ("SET", entries)][way];
                server.ask(&[how.as_bytes(), at, with.as_bytes()]).map(drop)
            })
            .await
        };
        Some(spoil.boxed())
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        let keys = state(&self.prefix, name);
        Some(self.hand(name, move |server| {
            let all = keys.iter().map(|key| everything(server, key));
            Ok(all.collect::<io::Result<Vec<_>>>()?.concat())
        }))
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        let keys = state(&self.prefix, name);
        Some(self.hand(name, move |server| remove(server, &keys)))
    }
}
