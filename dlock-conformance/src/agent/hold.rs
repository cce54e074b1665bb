//! A guard of a child, as the parent knows it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{LossReason, Timestamp, Token};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::pipe::{Asked, Pipe};
use super::protocol::{Answer, Command, WireHold, reason, told};
use crate::lock::lock;
use crate::subject::{Held, Reply};

/// A guard of a child. Dropping it drops the child's.
///
/// As a [`Held`], its synchronous answers are what the parent knows: the last deadline that the child
/// reported, or an earlier one. [`look`](Self::look) asks the child's own guard.
#[derive(Debug)]
pub struct Hold {
    pipe: Arc<Pipe>,
    n: u64,
    id: String,
    token: Option<Token>,
    ttl: Duration,
    deadline: Mutex<Timestamp>,
    loss: Arc<Mutex<Option<LossReason>>>,
    ended: AtomicBool,
}

/// What the child's guard said of itself, without I/O.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Its `is_valid`.
    pub is_valid: bool,
    /// Its `remaining`.
    pub remaining: Duration,
    /// Its `loss`.
    pub loss: Option<String>,
}

/// A lower bound for the child's deadline.
fn deadline(told: &WireHold, asked: Timestamp) -> Timestamp {
    // If the machine has one clock, the child's answer is exact. Otherwise it was true at some time after the
    // question.
    let one_clock = cfg!(any(
        target_os = "linux",
        target_os = "android",
        target_vendor = "apple"
    ));
    match one_clock {
        true => Timestamp::from_nanos(told.deadline),
        false => asked + told.remaining,
    }
}

impl Hold {
    pub(super) fn new(pipe: Arc<Pipe>, n: u64, told: WireHold, asked: Timestamp) -> Self {
        Self {
            pipe,
            n,
            deadline: Mutex::new(deadline(&told, asked)),
            id: told.id,
            token: told.token.and_then(Token::new),
            ttl: told.ttl,
            loss: Arc::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Asks the child's guard, synchronously there: before any task of its runtime has run, if the process
    /// was stopped.
    pub fn look(&self) -> Asked<Look> {
        self.pipe
            .ask(Command::Look(self.n), told!(Answer::Look(look) => look))
    }

    /// Waits for the loss signal in the child.
    pub fn signal(&self) -> Asked<LossReason> {
        self.pipe
            .ask(Command::Lost(self.n), told!(Answer::Lost(text) => reason(&text)))
    }
}

impl Held for Hold {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn token(&self) -> Option<Token> {
        self.token
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn deadline(&self) -> Timestamp {
        *lock(&self.deadline)
    }

    fn remaining(&self) -> Duration {
        match self.loss() {
            Some(_) => Duration::ZERO,
            None => self.pipe.now().until(self.deadline()),
        }
    }

    fn is_valid(&self) -> bool {
        !self.ended.load(Ordering::Relaxed) && !self.remaining().is_zero()
    }

    fn lost(&self) -> BoxFuture<'static, LossReason> {
        let (signal, loss) = (self.signal(), Arc::clone(&self.loss));
        async move {
            // A process that has ended holds nothing.
            let reason = signal.await.map_or(LossReason::SessionLost, |told| told.value);
            *lock(&loss) = Some(reason);
            reason
        }
        .boxed()
    }

    fn loss(&self) -> Option<LossReason> {
        *lock(&self.loss)
    }

    fn renew(&self) -> Reply<'_, ()> {
        let renewing = self
            .pipe
            .ask(Command::Renew(self.n), told!(Answer::Held(hold) => hold));
        async move {
            let told = renewing.await?;
            *lock(&self.deadline) = deadline(&told.value, told.asked);
            Ok(())
        }
        .boxed()
    }

    fn release(&self) -> Reply<'_, ()> {
        self.ended.store(true, Ordering::Relaxed);
        let releasing = self.pipe.ask(Command::Release(self.n), told!(Answer::Done => ()));
        async move { releasing.await.map(|_| ()) }.boxed()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.pipe.tell(Command::Drop(self.n));
    }
}
