//! What can be done to ZooKeeper, for the rules that need hands at the store.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::hooks::{Hooks, Offer, Restart, Step, Vitals};
use dlock_core::{Error, ErrorKind, LockName, Result};
use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::BoxFuture;

use dlock_testkit::{ZkEnsemble, ZkOptions, ZkServer, ZkSession, until};

/// Its unit of time, by which its sessions end: short against those of the rules.
const TICK: Duration = Duration::from_millis(100);
/// How often it looks for containers that are empty.
const SWEEP: Duration = Duration::from_millis(200);
/// How long it may take, on a machine that has much else to do, until it has done so.
const SWEPT: Duration = Duration::from_secs(5);

/// Whose hands.
#[derive(Clone)]
pub(crate) enum Store {
    One(Arc<ZkServer>),
    /// It can fail over.
    Ensemble(Arc<ZkEnsemble>),
}

impl Store {
    fn start(ensemble: bool) -> io::Result<Self> {
        let options = ZkOptions::new().tick(TICK).containers(SWEEP).own_clock();
        Ok(match ensemble {
            true => Self::Ensemble(Arc::new(ZkEnsemble::with(options)?)),
            false => Self::One(Arc::new(ZkServer::with(options)?)),
        })
    }

    fn servers(&self) -> &[ZkServer] {
        match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Ensemble(all) => all.members(),
        }
    }

    /// In a session with whoever knows it all.
    fn with_session<T>(&self, work: impl FnOnce(&mut ZkSession) -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::One(server) => server.with_session(work),
            Self::Ensemble(all) => all.with_session(work),
        }
    }

    /// What its clock shows, which is seen in what it writes.
    fn clock(&self) -> io::Result<Duration> {
        const AT: &str = "/clock-of-the-tests";
        self.with_session(|session| {
            session.create(AT, b"")?;
            let stat = session.stat(AT)?;
            session.delete(AT)?;
            stat.map(|s| s.ctime)
                .ok_or_else(|| io::Error::other("a node has gone by itself"))
        })
    }

    fn look(&self) -> io::Result<Vitals> {
        let runs: Vec<_> = self
            .servers()
            .iter()
            .map(|s| s.pid().unwrap_or(0).to_string())
            .collect();
        let vitals = Vitals::new().run(runs.join(" ")).clock(self.clock()?);
        Ok(match self {
            Self::One(_) => vitals,
            Self::Ensemble(all) => vitals.leader(all.leader()?),
        })
    }
}

/// The hooks of servers that have locks of `dlock-zk` below that root.
pub(crate) struct ZkHooks {
    store: Store,
    root: String,
}

/// Blocking work, on a thread of its own once it is polled. Dropped, it is left to end.
pub(crate) fn apart<T: Send + 'static>(
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

// --- where dlock-zk keeps a name ---

// Written down a second time on purpose: clients that differ in it do not exclude one another, so a change of
// the layout must fail somewhere, and here it does. There is no line where these rules look for it then.

/// The queue of a name: a container, with a node for each holder and waiter.
fn line(root: &str, name: &LockName) -> String {
    format!("{root}/locks/{}", plain(name))
}

/// A name as part of a path.
pub(crate) fn plain(name: &LockName) -> String {
    let mut path = String::new();
    for (n, byte) in name.as_bytes().iter().enumerate() {
        match byte {
            b'.' if n == 0 => path.push_str("%2E"),
            b'-' | b'_' | b'.' | b'~' => path.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => path.push(char::from(*byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

/// What stands in the line of a name, and is no node of one.
const FOREIGN: &str = "somebody-else";

/// Containers that are empty and were not always.
fn empty(session: &mut ZkSession, paths: &[String]) -> io::Result<Vec<String>> {
    let mut empty = Vec::new();
    for path in paths {
        // Only a container is its own owner's opposite; that it was used is what makes it one that goes.
        if session
            .stat(path)?
            .is_some_and(|s| s.owner == i64::MIN && s.children == 0)
        {
            empty.push(path.clone());
        }
    }
    Ok(empty)
}

impl ZkHooks {
    /// Starts a server, or an ensemble of three.
    pub(crate) fn start(ensemble: bool, root: &str) -> io::Result<Self> {
        Ok(Self {
            store: Store::start(ensemble)?,
            root: root.to_owned(),
        })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.store.servers().iter().map(ZkServer::address).collect()
    }

    fn hand<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let store = self.store.clone();
        apart(move || work(&store))
    }

    /// How many nodes there are, for [`Harness::footprint`](dlock_conformance::Harness::footprint).
    /// Containers that are empty count once the server had the time to remove them, and has not.
    pub(crate) fn footprint(&self) -> BoxFuture<'static, Result<u64>> {
        let root = self.root.clone();
        self.hand(move |store| {
            store.with_session(|session| {
                let paths = session.all(&root)?;
                let left = empty(session, &paths)?;
                let swept = until("empty containers are swept", SWEPT, || {
                    Ok(empty(session, &left)?.is_empty())
                });
                let paths = session.all(&root)?;
                let spared = match swept {
                    // Those that have become empty since.
                    Ok(()) => empty(session, &paths)?.len(),
                    Err(_) => 0,
                };
                Ok((paths.len() - spared) as u64)
            })
        })
    }
}

impl Hooks for ZkHooks {
    fn vitals(&self) -> Offer<'_, Vitals> {
        Some(self.hand(Store::look))
    }

    fn restart(&self, how: Restart) -> Offer<'_> {
        let end = match how {
            Restart::InOrder => ZkServer::stop_in_order,
            Restart::Crash => ZkServer::crash,
        };
        Some(self.hand(move |store| match store {
            Store::One(server) => {
                end(server)?;
                server.start_again()
            }
            Store::Ensemble(all) => all.restart(end),
        }))
    }

    fn fail_over(&self) -> Offer<'_> {
        let Store::Ensemble(_) = &self.store else {
            return None;
        };
        Some(self.hand(|store| match store {
            Store::One(_) => Ok(()),
            Store::Ensemble(all) => {
                let dead = all.crash_leader()?;
                // It comes back, and follows: the next one to die must leave a majority.
                all.start_again(dead)
            }
        }))
    }

    fn step_clock(&self, step: Step) -> Offer<'_> {
        let by = match step {
            Step::Forward(by) => i64::try_from(by.as_millis()).unwrap_or(i64::MAX),
            Step::Back(by) => -i64::try_from(by.as_millis()).unwrap_or(i64::MAX),
        };
        Some(self.hand(move |store| {
            store
                .servers()
                .iter()
                .try_for_each(|server| server.clock()?.step(by))
        }))
    }

    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        let (line, with) = (line(&self.root, name), with.to_owned());
        let parent = format!("{}/locks", self.root);
        let root = self.root.clone();
        Some(self.hand(move |store| {
            store.with_session(|session| {
                session.delete_all(&line)?;
                for path in [&root, &parent, &line] {
                    session.create(path, b"")?;
                }
                session
                    .create(&format!("{line}/{FOREIGN}"), with.as_bytes())
                    .map(drop)
            })
        }))
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        let line = line(&self.root, name);
        Some(self.hand(move |store| {
            store.with_session(|session| {
                let mut bytes = Vec::new();
                for path in session.all(&line)? {
                    bytes.extend_from_slice(path.as_bytes());
                    bytes.push(b' ');
                    bytes.extend(session.get(&path)?.unwrap_or_default());
                    bytes.push(b'\n');
                }
                Ok(bytes)
            })
        }))
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        let line = line(&self.root, name);
        Some(self.hand(move |store| store.with_session(|session| session.delete_all(&line).map(drop))))
    }
}
