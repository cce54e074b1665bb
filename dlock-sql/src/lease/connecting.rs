//! Connections that are made while others are in use.
//!
//! To connect is dear: a process or a thread of the server, a password of thousands of hashes, some round
//! trips. Who finds all connections in use has one more made, if there is a permit, and takes whichever is
//! there first: that one, or one that somebody gives back, which is a matter of a millisecond. A renewal is
//! not late for a connection that will be there soon enough for others.

use std::future::Future;
use std::pin::pin;

use dlock_core::Runtime;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, Shared, select};

use super::permits::Permit;

/// Completes when the backend is closed or dropped.
pub(in crate::lease) type Closing = Shared<oneshot::Receiver<()>>;

/// Why there is no connection.
pub(in crate::lease) enum Unmade {
    Failed(sqlx::Error),
    /// The backend was closed, or the runtime has ended.
    Over,
}

/// Has a connection made in that permit, in a task (sqlx wants its runtime's context, which whoever asks need
/// not have), and answers the first that is there: this one or another. (The permit may come without one,
/// where that broke.)
///
/// *It is made, and somebody was first in line*: that one has it, and gives it back. *It cannot be made*:
/// that is said before the permit is let go, so whoever had it made hears of it, and does not try for ever.
/// *Whoever had it made has gone*: it took too long, perhaps since the network swallows everything, so the
/// permit is free at once; should there be a connection in the end, it is for whoever comes.
///
/// # Cancel safety
/// The last of these.
pub(in crate::lease) async fn make<C: Send + 'static>(
    permit: Permit<C>,
    connecting: impl Future<Output = Result<C, sqlx::Error>> + Send + Unpin + 'static,
    closing: Closing,
    runtime: &dyn Runtime,
) -> Result<Permit<C>, Unmade> {
    let (send, made) = oneshot::channel();
    let (go_on, alone) = oneshot::channel();
    let connecting = select(connecting, closing);
    let permits = permit.of();
    let kept = permits.clone();
    let making = async move {
        let (connected, permit) = match select(connecting, alone).await {
            Either::Left((connected, _)) => (connected, Some(permit)),
            Either::Right((Ok(()), connecting)) => (connecting.await, Some(permit)),
            Either::Right((Err(_), connecting)) => {
                drop(permit);
                (connecting.await, None)
            }
        };
        let Either::Left((connected, _)) = connected else {
            return;
        };
        match (connected, permit) {
            (Ok(connection), Some(permit)) => {
                permit.give_back(connection);
                let _ = send.send(Ok(()));
            }
            (Ok(connection), None) => drop(kept.offer(connection)),
            (Err(e), permit) => {
                let _ = send.send(Err(e));
                drop(permit);
            }
        }
    };
    runtime.spawn(making.boxed());
    let next = pin!(permits.next());
    match select(made, next).await {
        Either::Left((Ok(Ok(())), next)) => Ok(next.await),
        Either::Left((Ok(Err(e)), _)) => Err(Unmade::Failed(e)),
        Either::Left((Err(_), _)) => Err(Unmade::Over),
        Either::Right((permit, _)) => {
            let _ = go_on.send(());
            Ok(permit)
        }
    }
}
