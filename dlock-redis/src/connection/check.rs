//! What a server says of itself when it is connected to: a server that cannot keep locks is refused here, and
//! not by an accident later.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use dlock_core::{Error, ErrorKind, Result};
use redis::{Cmd, FromRedisValue as _, Value, cmd};

use crate::connection::Connection;
use crate::connection::members::Member;
use crate::connection::rejoin::{Bar, Rejoin};
use crate::failure::Cause;
use crate::failure::nothing_done;

/// `SET` with `GET`, which the scripts use, is of that release.
const OLDEST: (u64, u64) = (6, 2);

/// What is wanted of a server.
#[derive(Clone, Debug)]
pub(crate) struct Demands {
    /// It is a node of a cluster.
    pub(crate) is_cluster: bool,
    pub(crate) allow_eviction: bool,
    pub(crate) rejoin: Option<Rejoin>,
    /// It is nobody else's.
    pub(crate) apart: Option<Member>,
}

/// Why a server is not to be used.
pub(crate) enum Refusal {
    Cause(Cause),
    /// It is, in a while.
    Bar(Bar),
}

impl From<Cause> for Refusal {
    fn from(cause: Cause) -> Self {
        Self::Cause(cause)
    }
}

/// Asks the server, and refuses it if locks would not be safe there; what is unique to its run, if it says
/// that.
pub(crate) async fn check<F>(demands: &Demands, ask: impl Fn(Cmd) -> F) -> Result<Option<String>, Refusal>
where
    F: Future<Output = Result<Value, Cause>>,
{
    let mut hello = cmd("HELLO");
    hello.arg(3);
    let hello: HashMap<String, Value> =
        HashMap::from_redis_value(ask(hello).await?).map_err(|_| refused("does not say what it is"))?;
    let text = |key: &str| match hello.get(key) {
        Some(Value::BulkString(b)) => String::from_utf8_lossy(b).into_owned(),
        Some(Value::SimpleString(s)) => s.clone(),
        _ => String::new(),
    };
    let version = text("version");
    // Messages that stay with their slot are of 7.0.
    let (major, minor) = if demands.is_cluster { (7, 0) } else { OLDEST };
    if read_version(&version).is_none_or(|v| v < (major, minor)) {
        let what = format!("has version {version}: dlock needs {major}.{minor} or later");
        return Err(refused(&what).into());
    }
    match (text("mode").as_str(), demands.is_cluster) {
        ("sentinel", _) => {
            return Err(refused(
                "is a sentinel: the URL of what it watches over is \
                 `redis+sentinel://host/name-of-the-master`",
            )
            .into());
        }
        ("cluster", false) => {
            return Err(refused("belongs to a cluster: its URL begins with `redis+cluster`").into());
        }
        ("standalone", true) => {
            return Err(refused("is no cluster: its URL begins with `redis`").into());
        }
        _ => {}
    }
    if !demands.is_cluster && matches!(text("role").as_str(), "replica" | "slave") {
        let what = "is a replica, which takes no locks: name its master".into();
        return Err(Cause::Refused(ErrorKind::Unavailable, what).into());
    }
    if !demands.allow_eviction {
        refuse_eviction(&ask).await?;
    }
    if demands.is_cluster {
        return Ok(None);
    }
    let said = match (ask(info("server")).await, demands.rejoin) {
        (Ok(answer), _) => texts(answer).concat(),
        // Whoever may not ask is believed, unless something hangs on it.
        (Err(_), None) => return Ok(None),
        (Err(cause), Some(_)) => return Err(cause.into()),
    };
    if let Some(rejoin) = demands.rejoin {
        let clock = field(&said, "server_time_usec").and_then(|us| us.parse().ok());
        let uptime = field(&said, "uptime_in_seconds").and_then(|s| s.parse().ok());
        let uptime = uptime.ok_or_else(|| {
            refused("does not say for how long it has been up, which `rejoin_after` asks for")
        })?;
        rejoin.admits(uptime, clock).map_err(Refusal::Bar)?;
    }
    let run = field(&said, "run_id");
    if let (Some(run), Some(member)) = (run, &demands.apart) {
        member.comes_to(run)?;
    }
    Ok(run.map(str::to_owned))
}

fn info(section: &str) -> Cmd {
    let mut info = cmd("INFO");
    info.arg(section);
    info
}

/// The value of that line of an INFO.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Refuses a server that throws keys away when its memory is full: a lock that is evicted is a lock that two
/// have. A user who may not ask is believed.
async fn refuse_eviction<F>(ask: &impl Fn(Cmd) -> F) -> Result<(), Cause>
where
    F: Future<Output = Result<Value, Cause>>,
{
    let Ok(answer) = ask(info("memory")).await else {
        return Ok(());
    };
    for text in texts(answer) {
        let limited = field(&text, "maxmemory").is_some_and(|m| m != "0");
        let policy = field(&text, "maxmemory_policy").unwrap_or_default();
        if limited && !policy.is_empty() && policy != "noeviction" {
            return Err(refused(&format!(
                "throws keys away when its memory is full (maxmemory-policy {policy}), and with them locks \
                 that are held: set it to noeviction, or give the locks a server of their own"
            )));
        }
    }
    Ok(())
}

/// Refuses a server that has not so many replicas: no grant of it would count.
pub(crate) async fn check_replicas(connection: &Connection, at: &str, needed: u32) -> Result<()> {
    let answer = connection
        .within(connection.query(cmd("INFO").arg("replication")))
        .await;
    let text = texts(answer.map_err(|e| nothing_done(e, at))?).concat();
    let there = online_replicas(&text);
    if there < needed as usize {
        let message = format!(
            "Redis at {at} has {there} replicas in sync, and {needed} have to acknowledge each grant: \
             connect more, or ask for fewer"
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    Ok(())
}

/// Of those that are connected, the ones that have caught up and can acknowledge.
fn online_replicas(info: &str) -> usize {
    info.lines()
        .filter(|l| l.starts_with("slave") && l.contains("state=online"))
        .count()
}

/// The answer of one server, or those of all of a cluster.
fn texts(answer: Value) -> Vec<String> {
    match answer {
        Value::BulkString(b) => vec![String::from_utf8_lossy(&b).into_owned()],
        Value::VerbatimString { text, .. } => vec![text],
        Value::Map(all) => all.into_iter().flat_map(|(_, v)| texts(v)).collect(),
        Value::Array(all) => all.into_iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

fn read_version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn refused(what: &str) -> Cause {
    Cause::Refused(ErrorKind::Unsupported, Arc::from(what))
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

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(read_version("7.0.15"), Some((7, 0)));
        assert!(read_version("6.10.0").unwrap() > OLDEST);
        assert!(read_version("6.0.16").unwrap() < OLDEST);
        assert_eq!(read_version("unstable"), None);
    }
}
