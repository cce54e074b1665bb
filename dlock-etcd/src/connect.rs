//! Making a connection, and a lease on it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{ErrorKind, Result, Runtime};
use etcd_client::{
    Client, ConnectOptions, Error as Etcd, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    ResponseHeader,
};
use futures::FutureExt as _;
use futures::channel::mpsc;
use hyper::rt::Executor as _;

use crate::channel::{Member, Tasks};
use crate::deadline::Renewed;
use crate::failure::{is_lease_gone, told};
use crate::keys::Keys;
use crate::link::Link;
use crate::session::{Ask, Session};
use crate::watches::{Watched, Watches, What};

/// A configuration that was checked.
pub(crate) struct Settings {
    pub(crate) keys: Keys,
    /// For messages.
    pub(crate) at: Arc<str>,
    pub(crate) members: Vec<Member>,
    pub(crate) options: ConnectOptions,
    pub(crate) ttl: Duration,
    pub(crate) timeout: Duration,
    pub(crate) whereabouts: Arc<str>,
}

/// A lease, and the requests to renew it.
pub(crate) struct Leased {
    pub(crate) session: Arc<Session>,
    pub(crate) asks: mpsc::UnboundedReceiver<Ask>,
}

/// What a lease is renewed by, on one connection.
pub(crate) struct Attached {
    pub(crate) link: Arc<Link>,
    pub(crate) keeper: LeaseKeeper,
    pub(crate) answers: LeaseKeepAliveStream,
    /// The key that shows that the client is there, which goes with the lease.
    pub(crate) mark: Watched,
}

/// Why a lease could not be attached.
pub(crate) enum Refused {
    /// It has ended, in that way.
    Gone(Found),
    Failed(Etcd),
}

impl From<Etcd> for Refused {
    fn from(e: Etcd) -> Self {
        match is_lease_gone(&e) {
            true => Self::Gone(Found::Gone),
            false => Self::Failed(e),
        }
    }
}

impl Settings {
    /// Connects to that member.
    pub(crate) async fn link(&self, n: usize, limit: Duration, on: Tasks) -> Result<Arc<Link>, Etcd> {
        let member = &self.members[n % self.members.len()];
        let (channel, ended) = member.channel(limit, on.clone()).await?;
        let client = Client::from_channel(channel, Some(self.options.clone())).await?;
        let link = Arc::new(Link::new(client, member.host.to_string().into()));
        let weak = Arc::downgrade(&link);
        on.execute(ended.map(move |_| weak.upgrade().map_or((), |l| l.break_off())));
        Ok(link)
    }

    /// Has the cluster make a lease, and puts the mark on it.
    pub(crate) async fn lease(&self, link: &Link, runtime: &Arc<dyn Runtime>) -> Result<Leased, Etcd> {
        let asked = runtime.now();
        let mut leases = link.client.lease_client();
        let seconds = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX);
        let lease = leases.grant(seconds, None).await?;
        let ttl = Duration::from_secs(lease.ttl().unsigned_abs());
        let mark = format!("ttl={} {}", ttl.as_secs(), self.whereabouts);
        let options = PutOptions::new().with_lease(lease.id());
        let mut kv = link.client.kv_client();
        let key = self.keys.session(lease.id());
        if let Err(e) = kv.put(key, mark, Some(options)).await {
            // It would hang about until it expires.
            let _ = leases.revoke(lease.id()).await;
            return Err(e);
        }
        let (ask, asks) = mpsc::unbounded();
        let on = (runtime.clone(), self.at.clone());
        let session = Arc::new(Session::new((lease.id(), ttl), asked, on, ask));
        Ok(Leased { session, asks })
    }

    /// Renews that lease on that connection from now on.
    pub(crate) async fn attach(&self, session: &Session, link: &Arc<Link>) -> Result<Attached, Refused> {
        let (keeper, answers) = link.client.lease_client().keep_alive(session.lease).await?;
        let first = What {
            key: self.keys.session(session.lease).into(),
            end: None,
            from: None,
            deletions_only: true,
        };
        let (watches, mark, tending) = Watches::open(link, first).await?;
        session.runtime.spawn(tending.boxed());
        let mut attached = Attached {
            link: link.clone(),
            keeper,
            answers,
            mark,
        };
        // It may have ended before the mark was watched.
        match attached.be_heard(session, &self.keys).await? {
            Found::Alive => {
                session.set_link(link.clone(), watches);
                Ok(attached)
            }
            found => Err(Refused::Gone(found)),
        }
    }

    pub(crate) fn told(&self, e: Etcd) -> dlock_core::Error {
        told(e, ErrorKind::Unavailable, &self.at)
    }
}

/// How often a leader may be elected while a renewal is confirmed.
const ELECTIONS: usize = 4;

/// How a lease was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Alive,
    Gone,
    /// The cluster was restored to an earlier state, and the keys of the lease with it.
    PutBack,
}

impl Attached {
    /// Renews the lease.
    pub(crate) async fn renew(&mut self, session: &Session) -> Result<Found, Etcd> {
        let sent = session.now();
        self.keeper.keep_alive().await?;
        let Some(answer) = self.answers.message().await? else {
            return Err(Etcd::LeaseKeepAliveError("the stream ended".to_owned()));
        };
        if answer.ttl() <= 0 {
            return Ok(Found::Gone);
        }
        let term = answer.header().map_or(0, ResponseHeader::raft_term);
        session.deadline.renewed(Renewed { sent, term });
        Ok(Found::Alive)
    }

    /// The same, and has a majority confirm it: see [`deadline`](crate::deadline).
    pub(crate) async fn be_heard(&mut self, session: &Session, keys: &Keys) -> Result<Found, Etcd> {
        for _ in 0..ELECTIONS {
            if self.renew(session).await? == Found::Gone {
                return Ok(Found::Gone);
            }
            let before = session.before();
            let was_confirmed = before.renewed.is_none();
            let count = GetOptions::new().with_count_only();
            let read = self.link.get(keys.session(session.lease), count).await?;
            match session.heard(before, read.header()) {
                None => return Ok(Found::PutBack),
                // A leader may renew a lease that was ended just before (etcd's pull request 20616).
                Some(_) if read.count() == 0 => return Ok(Found::Gone),
                // Or another request has confirmed it.
                Some(counts) if counts || was_confirmed => return Ok(Found::Alive),
                Some(_) => {}
            }
        }
        let message = "the leader changed during each try";
        Err(Etcd::LeaseKeepAliveError(message.to_owned()))
    }
}
