//! Acquisitions that have two nodes, and what is left of one if a part of it has gone.
//!
//! | | had by all in turn: says that it holds | of this acquisition alone |
//! |---|---|---|
//! | by priority | `held` | its place in the line |
//! | unfair | the node of the lock | its node below `holders` |
//!
//! Both are deleted in one step, by a release and by [`force_release`](crate::forced). Where one is missing, somebody deleted it by hand, or the acquisition was given up while `held` was made. The other one is in
//! everybody's way: so whoever finds that out deletes it before it says that the hold has gone, and until then the request is known.
//!
//! The own node is deleted by its name, which no other acquisition has. The one that all have in turn may be the next one's by the time that a deletion of it arrives. What could come
//! between the look that shows it to be the own one and its deletion, and why nobody else's is deleted:
//!
//! * *The own release, or one before it.* A call has the request in [hand](crate::hand), and what was sent before the look is in it, since it is made behind a `sync`.
//! * *The end of the session.* With it what was sent in it is refused.
//! * *An end by force.* That writes the node `forced` in the same step. So does this, at the version which that node had at the look: of the two, one is refused. For the same reason an
//!   end by force goes by the version from before it looked who holds; and since the end of that session is not its own, by the node of the session, too.
//! * *Somebody's hand, once more.* That is not noticed: see `docs/zookeeper.md`.

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, ErrorKind, RequestId, Result};
use futures::FutureExt as _;
use futures::future::try_join;
use zookeeper_client::{Client, Error as Zk, Stat};

use crate::entries::{Card, HELD};
use crate::failure::Effect;
use crate::forced;
use crate::lock::{ZkLock, in_line};
use crate::paths::Paths;
use crate::session::{Node, Request, Session};
use crate::single::cause;

/// Whatever the version of a node is: it is there.
pub(crate) const ANY: i32 = -1;

/// How often somebody may be ended by force between the look and the deletion.
const TRIES: usize = 16;

/// The node that says who has that lock, where that is not its line.
pub(crate) fn in_turn(paths: &Paths, key: &LeaseKey) -> Option<String> {
    let lock = paths.lock(&key.name);
    match (paths.unfair, paths.priorities) {
        (true, _) => Some(lock),
        (_, true) => Some(format!("{lock}/{HELD}")),
        _ => None,
    }
}

/// The node that only this acquisition has.
fn own(paths: &Paths, key: &LeaseKey, node: &Node) -> String {
    match paths.unfair {
        true => paths.holder(key.id),
        false => format!("{}/{}", paths.lock(&key.name), node.name),
    }
}

fn is_of(session: &Session, id: RequestId, (data, stat): &(Vec<u8>, Stat)) -> bool {
    session.owns(stat) && Card::read(data).id == Some(id)
}

/// Whether nothing is left of that request, and nobody is let in by it. What is left of a hold that has gone is deleted first.
///
/// # Errors
/// If that is not known, or something may be left.
pub(crate) async fn is_gone(
    paths: &Paths,
    session: &Session,
    client: &Client,
    request: &Request,
    node: &Node,
) -> Result<bool, Zk> {
    let key = &request.key;
    let own = own(paths, key, node);
    let stands = async || Ok::<_, Zk>(client.check_stat(&own).await?.is_some_and(|s| session.owns(&s)));
    let Some(in_turn) = in_turn(paths, key) else {
        return Ok(!stands().await?);
    };
    let has = async || match client.get_data(&in_turn).await {
        Ok(found) => Ok(is_of(session, key.id, &found)),
        Err(Zk::NoNode) => Ok(false),
        Err(e) => Err(e),
    };
    let waits = paths.priorities && !request.granted;
    if has().await? || waits && stands().await? {
        return Ok(false);
    }
    // Who has it in hand sees to that itself. And it may have had it anew before.
    if let Ok(_in_hand) = session.hands.take(key) {
        if has().await? {
            return Ok(false);
        }
        match client.delete(&own, None).await {
            Ok(()) | Err(Zk::NoNode) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

impl ZkLock {
    /// Forgets a hold whose node that says so has gone, when the other one has gone as well.
    ///
    /// # Errors
    /// `Unknown` if that may be there yet. Then it is known as before, and never granted again.
    pub(crate) async fn forget_hold(&self, session: &Session, request: &Request, node: &Node) -> Result<()> {
        if in_turn(self.paths(), &request.key).is_none() {
            session.forget_node(request);
            return Ok(());
        }
        let _in_hand = session.hands.take(&request.key)?;
        let noted = session.request(&request.key);
        if noted.is_some_and(|noted| noted.node != request.node) {
            let message = "the lock was taken again while it was looked for";
            return Err(Error::new(ErrorKind::Unknown, message));
        }
        session.change(&request.key, |r| r.leaving = true);
        let own = own(self.paths(), &request.key, node);
        self.end_own(session, &own).await?;
        session.forget_node(request);
        Ok(())
    }

    /// Deletes a node that only one acquisition has.
    ///
    /// # Errors
    /// `Unknown` if it may be there yet.
    pub(crate) async fn end_own(&self, session: &Session, path: &str) -> Result<()> {
        let client = session.client()?;
        match session.written(|| client.delete(path, None)).await {
            Ok(()) | Err(Zk::NoNode | Zk::SessionExpired) => Ok(()),
            Err(e) => Err(session.told(e, Effect::Perhaps)),
        }
    }

    /// Deletes the node that all have in turn, if that request has it. Answers whether it had.
    ///
    /// # Errors
    /// `Unknown` if it may have it yet.
    pub(crate) async fn let_go(&self, session: &Session, key: &LeaseKey, in_turn: &str) -> Result<bool> {
        let looked = |e| in_line(session.told(e, Effect::None));
        let told = |e| session.told(e, Effect::Perhaps);
        let forced = self.paths().forced();
        for _ in 0..TRIES {
            let client = session.client()?;
            let looking = session.synced(&client, || {
                // In this order: an end by force after the first of them counts as one after both.
                let [ends, found] = [&*forced, in_turn].map(|path| {
                    client.get_data(path).map(|found| match found {
                        Err(Zk::NoNode) => Ok(None),
                        found => found.map(Some),
                    })
                });
                try_join(ends, found)
            });
            let (ends, found) = looking.await.map_err(looked)?;
            if !found.is_some_and(|found| is_of(session, key.id, &found)) {
                return Ok(false);
            }
            let Some((said, stat)) = ends else {
                forced::make(&self.connection, &client).await.map_err(looked)?;
                continue;
            };
            let mut both = client.new_multi_writer();
            both.add_delete(in_turn, None).map_err(told)?;
            both.add_set_data(&forced, &said, Some(stat.version))
                .map_err(told)?;
            let answer = session
                .written(|| {
                    let leaving = both.commit();
                    async { leaving.await.map_err(cause) }
                })
                .await;
            match answer {
                Ok(_) => return Ok(true),
                // Somebody was ended since the look.
                Err(Zk::NoNode | Zk::BadVersion) => {}
                Err(Zk::SessionExpired) => return Ok(false),
                Err(e) => return Err(told(e)),
            }
        }
        let message = "others were ended by force each time that this lock was about to be let go";
        Err(Error::new(ErrorKind::Unknown, message))
    }
}
