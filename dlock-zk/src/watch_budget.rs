//! How much a session watches at a time.
//!
//! The driver sets its watches again on each new connection, and takes 128 KiB of paths into one request. It
//! gives all such requests the same number, so that with more than one of them it takes the second answer for
//! a mistake, and breaks the connection off: with too many watches a session does not outlive a broken
//! connection. So there is room for fewer here. Who finds none waits for it. Meanwhile the engine asks now
//! and then, as it does for all who wait.
//!
//! What could break it, and why it does not:
//!
//! * *Several watch the same node*, as readers do behind a writer. The driver has a path once, and it is
//!   counted once.
//! * *A watch is given up before its answer has come.* Its room is free then, and the driver has it for a
//!   moment yet. A quarter of what the driver can do is kept back for those.
//! * *Somebody asks for more than there is.* He never gets it, and is served by being asked for alone.
//! * *Two have a part of what each needs, and wait for the rest.* Who has to wait gives back what he has
//!   first.
//! * *Who was told of room does not poll.* What is left in it is for whoever is told next: nobody is admitted
//!   by a watch, only sooner.

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

impl Watched {
    fn take(&mut self, paths: &[String]) -> bool {
        let new: usize = paths
            .iter()
            .filter(|p| !self.paths.contains_key(*p))
            .map(String::len)
            .sum();
        if self.bytes + new > MOST {
            return false;
        }
        self.bytes += new;
        for path in paths {
            *self.paths.entry(path.clone()).or_default() += 1;
        }
        true
    }

    fn leave(&mut self, paths: &[String]) {
        for path in paths {
            if let Some(watching) = self.paths.get_mut(path) {
                *watching -= 1;
                if *watching == 0 {
                    self.paths.remove(path);
                    self.bytes -= path.len();
                }
            }
        }
    }
}

/// Room to watch some paths, until it is dropped: after the watches, which are to be gone before it.
#[derive(Debug)]
pub(crate) struct Room {
    watches: Arc<WatchBudget>,
    paths: Vec<String>,
}

impl Room {
    pub(crate) fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The same, for each path by itself.
    pub(crate) fn each(mut self) -> Vec<Self> {
        let paths = std::mem::take(&mut self.paths);
        let alone = |path| Self {
            watches: self.watches.clone(),
            paths: vec![path],
        };
        paths.into_iter().map(alone).collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.watches.watched().leave(&self.paths);
        self.watches.freed.notify(1);
    }
}

impl WatchBudget {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for those paths, if there is any now.
    pub(crate) fn take(self: &Arc<Self>, paths: Vec<String>) -> Result<Room, Vec<String>> {
        match self.watched().take(&paths) {
            true => Ok(Room {
                watches: self.clone(),
                paths,
            }),
            false => Err(paths),
        }
    }

    /// Room for those paths, when there is any.
    pub(crate) async fn room(self: &Arc<Self>, paths: Vec<String>) -> Room {
        let mut wanted = paths;
        let mut was_told = false;
        loop {
            // Before the look: what is freed after it is heard of.
            let freed = self.freed.listen();
            wanted = match self.take(wanted) {
                Ok(room) => {
                    if was_told {
                        // What was freed may do for more than one.
                        self.freed.notify(1);
                    }
                    return room;
                }
                Err(wanted) => wanted,
            };
            freed.await;
            was_told = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn long(n: usize) -> String {
        format!("/{n:0>width$}", width = MOST / 4 - 1)
    }

    #[test]
    fn there_is_room_for_so_many_and_whoever_leaves_makes_some() {
        let watches = Arc::new(WatchBudget::default());
        let rooms: Vec<_> = (0..4).map(|n| watches.take(vec![long(n)]).unwrap()).collect();
        // The same once more takes none.
        let same = watches.take(vec![long(0), long(3)]).unwrap();
        assert_eq!(same.paths(), [long(0), long(3)]);
        assert!(watches.take(vec![long(4)]).is_err());
        let mut waits = Box::pin(watches.room(vec![long(4)]));
        let mut waits_too = Box::pin(watches.room(vec![long(5)]));
        assert!((&mut waits).now_or_never().is_none() && (&mut waits_too).now_or_never().is_none());
        drop(rooms);
        let room = (&mut waits).now_or_never().expect("two have no watcher any more");
        (&mut waits_too).now_or_never().expect("so there is room for two");
        drop((same, room));
        assert_eq!(watches.watched().bytes, 0);
        assert!(watches.watched().paths.is_empty());
    }

    #[test]
    fn room_for_several_is_given_back_by_each() {
        let watches = Arc::new(WatchBudget::default());
        let mut rooms = watches.take((0..4).map(long).collect()).unwrap().each();
        assert!(watches.take(vec![long(4)]).is_err());
        rooms.remove(1);
        let taken = watches.take(vec![long(4)]).unwrap();
        assert!(watches.take(vec![long(1)]).is_err());
        drop((rooms, taken));
        assert!(watches.watched().paths.is_empty());
    }

    #[test]
    fn whoever_wants_more_than_there_is_waits_and_keeps_nobody_out() {
        let watches = Arc::new(WatchBudget::default());
        let mut waits = Box::pin(watches.room((0..5).map(long).collect()));
        assert!((&mut waits).now_or_never().is_none());
        let room = watches.take(vec![long(7)]).unwrap();
        drop(room);
        assert!((&mut waits).now_or_never().is_none());
        assert!(watches.room(vec![long(8)]).now_or_never().is_some());
    }
}
