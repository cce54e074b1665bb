//! A ZooKeeper ensemble of three servers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::ports::Port;
use crate::until::until;
use crate::zookeeper::{Mode, ZkServer};
use crate::zookeeper_options::ZkOptions;
use crate::zookeeper_wire::ZkSession;

const MEMBERS: usize = 3;

/// How long they may take to agree on a leader, on a machine that has much else to do.
const AGREE: Duration = Duration::from_secs(60);

/// How often all ports are chosen anew where somebody who knows nothing of our claims was faster.
const TRIES: u32 = 5;

/// Three servers, one of which may be away.
#[derive(Debug)]
pub struct ZkEnsemble {
    members: Vec<ZkServer>,
}

impl ZkEnsemble {
    /// Three servers as [`ZkOptions::new`] has them, which serve.
    ///
    /// # Errors If a program is not installed, or a server does not start; with its log.
    pub fn start() -> io::Result<Self> {
        Self::with(ZkOptions::new())
    }

    /// Three servers with those options, which serve.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn with(options: ZkOptions) -> io::Result<Self> {
        for n in 1.. {
            let ensemble = Self::new(&options)?;
            match ensemble.begin() {
                Err(_) if n < TRIES && ensemble.members.iter().any(ZkServer::port_is_taken) => {}
                started => return started.map(|()| ensemble),
            }
        }
        unreachable!("the last try returns")
    }

    fn new(options: &ZkOptions) -> io::Result<Self> {
        let ports = (0..MEMBERS).map(|_| Ok([Port::free()?, Port::free()?]));
        let ports = ports.collect::<io::Result<Vec<_>>>()?;
        let peers: Vec<_> = ports.iter().map(|[a, b]| (a.number(), b.number())).collect();
        let members = ports
            .into_iter()
            .enumerate()
            .map(|(n, ports)| ZkServer::new(options, (n + 1, &peers), Some(ports)));
        Ok(Self {
            members: members.collect::<io::Result<_>>()?,
        })
    }

    fn begin(&self) -> io::Result<()> {
        self.members.iter().try_for_each(ZkServer::begin)?;
        self.members.iter().try_for_each(ZkServer::wait_until_it_serves)
    }

    // --- who is who ---

    /// All members, also those that are down.
    pub fn members(&self) -> &[ZkServer] {
        &self.members
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(ZkServer::address).collect()
    }

    /// The members that run.
    fn running(&self) -> impl Iterator<Item = (usize, &ZkServer)> {
        self.members.iter().enumerate().filter(|(_, m)| m.pid().is_some())
    }

    /// Which member leads, as itself sees it.
    ///
    /// # Errors
    /// If none does at the moment.
    pub fn leader(&self) -> io::Result<usize> {
        let mut running = self.running();
        let leader = running.find(|(_, m)| matches!(m.mode(), Ok(Mode::Leader)));
        leader
            .map(|(n, _)| n)
            .ok_or_else(|| io::Error::other("no member leads"))
    }

    /// A member that follows.
    pub fn a_follower(&self) -> io::Result<usize> {
        let mut running = self.running();
        let follower = running.find(|(_, m)| matches!(m.mode(), Ok(Mode::Follower)));
        follower
            .map(|(n, _)| n)
            .ok_or_else(|| io::Error::other("no member follows"))
    }

    /// The member that this session is connected to.
    pub fn member_of(&self, session: i64) -> io::Result<usize> {
        for (n, member) in self.running() {
            if member.clients()?.iter().any(|c| c.session == session) {
                return Ok(n);
            }
        }
        Err(io::Error::other("no member that runs has that session"))
    }

    /// Waits until all members that run serve, one of them as their leader.
    pub fn wait_until_ok(&self) -> io::Result<()> {
        until("a leader, and all that run follow it", AGREE, || {
            for (_, member) in self.running() {
                member.mode()?;
            }
            self.leader().map(|_| true)
        })
    }

    // --- what is asked of it ---

    /// A session with the leader: what it sees is never old.
    pub fn session(&self) -> io::Result<ZkSession> {
        let mut session = None;
        until("a session with the leader", AGREE, || {
            session = Some(self.members[self.leader()?].session()?);
            Ok(true)
        })?;
        session.ok_or_else(|| io::Error::other("no session"))
    }

    /// Does something in a session of its own with the leader, which is closed after it.
    pub fn with_session<T>(&self, work: impl FnOnce(&mut ZkSession) -> io::Result<T>) -> io::Result<T> {
        let mut session = self.session()?;
        let done = work(&mut session)?;
        session.close()?;
        Ok(done)
    }

    // --- what is done to it ---

    /// Kills a member, and waits until the others serve: with another leader, if it was that.
    pub fn crash(&self, member: usize) -> io::Result<()> {
        self.members[member].crash()?;
        self.wait_until_ok()
    }

    /// Kills the leader, and waits until another leads; which one was killed.
    pub fn crash_leader(&self) -> io::Result<usize> {
        let leader = self.leader()?;
        self.crash(leader)?;
        Ok(leader)
    }

    /// Starts a member again, and waits until all serve.
    pub fn start_again(&self, member: usize) -> io::Result<()> {
        self.members[member].start_again()?;
        self.wait_until_ok()
    }

    /// Ends all of them as an operator does, or kills them, and starts them again.
    pub fn restart(&self, end: impl Fn(&ZkServer) -> io::Result<()>) -> io::Result<()> {
        self.members.iter().try_for_each(end)?;
        self.begin()?;
        self.wait_until_ok()
    }

    /// Ends somebody's session, as if it had run out: its nodes are gone when this returns, and its
    /// connection is closed by the member that has it.
    ///
    /// # Errors
    /// If there is no such session.
    pub fn expire(&self, session: i64) -> io::Result<()> {
        // By another member than that which has the connection: the session moves there, and ends there.
        let at = self.member_of(session)?;
        let mut others = self.running().filter(|(n, _)| *n != at);
        let (_, other) = others
            .next()
            .ok_or_else(|| io::Error::other("no other member runs"))?;
        other.expire(session)
    }
}
