//! `quorum`: what several URLs open together, and how they are refused.

use std::future::IntoFuture as _;
use std::time::Duration;

use dlock::{Capability, ErrorKind, LockOptions, runtime};
use futures::executor::block_on;

fn quorum(urls: &[String]) -> dlock::Connect {
    dlock::quorum(urls).runtime(runtime::own_thread().unwrap())
}

fn refusal(urls: &[&str]) -> dlock::Error {
    let urls: Vec<_> = urls.iter().map(ToString::to_string).collect();
    block_on(quorum(&urls).into_future()).expect_err(&urls.join(" "))
}

#[test]
fn three_files_are_one_lock() {
    let dir = tempfile::tempdir().unwrap();
    let url = |n| {
        format!(
            "sqlite://{}/{n}.sqlite?ttl=9s&namespace=shop",
            dir.path().display()
        )
    };
    let urls: Vec<_> = (0..3).map(url).collect();
    block_on(async {
        let one = quorum(&urls).await.unwrap();
        assert!(one.capabilities().has(Capability::Fencing));
        assert!(!one.capabilities().has(Capability::Permits));
        let two = quorum(&urls)
            .defaults(LockOptions::new().ttl(Duration::from_secs(7)))
            .await
            .unwrap();
        let held = one.lock("x").unwrap().acquire().await.unwrap();
        assert_eq!(held.ttl(), Duration::from_secs(9));
        assert!(two.lock("x").unwrap().try_acquire().await.unwrap().is_none());
        let token = held.token();
        held.release().await.unwrap();
        assert!(two.lock("x").unwrap().acquire().await.unwrap().token() > token);
    });
}

#[test]
fn members_that_cannot_be_one_lock_are_refused() {
    for (urls, says) in [
        (&[][..], "at least 3 members"),
        (&["sqlite://hunter2", "sqlite://b"], "at least 3 members"),
        (
            &["memory://", "memory://", "memory://"],
            "no other client can use it",
        ),
        (
            &["sqlite://a", "sqlite::memory:", "sqlite://b"],
            "no other client can use it",
        ),
        (
            &["sqlite://hunter2", "sqlite://b", "sqlite://hunter2"],
            "two votes",
        ),
        (
            &["sqlite://a", "sqlite://b?ttl=3s", "sqlite://c"],
            "differ in `namespace`",
        ),
        (
            &["sqlite://a?namespace=hunter2", "sqlite://b", "sqlite://c"],
            "differ in `namespace`",
        ),
        (
            &["sqlite://a", "sqlite://b?table_prefix=x_", "sqlite://c"],
            "prefix",
        ),
        (
            &["sqlite://a", "sqlite://b", "sqlite://c?color=hunter2"],
            "not known",
        ),
    ] {
        let e = refusal(urls);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{urls:?}: {e}");
        assert!(e.to_string().contains(says), "{urls:?}: {e}");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| format!("sqlite://{}/{path}", dir.path().display());
    let urls = [at("a"), at("b"), at("./a")];
    let e = block_on(quorum(&urls).into_future()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("two votes"), "{e}");
}

#[cfg(feature = "redis")]
#[test]
fn members_that_are_servers_are_compared_by_where_they_lead() {
    for (urls, says) in [
        (
            ["redis://:hunter2@a", "redis://b", "redis://a:6379/3"],
            "two of the members' URLs lead to a:6379",
        ),
        (
            ["redis://a?prefix=x", "redis://b?prefix=x", "redis://c"],
            "prefix",
        ),
        (["redis://a", "redis+nonsense://b", "redis://c"], "scheme"),
    ] {
        let e = refusal(&urls);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{urls:?}: {e}");
        assert!(e.to_string().contains(says), "{urls:?}: {e}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    }
    #[cfg(feature = "redis-cluster")]
    assert!(
        refusal(&["redis://a", "redis+cluster://b", "redis://c"])
            .to_string()
            .contains("single server")
    );
    // Nobody is there, which is said of how many.
    let e = refusal(&[
        "redis://127.0.0.1:1?rejoin_after=40s",
        "redis://127.0.0.1:2",
        "redis://127.0.0.1:3",
    ]);
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("0 of the 3 members"), "{e}");
}
