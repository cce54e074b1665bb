//! A grant counts when so many replicas have it.
//!
//! Redis answers before its replicas have heard: a lock that was granted last is forgotten by the replica
//! that takes over. `WAIT` tells how many replicas have what its own connection wrote. In a script it does
//! not wait, and on the connection that everything of a client goes over it would hold all of it up; so there
//! is a second one. On it one task *marks*: a script shows what became of the leases that were just granted
//! or renewed, and writes something behind them; `WAIT` then counts who has that write, and with it the
//! leases. Those that come while it waits share the next mark.
//!
//! The mark looks at the leases, and does not trust that it comes after them. What could go wrong, and why it
//! does not:
//!
//! * *A failover between the grant and the mark.* The mark does not find the lease, or not with this token:
//!   it is lost, and asked for anew. Where it finds it, that server has it, and `WAIT` counts who has it
//!   from there.
//! * *A renewal instead of a grant, and the new master has the lease with its old end.* The mark says how
//!   much of it is left, and that alone is what the deadline is counted from, since the mark was sent.
//! * *The master is demoted between the mark and `WAIT`*, or while it waits: either is an error. Demoted and
//!   promoted again in between, it would count by the offsets of another history; so the id of the history,
//!   which changes with each promotion, is asked for before and after.
//! * *A replica acknowledges, and dies.* What was promised is that so many had it at a time.
//! * *A replica lags, or hangs.* `WAIT` ends after half of the timeout, with what it has by then: the grant
//!   is given back, and the renewal has moved nothing. If it gets to the replicas later, a lease that nobody
//!   believes in lapses.
//! * *Another replica takes over than those that acknowledged.* Then it may be forgotten: as many as there
//!   are have to be asked for.
//! * *The write is in the memory of the replicas*, not on their disks.
//!
//! A push is the word of the server that pushes. With replicas it says that it is somebody's turn, and no
//! more: who waits asks, and that answer is marked. A release is not marked: one that is forgotten costs
//! others what is left of the ttl, and gives nobody a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::spi::{LeaseKey, Renewal};
use dlock_core::{Error, ErrorKind, LossReason, Result, Timestamp, Token};
use futures::FutureExt as _;
use futures::channel::oneshot;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as Kind, RedisError, RedisResult, ServerErrorKind, Value};

use crate::backend::{Store, millis};
use crate::connection::check::{field, info, text_of};
use crate::connection::load;
use crate::connection::server::Server;
use crate::failure::{nothing_done, of_item};
use crate::keys::{holder, id_bytes};
use crate::reply::{Reply, strange};
use crate::scripts::Scripts;

/// How many leases are in one script: a longer one would keep others waiting.
const BATCH: usize = 128;

/// How many are marked before a `WAIT`.
const ROUND: usize = BATCH * 4;

pub(crate) struct Replicas {
    /// How many have to have it.
    needed: u32,
    /// How long they have.
    limit: Duration,
    /// By a connection of its own.
    server: Arc<Server>,
    scripts: Arc<Scripts>,
    store: Arc<Store>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    asked: Vec<Asked>,
    running: bool,
}

struct Asked {
    lease: LeaseKey,
    /// Which it has to have, if that is known.
    token: Option<Token>,
    tell: oneshot::Sender<Result<Renewal>>,
}

/// What a round has shown.
struct Seen {
    sent: Timestamp,
    leases: Vec<Value>,
    acknowledged: u32,
}

impl Replicas {
    pub(crate) fn new(
        needed: u32,
        limit: Duration,
        server: Arc<Server>,
        scripts: Arc<Scripts>,
        store: Arc<Store>,
    ) -> Arc<Self> {
        let queue = Mutex::default();
        Arc::new(Self {
            needed,
            limit,
            server,
            scripts,
            store,
            queue,
        })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a server that has not so many replicas now.
    pub(crate) async fn check(&self) -> Result<()> {
        let at = &self.store.at;
        let asking = self
            .server
            .ask(|mut c| async move { info("replication", &mut c).await });
        let said = self.server.setup().within(asking).await;
        let there = online_replicas(&said.map_err(|e| nothing_done(e, at))?);
        if there < self.needed as usize {
            let message = format!(
                "Redis at {at} has {there} replicas in sync, and {} have to acknowledge each grant: connect \
                 more, or ask for fewer",
                self.needed
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.server.close();
    }

    /// What is left of a lease that so many replicas have, with that token.
    ///
    /// # Errors
    /// `Lost` if it is not there any more, or not with that token; otherwise it is there, and does not count.
    pub(crate) async fn confirm(self: &Arc<Self>, lease: &LeaseKey, token: Option<Token>) -> Result<Renewal> {
        let told = self.confirm_all([(lease.clone(), token)]).pop();
        self.told(told).await
    }

    /// The same of many, with one exchange.
    pub(crate) fn confirm_all(
        self: &Arc<Self>,
        leases: impl IntoIterator<Item = (LeaseKey, Option<Token>)>,
    ) -> Vec<oneshot::Receiver<Result<Renewal>>> {
        let mut queue = self.queue();
        let ask = |(lease, token)| {
            let (tell, told) = oneshot::channel();
            queue.asked.push(Asked { lease, token, tell });
            told
        };
        let told: Vec<_> = leases.into_iter().map(ask).collect();
        if !told.is_empty() && !std::mem::replace(&mut queue.running, true) {
            drop(queue);
            self.server.setup().runtime.spawn(Arc::clone(self).work().boxed());
        }
        told
    }

    /// An answer of [`confirm_all`](Self::confirm_all).
    pub(crate) async fn told(&self, told: Option<oneshot::Receiver<Result<Renewal>>>) -> Result<Renewal> {
        let ended = || {
            let message = format!("nobody asks the replicas of Redis at {} any more", self.store.at);
            Error::new(ErrorKind::Unavailable, message)
        };
        match told {
            Some(told) => told.await.unwrap_or_else(|_| Err(ended())),
            None => Err(ended()),
        }
    }

    /// Round after round, while there is anybody who asks.
    async fn work(self: Arc<Self>) {
        loop {
            let round = {
                let mut queue = self.queue();
                queue.asked.retain(|a| !a.tell.is_canceled());
                if queue.asked.is_empty() {
                    queue.running = false;
                    return;
                }
                let rest = queue.asked.len().min(ROUND);
                queue.asked.drain(..rest).collect()
            };
            self.round(round).await;
        }
    }

    async fn round(&self, round: Vec<Asked>) {
        let asking = self.server.ask(|c| self.exchange(c, &round));
        let seen = self.server.setup().within(asking).await;
        // Whether the mark was written is all the same: it changes no lease.
        let seen = seen.map_err(|e| nothing_done(e, &self.store.at));
        let seen = seen.and_then(|seen| match seen.leases.len() == round.len() {
            true => Ok(seen),
            false => Err(strange("too little")),
        });
        match seen {
            Ok(seen) => {
                for (asked, shown) in round.into_iter().zip(seen.leases) {
                    let answer = self.judge(&asked, shown, seen.sent, seen.acknowledged);
                    let _ = asked.tell.send(answer);
                }
            }
            Err(e) => {
                for asked in round {
                    let _ = asked.tell.send(Err(e.clone()));
                }
            }
        }
    }

    fn judge(&self, asked: &Asked, shown: Value, sent: Timestamp, acknowledged: u32) -> Result<Renewal> {
        let (at, limit, needed) = (&self.store.at, self.limit, self.needed);
        let (life, token) = left(shown, at)?.ok_or_else(|| Error::lost(LossReason::Refused))?;
        if asked.token.is_some_and(|t| t != token) {
            return Err(Error::lost(LossReason::Refused));
        }
        if acknowledged < needed {
            let message = format!(
                "{acknowledged} of {needed} replicas of Redis at {at} acknowledged it within {limit:?}, so \
                 it does not count: see that they are connected and keep up (INFO replication), or ask for \
                 fewer"
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(Renewal::new(sent, life))
    }

    /// Marks, waits, and looks whether it is the same history yet; in one message, in this order.
    async fn exchange(&self, mut connection: MultiplexedConnection, round: &[Asked]) -> RedisResult<Seen> {
        let mut all = redis::pipe();
        for batch in round.chunks(BATCH) {
            all.add_command(self.mark(batch));
        }
        all.cmd("WAIT").arg(self.needed).arg(millis(self.limit));
        all.cmd("INFO").arg("replication");
        all.ignore_errors();
        let mut loaded = false;
        loop {
            let sent = Timestamp::now();
            let answers: Vec<RedisResult<Value>> = all.query_async(&mut connection).await?;
            let unknown = |a: &RedisResult<Value>| {
                let kind = a.as_ref().err().map(RedisError::kind);
                kind == Some(Kind::Server(ServerErrorKind::NoScript))
            };
            if !loaded && answers.iter().any(unknown) {
                loaded = true;
                load(&self.scripts.mark).exec_async(&mut connection).await?;
                continue;
            }
            let answers = answers.into_iter().collect::<RedisResult<Vec<_>>>();
            let answers = answers.map_err(|e| if is_of_a_replica(&e) { demoted() } else { e })?;
            return read(sent, answers).ok_or_else(demoted);
        }
    }

    fn mark(&self, batch: &[Asked]) -> Cmd {
        let mut mark = redis::cmd("EVALSHA");
        mark.arg(&self.scripts.mark.hash).arg(batch.len() + 1);
        for asked in batch {
            mark.arg(holder(&self.store.prefix, &asked.lease.name));
        }
        mark.arg(format!("{}{{}}:w", self.store.prefix));
        for asked in batch {
            mark.arg(&id_bytes(asked.lease.id)[..]);
        }
        mark
    }
}

/// What `WAIT` answers at a server that is a replica, or becomes one meanwhile.
fn is_of_a_replica(e: &RedisError) -> bool {
    e.code() == Some("UNBLOCKED") || e.to_string().contains("WAIT cannot be used with replica")
}

fn demoted() -> RedisError {
    RedisError::from((Kind::Io, "the server took another part in replication meanwhile"))
}

/// The marks, what `WAIT` counted, and what the server says of itself. `None` if its history is not the same
/// in all.
fn read(sent: Timestamp, mut answers: Vec<Value>) -> Option<Seen> {
    let said = text_of(answers.pop()?);
    let history = field(&said, "master_replid")?;
    let Value::Int(acknowledged) = answers.pop()? else {
        return None;
    };
    let mut leases = Vec::new();
    for mark in answers {
        let Value::Array(mark) = mark else { return None };
        let mut mark = mark.into_iter();
        match mark.next()? {
            Value::BulkString(id) if id == history.as_bytes() => leases.extend(mark),
            _ => return None,
        }
    }
    let acknowledged = u32::try_from(acknowledged).unwrap_or(0);
    Some(Seen {
        sent,
        leases,
        acknowledged,
    })
}

/// What is left of a lease and its token, as a mark shows them; nothing if it is not there.
fn left(shown: Value, at: &str) -> Result<Option<(Duration, Token)>> {
    let mut shown = Reply::new(shown)?;
    if shown.is_empty() {
        return Ok(None);
    }
    // A mark changes no lease, so whatever stopped it left nothing half done.
    if let Some(why) = shown.failure() {
        return Err(of_item(why, at, ErrorKind::Unavailable));
    }
    Ok(Some((shown.life()?, shown.token()?)))
}

/// Of those that are connected, the ones that have caught up and can acknowledge.
fn online_replicas(info: &str) -> usize {
    let replicas = info.lines().filter(|l| l.starts_with("slave"));
    replicas.filter(|l| l.contains("state=online")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_that_failed_at_one_lease_says_why_of_that_one() {
        let text = |part: &&str| Value::BulkString(part.as_bytes().to_vec());
        let read = |parts: &[&str]| left(Value::Array(parts.iter().map(text).collect()), "there");
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["what"]).unwrap_err().kind(), ErrorKind::BackendData);
        // What the words mean `failure.rs` knows; of what stopped it halfway nothing is left.
        for (why, kind) in [
            ("DLOCKVERSION", ErrorKind::Unsupported),
            (
                "Script attempted to access a non local key",
                ErrorKind::Unavailable,
            ),
        ] {
            assert_eq!(read(&["E", why]).unwrap_err().kind(), kind, "{why}");
        }
    }

    #[test]
    fn a_replica_that_is_not_in_sync_yet_does_not_count() {
        let info = "role:master\r\nconnected_slaves:2\r\nslave0:ip=::1,port=1,state=online,offset=1,lag=0\r\n\
                    slave1:ip=::1,port=2,state=wait_bgsave,offset=0,lag=0\r\n";
        assert_eq!(online_replicas(info), 1);
        assert_eq!(online_replicas("role:master\r\nconnected_slaves:0\r\n"), 0);
    }

    fn answers(before: &str, after: &str) -> Vec<Value> {
        let lease = Value::Array(vec![Value::Int(900), Value::BulkString(b"7".to_vec())]);
        vec![
            Value::Array(vec![Value::BulkString(before.into()), lease]),
            Value::Int(1),
            Value::BulkString(format!("role:master\r\nmaster_replid:{after}\r\n").into_bytes()),
        ]
    }

    /// Demoted, and promoted again: another history, in which the offset of the mark means nothing.
    #[test]
    fn an_acknowledgement_of_another_history_is_none() {
        let now = Timestamp::now();
        let seen = read(now, answers("a1", "a1")).unwrap();
        assert_eq!((seen.leases.len(), seen.acknowledged), (1, 1));
        assert!(read(now, answers("a1", "b2")).is_none());
        assert!(read(now, answers("", "a1")).is_none());
    }
}
