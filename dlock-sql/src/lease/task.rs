//! Work in a task of the runtime, whose context sqlx wants where it connects and which whoever asks need not
//! have.

use std::future::Future;
use std::pin::pin;

use dlock_core::Runtime;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};

/// Has a task do that. `None`: the runtime ended in the midst of it.
///
/// # Cancel safety
/// The work is dropped as well, at its next turn, before it is polled again: what was not sent yet is not
/// sent.
pub(in crate::lease) async fn in_task<T: Send + 'static>(
    runtime: &dyn Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (mut send, done) = oneshot::channel();
    let working = async move {
        let out = match select(send.cancellation(), pin!(work)).await {
            Either::Left(_) => return,
            Either::Right((out, _)) => out,
        };
        // Who does not wait any more does not want to know.
        let _ = send.send(out);
    };
    runtime.spawn(working.boxed());
    done.await.ok()
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use dlock_core::runtime::Tokio;

    use super::*;

    /// Says so when it is dropped.
    struct Mark(Arc<AtomicBool>);

    impl Drop for Mark {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn who_rests_does_not_keep_the_work_from_going_on() {
        let tokio = Tokio::current().unwrap();
        let (send, receive) = oneshot::channel();
        let mut asking = Box::pin(in_task(&*tokio, async move { send.send(7) }));
        assert!(futures::poll!(&mut asking).is_pending());
        assert_eq!(receive.await, Ok(7));
        assert_eq!(asking.await, Some(Ok(())));
    }

    #[tokio::test]
    async fn who_goes_away_takes_the_work_along() {
        let tokio = Tokio::current().unwrap();
        let dropped = Arc::new(AtomicBool::new(false));
        let mark = Mark(dropped.clone());
        let mut asking = Box::pin(in_task(&*tokio, async move {
            let _mark = mark;
            futures::future::pending::<()>().await;
        }));
        assert!(futures::poll!(&mut asking).is_pending());
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!dropped.load(Ordering::SeqCst));
        drop(asking);
        tokio::time::timeout(Duration::from_secs(10), async {
            while !dropped.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }

    /// Both have happened when the task has its next turn: what it waited for is there, and nobody wants it
    /// any more.
    #[tokio::test]
    async fn who_goes_away_first_has_nothing_begun() {
        let tokio = Tokio::current().unwrap();
        let (go_on, there) = oneshot::channel::<()>();
        let begun = Arc::new(AtomicBool::new(false));
        let mark = begun.clone();
        let mut asking = Box::pin(in_task(&*tokio, async move {
            let _ = there.await;
            mark.store(true, Ordering::SeqCst);
        }));
        assert!(futures::poll!(&mut asking).is_pending());
        tokio::task::yield_now().await;
        go_on.send(()).unwrap();
        drop(asking);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!begun.load(Ordering::SeqCst));
    }

    #[test]
    fn a_runtime_that_ends_in_the_midst_is_told() {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let runtime = tokio.block_on(async { Tokio::current().unwrap() });
        let mut asking = Box::pin(in_task(&*runtime, futures::future::pending::<()>()));
        assert!(asking.as_mut().now_or_never().is_none());
        drop(tokio);
        assert_eq!(asking.now_or_never(), Some(None));
    }
}
