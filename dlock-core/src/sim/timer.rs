//! Sleeping in virtual time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::node::Node;
use super::world::{Timer, TimerKey, World};

/// Completes when true time has reached `due` and its node is not stopped.
pub(super) struct Sleep {
    world: Arc<World>,
    node: Arc<Node>,
    due: u64,
    armed: Option<TimerKey>,
}

impl Sleep {
    pub(super) fn new(world: Arc<World>, node: Arc<Node>, due: u64) -> Self {
        Self {
            world,
            node,
            due,
            armed: None,
        }
    }

    fn disarm(&mut self) {
        if let Some(key) = self.armed.take() {
            // The waker is dropped after the lock is let go: it may be the last owner of something that comes
            // back here.
            let timer = self.world.state().timers.remove(&key);
            drop(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.disarm();
        if self.world.now().as_nanos() >= self.due {
            if !self.node.is_paused() {
                return Poll::Ready(());
            }
            // Polled from another node while its own is stopped.
            self.node.hold_timer(cx.waker().clone());
            return Poll::Pending;
        }
        // "Never" is not armed: time would jump to its end instead of reporting that nothing can happen any
        // more.
        if self.due != u64::MAX {
            let timer = Timer {
                waker: cx.waker().clone(),
                node: self.node.clone(),
            };
            self.armed = Some(self.world.arm(self.due, timer));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
