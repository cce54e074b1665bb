//! Requests that travel together: while some are on their way, those that come meanwhile go out as one
//! script, which costs the server a fraction of as many scripts.
//!
//! Nobody waits for company. A request that finds but a few others on their way goes out at once, as it is.
//! Otherwise it takes a seat, and a task sends all that have one as soon as it runs, which is when those
//! tasks have run that were ready.
//!
//! * *Whoever asked is dropped.* Before the task runs the seat is empty, and nothing is sent. After that the
//!   request is carried out with the others, and its answer is nobody's; who owes what came of it is as if it
//!   had been sent alone.
//! * *The connection breaks, or the answer comes too late.* Then it is not known of each of them.
//! * *One fails.* The script says so of that one. See `scripts/each.lua`.
//! * *They overtake one another.* Requests of two kinds, and of two tasks, have no order: of one lease each
//!   waits for the answer of the one before.
//! * *The runtime ends, and with it the task.* Then nobody answers, as nobody would without it.

use std::iter::{repeat, zip};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dlock_core::runtime::yield_now;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{join_all, select};
use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

use super::Setup;
use crate::connection::ask::ask;
use crate::failure::timed_out;
use crate::reply::failure;
use crate::scripts::Script;

/// How many go into one script: a longer one would keep others waiting.
const MOST: usize = 64;

/// So many on their way go alone: there is little to gain, and a hand-off is a release beside an acquire.
const FEW: usize = 4;

/// How many arguments they have in common: see `scripts/each.lua`.
const COMMON: usize = 3;

/// What is on its way to a server.
#[derive(Default)]
pub(crate) struct Together {
    under_way: AtomicUsize,
    seats: Mutex<Vec<Seat>>,
}

/// A request that has not been sent.
struct Seat {
    command: Cmd,
    script: Script,
    answer: oneshot::Sender<RedisResult<Value>>,
}

impl Seat {
    /// The keys, of which each has two, and the arguments.
    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.command.args_iter().skip(3).filter_map(|arg| match arg {
            Arg::Simple(word) => Some(word),
            _ => None,
        })
    }

    /// Whether both can be in one script.
    fn is_like(&self, other: &Self) -> bool {
        self.script.hash == other.script.hash && self.words().skip(3).eq(other.words().skip(3))
    }
}

/// Requests on their way, until it is dropped.
struct UnderWay<'a>(&'a Together, usize);

impl<'a> UnderWay<'a> {
    fn new(all: &'a Together, many: usize) -> Self {
        all.under_way.fetch_add(many, Ordering::Relaxed);
        Self(all, many)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Together {
    /// Asks, together with others if there are any.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        setup: &Setup,
        connection: MultiplexedConnection,
        command: Cmd,
        script: Option<&Script>,
    ) -> RedisResult<Value> {
        let Some(script) = script.filter(|script| script.many.is_some()) else {
            return ask(connection, &command, script).await;
        };
        if self.under_way.load(Ordering::Relaxed) < FEW {
            let _under_way = UnderWay::new(self, 1);
            return ask(connection, &command, Some(script)).await;
        }
        let (answer, answered) = oneshot::channel();
        let script = script.clone();
        let is_first = {
            let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
            seats.push(Seat {
                command,
                script,
                answer,
            });
            seats.len() == 1
        };
        if is_first {
            let (all, limit) = (self.clone(), setup.runtime.sleep(setup.timeout));
            let leaving = async move {
                yield_now().await;
                // Whoever gives up before that asks whether the connection is any good.
                select(pin!(all.leave(&connection)), limit).await;
            };
            setup.runtime.spawn(leaving.boxed());
        }
        answered.await.unwrap_or_else(|_| Err(timed_out()))
    }

    /// Sends all that have a seat.
    async fn leave(&self, connection: &MultiplexedConnection) {
        let seats = std::mem::take(&mut *self.seats.lock().unwrap_or_else(PoisonError::into_inner));
        let _under_way = UnderWay::new(self, seats.len());
        let mut groups: Vec<Vec<Seat>> = Vec::new();
        for seat in seats.into_iter().filter(|seat| !seat.answer.is_canceled()) {
            let same = |group: &&mut Vec<Seat>| group.len() < MOST && group[0].is_like(&seat);
            match groups.iter_mut().rev().find(same) {
                Some(group) => group.push(seat),
                None => groups.push(vec![seat]),
            }
        }
        join_all(groups.into_iter().map(|group| send(connection.clone(), group))).await;
    }
}

/// Sends those of one kind as one, and hands out the answers.
async fn send(connection: MultiplexedConnection, group: Vec<Seat>) {
    let answers = match (&group[..], &group[0].script.many) {
        ([_, _, ..], Some(many)) => answers_of(connection, &group, many).await,
        _ => ask(connection, &group[0].command, Some(&group[0].script))
            .await
            .map(|answer| vec![answer]),
    };
    // Whoever has left meanwhile is told nothing.
    match answers {
        Ok(answers) => zip(group, answers).for_each(|(seat, answer)| drop(seat.answer.send(of_one(answer)))),
        Err(e) => group
            .into_iter()
            .for_each(|seat| drop(seat.answer.send(Err(e.clone())))),
    }
}

async fn answers_of(
    connection: MultiplexedConnection,
    group: &[Seat],
    many: &Script,
) -> RedisResult<Vec<Value>> {
    let mut command = Cmd::with_capacity(3 + COMMON + group.len() * 3, group.len() * 128);
    command.arg("EVALSHA").arg(&*many.hash).arg(group.len() * 2);
    for key in group.iter().flat_map(|seat| seat.words().take(2)) {
        command.arg(key);
    }
    for common in group[0].words().skip(3).chain(repeat(&b"0"[..])).take(COMMON) {
        command.arg(common);
    }
    for first in group.iter().flat_map(|seat| seat.words().nth(2)) {
        command.arg(first);
    }
    match ask(connection, &command, Some(many)).await? {
        Value::Array(answers) if answers.len() == group.len() => Ok(answers),
        _ => Err((ErrorKind::UnexpectedReturnType, "too few answers").into()),
    }
}

/// One that failed says so in words.
fn of_one(answer: Value) -> RedisResult<Value> {
    match failure(&answer) {
        Some(why) => Err((
            ErrorKind::Server(ServerErrorKind::ResponseError),
            "a script answered",
            why,
        )
            .into()),
        None => Ok(answer),
    }
}
