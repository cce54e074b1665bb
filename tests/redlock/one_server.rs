//! Two of the URLs lead to one server, which is away when the quorum is opened: it has one vote all the same
//! when it comes.

use std::net::Ipv4Addr;

use dlock::ErrorKind;

use dlock_testkit::RedisServer;

#[tokio::test]
async fn a_server_that_comes_later_has_one_vote_for_all_its_names() {
    let servers: Vec<_> = (0..4).map(|_| RedisServer::start().unwrap()).collect();
    let twice = &servers[3];
    twice.crash().unwrap();
    let mut urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    // An address of its own for the same place.
    let port = twice.address().port();
    assert_eq!(twice.address().ip(), Ipv4Addr::LOCALHOST);
    urls.push(format!("redis://localhost:{port}"));
    let urls = urls.iter().map(|url| format!("{url}?op_timeout=2s&timeout=1s"));
    let client = dlock::quorum(urls).await.unwrap();
    let lock = client.lock("x").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    // With two of the others there are three servers of five, and with one there are two that would have
    // three votes.
    twice.start_again().unwrap();
    servers[0].crash().unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    servers[1].crash().unwrap();
    let e = lock.try_acquire().await.unwrap_err();
    let kind = e.kind();
    assert!(
        matches!(
            kind,
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::InvalidInput
        ),
        "{e}"
    );
    assert!(e.to_string().contains("of 5 members"), "{e}");
}
