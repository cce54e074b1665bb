//! Servers, clients of them, and one who looks at all guards.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock::{Client, ErrorKind, Guard, Held, LossReason, Timestamp, Token};

use dlock_testkit::{ZkEnsemble, ZkServer, ZkSession, until};

/// Of all clients. Long enough for a machine that is busy, short enough to wait for its end.
pub(crate) const SESSION: Duration = Duration::from_secs(3);
/// What a machine that is busy may add to anything.
pub(crate) const SLACK: Duration = Duration::from_secs(3);
/// What never takes as long.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The lock that the stories are about, and its line.
pub(crate) const NAME: &str = "stock-42";
pub(crate) const LINE: &str = "/dlock/locks/stock-42";

/// Work that blocks, away from the threads of the clients.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

pub(crate) async fn alone() -> Arc<ZkServer> {
    Arc::new(blocking(|| ZkServer::start().unwrap()).await)
}

pub(crate) async fn ensemble() -> Arc<ZkEnsemble> {
    Arc::new(blocking(|| ZkEnsemble::start().unwrap()).await)
}

/// A client with a session of its own.
pub(crate) async fn client(addresses: &[SocketAddr]) -> Client {
    client_for(addresses, SESSION).await
}

/// With sessions of that length.
pub(crate) async fn client_for(addresses: &[SocketAddr], session: Duration) -> Client {
    let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let session = session.as_millis();
    let url = format!(
        "zk://{}?session_timeout={session}ms&ttl={session}ms&op_timeout=10s&timeout=20s",
        hosts.join(",")
    );
    dlock::connect(url).await.unwrap()
}

pub(crate) async fn acquired(client: &Client) -> Guard {
    client.lock(NAME).unwrap().acquire().await.unwrap()
}

/// A grant, asked for until there is one: it may not be known whether the one before was.
pub(crate) async fn granted(client: &Client) -> Guard {
    loop {
        match client.lock(NAME).unwrap().acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
                "{e:?}"
            ),
        }
    }
}

/// Lets go where connections end: one may between the request and its answer, and then it is said so. The
/// lock goes on to the next all the same.
pub(crate) async fn released(guard: Guard) {
    if let Err(e) = guard.release().await {
        assert_eq!(e.kind(), ErrorKind::Unknown, "{e}");
    }
}

/// Sees every guard of the lock when it is granted.
#[derive(Debug, Default)]
pub(crate) struct Judge(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    valid: Vec<Held>,
    last: Option<Token>,
    grants: usize,
}

impl Judge {
    /// One more is granted: no other may be valid from here on, and its token is the largest.
    pub(crate) fn sees(&self, guard: &Guard) {
        let mut seen = self.0.lock().unwrap();
        seen.valid.retain(Held::is_valid);
        let others: Vec<_> = seen.valid.iter().map(Held::token).collect();
        assert!(
            others.is_empty() || !guard.is_valid(),
            "{:?} is granted while {others:?} say that they are valid",
            guard.token()
        );
        assert!(
            seen.last < guard.token(),
            "{:?} is granted after {:?}",
            guard.token(),
            seen.last
        );
        seen.last = guard.token();
        seen.valid.push(guard.held());
        seen.grants += 1;
    }

    pub(crate) fn grants(&self) -> usize {
        self.0.lock().unwrap().grants
    }
}

/// Waits until the queue has that many entries, with the holder.
pub(crate) async fn line_of(
    length: usize,
    in_session: impl Fn(&mut dyn FnMut(&mut ZkSession) -> std::io::Result<usize>) -> std::io::Result<usize>
    + Send
    + 'static,
) {
    let waited = blocking(move || {
        until("they stand in line", LONG, || {
            let there = in_session(&mut |s| Ok(s.children(LINE)?.unwrap_or_default().len()))?;
            Ok(there == length)
        })
    });
    waited.await.unwrap();
}

/// Waits until that guard is lost: why, and by how much later than its last deadline that was told.
pub(crate) async fn lateness(guard: &Guard) -> (LossReason, Duration) {
    let lost = guard.lost();
    futures::pin_mut!(lost);
    // An ended guard has none.
    let mut deadline = guard.deadline();
    loop {
        match tokio::time::timeout(Duration::from_millis(5), &mut lost).await {
            Ok(why) => return (why, deadline.until(Timestamp::now())),
            Err(_) => deadline = deadline.max(guard.deadline()),
        }
    }
}

/// The sessions that those servers have with clients now.
pub(crate) fn sessions(servers: &[ZkServer]) -> Vec<i64> {
    let clients = servers.iter().flat_map(|s| s.clients().unwrap());
    clients.map(|c| c.session).collect()
}
