//! What can be done to the server, for the rules that need hands at one.

use std::io;
use std::time::Duration;

use dlock_core::memory::Survives;
use dlock_core::{Error, ErrorKind, LockName};
use futures::FutureExt;

use super::server::RemoteServer;
use crate::hooks::{Hooks, Offer, Restart, Step, Vitals};

/// How often it tries to listen at its address again: a socket may take a moment to be closed.
const TRIES: u32 = 50;

impl RemoteServer {
    /// To be polled on another runtime than its own: it blocks until the sockets are closed.
    async fn start_again(&self, memory: Survives) -> dlock_core::Result<()> {
        self.crash(memory);
        for n in 1.. {
            match self.restart() {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && n < TRIES => {
                    smol::Timer::after(Duration::from_millis(10)).await;
                }
                Err(e) => {
                    let why = "the server cannot listen again";
                    return Err(Error::new(ErrorKind::Unavailable, why).with_source(e));
                }
                Ok(()) => break,
            }
        }
        Ok(())
    }
}

impl Hooks for RemoteServer {
    fn vitals(&self) -> Offer<'_, Vitals> {
        self.store_hooks().vitals()
    }

    fn restart(&self, how: Restart) -> Offer<'_> {
        let memory = match how {
            Restart::InOrder => Survives::Memory,
            Restart::Crash => Survives::Nothing,
        };
        Some(self.start_again(memory).boxed())
    }

    fn step_clock(&self, step: Step) -> Offer<'_> {
        self.store_hooks().step_clock(step)
    }

    fn set_counter<'a>(&'a self, name: &'a LockName, to: u64) -> Offer<'a> {
        self.store_hooks().set_counter(name, to)
    }

    fn counter<'a>(&'a self, name: &'a LockName) -> Offer<'a, u64> {
        self.store_hooks().counter(name)
    }

    fn spoil<'a>(&'a self, name: &'a LockName, with: &'a str) -> Offer<'a> {
        self.store_hooks().spoil(name, with)
    }

    fn stored<'a>(&'a self, name: &'a LockName) -> Offer<'a, Vec<u8>> {
        self.store_hooks().stored(name)
    }

    fn mend<'a>(&'a self, name: &'a LockName) -> Offer<'a> {
        self.store_hooks().mend(name)
    }
}
