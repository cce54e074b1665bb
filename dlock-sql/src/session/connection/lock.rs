//! Tries and releases.

use std::sync::Arc;

use dlock_core::spi::LeaseKey;
use dlock_core::{Error, LossReason, RequestId, Result, Token};
use futures::channel::oneshot;

use super::{Connection, Handle, Kind};
use crate::session::board::Verdict;
use crate::session::failure::{Answer, Failed};
use crate::session::failure::{limited, perhaps, told};
use crate::session::keys::Key;

impl Connection {
    pub(super) async fn try_lock(
        &mut self,
        key: Key,
        lease: LeaseKey,
        reply: oneshot::Sender<Result<Option<Token>>>,
    ) -> Answer<()> {
        if self.runtime.now() < self.opens {
            // It is not known whether it is free. Whoever waits for it contends, and that begins when it is.
            self.board.tried(&key, &lease, None);
            let _ = reply.send(Ok(None));
            return Ok(());
        }
        let (sent, limit) = (self.runtime.now(), self.limit());
        let tried = limited(&*self.runtime, limit, self.wire.try_lock(&key)).await;
        let failed = match tried {
            Ok(token) => {
                self.life.confirm(sent);
                let got = token.and_then(|token| Some((token, self.me.upgrade()?)));
                // Where the handle is gone nobody is left to hold it for.
                let is_stray = token.is_some() && got.is_none();
                if is_stray || self.board.tried(&key, &lease, got) == Verdict::GiveBack {
                    let given_back = self.give_back(&key).await;
                    self.doubt(&lease, &given_back);
                    self.board.tried(&key, &lease, None);
                    let _ = reply.send(Err(Error::lost(LossReason::Refused)));
                    return given_back;
                }
                if token.is_some() {
                    self.held.insert(key, lease.id);
                }
                let _ = reply.send(Ok(token));
                return Ok(());
            }
            Err(failed) => failed,
        };
        // It may have the lock: what draws the token fails after that.
        let given_back = match failed.fatal {
            true => Err(Failed::fatal(failed.error.clone())),
            false => self.give_back(&key).await,
        };
        self.doubt(&lease, &given_back);
        self.board.tried(&key, &lease, None);
        let _ = reply.send(Err(match &given_back {
            Ok(()) => failed.error,
            Err(_) => perhaps(failed.error),
        }));
        given_back
    }

    /// Where that was not done, the request may have the lock for as long as the server keeps the session:
    /// nothing is sent from here on.
    pub(super) fn doubt<T>(&self, lease: &LeaseKey, done: &Answer<T>) {
        if done.is_err() {
            let now = self.runtime.now();
            self.board.doubt(lease.id, now, now + self.timing.ttl);
        }
    }

    /// Gives back what nobody has renewed.
    pub(super) async fn lapse(&mut self) -> Answer<()> {
        self.looked = self.runtime.now();
        for (key, id) in self.board.lapsed(self.id, self.looked) {
            self.unlock(key, id, oneshot::channel().0).await?;
        }
        Ok(())
    }

    /// Unlocks what may be held. If that cannot be done, the session must end.
    pub(super) async fn give_back(&mut self, key: &Key) -> Answer<()> {
        let (sent, limit) = (self.runtime.now(), self.limit());
        let unlocked = match self.kind {
            Kind::Shared => limited(&*self.runtime, limit, self.wire.unlock(key))
                .await
                .map(drop),
            Kind::Waiting => limited(&*self.runtime, limit, self.wire.clean()).await,
        };
        unlocked.map_err(|f| Failed::fatal(f.error))?;
        self.life.confirm(sent);
        Ok(())
    }

    pub(super) async fn unlock(
        &mut self,
        key: Key,
        id: RequestId,
        reply: oneshot::Sender<Result<bool>>,
    ) -> Answer<()> {
        if self.held.get(&key) != Some(&id) {
            let _ = reply.send(Ok(self.board.was_released(id)));
            return Ok(());
        }
        let (sent, limit) = (self.runtime.now(), self.limit());
        let mut answer = limited(&*self.runtime, limit, self.wire.unlock(&key)).await;
        if let Err(failed) = &answer
            && !failed.fatal
        {
            // Once more, and if it is not to be had then, by ending the session.
            answer = limited(&*self.runtime, limit, self.wire.unlock(&key)).await;
        }
        let answer = answer.map_err(|f| Failed::fatal(f.error));
        if let Ok(was_held) = answer {
            self.life.confirm(sent);
            self.held.remove(&key);
            // Whoever asked for it may have gone, and the table forgets it now.
            let me = self.me.upgrade();
            self.board.unlocked(&key, id, was_held, self.runtime.now());
            self.put_back(me);
        }
        // Otherwise all that hangs on it is taken out at once.
        let _ = reply.send(told(&answer));
        answer.map(drop)
    }

    /// A waiting connection that has nothing to do is somebody else's to take.
    pub(super) fn put_back(&mut self, me: Option<Arc<Handle>>) {
        self.used = self.runtime.now();
        if self.kind == Kind::Waiting
            && let Some(me) = me
        {
            self.board.put_back(me);
        }
    }
}
