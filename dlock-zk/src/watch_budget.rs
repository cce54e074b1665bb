//! How many nodes a session watches at a time.
//!
//! The driver sets its watches again on each new connection, with up to 128 KiB of paths in one request. It
//! gives all such requests the same number, so with more than one it takes the second answer for a mistake,
//! and breaks the connection: with too many watches a session does not survive a broken connection. So there
//! is room for fewer here. A waiter that finds none waits for it. Meanwhile the engine polls now and then, as
//! for all waiters.
//!
//! What could break it, and why it does not:
//!
//! * *Several watch the same node*, as readers do behind a writer. The driver has a path once, and it is
//!   counted once.
//! * *A watch is given up before its answer has come.* Its room is free then, and the driver has it for a
//!   moment yet. A quarter of what the driver can do is kept back for those.
//! * *A waiter needs more than there is.* It never gets it, and is served by polling only.
//! * *Two have a part of what each needs, and wait for the rest.* A waiter gives back its part before it
//!   waits.
//! * *A waiter that was told of room does not poll.* The room is then for the next: a watch admits no waiter,
//!   it only makes it faster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event_listener::Event;

/// The bytes of all paths.
const MOST: usize = 96 * 1024;

#[derive(Debug, Default)]
pub(crate) struct WatchBudget {
    watched: Mutex<Watched>,
    freed: Event,
}

#[derive(Debug, Default)]
struct Watched {
    /// How many watch each.
    paths: HashMap<String, usize>,
    bytes: usize,
}

/// Room to watch a path, until it is dropped: after the watch, which is to be gone before it.
#[derive(Debug)]
pub(crate) struct Room {
    watches: Arc<WatchBudget>,
    pub(crate) path: String,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.watches.watched().leave(&self.path);
        self.watches.freed.notify(1);
    }
}

impl Watched {
    /// One who watches it no more.
    fn leave(&mut self, path: &str) {
        if let Some(watching) = self.paths.get_mut(path) {
            *watching -= 1;
            if *watching == 0 {
                self.paths.remove(path);
                self.bytes -= path.len();
            }
        }
    }
}

impl WatchBudget {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for each of those paths, if there is any for all now.
    pub(crate) fn take(self: &Arc<Self>, paths: &[String]) -> Option<Vec<Room>> {
        let mut watched = self.watched();
        let new = paths.iter().filter(|p| !watched.paths.contains_key(*p));
        let bytes = watched.bytes + new.map(String::len).sum::<usize>();
        if bytes > MOST {
            return None;
        }
        watched.bytes = bytes;
        for path in paths {
            *watched.paths.entry(path.clone()).or_default() += 1;
        }
        let room = |path: &String| Room {
            watches: self.clone(),
            path: path.clone(),
        };
        Some(paths.iter().map(room).collect())
    }

    /// Room for each of those paths, when there is any for all.
    pub(crate) async fn room(self: &Arc<Self>, paths: &[String]) -> Vec<Room> {
        let mut was_told = false;
        loop {
            // Before the look: what is freed after it is heard of.
            let freed = self.freed.listen();
            if let Some(rooms) = self.take(paths) {
                if was_told {
                    // What was freed may do for more than one.
                    self.freed.notify(1);
                }
                return rooms;
            }
            freed.await;
            was_told = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::FutureExt as _;

    use super::*;

    fn long(n: usize) -> String {
        format!("/{n:0>width$}", width = MOST / 4 - 1)
    }

    #[test]
    fn a_watch_that_ends_makes_room() {
        let watches = Arc::new(WatchBudget::default());
        let mut rooms = watches.take(&[0, 1, 2, 3].map(long)).unwrap();
        // The same once more takes none.
        let same = watches.take(&[long(0), long(3)]).unwrap();
        assert!(watches.take(&[long(4)]).is_none());
        // Of several each gives back its own.
        drop(rooms.remove(1));
        let taken = watches.take(&[long(4)]).unwrap();
        assert!(watches.take(&[long(1)]).is_none());
        let (five, six) = ([long(5)], [long(6)]);
        let (mut waits, mut waits_too) = (pin!(watches.room(&five)), pin!(watches.room(&six)));
        assert!((&mut waits).now_or_never().is_none() && (&mut waits_too).now_or_never().is_none());
        drop((rooms, taken));
        let room = waits.now_or_never().expect("two have no watcher any more");
        let too = waits_too.now_or_never().expect("so there is room for two");
        drop((same, room, too));
        assert!(watches.watched().bytes == 0 && watches.watched().paths.is_empty());
    }

    #[test]
    fn a_wish_beyond_the_budget_blocks_no_other() {
        let watches = Arc::new(WatchBudget::default());
        let all = [0, 1, 2, 3, 4].map(long);
        let mut waits = pin!(watches.room(&all));
        assert!((&mut waits).now_or_never().is_none());
        drop(watches.take(&[long(7)]).unwrap());
        assert!((&mut waits).now_or_never().is_none());
        assert!(watches.room(&[long(8)]).now_or_never().is_some());
    }
}
