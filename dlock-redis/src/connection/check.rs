//! Checks a server when it is connected to: one that cannot keep locks is refused here, and not by an
//! accident later.

use std::collections::HashMap;
use std::sync::Arc;

use dlock_core::ErrorKind;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, RedisResult, Value, cmd};

use crate::connection::members::Member;
use crate::connection::rejoin::Rejoin;
use crate::failure::Cause;

/// `SET` with `GET`, which the scripts use, is of that release.
const OLDEST: (u64, u64) = (6, 2);

/// What is wanted of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demands {
    /// It is a node of a cluster.
    pub(crate) is_cluster: bool,
    pub(crate) allow_eviction: bool,
    pub(crate) rejoin: Option<Rejoin>,
    /// No other member uses it.
    pub(crate) member: Option<Member>,
}

/// Asks the server, and refuses it if locks would not be safe there. Answers its run id, if it tells it.
pub(crate) async fn check(
    demands: &Demands,
    server: &mut MultiplexedConnection,
) -> Result<Option<Arc<str>>, Cause> {
    let hello = cmd("HELLO").arg(3).query_async(server).await?;
    let hello: HashMap<String, Value> = HashMap::from_redis_value(hello)
        .map_err(|_| refused("sent an answer to HELLO that cannot be read"))?;
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
        return Err(refused(&what));
    }
    let wrong_kind = match (text("mode").as_str(), demands.is_cluster) {
        ("sentinel", _) => "is a sentinel: use a URL like `redis+sentinel://host/name-of-the-master`",
        ("cluster", false) => "is a node of a cluster: use a `redis+cluster` URL",
        ("standalone", true) => "is not a cluster: use a `redis` URL",
        _ => "",
    };
    if !wrong_kind.is_empty() {
        return Err(refused(wrong_kind));
    }
    if !demands.is_cluster && matches!(text("role").as_str(), "replica" | "slave") {
        let what = "is a replica, which grants no locks: connect to its master".into();
        return Err(Cause::Refused(ErrorKind::Unavailable, what));
    }
    // An evicted lock gets a second holder. Without the right to ask, the server is trusted.
    if !demands.allow_eviction
        && let Ok(memory) = info("memory", server).await
    {
        let limited = field(&memory, "maxmemory").is_some_and(|m| m != "0");
        let policy = field(&memory, "maxmemory_policy").unwrap_or_default();
        if limited && !policy.is_empty() && policy != "noeviction" {
            return Err(refused(&format!(
                "evicts keys when its memory is full (maxmemory-policy {policy}), held locks among them: set \
                 it to noeviction, or give the locks a server of their own"
            )));
        }
    }
    if demands.is_cluster {
        return Ok(None);
    }
    let said = match (info("server", server).await, demands.rejoin) {
        (Ok(said), _) => said,
        // Without the right to ask, the server is trusted, unless something depends on the answer.
        (Err(_), None) => return Ok(None),
        (Err(e), Some(_)) => return Err(e.into()),
    };
    if let Some(rejoin) = demands.rejoin {
        let clock = field(&said, "server_time_usec").and_then(|us| us.parse().ok());
        let uptime = field(&said, "uptime_in_seconds").and_then(|s| s.parse().ok());
        let uptime =
            uptime.ok_or_else(|| refused("does not report its uptime, which `rejoin_after` needs"))?;
        rejoin.admits(uptime, clock).map_err(Cause::Barred)?;
    }
    let run = field(&said, "run_id");
    if let (Some(run), Some(member)) = (run, &demands.member) {
        member.comes_to(run)?;
    }
    Ok(run.map(Arc::from))
}

pub(crate) async fn info(section: &str, server: &mut MultiplexedConnection) -> RedisResult<String> {
    Ok(text_of(cmd("INFO").arg(section).query_async(server).await?))
}

/// The value of that line of an INFO.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

pub(crate) fn text_of(info: Value) -> String {
    match info {
        Value::BulkString(b) => String::from_utf8_lossy(&b).into_owned(),
        Value::VerbatimString { text, .. } => text,
        _ => String::new(),
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
    fn versions_are_compared_as_numbers() {
        assert_eq!(read_version("7.0.15"), Some((7, 0)));
        assert!(read_version("6.10.0").unwrap() > OLDEST);
        assert!(read_version("6.0.16").unwrap() < OLDEST);
        assert_eq!(read_version("unstable"), None);
    }
}
