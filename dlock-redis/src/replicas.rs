//! A grant counts when that many replicas have it.
//!
//! Redis answers before its replicas have the write: a replica that takes over may lack the latest grants.
//! `WAIT` reports how many replicas have the writes of its own connection. In a script it does not wait, and
//! on the shared connection it would block all other requests; so there is a second connection. On it one
//! task *marks*: a script shows the leases that were just granted or renewed, and writes a key after them;
//! `WAIT` then counts the replicas that have that write, and with it the leases. Requests that come meanwhile
//! share the next mark.
//!
//! What could go wrong, and why it does not:
//!
//! * *A failover between the grant and the mark.* The mark does not find the lease, or not with this token:
//!   it is lost, and requested again. If it finds it, that server has it, and `WAIT` counts that server's
//!   replicas.
//! * *A renewal instead of a grant, and the new master has the lease with its old end.* The mark says how
//!   much of it is left, and that alone is what the deadline is counted from, since the mark was sent.
//! * *The master is demoted between the mark and `WAIT`*, or while it waits: either is an error. If it is
//!   demoted and promoted again in between, it would count by the offsets of another history; so the id of
//!   the history, which changes with each promotion, is read before and after.
//! * *A replica acknowledges, and dies*, or has it in memory only. The promise is only that so many had it in
//!   memory at one time.
//! * *A replica lags, or hangs.* `WAIT` ends after half of the timeout, with its count by then: the grant is
//!   released, and the renewal moves no deadline. If it reaches the replicas later, that unused lease
//!   expires.
//! * *A replica takes over that did not acknowledge.* Then the lock may be forgotten: require all replicas.
//!
//! A push is the word of one server. With replicas it only says whose turn it is: the waiter asks, and the
//! answer is marked. A release is not marked: if it is forgotten, others wait for the rest of the ttl, and no
//! one gets a lock by it.

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
use crate::connection::server::Server;
use crate::failure::{nothing_done, of_item};
use crate::keys::{holder, id_bytes};
use crate::reply::{Reply, failure};
use crate::scripts::Scripts;

/// How many leases are in one script: a longer one would keep others waiting.
const BATCH: usize = 128;

/// How many are marked before a `WAIT`.
const ROUND: usize = BATCH * 4;

pub(crate) struct Replicas {
    /// How many have to have it.
    pub(crate) needed: u32,
    /// How long they have.
    pub(crate) limit: Duration,
    /// By a connection of its own.
    pub(crate) server: Arc<Server>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) store: Arc<Store>,
    pub(crate) queue: Mutex<Queue>,
}

#[derive(Default)]
pub(crate) struct Queue {
    asked: Vec<Asked>,
    running: bool,
}

struct Asked {
    lease: LeaseKey,
    /// Which it has to have, if that is known.
    token: Option<Token>,
    tell: oneshot::Sender<Result<Renewal>>,
}

/// What a round has shown: when it was sent, the leases, and how many have acknowledged them.
type Seen = (Timestamp, Vec<Value>, i64);

impl Replicas {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a server that has fewer replicas now.
    pub(crate) async fn check(&self) -> Result<()> {
        let at = &self.store.at;
        let asking = self
            .server
            .ask(|mut c| async move { info("replication", &mut c).await });
        let said = self.server.setup.within(asking).await;
        let there = online_replicas(&said.map_err(|e| nothing_done(e, at))?);
        if there < self.needed as usize {
            let message = format!(
                "Redis at {at} has {there} replicas in sync, and {} must acknowledge each grant: connect \
                 more, or lower `replicas`",
                self.needed
            );
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    pub(crate) fn close(&self) {
        self.server.close();
    }

    /// What is left of a lease that enough replicas have, with that token if one is given. Requests that come
    /// before the first one waits for its answer share a mark.
    ///
    /// # Errors
    /// `Lost` if it is not there any more, or not with that token; otherwise it is there, and does not count.
    pub(crate) fn confirm(
        self: &Arc<Self>,
        lease: &LeaseKey,
        token: Option<Token>,
    ) -> impl Future<Output = Result<Renewal>> + Send + use<> {
        let (tell, told) = oneshot::channel();
        let lease = lease.clone();
        self.queue().asked.push(Asked { lease, token, tell });
        let me = Arc::clone(self);
        async move {
            if !std::mem::replace(&mut me.queue().running, true) {
                me.server.setup.runtime.spawn(Arc::clone(&me).work().boxed());
            }
            told.await.unwrap_or_else(|_| {
                let message = format!(
                    "the task that asks the replicas of Redis at {} has ended",
                    me.store.at
                );
                Err(Error::new(ErrorKind::Unavailable, message))
            })
        }
    }

    /// Runs rounds while there are requests.
    async fn work(self: Arc<Self>) {
        loop {
            let round: Vec<Asked> = {
                let mut queue = self.queue();
                queue.asked.retain(|a| !a.tell.is_canceled());
                if queue.asked.is_empty() {
                    queue.running = false;
                    return;
                }
                let many = queue.asked.len().min(ROUND);
                queue.asked.drain(..many).collect()
            };
            let asking = self.server.ask(|c| self.exchange(c, &round));
            // Whether the mark was written is all the same: it changes no lease.
            let seen = self.server.setup.within(asking).await;
            match seen.map_err(|e| nothing_done(e, &self.store.at)) {
                Ok((sent, leases, acknowledged)) => {
                    for (asked, shown) in round.into_iter().zip(leases) {
                        let life = self.judge(shown, asked.token, acknowledged);
                        let _ = asked.tell.send(life.map(|life| Renewal::new(sent, life)));
                    }
                }
                Err(e) => {
                    for asked in round {
                        let _ = asked.tell.send(Err(e.clone()));
                    }
                }
            }
        }
    }

    /// What is left of a lease that a mark shows so.
    fn judge(&self, shown: Value, asked: Option<Token>, acknowledged: i64) -> Result<Duration> {
        let (at, limit, needed) = (&self.store.at, self.limit, self.needed);
        let shown = left(shown, at)?.filter(|(_, token)| asked.is_none_or(|asked| asked == *token));
        let (life, _) = shown.ok_or_else(|| Error::lost(LossReason::Refused))?;
        if acknowledged >= i64::from(needed) {
            return Ok(life);
        }
        let message = format!(
            "{acknowledged} of {needed} replicas of Redis at {at} acknowledged it within {limit:?}, so it \
             does not count: check that they keep up (INFO replication), or lower `replicas`"
        );
        Err(Error::new(ErrorKind::Unavailable, message))
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
        let mut sent = Timestamp::now();
        let mut answers: Vec<RedisResult<Value>> = all.query_async(&mut connection).await?;
        let is_unknown = |e: &RedisError| e.kind() == Kind::Server(ServerErrorKind::NoScript);
        if answers.iter().any(|a| a.as_ref().is_err_and(is_unknown)) {
            self.scripts.mark.load().exec_async(&mut connection).await?;
            sent = Timestamp::now();
            answers = all.query_async(&mut connection).await?;
        }
        let answers = answers.into_iter().collect::<RedisResult<Vec<_>>>();
        let answers = answers.map_err(|e| if is_of_a_replica(&e) { demoted() } else { e })?;
        // One for each, or it is not known whose is whose.
        let whole = read(answers).filter(|(leases, _)| leases.len() == round.len());
        let (leases, acknowledged) = whole.ok_or_else(demoted)?;
        Ok((sent, leases, acknowledged))
    }

    fn mark(&self, batch: &[Asked]) -> Cmd {
        let mut mark = redis::cmd("EVALSHA");
        mark.arg(&*self.scripts.mark.hash).arg(batch.len() + 1);
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

/// What the marks show of the leases, and how many have acknowledged that; `None` if the history is not the
/// same in all, of marks, what `WAIT` counted, and what the server says of itself.
fn read(mut answers: Vec<Value>) -> Option<(Vec<Value>, i64)> {
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
    Some((leases, acknowledged))
}

/// What is left of a lease and its token, as a mark shows them; nothing if it is not there.
fn left(shown: Value, at: &str) -> Result<Option<(Duration, Token)>> {
    // A mark changes no lease, so whatever stopped it left nothing half done.
    if let Some(why) = failure(&shown) {
        return Err(of_item(why, at, ErrorKind::Unavailable));
    }
    let mut shown = Reply::new(shown)?;
    if shown.is_empty() {
        return Ok(None);
    }
    Ok(Some((shown.life()?, shown.token()?)))
}

/// The connected replicas that have caught up and can acknowledge.
fn online_replicas(info: &str) -> usize {
    let replicas = info.lines().filter(|l| l.starts_with("slave"));
    replicas.filter(|l| l.contains("state=online")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (leases, acknowledged) = read(answers("a1", "a1")).unwrap();
        assert_eq!((leases.len(), acknowledged), (1, 1));
        assert!(read(answers("a1", "b2")).is_none() && read(answers("", "a1")).is_none());
    }
}
