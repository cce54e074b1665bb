//! A session that is ended at the server, by an operator say.
//!
//! The lock is free at once then, before its holder can know: that is told to the holder, and its token is
//! refused wherever tokens are looked at.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use dlock::{Admission, Client, LockName, Token};

use crate::site::{LONG, NAME, SLACK, acquired, alone, blocking, client, ensemble, line_of, sessions};

async fn writes(client: &Client, token: Option<Token>) -> bool {
    let name = LockName::new(NAME).unwrap();
    let written = client.gate().unwrap().write(&name, token.unwrap(), b"sold").await;
    written.unwrap() == Admission::Admitted
}

/// The session of the only client is ended, while another one waits.
async fn a_session_ends(
    addresses: Vec<SocketAddr>,
    before: Vec<i64>,
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
        // By the next connection, which is refused, or by its deadline.
        ended.elapsed() < SLACK,
        "{told:?} after {:?}",
        ended.elapsed()
    );
    assert!(!guard.is_valid());
    // It has another session, on which it is as good as anybody, but for its old token.
    assert!(!writes(&holder, guard.token()).await);
    assert!(holder.lock(NAME).unwrap().try_acquire().await.unwrap().is_none());
    assert!(next.is_valid(), "{:?}", next.loss());
    let token = next.token();
    next.release().await.unwrap();
    let again = acquired(&holder).await;
    assert!(again.token() > token);
    assert!(writes(&holder, again.token()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_and_goes_on_if_an_ensemble_ends_its_session() {
    let all = ensemble().await;
    let (now, line, end) = (all.clone(), all.clone(), all.clone());
    a_session_ends(
        all.addresses(),
        sessions(all.members()),
        move || sessions(now.members()),
        line_of(2, move |work| line.with_session(work)),
        move |session| end.expire(session),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_told_and_goes_on_if_one_server_ends_its_session() {
    let server = alone().await;
    let (now, line, end) = (server.clone(), server.clone(), server.clone());
    a_session_ends(
        vec![server.address()],
        sessions(std::slice::from_ref(&server)),
        move || sessions(std::slice::from_ref(&now)),
        line_of(2, move |work| line.with_session(work)),
        move |session| end.expire(session),
    )
    .await;
}
