//! Notices writes to the file, so that waiters need not wait for the next poll.
//!
//! Each poll asks the kernel to report the next write (inotify), once. So a file without waiters costs
//! nothing, and one that is written to all the time at most one ring for each poll.
//!
//! What could go wrong, and costs no more than the time to the next look, 20 ms at most:
//! * *A commit comes between two polls*: a poll sets the notification before it reads.
//! * *The first write of a commit comes before the commit can be seen*: so the ring is delayed a little, and
//!   after a ring polls are frequent.
//! * *Another file is at the path*: each poll watches the one that is there then.
//! * *There is no inotify, or its limit is reached*: there are polls without rings.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dlock_core::spi::Signal;
use futures::StreamExt as _;
use futures::channel::mpsc::{self, UnboundedSender};
use futures::stream::BoxStream;

use self::wire::Wire;

/// Of one opened file.
#[derive(Debug)]
pub(super) struct Bell {
    /// What is written first: the write-ahead log, or the file itself where there is none.
    files: [PathBuf; 2],
    /// Made by the first look.
    wire: OnceLock<Option<Wire>>,
    clients: Mutex<Vec<UnboundedSender<Signal>>>,
}

impl Bell {
    pub(super) fn new(file: &Path) -> Arc<Self> {
        let mut log = file.as_os_str().to_owned();
        log.push("-wal");
        Arc::new(Self {
            files: [log.into(), file.into()],
            wire: OnceLock::new(),
            clients: Mutex::default(),
        })
    }

    /// What one more client hears.
    pub(super) fn rings(&self) -> BoxStream<'static, Signal> {
        let (send, rings) = mpsc::unbounded();
        let mut clients = self.clients();
        // Those who left are not kept for want of a ring.
        clients.retain(|client| !client.is_closed());
        clients.push(send);
        rings.boxed()
    }

    /// Is to ring at the next write.
    pub(super) fn set(self: &Arc<Self>) {
        let bell = Arc::downgrade(self);
        let ring = move || bell.upgrade().is_some_and(|bell| bell.ring());
        if let Some(wire) = self.wire.get_or_init(|| Wire::hang(ring)) {
            wire.tell_of_one(&self.files);
        }
    }

    fn ring(&self) -> bool {
        self.clients()
            .retain(|client| client.unbounded_send(Signal::Changed).is_ok());
        true
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<UnboundedSender<Signal>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod wire {
    use std::io::{PipeReader, PipeWriter, pipe};
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::io::{Errno, read};

    /// From the first write of a commit until others can see it: it is several writes long.
    const COMMIT: Duration = Duration::from_micros(50);

    /// What the kernel tells goes to a thread, which ends when this is dropped.
    #[derive(Debug)]
    pub(super) struct Wire(Arc<OwnedFd>, #[expect(dead_code)] PipeWriter);

    impl Wire {
        pub(super) fn hang(ring: impl Fn() -> bool + Send + 'static) -> Option<Self> {
            let fd = Arc::new(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?);
            let (end, writer) = pipe().ok()?;
            let ours = fd.clone();
            let hear = move || {
                while written(&ours, &end).is_ok() {
                    std::thread::sleep(COMMIT);
                    if !ring() {
                        break;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("dlock-sqlite-bell".to_owned());
            thread.spawn(hear).ok()?;
            Some(Self(fd, writer))
        }

        /// Of the next write to the first of them that is there.
        pub(super) fn tell_of_one(&self, files: &[PathBuf]) {
            let once = WatchFlags::MODIFY | WatchFlags::ONESHOT;
            let mut files = files.iter();
            files.any(|file| inotify::add_watch(&self.0, file, once).is_ok());
        }
    }

    /// Waits for a write. An error is the end.
    fn written(fd: &OwnedFd, end: &PipeReader) -> Result<(), Errno> {
        loop {
            let mut both = [fd.as_fd(), end.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut both, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            if !both[1].revents().is_empty() {
                return Err(Errno::PIPE);
            }
            match read(fd, &mut [0; 1024]) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                read => return read.map(drop),
            }
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod wire {
    use std::path::PathBuf;

    /// There is none.
    #[derive(Debug)]
    pub(super) enum Wire {}

    impl Wire {
        pub(super) fn hang(_: impl Fn() -> bool + Send + 'static) -> Option<Self> {
            None
        }

        pub(super) fn tell_of_one(&self, _: &[PathBuf]) {
            match *self {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    use futures::FutureExt as _;

    use super::*;

    fn rang(rings: &mut BoxStream<'static, Signal>, within: Duration) -> bool {
        let since = Instant::now();
        while since.elapsed() < within {
            if rings.next().now_or_never().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn it_rings_at_a_write_if_it_was_set_before() {
        let dir = tempfile::tempdir().unwrap();
        let (path, log) = (dir.path().join("locks.db"), dir.path().join("locks.db-wal"));
        let bell = Bell::new(&path);
        let mut rings = bell.rings();
        let (soon, late) = (Duration::from_millis(50), Duration::from_secs(20));
        bell.set();
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(b"x").unwrap();
        assert!(!rang(&mut rings, soon), "there was no file");
        bell.set();
        file.write_all(b"x").unwrap();
        assert!(rang(&mut rings, late));
        file.write_all(b"x").unwrap();
        assert!(!rang(&mut rings, soon), "it was set once");
        // From here on the log tells.
        let mut log = std::fs::File::create(log).unwrap();
        bell.set();
        file.write_all(b"x").unwrap();
        assert!(!rang(&mut rings, soon));
        log.write_all(b"x").unwrap();
        assert!(rang(&mut rings, late));
    }
}
