//! The task that keeps a client's lease alive, on one connection after another.
//!
//! One renewal is in flight at a time. A request for one is answered by the next that is sent. Without
//! requests the lease is renewed three times in its ttl, and every 5 s at least.
//!
//! What could break it, and why it does not:
//!
//! * *A member fails, is paused, or is cut off from the others.* A renewal that is not answered in time ends
//!   the connection, and the next member is used, with the same lease.
//! * *The lease ended meanwhile.* Its renewal says so, and so does the client's own mark, which goes with it
//!   and is watched. Then all its locks are reported lost, and another lease is made.
//! * *It has no user left.* A lease without keys is revoked. One with keys is not renewed again, and expires
//!   when its forgotten locks would have been lost anyway.
//! * *Its runtime ends, and with it the task.* The lease is not confirmed any more, and no lock is granted.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_compat::CompatExt as _;
use dlock_core::Runtime;
use dlock_core::runtime::yield_now;
use etcd_client::Error as Etcd;
use futures::StreamExt as _;
use futures::future::{Either, select, select_all};
use futures::{FutureExt as _, future::BoxFuture};

use crate::channel::Tasks;
use crate::connect::{Attached, Found, Leased, Refused};
use crate::connection::Connection;
use crate::link::Link;
use crate::session::{Ask, Session};
use crate::watches::Seen;

/// Between tries for a connection.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The longest time between two renewals: a member that stands still is found out by one.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// How long a renewal may take before another member is asked: a sixth of the ttl, within these.
const SHORTEST_ANSWER: Duration = Duration::from_millis(500);
const LONGEST_ANSWER: Duration = Duration::from_secs(2);

fn patience(ttl: Duration) -> Duration {
    (ttl / 6).clamp(SHORTEST_ANSWER, LONGEST_ANSWER)
}

/// How renewing on one connection ended.
enum Ended {
    Broken,
    Gone(Found),
    /// Nobody uses it any more.
    Unused,
}

/// The answer, unless it takes longer.
pub(crate) async fn within<T>(
    runtime: &Arc<dyn Runtime>,
    limit: Duration,
    asking: impl Future<Output = Result<T, Etcd>>,
) -> Result<T, Etcd> {
    let asking = std::pin::pin!(asking.compat());
    match select(asking, runtime.sleep(limit)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(_) => Err(Etcd::IoError(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Keeps that lease and its successors as long as the connection has a user.
pub(crate) async fn keep(
    weak: Weak<Connection>,
    runtime: Arc<dyn Runtime>,
    mut begun: Option<(Leased, Attached)>,
    mut member: usize,
) {
    let (mut leased, mut link) = (None, None);
    loop {
        let (mut this, mut attached) = match begun.take() {
            Some(both) => both,
            None => match connect(&weak, &runtime, (leased.take(), link.take()), &mut member).await {
                Some(both) => both,
                None => return,
            },
        };
        let ended = renewing(&weak, &runtime, &mut this, &mut attached).await;
        let session = this.session.clone();
        session.leave_link();
        let connection = weak.upgrade();
        match ended {
            Ended::Broken => {
                attached.link.break_off();
                member += 1;
                if let Some(connection) = connection {
                    connection.doubt();
                }
                leased = Some(this);
            }
            Ended::Gone(found) => {
                link = Some(attached.link);
                if let Some(connection) = connection {
                    connection.over(&session, found);
                }
            }
            Ended::Unused => {
                if connection.is_some_and(|c| !c.end_unused()) {
                    (leased, link) = (Some(this), Some(attached.link));
                    continue;
                }
                if session.requests.shut_if_idle() {
                    let mut leases = attached.link.client.lease_client();
                    let _ = within(&runtime, LONGEST_ANSWER, leases.revoke(session.lease)).await;
                }
                return;
            }
        }
        yield_now().await;
    }
}

/// Renews until something ends that.
async fn renewing(
    weak: &Weak<Connection>,
    runtime: &Arc<dyn Runtime>,
    leased: &mut Leased,
    attached: &mut Attached,
) -> Ended {
    let session = leased.session.clone();
    let ttl = session.deadline.span();
    let limit = patience(ttl);
    loop {
        let mut asks: Vec<Ask> = Vec::new();
        let mut is_deaf = false;
        {
            let link = attached.link.clone();
            let timer = runtime.sleep((ttl / 3).min(LONGEST_SILENCE));
            let asked = leased.asks.next().map(|ask| asks.extend(ask));
            let mark = &mut attached.mark;
            let is_deaf = &mut is_deaf;
            let marked = async {
                loop {
                    match mark.next().await {
                        Some(Seen::Began(_)) => {}
                        Some(Seen::Events(_)) => return,
                        Some(Seen::Compacted) | None => return *is_deaf = true,
                    }
                }
            };
            let gone = async move { link.is_gone().await };
            let any: [BoxFuture<'_, ()>; 4] = [timer, asked.boxed(), marked.boxed(), gone.boxed()];
            let _ = select_all(any).await;
        }
        while let Some(Some(ask)) = leased.asks.next().now_or_never() {
            asks.push(ask);
        }
        let Some(connection) = weak.upgrade().filter(|c| c.is_used()) else {
            return Ended::Unused;
        };
        if attached.link.is_broken() || is_deaf {
            return Ended::Broken;
        }
        let keys = &connection.settings.keys;
        let renewing = async {
            match asks.is_empty() {
                true => attached.renew(&session).await,
                false => attached.be_heard(&session, keys).await,
            }
        };
        match within(runtime, limit, renewing).await {
            Ok(Found::Alive) => {
                for ask in asks {
                    let _ = ask.send(Ok(()));
                }
            }
            Ok(found) => return Ended::Gone(found),
            Err(e) => {
                let e = connection.settings.told(e);
                for ask in asks {
                    let _ = ask.send(Err(e.clone()));
                }
                return Ended::Broken;
            }
        }
        drop(connection);
        yield_now().await;
    }
}

/// Connects to one member after another, until there is a lease, or no user.
async fn connect(
    weak: &Weak<Connection>,
    runtime: &Arc<dyn Runtime>,
    (mut leased, mut link): (Option<Leased>, Option<Arc<Link>>),
    member: &mut usize,
) -> Option<(Leased, Attached)> {
    let mut pause = SHORTEST_PAUSE;
    let mut tried = 0;
    loop {
        {
            let connection = weak.upgrade()?;
            if connection.end_unused() {
                return None;
            }
            match connection.attach(leased.take(), link.take(), *member).await {
                Ok((leased, attached)) => {
                    connection.install(&leased.session);
                    return Some((leased, attached));
                }
                Err((kept, e)) => {
                    leased = kept;
                    *member += 1;
                    // Requests for a renewal meanwhile are made again.
                    while let Some(Some(ask)) = leased.as_mut().and_then(|l| l.asks.next().now_or_never()) {
                        let _ = ask.send(Err(e.clone()));
                    }
                    connection.failed(e);
                }
            }
            tried += 1;
            if tried % connection.settings.members.len() != 0 {
                continue;
            }
        }
        runtime.sleep(pause).await;
        yield_now().await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Connection {
    /// Renews that lease or a new one on that connection, or one to that member. Where it fails, answers the
    /// lease that is there yet.
    pub(crate) async fn attach(
        &self,
        mut leased: Option<Leased>,
        link: Option<Arc<Link>>,
        member: usize,
    ) -> Result<(Leased, Attached), (Option<Leased>, dlock_core::Error)> {
        let (settings, runtime) = (&self.settings, &self.runtime);
        let deadline = leased.as_ref().map(|leased| &leased.session.deadline);
        // Each step may take a sixth of a ttl while there is a lease that is believed in.
        let limit = match deadline.filter(|d| runtime.now().since(d.confirmed()) < d.span()) {
            Some(believed) => (believed.span() / 6).max(SHORTEST_ANSWER).min(settings.timeout),
            None => settings.timeout,
        };
        let link = match link {
            Some(link) => link,
            None => match within(
                runtime,
                limit,
                settings.link(member, limit, Tasks(runtime.clone())),
            )
            .await
            {
                Ok(link) => link,
                Err(e) => return Err((leased, settings.told(e))),
            },
        };
        loop {
            let this = match leased.take() {
                Some(leased) => leased,
                None => within(runtime, limit, settings.lease(&link, runtime))
                    .await
                    .map_err(|e| (None, settings.told(e)))?,
            };
            let session: Arc<Session> = this.session.clone();
            let attaching = async { Ok(settings.attach(&session, &link).await) };
            match within(runtime, limit, attaching).await {
                Ok(Ok(attached)) => return Ok((this, attached)),
                // Another one is made.
                Ok(Err(Refused::Gone(found))) => self.over(&session, found),
                Ok(Err(Refused::Failed(e))) | Err(e) => {
                    link.break_off();
                    return Err((Some(this), settings.told(e)));
                }
            }
        }
    }
}
