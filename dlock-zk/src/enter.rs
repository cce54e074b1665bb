//! Joining a line: the node is made and the line is read in one round trip.
//!
//! What a session asks is done in the order in which it was asked, so the list that was asked for behind the creation has the own node in it, and everything that
//! came before it. Nothing has to be answered in between.
//!
//! What could break it, and why it does not:
//!
//! * *The answer is lost.* The request was noted before it was sent, with the beginning of its node's name, which only it has. Whoever asks again looks for that first, behind a
//!   `sync`: then the server that is asked has all that came of the lost request, also if it is another server.
//! * *The request arrives after the connection broke.* It is refused: a server closes the old connection of a session when it gets a new one, and the leader takes
//!   nothing of a session from a server that it has left. So what is not found by then does not come.
//! * *The line is missing.* Lines are containers, which the server removes when they are empty. Then both requests fail, and the line is made with the next
//!   two behind it; also where a name is asked for that this client has not used lately. It may be removed again just then, so this is repeated a few times.
//! * *Two calls of one request come at a time.* Each would find nothing, and make a node. One has it in [hand](crate::hand), and the other is sent away.
//! * *The line is made, and the node is not.* Nobody would remove it, so it is removed here, or by who finds later that nothing came of the request.
//! * *The session ended meanwhile.* The node that is there says whose it is (`ephemeralOwner`); only one of this session counts.

use std::sync::Arc;

use dlock_core::spi::{Acquire, LeaseKey};
use dlock_core::{Error, ErrorKind, RequestId, Result};
use futures::future::{BoxFuture, join, join_all, join3};
use zookeeper_client::{Client, CreateMode, CreateSequence, Error as Zk, Stat};

use crate::entries::{Card, prefix, who};
use crate::failure::{Effect, did_nothing};
use crate::line::Line;
use crate::lock::ZkLock;
use crate::open::Layout;
use crate::session::{Node, Session};

/// How often a line is made that goes away under it, and a reading begun on a connection that breaks.
const TRIES: usize = 4;

impl ZkLock {
    /// Makes the node of a request that was noted. Answers the line behind it, if that could be read.
    pub(crate) async fn enter(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
    ) -> Result<(Node, Result<Vec<String>, Zk>)> {
        let key = &request.key;
        let line = self.paths().lock(&key.name);
        let priority = self.paths().priorities.then_some(request.priority);
        let prefix = prefix(self.paths().layout, key.id, request.mode, priority);
        let path = format!("{line}/{prefix}");
        // In dlock's own layout it stands in the name.
        let id = (self.paths().layout != Layout::Own).then_some(key.id);
        let data = self.card(session, id, request.owner.clone()).write();
        let client = session.client()?;
        let mut last = Zk::NoNode;
        // Who asks for a name for the first time does not know whether its line is there, and makes it to be sure.
        let is_known = self.connection.knows(&line);
        for tries in usize::from(!is_known)..=TRIES {
            if tries > 1 {
                // Not only the line, but what is above it is missing.
                let making = self.connection.make_directory(&client, self.paths().locks());
                if let Err(e) = making.await {
                    // Nothing was made, and nothing will be.
                    session.forget(key);
                    return Err(session.told(e, Effect::None));
                }
            }
            let options = self.connection.node(CreateMode::EphemeralSequential);
            let sent = session.now();
            // The line, the node, the list: sent in this order, before anything is waited for.
            let made = (tries > 0).then(|| self.make_line(&client, &line));
            let create = client.create(&path, &data, &options);
            let list = client.list_children(&line);
            let (made, created, listed) = match made {
                Some(made) => join3(made, create, list).await,
                None => {
                    let (created, listed) = join(create, list).await;
                    (Ok(()), created, listed)
                }
            };
            session.heard(sent, &created);
            match created {
                Ok((stat, sequence)) => {
                    if !is_known {
                        self.connection.learn(&line);
                    }
                    let node = self.entered(session, request, &prefix, &stat, sequence)?;
                    return Ok((node, listed));
                }
                // No containers here. Another request may have found that out meanwhile.
                Err(Zk::NoNode) if made == Err(Zk::Unimplemented) => {
                    self.connection.go_plain(session);
                }
                Err(Zk::NoNode) => last = made.err().filter(|e| *e != Zk::NoNode).unwrap_or(Zk::NoNode),
                Err(e) => {
                    if did_nothing(&e) {
                        session.forget(key);
                        if tries > 0 {
                            self.remove_line(&client, &line).await;
                        }
                    }
                    return Err(session.told(e, Effect::Perhaps));
                }
            }
            if last != Zk::NoNode {
                break;
            }
            // Nothing was made. Who has abandoned it meanwhile counts on that.
            self.check_buried(key)
                .inspect_err(|_| drop(session.forget(key)))?;
        }
        session.forget(key);
        match last {
            Zk::NoNode => {
                let message = "the line of the lock was removed as often as it was made";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            e => Err(session.told(e, Effect::None)),
        }
    }

    fn entered(
        &self,
        session: &Session,
        request: &Acquire,
        prefix: &str,
        stat: &Stat,
        sequence: CreateSequence,
    ) -> Result<Node> {
        if !session.owns(stat) {
            let message = "a node was made that is not of the session that asked for it";
            return Err(Error::new(ErrorKind::BackendData, message));
        }
        let node = Node {
            name: format!("{prefix}{sequence}").into(),
            czxid: stat.czxid,
        };
        session.keep(request, &node)?;
        Ok(node)
    }

    pub(crate) fn card(&self, session: &Session, id: Option<RequestId>, owner: Option<Arc<str>>) -> Card {
        Card {
            id,
            ttl: session.timeout,
            whereabouts: Some(self.whereabouts.clone()),
            owner,
        }
    }

    /// A container, which the server removes when it has been used and is empty; or what there is in its place, see [`plain`](crate::plain).
    fn make_line<'a>(
        &'a self,
        client: &'a Client,
        line: &'a str,
    ) -> impl Future<Output = Result<(), Zk>> + 'a {
        let options = self.connection.node(match self.connection.is_plain() {
            true => CreateMode::Persistent,
            false => CreateMode::Container,
        });
        let create = client.create(line, &[], &options);
        async move {
            match create.await {
                Ok(_) | Err(Zk::NodeExists) => Ok(()),
                Err(e) => Err(e),
            }
        }
    }

    /// Removes a line that may be empty where the server does not: a container in which there never was a node, or one that is [plain](crate::plain). One that is in use it leaves alone,
    /// and one that is not is made again by who needs it.
    pub(crate) async fn remove_line(&self, client: &Client, line: &str) {
        // If this fails it stays, as an empty node, until its name is used or it is swept.
        if client.delete(line, None).await.is_ok() {
            self.connection.unlearn(line);
        }
    }

    /// The node of a request whose creation was not answered, if there is one.
    pub(crate) async fn find(&self, session: &Session, key: &LeaseKey) -> Result<Option<Node>> {
        let told = |e| session.told(e, Effect::None);
        let client = session.client()?;
        let line = self.paths().lock(&key.name);
        let children = match session.synced(&client, || client.list_children(&line)).await {
            Ok(children) => children,
            Err(Zk::NoNode) => Vec::new(),
            Err(e) => return Err(told(e)),
        };
        let prefix = who(self.paths().layout, key.id);
        // In a session of before, the same request may have left one.
        let alike = children
            .iter()
            .filter(|c| c.starts_with(&prefix) && !c.contains('~'));
        let stats = alike.map(|child| {
            let path = format!("{line}/{child}");
            let stat = client.check_stat(&path);
            async move { (child, stat.await) }
        });
        for (child, stat) in join_all(stats).await {
            if let Some(stat) = stat.map_err(told)?
                && session.owns(&stat)
            {
                let node = Node {
                    name: child.as_str().into(),
                    czxid: stat.czxid,
                };
                session.change(key, |r| r.node = Some(node.clone()));
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// What those children of a line are.
    pub(crate) fn line(&self, children: &[String]) -> Result<Line> {
        Line::read(self.paths().layout, children).map_err(|child| {
            // The name of what is there, as far as it is fit to be shown.
            let child: String = child.chars().filter(|c| !c.is_control()).take(64).collect();
            let message = format!(
                "in the line of the lock is a node `{child}` that dlock did not make: remove it, or use another root"
            );
            Error::new(ErrorKind::BackendData, message)
        })
    }

    /// The line of now, as the server that is asked has it.
    pub(crate) async fn read_line(&self, session: &Arc<Session>, line: &str) -> Result<Line> {
        let client = session.client()?;
        match client.list_children(line).await {
            Ok(children) => self.line(&children),
            Err(Zk::NoNode) => Ok(Line::default()),
            Err(e) => Err(session.told(e, Effect::None)),
        }
    }

    /// The line of now, as the leader has it: no older than this call.
    pub(crate) async fn read_line_of_now(&self, session: &Session, key: &LeaseKey) -> Result<Line> {
        let client = session.client()?;
        let line = self.paths().lock(&key.name);
        match session.synced(&client, || client.list_children(&line)).await {
            Ok(children) => self.line(&children),
            Err(Zk::NoNode) => Ok(Line::default()),
            Err(e) => Err(session.told(e, Effect::None)),
        }
    }

    /// Reads something, and once more if the connection broke or the session was over: nothing depends on how often.
    ///
    /// # Errors
    /// `Unavailable` if there is no connection within a moment, or if it broke again and again.
    pub(crate) async fn reading<'a, T>(
        &self,
        read: impl Fn(Arc<Session>, Arc<Client>) -> BoxFuture<'a, Result<T, Zk>>,
    ) -> Result<T> {
        let mut last = None;
        for _ in 0..TRIES {
            let session = self.connection.session().await?;
            let client = session.client()?;
            match read(session.clone(), client).await {
                Ok(found) => return Ok(found),
                Err(e) => match session.told(e, Effect::None) {
                    e if e.kind() == ErrorKind::Unavailable => last = Some(e),
                    e => return Err(e),
                },
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "nothing was read")))
    }
}
