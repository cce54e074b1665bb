//! A Redis cluster: three masters, each with a replica if one is wanted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::redis::RedisServer;
use crate::redis_options::{Cluster, RedisOptions};
use crate::resp::field;
use crate::until::until;

/// How long the cluster may take to agree on something.
const AGREE: Duration = Duration::from_secs(30);

const SHARDS: usize = 3;
const SLOTS: usize = 16_384;

/// A node is suspected after this many milliseconds of silence. A busy machine must not come near it.
const TIMEOUT: u32 = 2000;

/// A cluster. The nodes 0, 1 and 2 are masters at first, of a third of the slots each; 3, 4 and 5, if there
/// are any, their replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

/// A node as another one sees it: a line of `CLUSTER NODES`.
#[derive(Clone, Debug)]
struct Seen {
    id: String,
    flags: String,
    master: String,
    connected: bool,
    slots: Vec<String>,
}

impl Seen {
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, _, flags, master, _, _, _, link, slots @ ..] = words.as_slice() else {
            return None;
        };
        Some(Self {
            id: (*id).to_owned(),
            flags: (*flags).to_owned(),
            master: (*master).to_owned(),
            connected: *link == "connected",
            // What is in brackets is on its way from node to node.
            slots: slots
                .iter()
                .filter(|s| !s.starts_with('['))
                .map(|s| (*s).to_owned())
                .collect(),
        })
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.split(',').any(|f| f == flag)
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<u16>();
            matches!((number(first), number(last)), (Ok(a), Ok(b)) if a <= slot && slot <= b)
        })
    }
}

fn see(by: &RedisServer) -> io::Result<Vec<Seen>> {
    let text = by.ask(&["CLUSTER", "NODES"])?.text();
    Ok(text.lines().filter_map(Seen::read).collect())
}

impl RedisCluster {
    /// Three masters.
    ///
    /// It takes two seconds: so long after its start a Redis master waits before it calls a cluster complete.
    pub fn start() -> io::Result<Self> {
        Self::with(RedisOptions::new(), false)
    }

    /// Three masters with those options, and a replica for each if that is wanted.
    pub fn with(mut options: RedisOptions, replicas: bool) -> io::Result<Self> {
        options.cluster = Some(Cluster { timeout: TIMEOUT });
        let count = if replicas { 2 * SHARDS } else { SHARDS };
        let nodes = (0..count).map(|_| RedisServer::with(options.clone()));
        let nodes = nodes.collect::<io::Result<Vec<_>>>()?;
        let id = |node: &RedisServer| Ok(node.ask(&["CLUSTER", "MYID"])?.text());
        let ids = nodes.iter().map(id).collect::<io::Result<Vec<_>>>()?;
        let cluster = Self { nodes, ids };
        cluster.compose()?;
        Ok(cluster)
    }

    /// What `redis-cli --cluster create` does, without its seconds of sleep.
    fn compose(&self) -> io::Result<()> {
        for (n, node) in self.nodes.iter().enumerate() {
            // Each its own, so that no two ever have to settle who is right.
            node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()])?;
            if n < SHARDS {
                let (first, end) = (n * SLOTS / SHARDS, (n + 1) * SLOTS / SHARDS);
                node.ask(&[
                    "CLUSTER",
                    "ADDSLOTSRANGE",
                    &first.to_string(),
                    &(end - 1).to_string(),
                ])?;
            }
            // All with all: then nobody has to hear of anybody from others.
            for other in &self.nodes[..n] {
                let (address, bus) = (other.address(), other.bus_port().unwrap_or_default());
                let [port, bus] = [address.port(), bus].map(|n| n.to_string());
                node.ask(&["CLUSTER", "MEET", &address.ip().to_string(), &port, &bus])?;
            }
        }
        let all = self.nodes.len();
        self.agree("all nodes know each other", |seen| {
            seen.len() == all
                && seen
                    .iter()
                    .all(|s| s.connected && !s.is("handshake") && !s.is("noaddr"))
        })?;
        for n in SHARDS..all {
            self.nodes[n].ask(&["CLUSTER", "REPLICATE", &self.ids[n - SHARDS]])?;
        }
        self.wait_until_ok()?;
        for replica in &self.nodes[SHARDS..] {
            replica.wait_until_in_sync(AGREE)?;
        }
        self.agree("all nodes know who is a replica", |seen| {
            seen.iter().filter(|s| s.is("slave")).count() == all - SHARDS
        })
    }

    /// The nodes that run.
    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.pid().is_some())
    }

    fn agree(&self, what: &str, is: impl Fn(&[Seen]) -> bool) -> io::Result<()> {
        until(what, AGREE, || {
            for node in self.running() {
                if !is(&see(node)?) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Waits until `cluster_state` is ok on all nodes that run.
    pub fn wait_until_ok(&self) -> io::Result<()> {
        self.wait_until("ok")
    }

    /// Waits until `cluster_state` is `fail` on all nodes that run: after the death of a master that nobody
    /// replaces.
    pub fn wait_until_down(&self) -> io::Result<()> {
        self.wait_until("fail")
    }

    fn wait_until(&self, state: &str) -> io::Result<()> {
        until(&format!("cluster_state is {state} on all nodes"), AGREE, || {
            for node in self.running() {
                let text = node.ask(&["CLUSTER", "INFO"])?.text();
                if field(&text, "cluster_state") != Some(state) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    // --- who is who ---

    /// All nodes, those that are down too.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The addresses of all nodes.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(RedisServer::address).collect()
    }

    /// The slot of a key.
    pub fn slot(&self, key: impl AsRef<[u8]>) -> io::Result<u16> {
        let somebody = self.running().next();
        let somebody = somebody.ok_or_else(|| io::Error::other("no node runs"))?;
        let slot = somebody
            .ask(&[b"CLUSTER", &b"KEYSLOT"[..], key.as_ref()])?
            .number()?;
        u16::try_from(slot).map_err(io::Error::other)
    }

    /// Which node is the master of that slot, as itself sees it.
    pub fn master_of(&self, slot: u16) -> io::Result<usize> {
        for (n, node) in self.nodes.iter().enumerate() {
            let seen = if node.pid().is_some() {
                see(node)?
            } else {
                Vec::new()
            };
            if seen
                .iter()
                .any(|s| s.is("myself") && s.is("master") && s.has(slot))
            {
                return Ok(n);
            }
        }
        Err(io::Error::other(format!("no node that runs has slot {slot}")))
    }

    /// The replica of that master, if it runs.
    pub fn replica_of(&self, master: usize) -> io::Result<usize> {
        for (n, node) in self.nodes.iter().enumerate() {
            let seen = if node.pid().is_some() {
                see(node)?
            } else {
                Vec::new()
            };
            if seen
                .iter()
                .any(|s| s.is("myself") && s.master == self.ids[master])
            {
                return Ok(n);
            }
        }
        Err(io::Error::other(format!(
            "node {master} has no replica that runs"
        )))
    }

    // --- what is done to it ---

    /// The replica takes over from a master that lives and agrees (`CLUSTER FAILOVER`): nothing is lost.
    /// Returns the new master, when all nodes know it.
    pub fn fail_over(&self, master: usize) -> io::Result<usize> {
        let replica = self.replica_of(master)?;
        self.nodes[replica].ask(&["CLUSTER", "FAILOVER"])?;
        self.wait_for_master(replica)
    }

    /// The master is killed and its replica elected, which takes the time of the nodes' suspicion and some
    /// more. Returns the new master, when all nodes that run know it and the cluster is complete again.
    pub fn crash_over(&self, master: usize) -> io::Result<usize> {
        let replica = self.replica_of(master)?;
        self.nodes[master].crash()?;
        self.wait_for_master(replica)
    }

    fn wait_for_master(&self, node: usize) -> io::Result<usize> {
        let id = &self.ids[node];
        self.agree("all nodes know the new master", |seen| {
            seen.iter()
                .any(|s| s.id == *id && s.is("master") && !s.slots.is_empty())
        })?;
        self.wait_until_ok()?;
        Ok(node)
    }

    /// The node leaves, and its slots become another one's, without their keys. It runs on, belongs to no
    /// cluster, and knows of no slots.
    pub fn leave(&self, node: usize, to: usize) -> io::Result<()> {
        let (leaves, takes, id) = (&self.nodes[node], &self.nodes[to], &self.ids[node]);
        let seen = see(leaves)?.into_iter().find(|s| s.is("myself"));
        let slots = seen.map(|s| s.slots).unwrap_or_default();
        leaves.ask(&["FLUSHALL"])?;
        leaves.ask(&["CLUSTER", "RESET", "HARD"])?;
        let others = || self.nodes.iter().enumerate().filter(|(n, _)| *n != node);
        for (_, other) in others() {
            other.ask(&["CLUSTER", "FORGET", id])?;
        }
        for range in &slots {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            takes.ask(&["CLUSTER", "ADDSLOTSRANGE", first, last])?;
        }
        until("the others go on without it", AGREE, || {
            for (_, other) in others() {
                let text = other.ask(&["CLUSTER", "INFO"])?.text();
                if field(&text, "cluster_state") != Some("ok") {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Starts to move a slot to another master.
    pub fn migrate(&self, slot: u16, to: usize) -> io::Result<Migration<'_>> {
        let from = self.master_of(slot)?;
        let [ask_from, ask_to] = [from, to].map(|n| &self.nodes[n]);
        let number = slot.to_string();
        ask_to.ask(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.ids[from]])?;
        ask_from.ask(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.ids[to]])?;
        Ok(Migration {
            cluster: self,
            slot,
            from,
            to,
        })
    }

    /// Moves a slot with all its keys to another master.
    pub fn move_slot(&self, slot: u16, to: usize) -> io::Result<()> {
        let migration = self.migrate(slot, to)?;
        migration.move_keys()?;
        migration.finish()
    }
}

/// A slot on its way from one master to another: for a key that has moved, or is not there, the old one
/// answers `ASK`.
#[derive(Debug)]
#[must_use]
pub struct Migration<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    pub from: usize,
    pub to: usize,
}

impl Migration<'_> {
    /// Moves the keys that are there now; how many there were.
    pub fn move_keys(&self) -> io::Result<usize> {
        let mut connection = self.cluster.nodes[self.from].connection()?;
        let target = self.cluster.nodes[self.to].address();
        let (host, port) = (target.ip().to_string(), target.port().to_string());
        let mut moved = 0;
        loop {
            let keys = connection.ask(&["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "1000"])?;
            let keys = keys.list()?;
            if keys.is_empty() {
                return Ok(moved);
            }
            for key in &keys {
                let super::resp::Value::Bytes(key) = key else {
                    continue;
                };
                connection.ask(&[b"MIGRATE", host.as_bytes(), port.as_bytes(), key, b"0", b"10000"])?;
                moved += 1;
            }
        }
    }

    /// The slot is the new master's, on all nodes; the old one answers `MOVED`.
    pub fn finish(self) -> io::Result<()> {
        let (slot, id) = (self.slot.to_string(), &self.cluster.ids[self.to]);
        // The new one first: there is always one that has it.
        let [to, from] = [self.to, self.from].map(|n| &self.cluster.nodes[n]);
        to.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", id])?;
        from.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", id])?;
        self.cluster.agree("all nodes know whose the slot is", |seen| {
            seen.iter().any(|s| s.id == *id && s.has(self.slot))
        })
    }

    /// It stays where it was; for keys that have not moved.
    pub fn give_up(self) -> io::Result<()> {
        for n in [self.from, self.to] {
            self.cluster.nodes[n].ask(&["CLUSTER", "SETSLOT", &self.slot.to_string(), "STABLE"])?;
        }
        Ok(())
    }
}
