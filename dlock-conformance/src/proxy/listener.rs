//! The address that clients connect to in place of a server's.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::address::ServerAddress;
use super::connection::Connection;
use super::faults::Faults;
use super::socket::{Listener, Socket};
use crate::lock::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Open,
    /// Connections are refused, as if the server were down.
    Closed,
    /// For ever.
    Gone,
}

struct State {
    wanted: Wanted,
    is_open: bool,
}

/// A listener before one server, and the thread that accepts.
pub(super) struct Door {
    own: ServerAddress,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// A connection through it, which keeps the port while it is closed: the next proxy might be given it,
    /// and a client of this one would reach another server.
    _keeps: [Socket; 2],
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Door {
    pub(super) fn open(server: ServerAddress, faults: Arc<Faults>) -> io::Result<Self> {
        let (listener, own) = Listener::beside(&server)?;
        let keeps = [Socket::connect(&own)?, listener.accept()?];
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                wanted: Wanted::Open,
                is_open: true,
            }),
            changed: Condvar::new(),
        });
        let (at, theirs) = (own.clone(), shared.clone());
        let thread = std::thread::Builder::new()
            .name("dlock-proxy-listener".to_owned())
            .spawn(move || theirs.run(listener, &at, &server, &faults))?;
        Ok(Self {
            own,
            shared,
            thread: Some(thread),
            _keeps: keeps,
        })
    }

    pub(super) fn address(&self) -> &ServerAddress {
        &self.own
    }

    /// Opens or closes it, and waits until that is done.
    pub(super) fn want(&self, wanted: Wanted) {
        let mut state = lock(&self.shared.state);
        state.wanted = wanted;
        self.shared.changed.notify_all();
        let open = wanted == Wanted::Open;
        if state.is_open && !open {
            drop(state);
            // Wakes the thread from its accept. It checks the wanted state before the accepted connection.
            drop(Socket::connect(&self.own));
            state = lock(&self.shared.state);
        }
        // Bounded, so that a port that another process has taken in the meantime causes no hang. The rule
        // then cannot connect.
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, Duration::from_secs(2), |s| s.is_open != open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.want(Wanted::Gone);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        #[cfg(unix)]
        if let Some(path) = self.own.unix() {
            super::socket::remove(path);
        }
    }
}

impl Shared {
    fn run(&self, first: Listener, own: &ServerAddress, server: &ServerAddress, faults: &Arc<Faults>) {
        let mut listener = Some(first);
        loop {
            if let Some(listener) = listener.take() {
                self.accept(&listener, server, faults);
            }
            let mut state = lock(&self.state);
            state.is_open = false;
            self.changed.notify_all();
            while state.wanted == Wanted::Closed {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.wanted == Wanted::Gone {
                return;
            }
            match Listener::at(own) {
                Ok(again) => {
                    listener = Some(again);
                    state.is_open = true;
                    self.changed.notify_all();
                }
                Err(_) => {
                    drop(state);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    /// Until it is no longer wanted.
    fn accept(&self, listener: &Listener, server: &ServerAddress, faults: &Arc<Faults>) {
        loop {
            let accepted = listener.accept();
            if lock(&self.state).wanted != Wanted::Open {
                return;
            }
            let Ok(client) = accepted else {
                // For example out of descriptors: one may become free.
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            faults.accepted.fetch_add(1, Ordering::AcqRel);
            match Socket::connect(server) {
                Ok(upstream) => drop(Connection::start(client, upstream, faults)),
                Err(_) => client.will_reset(),
            }
        }
    }
}
