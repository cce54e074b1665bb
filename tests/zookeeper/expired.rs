//! A session that is ended at the server: by an operator, or since the server did not hear of its client while the client heard of it.
//!
//! The lock is free at once then, before its holder can know: that is told to the holder, and its token is refused wherever tokens are looked at.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dlock::spi::Admission;
use dlock::{Client, LockName, Token};

use crate::site::{
    LONG, NAME, SESSION, SLACK, acquired, alone, blocking, client, ensemble, line_of, sessions,
};

async fn writes(client: &Client, token: Option<Token>) -> bool {
    let name = LockName::new(NAME).unwrap();
    let written = client.gate().unwrap().write(&name, token.unwrap(), b"sold").await;
    written.unwrap() == Admission::Admitted
}

/// The session of the only client is ended, while another one waits.
async fn a_session_ends(
    addresses: Vec<SocketAddr>,
    before: Vec<i64>,
    told_within: Duration,
    now: impl Fn() -> Vec<i64>,
    line: impl Future<Output = ()>,
    end: impl FnOnce(i64) -> io::Result<()> + Send + 'static,
) {
    assert!(before.is_empty());
    let holder = client(&addresses).await;
    let guard = acquired(&holder).await;
    assert!(writes(&holder, guard.token()).await);
    let session = now()[0];
    let other = client(&addresses).await;
    let waiter = tokio::spawn(async move {
        let guard = acquired(&other).await;
        (other, guard)
    });
    line.await;
    let ended = Instant::now();
    blocking(move || end(session).unwrap()).await;
    let (other, next) = tokio::time::timeout(LONG, waiter).await.unwrap().unwrap();
    assert!(ended.elapsed() < SLACK, "free after {:?}", ended.elapsed());
    assert!(next.token() > guard.token());
    assert!(writes(&other, next.token()).await);

    let told = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
    assert!(
        ended.elapsed() < told_within,
        "{told:?} after {:?}",
        ended.elapsed()
    );
    assert!(!guard.is_valid());
    // It has another session, on which it is as good as anybody, but for its old token.
    assert!(!writes(&holder, guard.token()).await);
    assert!(holder.lock(NAME).unwrap().try_acquire().await.unwrap().is_none());
    assert!(next.is_valid(), "{:?}", next.loss());
    next.release().await.unwrap();
    let again = acquired(&holder).await;
    assert!(again.token() > next.token());
    assert!(writes(&holder, again.token()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_connection_is_closed_with_it_is_told_at_once() {
    let all = ensemble().await;
    let (now, line, end) = (all.clone(), all.clone(), all.clone());
    a_session_ends(
        all.addresses(),
        sessions(all.members()),
        // By the driver; it has to connect and to be refused. Sooner than by the deadline where nothing else happens.
        SESSION + SLACK,
        move || sessions(now.members()),
        line_of(2, move |work| line.with_session(work)),
        move |session| end.expire(session),
    )
    .await;
}

/// The server alone leaves the connection open when somebody else has ended its session, and answers nothing more.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_never_answered_again_is_told_by_its_deadline() {
    let server = alone().await;
    let (now, line, end) = (server.clone(), server.clone(), server.clone());
    a_session_ends(
        vec![server.address()],
        sessions(std::slice::from_ref(&server)),
        SESSION + SLACK,
        move || sessions(std::slice::from_ref(&now)),
        line_of(2, move |work| line.with_session(work)),
        move |session| end.expire(session),
    )
    .await;
}
