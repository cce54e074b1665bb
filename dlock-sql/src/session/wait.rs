//! Waiting: in line within this client, then at the server, turn after turn.
//!
//! A wait is sent for a *turn*, a third of the ttl, and then anew. That costs two requests a turn, and others
//! who wait at the server may come in front. It is worth it:
//!
//! * The server counts the idle time of the session from when it let the waiter in, which nobody here sees.
//!   It was not before the turn was sent: so the grant counts from there, and two thirds of the ttl are left
//!   of it at least, without another request.
//! * A statement that waits holds a snapshot (PostgreSQL), which stops vacuum and holds up `CREATE INDEX
//!   CONCURRENTLY`. So it is no older than a turn.
//! * A dead connection is found out within two turns.
//!
//! What could break it, and why it does not:
//!
//! * *The wait ends with an error, and the lock was given all the same* (the time limit and the grant cross
//!   one another; session locks outlive the statement that failed). So after each turn that did not end with
//!   the lock the session gives back all that it has. It holds nothing else while it waits.
//! * *A cancel comes too early*, before the statement has arrived: it is repeated until the statement has
//!   ended.
//! * *A cancel comes too late*, and would hit the next statement: the next one is not sent before the cancel
//!   was answered, and then the server has told the session.
//! * *There is no shared connection to cancel on.* Then this one is closed. Its session, if it is let in
//!   before it finds that out, ends at once and holds nothing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::{LeaseKey, Push};
use dlock_core::{ErrorKind, Token};
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};

use super::board::{Seat, Step, Stopped};
use super::connection::{Connection, Kind, no_answer};
use super::connections::Connections;
use super::dialect::{Request, Settings};
use super::failure::{Answer, Failed};
use super::handle::{Cancel, Handle, Job};
use super::keys::Key;

/// Between two cancels of one statement.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

/// Who was let in sooner than that has waited for nobody.
const KEPT_WAITING: Duration = Duration::from_millis(5);

impl Connections {
    /// Tells when it pays to ask again. It begins to wait when it is first polled: who only tries leaves
    /// nothing behind.
    pub(super) fn wait(
        self: &Arc<Self>,
        key: Key,
        lease: LeaseKey,
        expects: bool,
    ) -> BoxStream<'static, Push> {
        let client = self.clone();
        let waiting = async move {
            let _seat = Seat {
                board: client.board.clone(),
                runtime: client.runtime.clone(),
                key,
                lease: lease.clone(),
            };
            loop {
                match client.board.step(&key, &lease, expects, client.now()) {
                    Step::Ready => return Some(Push::Changed),
                    // The stream ends, and the engine asks again after a pause that grows.
                    Step::Failed => return None,
                    Step::Stay(rung) => rung.await,
                    Step::Starved(rung, free) => {
                        select(rung, free).await;
                        return Some(Push::Changed);
                    }
                    Step::Contend(idle, cancel) => client.contend(idle, key, &lease, cancel),
                }
            }
        };
        stream::once(waiting).filter_map(|push| async { push }).boxed()
    }

    /// Waits on that connection or on a new one. That is made in a task of its own: whoever wanted it may go
    /// away at any moment.
    fn contend(self: &Arc<Self>, idle: Option<Arc<Handle>>, key: Key, lease: &LeaseKey, cancel: Arc<Cancel>) {
        if let Some(connection) = idle {
            return self.wait_on(connection, key, lease, cancel);
        }
        let (client, lease) = (self.clone(), lease.clone());
        let contending = async move {
            match client.make(Kind::Waiting).await {
                Ok(connection) => client.wait_on(connection, key, &lease, cancel),
                Err(_) => {
                    client.board.one_less();
                    client.board.stopped(&key, &lease, Stopped::Failed);
                }
            }
        };
        self.runtime.spawn(contending.boxed());
    }

    fn wait_on(&self, connection: Arc<Handle>, key: Key, lease: &LeaseKey, cancel: Arc<Cancel>) {
        let job = Job::Wait(key, lease.clone(), cancel, connection.clone());
        if connection.send(job).is_err() {
            // It has just ended.
            self.board.stopped(&key, lease, Stopped::Failed);
        }
    }
}

impl Connection {
    /// Until the lock is there or is not wanted any more.
    pub(super) async fn wait(
        &mut self,
        key: &Key,
        lease: &LeaseKey,
        cancel: &Cancel,
        connection: Arc<Handle>,
    ) -> Answer<()> {
        let (board, begun) = (self.client.board.clone(), self.now());
        let mut why = Stopped::Unwanted;
        while why == Stopped::Unwanted && board.is_wanted(key, lease, self.now()) {
            let sent = self.now();
            if sent < self.opens {
                self.stay_away(sent.until(self.opens), cancel).await?;
                continue;
            }
            match self.turn(key, cancel).await {
                Ok(Some(token)) => {
                    self.life.confirm(sent);
                    let now = self.now();
                    if board.contended(key, lease, token, connection.clone(), now) {
                        self.held.insert(*key, lease.id);
                        if now.since(begun) >= KEPT_WAITING {
                            board.met_others(key, now);
                        }
                        return Ok(());
                    }
                }
                Ok(None) => {}
                Err(failed) if failed.fatal => return Err(failed),
                Err(_) => why = Stopped::Failed,
            }
            // It may have been let in at the last moment.
            self.give_back(key).await?;
        }
        // First this, so that the next waiter, who is rung by the other, finds it.
        self.put_back(connection);
        board.stopped(key, lease, why);
        Ok(())
    }

    /// The server has started not long ago, and is not asked for locks yet. For a turn at most, after which
    /// its session hears of us.
    async fn stay_away(&mut self, left: Duration, cancel: &Cancel) -> Answer<()> {
        let cancelled = cancel.event.listen();
        if cancel.by().is_some() {
            return Ok(());
        }
        let turn = self.client.settings.turn;
        select(cancelled, self.client.runtime.sleep(left.min(turn))).await;
        self.must(Request::Ping).await.map(drop)
    }

    /// One turn, which is cut short when it is cancelled.
    async fn turn(&mut self, key: &Key, cancel: &Cancel) -> Answer<Option<Token>> {
        let Settings { turn, timeout, .. } = self.client.settings;
        let limit = turn * 2 + timeout.min(turn);
        let mut over = self.client.runtime.sleep(limit);
        let backend = self.backend.clone();
        let mut waiting = self.wire.ask(Request::Wait(key));
        let answer = loop {
            let cancelled = cancel.event.listen();
            let Some(by) = cancel.by() else {
                match select(waiting.as_mut(), select(cancelled, over.as_mut())).await {
                    Either::Left((answer, _)) => break answer,
                    Either::Right((Either::Left(_), _)) => continue,
                    Either::Right((Either::Right(_), _)) => return Err(no_answer(limit)),
                }
            };
            let by = by.as_ref().ok_or_else(no_way_to_cancel)?;
            // Answered before anything else is sent here.
            match select(pin!(by.cancel(backend.clone())), over.as_mut()).await {
                Either::Left((cancelled, _)) => cancelled.map_err(|_| no_way_to_cancel())?,
                Either::Right(_) => return Err(no_answer(limit)),
            }
            let again = self.client.runtime.sleep(CANCEL_AGAIN);
            if let Either::Left((answer, _)) = select(waiting.as_mut(), again).await {
                break answer;
            }
        };
        drop(waiting);
        self.read(answer).and_then(|value| self.token(value))
    }
}

fn no_way_to_cancel() -> Failed {
    Failed::fatal(
        ErrorKind::Unavailable,
        "a wait was cancelled by closing its connection, since there was no other one to cancel it on",
    )
}
