//! Members of a quorum that lead to one server.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_redis::{Members, RedisLock};

use crate::{config, here, until};
use dlock_testkit::RedisServer;

const SOON: Duration = Duration::from_secs(5);

/// It is away when they are opened, so nobody can tell then.
#[tokio::test]
async fn one_of_two_members_on_one_server_is_refused_at_any_time() {
    let (server, other) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    server.crash().unwrap();
    let all = Members::default();
    let open = async |url: &str| {
        config(url)
            .lazily()
            .member_of(&all)
            .connect(here())
            .await
            .unwrap()
    };
    let one = open(&server.url()).await;
    let two = open(&format!("{}/1", server.url())).await;
    let three = open(&other.url()).await;
    for lock in [&one, &two] {
        assert_eq!(lock.ready().await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let is_refused = async |lock: &RedisLock| {
        let e = lock.ready().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
        assert!(e.to_string().contains("one vote"), "{e}");
    };
    server.start_again().unwrap();
    one.ready().await.unwrap();
    is_refused(&two).await;
    three.ready().await.unwrap();
    // Its connection breaks: it comes back to where it was.
    server.ask(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    until("it is back", SOON, async || one.ready().await.is_ok()).await;
    is_refused(&two).await;
    // A new run, to which the other member happens to connect first; or the first one reconnects on its own.
    server.crash().unwrap();
    server.start_again().unwrap();
    let (ready, late) = match two.ready().await {
        Ok(()) => (&two, &one),
        Err(_) => (&one, &two),
    };
    until("one of them is there", SOON, async || ready.ready().await.is_ok()).await;
    is_refused(late).await;
}
