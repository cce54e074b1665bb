//! Acquires and releases that [travel together](dlock_core::spi::Together): those that come while others are
//! on their way go out as one statement, and so with one commit, which is what the disk is waited for.
//!
//! * *One of them finds somebody else there, or a row that is just being changed.* It alone is not done, and
//!   goes on by itself; the statement waits for nobody.
//! * *The statement is refused*: nothing of it was done, and each is asked by itself.
//! * *The connection breaks, or the answer comes too late.* Then it is not known of each of them.

use std::future::Future;
use std::iter::zip;
use std::sync::Arc;

use dlock_core::runtime::yield_now;
use dlock_core::spi::{Acquire, Grant, LeaseKey, Seat, Together};
use dlock_core::{ErrorKind, Result};
use futures::future::{Either, join_all, select};

use super::connection::Database;
use super::dialect::Dialect;
use super::failure::ended_meanwhile;

/// How many go into one statement: a longer one would keep others waiting.
const MOST: usize = 64;

type Db<D> = Arc<Database<D>>;

/// What is on its way to a database.
#[derive(Default)]
pub(in crate::lease) struct OnTheirWay {
    acquires: Together<Acquire, Result<Option<Grant>>>,
    releases: Together<LeaseKey, Result<bool>>,
}

/// A request of which many can be one statement.
pub(in crate::lease) trait Travels<D: Dialect>: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;

    fn together(all: &OnTheirWay) -> &Together<Self, Result<Self::Answer>>;

    fn one(&self, db: &Db<D>) -> impl Future<Output = Result<Self::Answer>> + Send;

    /// Answers each.
    fn many(all: &[Self], db: &Db<D>) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;
}

/// Of a name that has a row.
impl<D: Dialect> Travels<D> for Acquire {
    type Answer = Option<Grant>;

    fn together(all: &OnTheirWay) -> &Together<Self, Result<Option<Grant>>> {
        &all.acquires
    }

    fn one(&self, db: &Db<D>) -> impl Future<Output = Result<Option<Grant>>> + Send {
        D::acquire(db, self, true)
    }

    fn many(all: &[Self], db: &Db<D>) -> impl Future<Output = Result<Vec<Option<Grant>>>> + Send {
        D::acquires(db, all)
    }
}

impl<D: Dialect> Travels<D> for LeaseKey {
    type Answer = bool;

    fn together(all: &OnTheirWay) -> &Together<Self, Result<bool>> {
        &all.releases
    }

    fn one(&self, db: &Db<D>) -> impl Future<Output = Result<bool>> + Send {
        D::release(db, self)
    }

    fn many(all: &[Self], db: &Db<D>) -> impl Future<Output = Result<Vec<bool>>> + Send {
        D::releases(db, all)
    }
}

/// Asks, together with others if there are any.
pub(in crate::lease) async fn ask<D: Dialect, Q: Travels<D>>(db: &Db<D>, request: &Q) -> Result<Q::Answer> {
    let all = Q::together(&db.on_their_way);
    let alone = all.alone();
    if !D::TOGETHER || alone.is_some() {
        return request.one(db).await;
    }
    let (answered, is_first) = all.seat(request.clone());
    if is_first {
        let leaving = db.clone();
        db.spawn(async move {
            yield_now().await;
            let (mut seats, _under_way) = Q::together(&leaving.on_their_way).leave();
            let mut groups = Vec::new();
            while !seats.is_empty() {
                let rest = seats.split_off(seats.len().min(MOST));
                groups.push(send(&leaving, std::mem::replace(&mut seats, rest)));
            }
            join_all(groups).await;
        });
    }
    match select(answered, db.closing.clone()).await {
        Either::Left((Ok(answer), _)) => answer,
        Either::Left(_) => Err(ended_meanwhile()),
        Either::Right(_) => Err(db.open().err().unwrap_or_else(ended_meanwhile)),
    }
}

async fn send<D: Dialect, Q: Travels<D>>(db: &Db<D>, seats: Vec<Seat<Q, Result<Q::Answer>>>) {
    if let [_, _, ..] = &seats[..] {
        let requests: Vec<_> = seats.iter().map(|seat| seat.request.clone()).collect();
        match Q::many(&requests, db).await {
            Ok(answers) => return zip(seats, answers).for_each(|(seat, answer)| seat.answer(Ok(answer))),
            Err(e) if e.kind() == ErrorKind::Unknown => {
                return seats.into_iter().for_each(|seat| seat.answer(Err(e.clone())));
            }
            Err(_) => {}
        }
    }
    let each = seats.into_iter().map(async |seat| {
        let answer = seat.request.one(db).await;
        seat.answer(answer);
    });
    join_all(each).await;
}
