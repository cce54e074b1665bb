//! Acquires and releases that [travel together](dlock_core::spi::Together): those that come while others are
//! on their way go out as one statement, and so with one commit, which is what the disk is waited for.
//!
//! * *One of them finds another holder, or a row that is being changed.* It alone is left out, and goes on
//!   alone; the statement does not wait.
//! * *The statement is refused*, or a row is malformed: then each is sent alone.
//! * *The connection breaks, or the answer comes too late.* Then it is not known of each of them.

use std::future::Future;
use std::iter::zip;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::runtime::yield_now;
use dlock_core::spi::{Acquire, Departure, Grant, LeaseKey, Seat, Together};
use dlock_core::{Error, ErrorKind, Result, Timestamp, Token};
use futures::FutureExt as _;
use futures::future::{Either, join_all, select};

use super::call::Value;
use super::{Db, Postgres};
use crate::lease::call::get;
use crate::lease::connection::Lent;
use crate::lease::failure::ended_meanwhile;
use crate::lease::keys::{id_bytes, micros, read_token};

/// How many go into one statement: a longer one would keep others waiting.
const MOST: usize = 64;

/// How long those that come next wait for a statement.
const SLOW: Duration = Duration::from_millis(100);

/// What is on its way to a database.
#[derive(Default)]
pub(super) struct OnTheirWay {
    acquires: Queue<Acquire>,
    releases: Queue<LeaseKey>,
}

type Queue<Q> = Arc<Together<Q, Result<<Q as Travels>::Answer>>>;

/// A request of which many can be one statement.
pub(super) trait Travels: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;

    fn queue(all: &OnTheirWay) -> &Queue<Self>;

    fn one(&self, db: &Arc<Db>) -> impl Future<Output = Result<Self::Answer>> + Send;

    /// Answers each.
    fn many(
        all: &[Self],
        db: &Arc<Db>,
        on: Lent<Postgres>,
    ) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;
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

    async fn many(all: &[Self], db: &Arc<Db>, on: Lent<Postgres>) -> Result<Vec<Option<Grant>>> {
        let owners = all.iter().map(|r| r.owner.as_deref().map(str::to_owned));
        let rest = [
            Value::Longs(all.iter().map(|r| micros(r.ttl)).collect()),
            Value::Texts(owners.collect()),
        ];
        let (sent, tokens) = done(db, on, &db.sql.acquires, all.iter().map(|r| &r.key), rest).await?;
        let each = zip(all, tokens);
        Ok(each
            .map(|(r, token)| Some(Grant::new(r.key.clone(), Some(token?), sent, r.ttl)))
            .collect())
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

    async fn many(all: &[Self], db: &Arc<Db>, on: Lent<Postgres>) -> Result<Vec<bool>> {
        let (_, tokens) = done(db, on, &db.sql.releases, all.iter(), []).await?;
        Ok(tokens.iter().map(Option::is_some).collect())
    }
}

/// Does what that statement does for each of them: when it was sent, and the tokens of those for which it was
/// done.
async fn done<const N: usize>(
    db: &Arc<Db>,
    on: Lent<Postgres>,
    text: &Arc<str>,
    keys: impl ExactSizeIterator<Item = &LeaseKey> + Clone,
    rest: [Value<'_>; N],
) -> Result<(Timestamp, Vec<Option<Token>>)> {
    let mut tokens = vec![None; keys.len()];
    let ids = keys.clone().map(|key| id_bytes(key.id).to_vec()).collect();
    let names = keys.map(|key| key.name.as_bytes().to_vec()).collect();
    let mut values = vec![Value::ManyBytes(names), Value::ManyBytes(ids)];
    values.extend(rest);
    let (sent, answer) = db.ask_on(on, text, &values).await?;
    for row in &answer.rows {
        // It is done: what cannot be read is not refused.
        let unread = |e| Error::new(ErrorKind::Unknown, "the answer cannot be read").with_source(e);
        let item: i64 = get(row, 0).map_err(unread)?;
        let token = get(row, 1).and_then(read_token).map_err(unread)?;
        let of = usize::try_from(item - 1)
            .ok()
            .and_then(|item| tokens.get_mut(item));
        if let Some(of) = of {
            *of = Some(token);
        }
    }
    Ok((sent, tokens))
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
    let together = Q::queue(&db.on_their_way);
    if let Some(_under_way) = together.alone() {
        return request.one(db).await;
    }
    db.open()?;
    let (answered, departure) = together.seat(request.clone());
    if let Some(departure) = departure {
        // What is on its way as the backend is closed goes on to its end.
        let db = db.clone();
        db.runtime
            .clone()
            .spawn(async move { leave(&db, departure).await }.boxed());
    }
    answered.await.unwrap_or_else(|_| Err(ended_meanwhile()))
}

/// Sends all that have a seat, as long as there are any.
///
/// One statement at a time: those that come meanwhile are the next one. There are few connections, and each
/// statement ends with a commit. One that takes long keeps the next ones waiting no longer.
async fn leave<Q: Travels>(db: &Arc<Db>, mut departure: Departure<Q, Result<Q::Answer>>) {
    yield_now().await;
    loop {
        // First, so that nothing waits between leaving and being sent.
        let lent = db.lend().await;
        let Some(seats) = departure.leave(MOST) else {
            // Unused, it needs no reset.
            if let Ok(lent) = lent {
                db.finish(lent, None);
            }
            return;
        };
        let sending = {
            let db = db.clone();
            async move { send(&db, lent, seats).await }
        };
        if let Either::Right((_, sending)) = select(sending.boxed(), db.runtime.sleep(SLOW)).await {
            db.runtime.spawn(sending);
        }
    }
}

async fn send<Q: Travels>(
    db: &Arc<Db>,
    lent: Result<Lent<Postgres>>,
    mut seats: Vec<Seat<Q, Result<Q::Answer>>>,
) {
    let requests: Vec<_> = seats.iter().map(|seat| seat.request.clone()).collect();
    let asking = async { Q::many(&requests, db, lent?).await };
    let Some(answers) = unless_left(&mut seats, asking).await else {
        return;
    };
    match answers {
        Ok(answers) => zip(seats, answers).for_each(|(seat, answer)| seat.answer(Ok(answer))),
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::Closed
            ) =>
        {
            seats.into_iter().for_each(|seat| seat.answer(Err(e.clone())));
        }
        // What the server refuses is not done, and may be the fault of one.
        Err(_) => {
            let each = zip(seats, requests).map(async |(mut seat, request)| {
                let answered = unless_left(std::slice::from_mut(&mut seat), request.one(db)).await;
                if let Some(answer) = answered {
                    seat.answer(answer);
                }
            });
            join_all(each).await;
        }
    }
}

/// What nobody waits for any more is dropped, with its connection, as a request that goes alone is: the
/// server may be silent for ever.
async fn unless_left<Q, A, T>(seats: &mut [Seat<Q, A>], work: impl Future<Output = T>) -> Option<T> {
    let all_left = join_all(seats.iter_mut().map(Seat::left));
    match select(pin!(work), all_left).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}
