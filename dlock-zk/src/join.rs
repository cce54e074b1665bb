//! Joining a queue and leaving it.
//!
//! To join, the node is created and the queue is read in one round trip. A session's requests are carried out
//! in order, so the list behind the creation has the own node, and everything that came before it. To leave,
//! the node is deleted by its name, which only one request ever had: a late deletion never hits another's
//! node. The engine repeats it until it is answered or the session is over; then the server does it.
//!
//! What could break it, and why it does not:
//!
//! * *The answer is lost.* The request was noted before it was sent, with the beginning of its node's name,
//!   which only it has. A repeated call looks for that first, behind a `sync`: then the server has all
//!   effects of the lost request, even if it is another server.
//! * *The request arrives after the connection broke.* It is refused: a server closes the old connection of a
//!   session when it gets a new one, and the leader takes nothing for a session from a server that it has
//!   left. So a node that is not found by then never comes.
//! * *The queue is missing.* The server removes empty containers. Then both requests fail, and the queue is
//!   created with the next two; likewise for a name that this client has not used recently. It may be removed
//!   again just then, so this is repeated a few times.
//! * *Two calls for one request run at a time.* The second is [refused](crate::requests).
//! * *The queue is created, and the node is not.* The server would never remove it, so it is removed here, or
//!   by the call that finds later that nothing came of the request.
//! * *The session has ended.* The node names its session (`ephemeralOwner`); only one of this session counts.
//!
//! # The end of the numbers
//!
//! A request that draws a place behind the [`END`](crate::node::END) removes its node again. If the queue is
//! empty then, it removes the queue, and the next request creates another one, whose numbers begin anew.
//! Otherwise it waits beside the queue until the last request before the end has gone. So the order of
//! arrival is lost at that one moment in two thousand million.
//!
//! * *A request joins just when the queue is removed.* A server removes no node that has children. A later
//!   request finds no queue, and creates one.
//! * *A list of the old queue.* Its nodes have gone. No node of the new queue has one of their names, and
//!   tokens do not come from places.
//! * *Its node is not removed*, since an answer is lost or its client dies. It counts in no queue, and goes
//!   with a further try or with its session. Until then the queue cannot be removed, and newcomers wait.
//!
//! In the layout of Curator this holds for dlock's side. Curator itself goes on to the end, and breaks there.

use std::sync::Arc;

use dlock_core::spi::{Acquire, LeaseKey, Wait, Wake};
use dlock_core::{Error, ErrorKind, RequestId, Result};
use futures::future::{BoxFuture, join, join_all, join3};
use zookeeper_client::{Client, CreateMode, Error as Zk};

use crate::failure::did_nothing;
use crate::layout::Layout;
use crate::line::{Line, line_of};
use crate::lock::ZkLock;
use crate::node::{Child, NodeData, is_place, marker, parse, prefix, who};
use crate::requests::{Node, Request};
use crate::session::Session;

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
        let prefix = prefix(self.paths().layout, key.id, request.mode);
        let path = format!("{line}/{prefix}");
        // In dlock's own layout it stands in the name.
        let id = (self.paths().layout != Layout::Own).then_some(key.id);
        let data = self.node_data(session, request, id);
        let client = session.client()?;
        let mut last = Zk::NoNode;
        // The first request for a name does not know whether its queue exists, and creates it to be sure.
        let is_known = self.connection.knows(&line);
        for tries in usize::from(!is_known)..=TRIES {
            if tries > 1 {
                // Not only the line, but what is above it is missing.
                let making = self.connection.make_directory(&client, &self.paths().locks);
                if let Err(e) = making.await {
                    // Nothing was made, and nothing will be.
                    session.requests.forget(key);
                    return Err(session.failed(e));
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
                    if !session.owns(&stat) {
                        let message = "a node was made that is not of the session that asked for it";
                        return Err(Error::new(ErrorKind::BackendData, message));
                    }
                    let node = Node {
                        name: format!("{prefix}{sequence}").into(),
                        czxid: stat.czxid,
                    };
                    session.requests.keep(request, &node)?;
                    return Ok((node, listed));
                }
                Err(Zk::NoNode) => last = made.err().filter(|e| *e != Zk::NoNode).unwrap_or(Zk::NoNode),
                Err(e) => {
                    if did_nothing(&e) {
                        session.requests.forget(key);
                        self.remove_line(&client, &line).await;
                    }
                    return Err(session.perhaps(e));
                }
            }
            if last != Zk::NoNode {
                break;
            }
            // Nothing was made. Who has abandoned it meanwhile counts on that.
            self.connection
                .check_buried(key.id)
                .inspect_err(|_| session.requests.forget(key))?;
        }
        session.requests.forget(key);
        match last {
            Zk::NoNode => {
                let message = "the line of the lock was removed as often as it was made";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            e => Err(session.failed(e)),
        }
    }

    /// What stands in a node of that request; with the id where the name of the node does not have it.
    pub(crate) fn node_data(&self, session: &Session, request: &Acquire, id: Option<RequestId>) -> Vec<u8> {
        let data = NodeData {
            id,
            ttl: session.timeout,
            whereabouts: Some(self.whereabouts.clone()),
            owner: request.owner.clone(),
        };
        data.write()
    }

    /// A container, which the server removes when it has been used and is empty.
    fn make_line<'a>(
        &'a self,
        client: &'a Client,
        line: &'a str,
    ) -> impl Future<Output = Result<(), Zk>> + 'a {
        let create = client.create(line, &[], &self.connection.node(CreateMode::Container));
        async move {
            match create.await {
                Ok(_) | Err(Zk::NodeExists) => Ok(()),
                Err(e) => Err(e),
            }
        }
    }

    /// Removes a line in which there may never have been a node: the server does not. One that is in use it
    /// leaves alone, and one that is not is made again by who needs it.
    pub(crate) async fn remove_line(&self, client: &Client, line: &str) {
        // If this fails it stays, as an empty node, until its name is used.
        let _ = client.delete(line, None).await;
    }

    /// The node of a request whose creation was not answered, if there is one.
    pub(crate) async fn find(&self, session: &Session, key: &LeaseKey) -> Result<Option<Node>> {
        let client = session.client()?;
        let line = self.paths().lock(&key.name);
        let children = session.children(&client, &line).await?;
        let prefix = who(self.paths().layout, key.id);
        // In a session of before, the same request may have left one.
        let is_alike = |c: &&String| c.starts_with(&prefix);
        let alike = children.iter().filter(is_alike);
        let stats = alike.map(|child| {
            let path = format!("{line}/{child}");
            let stat = client.check_stat(&path);
            async move { (child, stat.await) }
        });
        for (child, stat) in join_all(stats).await {
            if let Some(stat) = stat.map_err(|e| session.failed(e))?
                && session.owns(&stat)
            {
                let node = Node {
                    name: child.as_str().into(),
                    czxid: stat.czxid,
                };
                session.requests.change(key, |r| r.node = Some(node.clone()));
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// What those children of a line are.
    pub(crate) fn line(&self, children: Vec<String>) -> Result<Line> {
        line_of(self.paths().layout, children).map_err(|child| {
            // The name of what is there, as far as it is fit to be shown.
            let child: String = child.chars().filter(|c| !c.is_control()).take(64).collect();
            let message = format!(
                "the queue has a node `{child}` that dlock did not make: remove it, or use another root"
            );
            Error::new(ErrorKind::BackendData, message)
        })
    }

    /// The line of now, as the server that is asked has it.
    pub(crate) async fn read_line(&self, session: &Session, line: &str) -> Result<Line> {
        match session.client()?.list_children(line).await {
            Ok(children) => self.line(children),
            Err(Zk::NoNode) => Ok(Line::default()),
            Err(e) => Err(session.failed(e)),
        }
    }

    /// The line of now, as the leader has it: no older than this call.
    pub(crate) async fn read_line_of_now(&self, session: &Session, key: &LeaseKey) -> Result<Line> {
        let line = self.paths().lock(&key.name);
        self.line(session.children(&*session.client()?, &line).await?)
    }

    /// Reads something, and again if the connection broke or the session was over: nothing depends on how
    /// often.
    ///
    /// # Errors
    /// `Unavailable` if there is no connection within a moment, or if it broke again and again.
    pub(crate) async fn reading<'a, T>(
        &self,
        read: impl Fn(Arc<Session>, Arc<Client>) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let mut tries = 1;
        loop {
            let session = self.connection.session().await?;
            let client = session.client()?;
            match read(session, client).await {
                Err(e) if e.kind() == ErrorKind::Unavailable && tries < 2 * TRIES => tries += 1,
                read => return read,
            }
        }
    }

    /// Deletes the node of that request. Answers whether it was there, now or for an earlier deletion of ours
    /// that went unanswered; otherwise somebody else had deleted it.
    ///
    /// # Errors
    /// `Unknown` if it may be there yet: then it is known as before.
    pub(crate) async fn leave(&self, session: &Session, request: &Request, node: &Node) -> Result<bool> {
        let key = &request.key;
        let line = self.paths().lock(&key.name);
        let client = session.client()?;
        session.requests.change(key, |r| r.leaving = true);
        let path = format!("{line}/{}", node.name);
        let answer = match request.marked {
            None => session.written(|| client.delete(&path, None)).await,
            Some(mode) => {
                // First the entry: a marker without one is nothing, an entry without its marker is exclusive.
                let marker = format!("{line}/{}", marker(&node.name, mode));
                let sent = session.now();
                let (entry, marker) = join(client.delete(&path, None), client.delete(&marker, None)).await;
                session.heard(sent, &entry);
                match marker {
                    Ok(()) | Err(Zk::NoNode) => entry,
                    Err(e) => Err(e),
                }
            }
        };
        let was_there = match answer {
            Ok(()) => true,
            Err(Zk::NoNode) => request.leaving,
            // With it went the node.
            Err(Zk::SessionExpired) => return Ok(false),
            Err(e) => return Err(session.perhaps(e)),
        };
        session.requests.forget(key);
        Ok(was_there)
    }

    /// Whether that node is none in which a request may stay.
    pub(crate) fn is_at_the_end(&self, node: &Node) -> bool {
        match parse(self.paths().layout, &node.name) {
            Some(Child::Entry { place, .. }) => !is_place(place),
            _ => false,
        }
    }

    /// Takes that node out, and removes the line if it is empty. Otherwise answers what is to be waited for.
    ///
    /// # Errors
    /// `Unknown` if the node may be there yet.
    pub(crate) async fn leave_to_the_end(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
        node: &Node,
    ) -> Result<Option<Wait>> {
        let key = &request.key;
        self.withdraw(session, request, node).await?;
        let path = self.paths().lock(&key.name);
        let client = session.client()?;
        match session.written(|| client.delete(&path, None)).await {
            Ok(()) | Err(Zk::NoNode) => return Ok(None),
            Err(Zk::NotEmpty) => {}
            Err(e) => return Err(session.failed(e)),
        }
        let line = self.read_line_of_now(session, key).await?;
        match line.entries.last() {
            Some(last) => {
                let change = self.change(session, path, vec![last.node.clone()]);
                Ok(Some(Wait::new(Wake::Push(change))))
            }
            None => {
                // Others who came too late, and take their nodes out just now.
                let message = "the line of the lock is at the end of its numbers, and is about to begin anew";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}
