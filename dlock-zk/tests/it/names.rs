//! Names of any bytes, and what is in the nodes.

use std::time::Duration;

use dlock_core::spi::{Acquire, LeaseKey, Lock as _, Release, Watch as _};
use dlock_core::{LockName, Mode, RequestId};
use dlock_testkit::ZkOptions;
use dlock_zk::Layout;

use crate::{LONG, at_once, children, config, granted, hands, here, key, open, start, until, with};

#[tokio::test]
async fn names_of_any_bytes_are_locks_of_their_own() {
    let server = start().await;
    let lock = open(&server).await;
    let longest = vec![b'/'; 1024];
    let names: Vec<&[u8]> = vec![
        b"a/b",
        b"a%2Fb",
        b"a%2fb",
        b"..",
        b".",
        b"%2E",
        b"zookeeper",
        b"\0",
        b"\xff\xfe",
        "\u{fffe}".as_bytes(),
        "\u{e000}".as_bytes(),
        "ä".as_bytes(),
        "a\u{308}".as_bytes(),
        b" ",
        b"A",
        b"a",
        b"\n",
        &longest,
    ];
    for (n, name) in names.iter().enumerate() {
        let key = LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(1, n as u64));
        granted(&lock, &at_once(&key, Mode::Exclusive)).await;
    }
    assert_eq!(children(&server, "/dlock/locks").await.len(), names.len());
    for (n, name) in names.iter().enumerate() {
        let key = LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(1, n as u64));
        let held = lock.inspect(&key.name).await.unwrap();
        assert_eq!(held.holders.iter().map(|h| h.id).collect::<Vec<_>>(), [key.id]);
        lock.release(&key, Release::Now).await.unwrap();
    }
    until(
        "lines that are empty are removed",
        Duration::from_secs(20),
        async || children(&server, "/dlock/locks").await.is_empty(),
    )
    .await;
}

/// The path in the address is there once, and it is where a Java client with the same chroot looks.
#[tokio::test]
async fn everything_is_below_the_path_in_the_address() {
    let server = start().await;
    let address = format!("{}/apps/eu", server.address());
    let own = config().servers(&address).connect(here()).await.unwrap();
    granted(&own, &at_once(&key("x", 1, 1), Mode::Exclusive)).await;
    let unfair = config().unfair().servers(&address).connect(here()).await.unwrap();
    granted(&unfair, &at_once(&key("y", 1, 2), Mode::Exclusive)).await;
    let curator = config().layout(Layout::Curator).root("/shop");
    let curator = curator.servers(&address).connect(here()).await.unwrap();
    granted(&curator, &at_once(&key("z", 1, 3), Mode::Exclusive)).await;
    for (path, name) in [("dlock/locks", "x"), ("dlock/unfair", "y"), ("shop", "z")] {
        assert_eq!(children(&server, &format!("/apps/eu/{path}")).await, [name]);
    }
    assert_eq!(children(&server, "/apps").await, ["eu"]);
    assert_eq!(children(&server, "/").await, ["apps", "zookeeper"]);
}

#[tokio::test]
async fn a_node_says_to_an_operator_whose_it_is() {
    let server = start().await;
    let lock = open(&server).await;
    let request = Acquire::new(key("x", 1, 1), LONG).with_owner("cron of host 7".into());
    let grant = granted(&lock, &request).await;
    let node = children(&server, "/dlock/locks/x").await.remove(0);
    let path = format!("/dlock/locks/x/{node}");
    let (data, stat) = hands(&server, move |s| {
        s.with_session(|s| Ok((s.get(&path)?.unwrap(), s.stat(&path)?.unwrap())))
    })
    .await;
    let text = String::from_utf8(data).unwrap();
    assert!(
        text.contains(&format!("pid={}", std::process::id())) && text.contains("host="),
        "{text}"
    );
    assert!(text.ends_with("owner=cron of host 7"), "{text}");
    assert_eq!(Some(stat.owner), lock.session_id());
    assert_eq!(grant.token.unwrap().get(), stat.czxid.unsigned_abs());
    let other = open(&server).await;
    let seen = other.inspect(&request.key.name).await.unwrap().holders.remove(0);
    assert_eq!((seen.id, seen.token), (request.key.id, grant.token));
    assert_eq!(seen.owner.as_deref(), Some("cron of host 7"));
    let whereabouts = seen.whereabouts.unwrap();
    assert!(
        text.contains(&*whereabouts) && whereabouts.contains(" pid="),
        "{whereabouts}"
    );
    assert_eq!(seen.expires_in, LONG - LONG / 3);
    let host = whereabouts.strip_prefix("host=").unwrap().split(' ').next();
    assert!(host.is_some_and(|host| host.starts_with(|c: char| c.is_ascii_alphanumeric())));
}

/// In the layout of Curator the name of a node has only part of the id; of its own nodes that is all.
#[tokio::test]
async fn a_holder_in_the_layout_of_curator_is_told_by_its_id() {
    let server = start().await;
    let config = config().layout(Layout::Curator).root("/shop");
    let address = server.address().to_string();
    let lock = config.servers(&address).connect(here()).await.unwrap();
    let (own, foreign) = (key("x", 1 << 100, 7), key("y", 0x0123_4567 << 96, 0));
    granted(&lock, &at_once(&own, Mode::Exclusive)).await;
    hands(&server, |s| {
        s.with_session(|s| {
            s.create("/shop/y", b"")?;
            s.create(
                "/shop/y/_c_01234567-0000-0000-0000-000000000000-lock-0000000000",
                b"",
            )
        })
    })
    .await;
    for key in [own, foreign] {
        let seen = lock.inspect(&key.name).await.unwrap();
        assert_eq!(seen.holders.iter().map(|h| h.id).collect::<Vec<_>>(), [key.id]);
    }
}

/// Numbers of a line begin anew with it; tokens do not.
#[tokio::test]
async fn tokens_grow_where_lines_are_removed_and_made_anew() {
    let server = start().await;
    let lock = open(&server).await;
    let mut last = None;
    for n in 0..3 {
        let k = key("x", 1, n);
        let token = granted(&lock, &at_once(&k, Mode::Exclusive)).await.token;
        let node = children(&server, "/dlock/locks/x").await.remove(0);
        assert!(node.ends_with("-0000000000"), "{node}");
        assert!(token > last);
        last = token;
        lock.release(&k, Release::Now).await.unwrap();
        until("the line is removed", Duration::from_secs(20), async || {
            children(&server, "/dlock/locks").await.is_empty()
        })
        .await;
    }
}

/// A page goes on behind the last name of the one before, and has no line without anybody in it.
#[tokio::test]
async fn names_in_use_are_listed_page_by_page() {
    let server = with(ZkOptions::new().containers(LONG)).await;
    let lock = open(&server).await;
    let take = async |name: String, n| {
        let key = key(&name, 1, n);
        granted(&lock, &at_once(&key, Mode::Exclusive)).await;
        key
    };
    let all: Vec<_> = (0..501).map(|n| format!("n/{n:03}")).collect();
    futures::future::join_all(all.iter().zip(0..).map(|(name, n)| take(name.clone(), n))).await;
    let left = take("left".to_owned(), 600).await;
    lock.release(&left, Release::Now).await.unwrap();
    let list = async |prefix: &str, from: Option<&str>| {
        let page = lock
            .list(prefix.as_bytes(), from.map(str::as_bytes))
            .await
            .unwrap();
        let names: Vec<_> = page.names.iter().map(ToString::to_string).collect();
        (names, page.next.map(|next| String::from_utf8(next).unwrap()))
    };
    assert_eq!(
        list("n/", None).await,
        (all[..500].to_vec(), Some(all[499].clone()))
    );
    assert_eq!(list("n/", Some(&all[499])).await, (all[500..].to_vec(), None));
    assert_eq!(list("n/", Some(&all[0])).await, (all[1..].to_vec(), None));
    assert_eq!(list("l", None).await, (Vec::new(), None));
    let unfair = config().unfair().servers(&server.address().to_string());
    let unfair = unfair.connect(here()).await.unwrap();
    granted(&unfair, &at_once(&left, Mode::Exclusive)).await;
    assert_eq!(unfair.list(b"", None).await.unwrap().names, [left.name]);
}
