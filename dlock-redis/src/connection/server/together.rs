//! Acquires, releases and abandons that [travel together](dlock_core::spi::Together): those that come while
//! others are in flight go out as one script, which costs the server a fraction of separate ones.
//!
//! * *The connection breaks, or the answer comes too late.* Then the outcome of each is unknown.
//! * *One fails.* The script reports that one. See `scripts/each.lua`.

use std::iter::{repeat, zip};
use std::pin::pin;
use std::sync::Arc;

use dlock_core::runtime::yield_now;
use dlock_core::spi;
use futures::FutureExt as _;
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

/// How many arguments they have in common: see `scripts/each.lua`.
const COMMON: usize = 3;

pub(crate) type Together = spi::Together<Request, RedisResult<Value>>;
type Departure = spi::Departure<Request, RedisResult<Value>>;
type Seat = spi::Seat<Request, RedisResult<Value>>;

pub(crate) struct Request {
    command: Cmd,
    script: Script,
}

impl Request {
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

/// Asks, together with others if there are any.
pub(crate) async fn ask_together(
    all: &Arc<Together>,
    setup: &Setup,
    connection: &mut MultiplexedConnection,
    command: &mut Cmd,
    script: Option<&Script>,
) -> RedisResult<Value> {
    let Some(script) = script.filter(|script| script.many.is_some()) else {
        return ask(connection, command, script).await;
    };
    if let Some(_under_way) = all.alone() {
        return ask(connection, command, Some(script)).await;
    }
    let (script, command) = (script.clone(), std::mem::take(command));
    let (answered, departure) = all.seat(Request { command, script });
    if let Some(departure) = departure {
        let (limit, connection) = (setup.runtime.sleep(setup.timeout), connection.clone());
        let leaving = async move {
            yield_now().await;
            // A caller that gives up before that checks the connection.
            select(pin!(leave(departure, &connection)), limit).await;
        };
        setup.runtime.spawn(leaving.boxed());
    }
    answered.await.unwrap_or_else(|_| Err(timed_out()))
}

/// Sends all that have a seat.
async fn leave(mut departure: Departure, connection: &MultiplexedConnection) {
    let mut groups: Vec<Vec<Seat>> = Vec::new();
    while let Some(seats) = departure.leave(usize::MAX) {
        for seat in seats {
            let same = |group: &&mut Vec<Seat>| group.len() < MOST && group[0].request.is_like(&seat.request);
            match groups.iter_mut().rev().find(same) {
                Some(group) => group.push(seat),
                None => groups.push(vec![seat]),
            }
        }
    }
    join_all(groups.into_iter().map(|group| send(connection.clone(), group))).await;
}

/// Sends those of one kind as one, and hands out the answers.
async fn send(mut connection: MultiplexedConnection, group: Vec<Seat>) {
    let answers = match (&group[..], &group[0].request.script.many) {
        ([_, _, ..], Some(many)) => answers_of(&mut connection, &group, many).await,
        _ => ask(
            &mut connection,
            &group[0].request.command,
            Some(&group[0].request.script),
        )
        .await
        .map(|answer| vec![answer]),
    };
    match answers {
        Ok(answers) => zip(group, answers).for_each(|(seat, answer)| seat.answer(of_one(answer))),
        Err(e) => group.into_iter().for_each(|seat| seat.answer(Err(e.clone()))),
    }
}

async fn answers_of(
    connection: &mut MultiplexedConnection,
    group: &[Seat],
    many: &Script,
) -> RedisResult<Vec<Value>> {
    let mut command = Cmd::with_capacity(3 + COMMON + group.len() * 3, group.len() * 128);
    command.arg("EVALSHA").arg(&*many.hash).arg(group.len() * 2);
    for key in group.iter().flat_map(|seat| seat.request.words().take(2)) {
        command.arg(key);
    }
    for common in group[0]
        .request
        .words()
        .skip(3)
        .chain(repeat(&b"0"[..]))
        .take(COMMON)
    {
        command.arg(common);
    }
    for first in group.iter().flat_map(|seat| seat.request.words().nth(2)) {
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
