//! Waiting at the server, turn after turn.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::LeaseKey;
use futures::FutureExt as _;
use futures::future::{Either, select};

use super::{Connection, Handle};
use crate::session::board::{Cancel, GRACE, IsHeard, Verdict};
use crate::session::dialect::Waited;
use crate::session::failure::Answer;
use crate::session::failure::{no_answer, no_way_to_cancel};
use crate::session::keys::Key;

/// Between two cancels of one statement.
const CANCEL_AGAIN: Duration = Duration::from_millis(20);

impl Connection {
    pub(super) async fn wait(
        &mut self,
        key: Key,
        lease: LeaseKey,
        cancel: &Cancel,
        connection: Arc<Handle>,
    ) -> Answer<()> {
        let mut failure = None;
        let mut is_clean = true;
        while failure.is_none() && self.board.is_wanted(&key, &lease, self.runtime.now()) {
            let sent = self.runtime.now();
            if sent < self.opens {
                self.stay_away(sent.until(self.opens), cancel).await?;
                continue;
            }
            is_clean = false;
            match self.turn(&key, cancel).await {
                Ok(Waited::Locked(token)) => {
                    self.life.confirm(sent);
                    let now = self.runtime.now();
                    let (verdict, heard) = self.board.contended(&key, &lease, token, connection.clone(), now);
                    if verdict == Verdict::GiveBack {
                        break;
                    }
                    self.held.insert(key, lease.id);
                    if heard == IsHeard::No {
                        self.look_later(key, lease, connection);
                    }
                    return Ok(());
                }
                Ok(Waited::NotYet) => {}
                Err(failed) if failed.fatal => return Err(failed),
                Err(failed) => failure = Some(failed.error),
            }
            // It may have been let in at the last moment.
            self.give_back(&key).await?;
            is_clean = true;
        }
        if !is_clean {
            // It was let in, and nobody wants it any more.
            self.give_back(&key).await?;
        }
        self.board.withdrawn(&key, &lease, failure);
        self.put_back(Some(connection));
        Ok(())
    }

    /// The server has started not long ago, and is not asked for locks yet. For a turn at most, after which
    /// its session hears of us.
    async fn stay_away(&mut self, left: Duration, cancel: &Cancel) -> Answer<()> {
        let cancelled = cancel.event.listen();
        if cancel.is_set() {
            return Ok(());
        }
        select(cancelled, self.runtime.sleep(left.min(self.timing.turn))).await;
        self.ping().await
    }

    /// One turn, which is cut short when it is cancelled.
    pub(super) async fn turn(&mut self, key: &Key, cancel: &Cancel) -> Answer<Waited> {
        let backend = self.wire.backend().clone();
        let limit = self.timing.turn * 2 + self.timing.timeout.min(self.timing.turn);
        let mut over = self.runtime.sleep(limit);
        let mut waiting = self.wire.wait_lock(key);
        loop {
            let cancelled = cancel.event.listen();
            if !cancel.is_set() {
                match select(waiting.as_mut(), select(cancelled, over.as_mut())).await {
                    Either::Left((answer, _)) => return answer,
                    Either::Right((Either::Left(_), _)) => continue,
                    Either::Right((Either::Right(_), _)) => return Err(no_answer(limit)),
                }
            }
            let Some(shared) = cancel.by().or_else(|| self.board.shared()) else {
                return Err(no_way_to_cancel());
            };
            // Answered before anything else is sent here.
            match select(pin!(shared.cancel(backend.clone())), over.as_mut()).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) => return Err(no_way_to_cancel()),
                Either::Right(_) => return Err(no_answer(limit)),
            }
            let again = self.runtime.sleep(CANCEL_AGAIN);
            if let Either::Left((answer, _)) = select(waiting.as_mut(), again).await {
                return answer;
            }
        }
    }

    /// Nobody listened when it was let in: who asks again within a while has it, and otherwise it is given
    /// back.
    pub(super) fn look_later(&self, key: Key, lease: LeaseKey, connection: Arc<Handle>) {
        let (board, runtime) = (self.board.clone(), self.runtime.clone());
        let looking = async move {
            runtime.sleep(GRACE).await;
            if board.leave_unclaimed(&key, lease.id, runtime.now()) {
                let _ = connection.unlock(key, lease.id).await;
            }
        };
        self.runtime.spawn(looking.boxed());
    }
}
