//! What a planted bug of the store needs beyond an `if`: requests in two steps, with room between them.

use std::time::Duration;

use futures::future::BoxFuture;

use super::link::MemoryLink;
use crate::error::Result;
use crate::name::LockName;
use crate::spi::{Access, Acquire, Admission, Attempt, FencedValue, Wake};
use crate::token::Token;

use super::gate::MemoryGate;

impl MemoryLink {
    /// Rule 8.01: the waiter is registered some time after it was queued.
    pub(super) fn register_late<'a>(&'a self, request: &'a Acquire) -> BoxFuture<'a, Result<Attempt>> {
        Box::pin(async move {
            let mut attempt = self.ask(request)?;
            if let Attempt::Queued(wait) = &mut attempt {
                self.shared.lock().waiters.remove(&request.key);
                self.runtime.sleep(Duration::from_millis(1)).await;
                let (sent, _) = self.sent();
                let stream = self.listen(&mut self.shared.lock(), &request.key, sent, sent);
                wait.wake = Wake::Push(stream);
            }
            Ok(attempt)
        })
    }

    /// Rule 7.09: the token is drawn, and then the lock is asked for.
    pub(super) fn token_first<'a>(&'a self, request: &'a Acquire) -> BoxFuture<'a, Result<Attempt>> {
        Box::pin(async move {
            let token = self.shared.lock().table.draw_token();
            self.runtime
                .sleep(Duration::from_millis(2 * (token.get() % 4)))
                .await;
            let mut attempt = self.ask(request)?;
            if let Attempt::Granted(grant) = &mut attempt {
                grant.token = Some(token);
            }
            Ok(attempt)
        })
    }
}

impl MemoryGate {
    /// Rule 7.13: the token is checked, and then the value is written.
    pub(super) fn check_then_write<'a>(
        &'a self,
        resource: &'a LockName,
        token: Token,
        value: &'a [u8],
    ) -> BoxFuture<'a, Result<Admission>> {
        Box::pin(async move {
            let fresh = || FencedValue::new(Vec::new(), None, None);
            let checked = self.on(resource, |gates| {
                let mut seen = gates.get(resource).cloned().unwrap_or_else(fresh);
                seen.admit(token, Access::Exclusive)
            })?;
            if checked.is_admitted() {
                self.shared.pause(Duration::from_micros(500)).await;
                self.on(resource, |gates| {
                    let stored = gates.entry(resource.clone()).or_insert_with(fresh);
                    let _ = stored.admit(token, Access::Exclusive);
                    stored.value = value.to_vec();
                })?;
            }
            Ok(checked)
        })
    }
}
