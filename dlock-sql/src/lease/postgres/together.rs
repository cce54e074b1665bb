//! Acquires and releases that [travel together](dlock_core::spi::Together): those that come while others are
//! on their way go out as one statement, and so with one commit, which is what the disk is waited for.
//!
//! * *One of them finds somebody else there, or a row that is just being changed.* It alone is not done, and
//!   goes on by itself; the statement waits for nobody.
//! * *The statement is refused*, or a row says what nobody wrote: then each is asked by itself.
//! * *The connection breaks, or the answer comes too late.* Then it is not known of each of them.

use std::collections::HashMap;
use std::future::Future;
use std::iter::zip;
use std::pin::pin;
use std::sync::Arc;

use dlock_core::runtime::yield_now;
use dlock_core::spi::{Acquire, Grant, LeaseKey, Seat, Together};
use dlock_core::{ErrorKind, RequestId, Result, Timestamp, Token};
use futures::future::{Either, join_all, select};
use futures::lock::Mutex;

use super::Db;
use super::call::Value;
use crate::lease::call::get;
use crate::lease::failure::ended_meanwhile;
use crate::lease::keys::{id_bytes, micros, read_id, read_token};

/// How many go into one statement: a longer one would keep others waiting.
const MOST: usize = 64;

/// What is on its way to a database.
#[derive(Default)]
pub(super) struct OnTheirWay {
    acquires: Queue<Acquire>,
    releases: Queue<LeaseKey>,
}

pub(super) struct Queue<Q: Travels> {
    together: Together<Q, Result<Q::Answer>>,
    /// One statement at a time. Those that come meanwhile are the next one: there are few connections, and
    /// each statement ends with a commit.
    turn: Mutex<()>,
}

impl<Q: Travels> Default for Queue<Q> {
    fn default() -> Self {
        let (together, turn) = Default::default();
        Self { together, turn }
    }
}

/// A request of which many can be one statement.
pub(super) trait Travels: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;

    fn queue(all: &OnTheirWay) -> &Queue<Self>;

    fn one(&self, db: &Arc<Db>) -> impl Future<Output = Result<Self::Answer>> + Send;

    /// Answers each.
    fn many(all: &[Self], db: &Arc<Db>) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;
}

/// Of a name that has a row.
impl Travels for Acquire {
    type Answer = Option<Grant>;

    fn queue(all: &OnTheirWay) -> &Queue<Self> {
        &all.acquires
    }

    fn one(&self, db: &Arc<Db>) -> impl Future<Output = Result<Option<Grant>>> + Send {
        acquire(db, &db.sql.acquire_again, self)
    }

    async fn many(all: &[Self], db: &Arc<Db>) -> Result<Vec<Option<Grant>>> {
        let owners = all.iter().map(|r| r.owner.as_deref().map(str::to_owned));
        let rest = [
            Value::Longs(all.iter().map(|r| micros(r.ttl)).collect()),
            Value::Texts(owners.collect()),
        ];
        let (sent, tokens) = done(db, &db.sql.acquires, all.iter().map(|r| &r.key), rest).await?;
        let granted = |r: &Acquire| {
            Some(Grant::new(
                r.key.clone(),
                Some(*tokens.get(&r.key.id)?),
                sent,
                r.ttl,
            ))
        };
        Ok(all.iter().map(granted).collect())
    }
}

impl Travels for LeaseKey {
    type Answer = bool;

    fn queue(all: &OnTheirWay) -> &Queue<Self> {
        &all.releases
    }

    fn one(&self, db: &Arc<Db>) -> impl Future<Output = Result<bool>> + Send {
        release(db, self)
    }

    async fn many(all: &[Self], db: &Arc<Db>) -> Result<Vec<bool>> {
        let (_, released) = done(db, &db.sql.releases, all.iter(), []).await?;
        Ok(all.iter().map(|lease| released.contains_key(&lease.id)).collect())
    }
}

/// Those for which the statement did what it does, with their tokens, and when it was sent.
async fn done<const N: usize>(
    db: &Arc<Db>,
    text: &Arc<str>,
    keys: impl Iterator<Item = &LeaseKey> + Clone,
    rest: [Value<'_>; N],
) -> Result<(Timestamp, HashMap<RequestId, Token>)> {
    let ids = keys.clone().map(|key| id_bytes(key.id).to_vec()).collect();
    let names = keys.map(|key| key.name.as_bytes().to_vec()).collect();
    let values: Vec<_> = [Value::ManyBytes(names), Value::ManyBytes(ids)]
        .into_iter()
        .chain(rest)
        .collect();
    let (sent, answer) = db.ask(text, &values).await?;
    let each = answer.rows.iter();
    let each = each.map(|row| Ok((read_id(&get::<Vec<u8>, _>(row, 0)?)?, read_token(get(row, 1)?)?)));
    Ok((sent, each.collect::<Result<_>>()?))
}

/// Takes a name by that statement.
pub(super) async fn acquire(db: &Arc<Db>, text: &Arc<str>, request: &Acquire) -> Result<Option<Grant>> {
    let values = [
        Value::Long(micros(request.ttl)),
        Value::Text(request.owner.as_deref()),
    ];
    let (sent, answer) = db.send(db.about(text, &request.key, &values)?).await?;
    let token = answer.rows.first().map(|row| read_token(get(row, 0)?));
    let token = token.transpose()?;
    Ok(token.map(|token| Grant::new(request.key.clone(), Some(token), sent, request.ttl)))
}

async fn release(db: &Arc<Db>, lease: &LeaseKey) -> Result<bool> {
    let (_, answer) = db.send(db.about(&db.sql.release, lease, &[])?).await?;
    Ok(answer.done.rows_affected() > 0)
}

/// Asks, together with others if there are any.
pub(super) async fn ask<Q: Travels>(db: &Arc<Db>, request: &Q) -> Result<Q::Answer> {
    let together = &Q::queue(&db.on_their_way).together;
    if let Some(_under_way) = together.alone() {
        return request.one(db).await;
    }
    let (answered, is_first) = together.seat(request.clone());
    if is_first {
        let leaving = db.clone();
        db.spawn(async move { leave::<Q>(&leaving).await });
    }
    match select(answered, db.closing.clone()).await {
        Either::Left((Ok(answer), _)) => answer,
        Either::Left(_) => Err(ended_meanwhile()),
        Either::Right(_) => Err(db.open().err().unwrap_or_else(ended_meanwhile)),
    }
}

/// Sends all that have a seat, when it is their turn.
async fn leave<Q: Travels>(db: &Arc<Db>) {
    yield_now().await;
    let queue = Q::queue(&db.on_their_way);
    let _turn = queue.turn.lock().await;
    let (mut seats, _under_way) = queue.together.leave();
    let mut groups = Vec::new();
    while !seats.is_empty() {
        let rest = seats.split_off(seats.len().min(MOST));
        groups.push(send(db, std::mem::replace(&mut seats, rest)));
    }
    join_all(groups).await;
}

async fn send<Q: Travels>(db: &Arc<Db>, mut seats: Vec<Seat<Q, Result<Q::Answer>>>) {
    if let [_, _, ..] = &seats[..] {
        let requests: Vec<_> = seats.iter().map(|seat| seat.request.clone()).collect();
        let answers = unless_all_left(&mut seats, Q::many(&requests, db)).await;
        match answers {
            Some(Ok(answers)) => {
                return zip(seats, answers).for_each(|(seat, answer)| seat.answer(Ok(answer)));
            }
            Some(Err(e)) if matches!(e.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) => {
                return seats.into_iter().for_each(|seat| seat.answer(Err(e.clone())));
            }
            Some(Err(_)) => {}
            None => return,
        }
    }
    let each = seats.into_iter().map(async |mut seat| {
        let request = seat.request.clone();
        if let Some(answer) = unless_all_left(std::slice::from_mut(&mut seat), request.one(db)).await {
            seat.answer(answer);
        }
    });
    join_all(each).await;
}

/// A statement that nobody waits for any more is dropped, with its connection, as that of one who asks alone
/// is: a server that is silent for ever would keep the next ones waiting.
async fn unless_all_left<Q, A, T>(seats: &mut [Seat<Q, A>], work: impl Future<Output = T>) -> Option<T> {
    let all_left = join_all(seats.iter_mut().map(Seat::left));
    match select(pin!(work), all_left).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}
