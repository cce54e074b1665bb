//! A child process of the kit, as its parent sees it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::{
    Access, Admission, Capabilities, Error, ErrorKind, FenceGate, FencedValue, LockName, Result, Token,
};
use futures::FutureExt;

use super::body::{Body, Started};
use super::churn::Churn;
use super::hold::Hold;
use super::pipe::{Asked, Pending, Pipe, Steps, Timed};
use super::protocol::{Answer, Command, bytes, told};
use super::signals::Signal;
use crate::subject::{Ask, Granted, Held, Reply, Subject};
use crate::verdict::{Failure, Verdict};

/// A child process with one client of the store. It is killed and reaped when this is dropped.
///
/// Commands are on their way when a method returns, not when its future is first polled. As a [`Subject`] it
/// does what its client does, as far as commands for that exist: it has neither gate nor observer.
#[derive(Debug)]
pub struct Child {
    pipe: Arc<Pipe>,
    body: Body,
    capabilities: Capabilities,
}

impl Child {
    /// From a started process and the hello that it sends when it is connected.
    pub(super) fn new((body, pipe, hello): Started, capabilities: Capabilities) -> (Arc<Self>, Asked<()>) {
        let child = Arc::new(Self {
            pipe,
            body,
            capabilities,
        });
        (child, hello.answer(told!(Answer::Hello => ())).boxed())
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.pipe.pid()
    }

    // --- what is done to it ---

    /// Kills it, stopped or not, and waits until it is gone. It died between the two returned times.
    ///
    /// # Errors
    /// [`Failure::Kit`] if the system refuses.
    pub fn kill(&self) -> Verdict<Timed<()>> {
        self.signal(Signal::Kill)
    }

    /// Stops it (SIGSTOP), and waits until it has stopped.
    ///
    /// # Errors
    /// [`Failure::Kit`] if the system refuses, or it is gone.
    pub fn stop(&self) -> Verdict<Timed<()>> {
        self.signal(Signal::Stop)
    }

    /// Continues it (SIGCONT).
    ///
    /// # Errors
    /// [`Failure::Kit`] if the system refuses, or it is gone.
    pub fn resume(&self) -> Verdict<Timed<()>> {
        self.signal(Signal::Continue)
    }

    fn signal(&self, signal: Signal) -> Verdict<Timed<()>> {
        let asked = self.pipe.now();
        self.body.signal(signal).map_err(|e| {
            let what = format!("{signal:?}").to_lowercase();
            Failure::Kit(format!("process {} could not be made to {what}: {e}", self.pid()))
        })?;
        Ok(Timed {
            value: (),
            asked,
            answered: self.pipe.now(),
        })
    }

    /// Shifts its wall clock by that many seconds, if it has its own.
    ///
    /// # Errors
    /// [`Failure::Kit`] if it has none, or the file that says so cannot be written.
    pub fn set_wall_clock(&self, seconds: i64) -> Verdict {
        match self.body.set_wall_clock(seconds) {
            None => Err(Failure::Kit("this child has the machine's wall clock".to_owned())),
            Some(set) => set.map_err(|e| Failure::Kit(format!("the wall clock could not be set: {e}"))),
        }
    }

    // --- commands to it ---

    /// [`Subject::try_acquire`] in the child.
    pub fn try_take(&self, name: &LockName, ask: &Ask) -> Asked<Option<Hold>> {
        let (name, ask) = (bytes(name), ask.clone());
        self.take(Command::Try { name, ask })
    }

    /// [`Subject::acquire`] in the child, or [`Subject::acquire_timeout`] with a limit.
    pub fn wait_for(&self, name: &LockName, ask: &Ask, limit: Option<Duration>) -> Asked<Hold> {
        let (name, ask) = (bytes(name), ask.clone());
        let taken = self.take(Command::Acquire { name, ask, limit });
        let pid = self.pid();
        async move {
            let told = taken.await?;
            let other = || format!("process {pid}: an acquire answered that another client holds the lock");
            let none = || Error::new(ErrorKind::BackendData, other());
            let (asked, answered) = (told.asked, told.answered);
            told.value.ok_or_else(none).map(|value| Timed {
                value,
                asked,
                answered,
            })
        }
        .boxed()
    }

    fn take(&self, command: Command) -> Asked<Option<Hold>> {
        let pipe = Arc::clone(&self.pipe);
        let pending: Pending = pipe.send(command);
        let n = pending.n;
        async move {
            let told = pending.answer(|answer| match answer {
                Answer::Held(hold) => Some(Some(hold)),
                Answer::HeldByAnother => Some(None),
                _ => None,
            });
            let told = told.await?;
            let asked = told.asked;
            Ok(told.map(|hold| hold.map(|hold| Hold::new(pipe, n, hold, asked))))
        }
        .boxed()
    }

    /// [`FenceGate::write`] in the child.
    pub fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Asked<Admission> {
        let write = Command::Write {
            resource: bytes(resource),
            token: token.get(),
            value: value.to_vec(),
        };
        self.pipe.ask(write, |answer| match answer {
            Answer::Admitted => Some(Admission::Admitted),
            Answer::Refused { highest } => Token::new(highest).map(|highest| Admission::Refused { highest }),
            _ => None,
        })
    }

    /// One new client for each list of names; each takes and releases its names. The ids of all those holds.
    pub fn ids(&self, clients: &[Vec<LockName>], ask: &Ask) -> Asked<Vec<String>> {
        let clients = clients.iter().map(|names| names.iter().map(bytes).collect());
        let command = Command::Ids {
            clients: clients.collect(),
            ask: ask.clone(),
        };
        self.pipe.ask(command, told!(Answer::Ids(ids) => ids))
    }

    /// What its wall clock shows, since 1970.
    pub fn wall_clock(&self) -> Asked<Duration> {
        self.pipe
            .ask(Command::WallClock, told!(Answer::WallClock(since) => since))
    }

    /// Lets it work on its own until the answer is dropped.
    pub fn churn(&self, churn: Churn) -> Steps {
        Steps(self.pipe.send(Command::Churn(churn)))
    }
}

impl Subject for Child {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        let taken = self.try_take(name, ask);
        async move { Ok(taken.await?.value.map(|hold| Box::new(hold) as Box<dyn Held>)) }.boxed()
    }

    fn wait<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Option<Duration>) -> Granted<'a> {
        let taken = self.wait_for(name, ask, limit);
        async move { Ok(Box::new(taken.await?.value) as Box<dyn Held>) }.boxed()
    }

    fn gate(&self) -> Option<&dyn FenceGate> {
        Some(self)
    }

    fn close(&self) -> Reply<'_, ()> {
        async move {
            // Whether the system could kill it does not concern the subject.
            drop(self.kill());
            Result::Ok(())
        }
        .boxed()
    }
}

/// Its gate can only write: a late write is what a paused process does.
#[async_trait]
impl FenceGate for Child {
    async fn admit(&self, _: &LockName, _: Token, _: Access) -> Result<Admission> {
        lacking()
    }

    async fn write(&self, resource: &LockName, token: Token, value: &[u8]) -> Result<Admission> {
        Ok(Child::write(self, resource, token, value).await?.value)
    }

    async fn read(&self, _: &LockName) -> Result<Option<FencedValue>> {
        lacking()
    }
}

fn lacking<T>() -> Result<T> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "a child can only write to the resource",
    ))
}
