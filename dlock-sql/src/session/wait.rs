//! Waiting: in a queue within this client, then in the server, turn after turn.
//!
//! A wait is sent for a *turn*, a third of the ttl, and then repeated. That costs two requests a turn, and
//! other waiters in the server may get in front. But the server counts the idle time of the session from the
//! grant, which the client cannot see and which was not before the turn was sent: so the deadline counts from
//! there, and at least two thirds of the ttl are left, without another request. A waiting statement holds a
//! snapshot (PostgreSQL), which stops vacuum and delays `CREATE INDEX CONCURRENTLY`: it is no older than a
//! turn. And a dead connection is detected within two turns.
//!
//! What could break it, and why it does not:
//!
//! * *The wait ends with an error, and the lock was given all the same*: the time limit and the grant cross
//!   one another, and session locks outlive the statement that failed. So after each turn that did not end
//!   with the lock the session releases all its locks; it holds nothing else while it waits.
//! * *A cancel comes before the statement*: it is repeated until the statement has ended. *Or after it*, and
//!   would hit the next one: that is not sent before the cancel was answered, and then the session was told.
//! * *There is no shared connection to cancel on.* Then this one is closed, and its session ends with any
//!   lock that it was granted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_core::spi::{LeaseKey, Push};
use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};

use super::board::{Bid, Step, Stop};
use super::connection::{Connection, Connections, no_answer};
use super::dialect::Request;
use super::failure::{Answer, Failed};
use super::handle::{Handle, What};
use super::keys::Key;

/// Between two cancels of one statement.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

/// A request that was granted sooner has waited for no one.
const KEPT_WAITING: Duration = Duration::from_millis(5);

/// Somebody listens for its turn while this lives.
struct Seat {
    client: Arc<Connections>,
    key: Key,
    lease: LeaseKey,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let now = self.client.now();
        self.client.board.left(&self.key, &self.lease, now);
    }
}

impl Connections {
    /// Tells when it pays to ask again. It begins to wait when it is first polled: who only tries leaves
    /// nothing behind.
    pub(super) fn wait(self: &Arc<Self>, key: Key, lease: LeaseKey) -> BoxStream<'static, Push> {
        let client = self.clone();
        let waiting = async move {
            let seat = Seat { client, key, lease };
            let client = &seat.client;
            loop {
                match client.board.step(&key, &seat.lease, client.now()) {
                    Step::Ready => return Some(Push::Changed),
                    // The stream ends, and the engine asks again after a pause that grows.
                    Step::Failed => return None,
                    Step::Stay(rung) => rung.await,
                    Step::Starved(rung) => {
                        rung.await;
                        return Some(Push::Changed);
                    }
                    Step::Contend(idle, bid, stop) => {
                        idle.unwrap_or_else(|| client.open(false)).wait(bid, stop);
                    }
                }
            }
        };
        stream::once(waiting).filter_map(|push| async { push }).boxed()
    }
}

impl Connection {
    /// Until the lock is there or is not wanted any more; not at all while the server has just started.
    pub(super) async fn wait(&mut self, mut bid: Bid, mut stop: Stop, me: Arc<Handle>) -> Answer<bool> {
        let begun = self.now();
        while begun >= self.opens && bid.is_wanted(self.now()) {
            let sent = self.now();
            let answer = self.turn(&mut bid, &mut stop).await;
            if let Ok(Some(_)) = answer {
                self.life.confirm(sent);
            }
            match self.settle(&mut bid, answer, &me, Request::Clean).await {
                Ok(false) => {}
                Ok(true) => {
                    let now = self.now();
                    if now.since(begun) >= KEPT_WAITING {
                        self.client.board.met_others(&bid.key, now);
                    }
                    return Ok(true);
                }
                Err(failed) if failed.fatal => return Err(failed),
                Err(_) => break,
            }
        }
        // First this: the next waiter, who is rung when the bid is dropped, finds it.
        self.client.board.put_back(me, self.now());
        Ok(false)
    }

    /// One turn, which is cut short when it is told to stop.
    async fn turn(&mut self, bid: &mut Bid, stop: &mut Stop) -> Answer<Option<i64>> {
        let (turn, timeout) = (self.client.config.turn(), self.client.config.timeout);
        let limit = turn * 2 + timeout.min(turn);
        let mut over = self.client.runtime.sleep(limit);
        bid.doubt = Some(self.now() + limit + self.life.ttl);
        let mut waiting = self.wire.ask(Request::Wait(&bid.key));
        let answer = match select(waiting.as_mut(), select(stop, over.as_mut())).await {
            Either::Left((answer, _)) => answer,
            Either::Right((Either::Right(_), _)) => return Err(no_answer(limit)),
            Either::Right((Either::Left((by, _)), _)) => {
                let by = by.ok().flatten().ok_or_else(no_way_to_cancel)?;
                loop {
                    // Answered before anything else is sent here.
                    let cancelled = by.call(What::Cancel(self.backend.clone()));
                    match select(pin!(cancelled), over.as_mut()).await {
                        Either::Left((cancelled, _)) => cancelled.map_err(|_| no_way_to_cancel())?,
                        Either::Right(_) => return Err(no_answer(limit)),
                    };
                    let again = self.client.runtime.sleep(CANCEL_AGAIN);
                    if let Either::Left((answer, _)) = select(waiting.as_mut(), again).await {
                        break answer;
                    }
                }
            }
        };
        drop(waiting);
        self.read(answer)
    }
}

fn no_way_to_cancel() -> Failed {
    Failed::fatal(
        ErrorKind::Unavailable,
        "a wait was cancelled by closing its connection: no other connection was free to cancel it",
    )
}
