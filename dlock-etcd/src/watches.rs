//! All watches of a client, on one stream.
//!
//! A watch reports all events, in order, and none twice. One that begins at a past revision also reports what
//! happened since, but a member sends that only ten times a second: too late for a waiter. So a waiter's
//! watch begins now, and reports its revision; a waiter that looked before that looks again. If the store has
//! compacted a revision, the watch says so, and the waiter looks again.
//!
//! The stream ends with its connection, and with it every watch: waiters ask again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_compat::CompatExt as _;
use etcd_client::{
    Error as Etcd, Event, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse,
    WatchResponseStream,
};
use futures::StreamExt as _;
use futures::channel::mpsc;
use futures::future::{Either, select};

use crate::link::{LARGEST_ANSWER, Link, revision};

/// What a watch tells.
#[derive(Debug)]
pub(crate) enum Seen {
    /// It has begun, and tells what comes after that revision.
    Began(i64),
    /// These happened.
    Events(Vec<Event>),
    /// The store does not know any more what happened.
    Compacted,
}

/// What is to be watched: a key, or all up to another one.
#[derive(Clone, Debug)]
pub(crate) struct What {
    pub(crate) key: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
    /// From this revision on, or from now on.
    pub(crate) from: Option<i64>,
    /// Puts are not reported.
    pub(crate) deletions_only: bool,
}

enum Command {
    Watch(i64, What, mpsc::UnboundedSender<Seen>),
    Cancel(i64),
    End,
}

/// To watch on one connection.
#[derive(Clone)]
pub(crate) struct Watches {
    commands: mpsc::UnboundedSender<Command>,
    last: Arc<AtomicI64>,
}

/// A watch, until it is dropped.
pub(crate) struct Watched {
    id: i64,
    seen: mpsc::UnboundedReceiver<Seen>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Watched {
    /// What it tells next. `None`: nothing any more.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        self.seen.next().await
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.commands.unbounded_send(Command::Cancel(self.id));
    }
}

impl Watches {
    /// Opens the stream of a connection with a first watch. Answers what has to be run for it as well.
    pub(crate) async fn open(
        link: &Arc<Link>,
        first: What,
    ) -> Result<(Self, Watched, impl Future<Output = ()> + use<>), Etcd> {
        const FIRST: i64 = 1;
        let client = link.client.watch_client();
        let mut client = client.max_decoding_message_size(LARGEST_ANSWER);
        let watching = client.watch(first.key.clone(), Some(options(FIRST, &first)));
        let (ask, stream) = watching.await?.split();
        let (commands, received) = mpsc::unbounded();
        let last = Arc::new(AtomicI64::new(FIRST));
        let watches = Self { commands, last };
        let (watched, tell) = watches.watched(FIRST);
        let begun = HashMap::from([(FIRST, tell)]);
        let tending = tend(link.clone(), ask, stream, received, begun);
        Ok((watches, watched, tending.compat()))
    }

    /// Ends all that is watched.
    pub(crate) fn end(&self) {
        let _ = self.commands.unbounded_send(Command::End);
    }

    pub(crate) fn watch(&self, what: What) -> Watched {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (watched, tell) = self.watched(id);
        let _ = self.commands.unbounded_send(Command::Watch(id, what, tell));
        watched
    }

    fn watched(&self, id: i64) -> (Watched, mpsc::UnboundedSender<Seen>) {
        let (tell, seen) = mpsc::unbounded();
        let commands = self.commands.clone();
        (Watched { id, seen, commands }, tell)
    }
}

fn options(id: i64, what: &What) -> WatchOptions {
    let options = WatchOptions::new()
        .with_watch_id(id)
        .with_start_revision(what.from.unwrap_or(0));
    let options = match what.deletions_only {
        true => options.with_filters([WatchFilterType::NoPut]),
        false => options,
    };
    match &what.end {
        Some(end) => options.with_range(end.clone()),
        None => options,
    }
}

/// Carries commands and events, until the connection or the last user has gone.
async fn tend(
    link: Arc<Link>,
    ask: WatchRequestSender,
    stream: WatchResponseStream,
    commands: mpsc::UnboundedReceiver<Command>,
    watched: HashMap<i64, mpsc::UnboundedSender<Seen>>,
) {
    let carrying = std::pin::pin!(carry(ask, stream, commands, watched));
    // A member that stands still may take no commands either.
    if let Either::Left((None, _)) = select(carrying, std::pin::pin!(link.is_gone())).await {
        link.break_off();
    }
}

/// Ends with the last user; `None` if the stream is unusable.
async fn carry(
    mut ask: WatchRequestSender,
    mut stream: WatchResponseStream,
    mut commands: mpsc::UnboundedReceiver<Command>,
    mut watched: HashMap<i64, mpsc::UnboundedSender<Seen>>,
) -> Option<()> {
    loop {
        match select(stream.next(), commands.next()).await {
            Either::Left((told, _)) => tell(&mut watched, told?.ok()?)?,
            Either::Right((Some(Command::Watch(id, what, tell)), _)) => {
                watched.insert(id, tell);
                let watch = ask.watch(what.key.clone(), Some(options(id, &what)));
                watch.await.ok()?;
            }
            Either::Right((Some(Command::Cancel(id)), _)) => {
                if watched.remove(&id).is_some() {
                    ask.cancel(id).await.ok()?;
                }
            }
            Either::Right((Some(Command::End) | None, _)) => return Some(()),
        }
    }
}

/// `None` if the stream is no good after that.
fn tell(watched: &mut HashMap<i64, mpsc::UnboundedSender<Seen>>, told: WatchResponse) -> Option<()> {
    let id = told.watch_id();
    if told.canceled() {
        return match watched.remove(&id) {
            Some(teller) if told.compact_revision() != 0 => {
                let _ = teller.unbounded_send(Seen::Compacted);
                Some(())
            }
            // The stream may not watch any more: its login has expired, say. The next one has another.
            Some(_) => None,
            // It was given up here.
            None => (id >= 0).then_some(()),
        };
    }
    if let Some(teller) = watched.get(&id) {
        let seen = match told.created() {
            true => Seen::Began(revision!(told)),
            false => Seen::Events(told.events().to_vec()),
        };
        let _ = teller.unbounded_send(seen);
    }
    Some(())
}
