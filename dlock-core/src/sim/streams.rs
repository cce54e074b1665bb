//! What the server sends unasked: pushes to waiters, and streams of changes.

use std::sync::Arc;

use futures::channel::{mpsc, oneshot};
use futures::future::{Either, FutureExt, select};
use futures::sink::SinkExt;
use futures::stream::{BoxStream, StreamExt};

use super::wire::{Ending, Wire};
use crate::error::{Error, ErrorKind, Result};
use crate::inspection::Change;
use crate::runtime::Runtime;
use crate::spi::Push;
use crate::timestamp::Timestamp;
use crate::token::Token;

/// The server's end of a waiter's pushes. Every copy of the request has one.
#[derive(Clone)]
pub(super) struct Pushes {
    to_client: mpsc::UnboundedSender<Push>,
    /// Ends when the client has dropped its stream, or never got it.
    unwanted: Ending,
}

/// A channel for the pushes of one attempt that is sent now. The stream ends when the connection is cut.
pub(super) fn push_channel(wire: &Arc<Wire>, sent_at: Timestamp) -> (Pushes, BoxStream<'static, Push>) {
    let (to_client, arriving) = mpsc::unbounded();
    let (wanted, unwanted) = oneshot::channel::<()>();
    let unwanted = unwanted.shared();
    let wire_at_client = wire.clone();
    let stream = arriving
        .map(move |push| {
            let _while_wanted = &wanted;
            anchored(&wire_at_client, push, sent_at)
        })
        .take_until(wire.connection())
        .boxed();
    (Pushes { to_client, unwanted }, stream)
}

/// Puts a pushed grant on the client's clock. No request bounds it and it may be late, so:
///
/// * with an anchor (a request sent at t, executed by the server at S) the lease ends, at the earliest, at t
///   + (E - S);
/// * without one, the life of the grant is counted from when the attempt was sent, which was before any grant
///   of it.
fn anchored(wire: &Wire, push: Push, sent_at: Timestamp) -> Push {
    let Push::Granted(mut grant) = push else {
        return push;
    };
    wire.world().record("pushed", grant.token.map_or(0, Token::get));
    let granted_at = grant.counted_from;
    match wire.anchor() {
        Some((sent, executed)) => {
            let ends = granted_at + grant.expires_in;
            grant.counted_from = sent;
            grant.expires_in = executed.until(ends);
        }
        None => grant.counted_from = sent_at,
    }
    Push::Granted(grant)
}

/// Carries the pushes of one queue entry to the client, until one of the two ends is gone.
pub(super) fn forward_pushes(wire: &Arc<Wire>, mut pushes: BoxStream<'static, Push>, to: Pushes) {
    let at_server = wire.clone();
    let forward = async move {
        let Pushes { to_client, unwanted } = to;
        loop {
            let push = match select(pushes.next(), unwanted.clone()).await {
                Either::Left((Some(push), _)) => push,
                Either::Left((None, _)) | Either::Right(_) => return,
            };
            let (wire, to_client) = (at_server.clone(), to_client.clone());
            // Each in a task of its own: one that is held back holds back no other.
            at_server.server.spawn(
                async move {
                    let arrived = wire.push().await;
                    wire.world().record("push", arrived.into());
                    wire.world()
                        .note(|| format!("{} {push:?}: arrived {arrived}", wire.client.node_name()));
                    if arrived {
                        let _ = to_client.unbounded_send(push);
                    }
                }
                .boxed(),
            );
        }
    };
    wire.server.spawn(forward.boxed());
}

/// How many changes a connection carries for a client that does not take them; then the server has to wait,
/// as over TCP.
const IN_TRANSIT: usize = 16;

/// Carries a stream of changes, in order. A cut ends it with an error.
pub(super) fn forward_changes(
    wire: &Arc<Wire>,
    mut changes: BoxStream<'static, Result<Change>>,
) -> BoxStream<'static, Result<Change>> {
    let (mut to_client, arriving) = mpsc::channel(IN_TRANSIT);
    // Each sender has a place of its own, however full the others have made it.
    let mut last_word = to_client.clone();
    let (wanted, unwanted) = oneshot::channel::<()>();
    let (at_server, mut unwanted) = (wire.clone(), unwanted);
    let mut cut = wire.connection();
    let forward = async move {
        loop {
            let carry = async {
                let Some(change) = changes.next().await else {
                    return false;
                };
                at_server.stream_item().await;
                to_client.send(change).await.is_ok()
            };
            match select(carry.boxed(), select(&mut unwanted, &mut cut)).await {
                Either::Left((true, _)) => {}
                Either::Left((false, _)) | Either::Right((Either::Left(_), _)) => return,
                Either::Right((Either::Right(_), _)) => {
                    let broke = Error::new(ErrorKind::Unavailable, "the connection of the watch broke");
                    let _ = last_word.try_send(Err(broke));
                    return;
                }
            }
        }
    };
    wire.server.spawn(forward.boxed());
    arriving
        .map(move |change| {
            let _while_wanted = &wanted;
            change
        })
        .boxed()
}
