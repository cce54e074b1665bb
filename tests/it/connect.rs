//! `connect`: what a URL opens, and how it is refused.

use std::future::IntoFuture as _;
use std::time::Duration;

use dlock::{ErrorKind, LockOptions, runtime};
use futures::executor::block_on;

fn connect(url: &str) -> dlock::Connect {
    dlock::connect(url).runtime(runtime::own_thread().unwrap())
}

fn refusal(url: &str) -> dlock::Error {
    block_on(connect(url).into_future()).expect_err(url)
}

#[test]
fn memory_url_opens_a_private_store() {
    block_on(async {
        let one = connect("memory://").await.unwrap();
        let two = connect("memory://").await.unwrap();
        let _held = one.lock("x").unwrap().acquire().await.unwrap();
        assert!(one.lock("x").unwrap().try_acquire().await.unwrap().is_none());
        assert!(two.lock("x").unwrap().try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn ttl_in_the_url_has_precedence() {
    block_on(async {
        let program = LockOptions::new().ttl(Duration::from_secs(7));
        let plain = connect("memory://").defaults(program.clone()).await.unwrap();
        assert_eq!(
            plain.lock("x").unwrap().acquire().await.unwrap().ttl(),
            Duration::from_secs(7)
        );
        let operated = connect("memory://?ttl=9s").defaults(program).await.unwrap();
        assert_eq!(
            operated.lock("x").unwrap().acquire().await.unwrap().ttl(),
            Duration::from_secs(9)
        );
    });
}

/// A label must not cost a lock the ttl that an operator has set.
#[test]
fn unset_options_are_taken_from_the_url() {
    block_on(async {
        let client = connect("memory://?ttl=9s").await.unwrap();
        let labelled = LockOptions::new().owner_label("x");
        let ttl = Duration::from_secs(9);
        let lock = client.lock("x").unwrap().options(labelled.clone()).unwrap();
        assert_eq!(lock.acquire().await.unwrap().ttl(), ttl);
        let pool = client
            .semaphore("y", 2)
            .unwrap()
            .options(labelled.clone())
            .unwrap();
        assert_eq!(pool.acquire().await.unwrap().ttl(), ttl);
        let both = client.rwlock("z").unwrap().options(labelled.clone()).unwrap();
        assert_eq!(both.read().acquire().await.unwrap().ttl(), ttl);
        assert_eq!(both.write().acquire().await.unwrap().ttl(), ttl);
        let shown = client.lock("x").unwrap().options(labelled).unwrap();
        let guard = shown
            .options(LockOptions::new().ttl(Duration::from_secs(5)))
            .unwrap()
            .acquire()
            .await
            .unwrap();
        assert_eq!(guard.ttl(), Duration::from_secs(5));
        let label = client.inspect("x").await.unwrap().holders[0].owner.clone();
        assert_eq!(
            label.as_deref(),
            Some("x"),
            "the options before are inherited too"
        );
    });
}

#[test]
fn defaults_that_the_store_cannot_keep_are_refused_at_connect() {
    assert_eq!(refusal("memory://?ttl=1000000h").kind(), ErrorKind::InvalidInput);
}

#[test]
fn url_errors_do_not_repeat_the_url() {
    for (url, says) in [
        (
            "redis-with-a-typo://u:hunter2@h",
            "this build has: memory, sqlite",
        ),
        ("hunter2", "start with a scheme"),
        ("memory://hunter2", "belongs to this client only"),
        (
            "memory://?color=hunter2",
            "`color` of the URL's query is not known; `memory` URLs take: namespace, op_timeout, ttl",
        ),
        (
            "memory://?ttl=hunter2",
            "`ttl` must be a whole number with a unit",
        ),
        ("memory://?ttl=1s&ttl=2s", "`ttl` twice"),
        ("memory://?op_timeout=0s", "`op_timeout` must be"),
        ("memory://?namespace=", "`namespace` must be"),
    ] {
        let e = refusal(url);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}: {e}");
        assert!(e.to_string().contains(says), "{url}: {e}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn options_of_redis_are_checked_before_anything_is_opened() {
    for (url, says) in [
        ("redis://h?replicas=0", "`replicas` must be a whole number"),
        ("redis://h?replicas=all", "`replicas` must be a whole number"),
        ("redis://h?recipe=redlock", "`recipe` must be `plain`"),
        // What a plain lock does not have is not known there.
        ("redis://h?recipe=plain&replicas=1", "acknowledged by no replicas"),
        ("redis://h?recipe=plain&claim_window=1s", "no claim window"),
        ("redis://h?recipe=plain&prefix=a%20b", "prefix of plain locks"),
        ("redis://h?prefix=a%20b", "a prefix is made of"),
        ("unix:///run/redis.sock?prefix=a%20b", "a prefix is made of"),
    ] {
        let e = refusal(url);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}: {e}");
        assert!(e.to_string().contains(says), "{url}: {e}");
    }
}

#[cfg(feature = "zookeeper")]
#[test]
fn options_of_zookeeper_are_checked_before_anything_is_opened() {
    for (url, says) in [
        ("zk://", ""),
        ("zk://u:hunter2@h:99999", ""),
        ("zk://hunter2@h", ""),
        ("zk://h/a//b", ""),
        ("zk://h?root=x", "path"),
        ("zk://h?layout=hunter2", "`layout` must be `curator`"),
        ("zk://h?unfair=1", "`unfair` must be"),
        ("zk://h?unfair=true&layout=curator", "`unfair` does not go with"),
        ("zk://h?session_timeout=12", "`session_timeout` must be"),
        ("zk://h?session_timeout=1ms", "session timeout must be"),
        ("zk://h?timeout=2h", "timeout must be"),
        ("zk://h?access=hunter2", ""),
        ("zk://h?prefix=a", "`zk` URLs take: access, "),
        ("zk://h?color=hunter2", "`zk` URLs take: access, "),
        ("zks://u:hunter2@h?ca=/there/is/none", ""),
    ] {
        let e = refusal(url);
        let without_tls = url.starts_with("zks") && cfg!(not(feature = "zookeeper-tls"));
        if !without_tls {
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}: {e}");
        }
        assert!(e.to_string().contains(says), "{url}: {e}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{url}: {e:?}");
    }
    #[cfg(feature = "zookeeper-tls")]
    assert!(refusal("zks://h?cert=x").to_string().contains("`key`"));
    #[cfg(feature = "zookeeper-sasl")]
    assert!(
        refusal("zk://h?sasl_user=x")
            .to_string()
            .contains("`sasl_password`")
    );
    #[cfg(feature = "zookeeper-sasl")]
    assert!(
        refusal("zk://h?sasl_password=hunter2")
            .to_string()
            .contains("`sasl_user`")
    );
    let e = block_on(
        dlock::quorum(["zk://a", "zk://b", "zk://c"])
            .runtime(runtime::own_thread().unwrap())
            .into_future(),
    );
    assert!(e.unwrap_err().to_string().contains("a quorum itself"));
}

#[cfg(all(feature = "postgres", feature = "mysql"))]
#[test]
fn options_of_databases_are_checked_before_anything_is_opened() {
    for scheme in ["postgres", "postgresql", "mysql", "mariadb"] {
        for (rest, says) in [
            ("u:hunter2@h:99999/d", ""),
            (
                "u:hunter2@h/d?strategy=row",
                "`strategy` must be `lease` or `session`",
            ),
            ("h/d?table_prefix=a%20b", "prefix"),
            ("h/d?strategy=session&table_prefix=a%20b", "prefix"),
            ("h/d?connections=many", "`connections` must be a whole number"),
            ("h/d?lock_wait=2", "`lock_wait` must be"),
            ("h/d?sslmode=hunter2", "`sslmode` must be one of disable,"),
            // What belongs to the other strategy is not known here.
            ("h/d?session_ttl=10s", "take: "),
            ("h/d?most_waiting=3", "take: "),
            ("h/d?strategy=session&connections=3", "take: "),
            ("h/d?strategy=session&pooler=true", "take: "),
            ("h/d?strategy=session&session_ttl=1ms", "session ttl"),
            ("h/d?strategy=session&session_ttl=1h", "session ttl"),
            ("h/d?color=hunter2", "take: "),
            // Not passed on to the driver, which would take it in silence.
            ("h/d?statement-cache-capacity=0", "stay prepared"),
            ("h/d?sslmode=prefer&ssl-mode=prefer", "say the same"),
            ("h/d?connections=1&connections=2", "`connections` twice"),
        ] {
            let url = format!("{scheme}://{rest}");
            let e = refusal(&url);
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}: {e}");
            assert!(e.to_string().contains(says), "{url}: {e}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{url}: {e:?}");
        }
        let e = refusal(&format!("{scheme}://u:hunter2@127.0.0.1:1/d"));
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        let of_the_driver = match scheme.starts_with("postgres") {
            true => "ssl-mode=disable&application_name=shop&options=-cwork_mem=4MB",
            false => "ssl-mode=DISABLED&charset=utf8mb4&timezone=%2B00:00",
        };
        for more in ["", "&strategy=session"] {
            let url = format!("{scheme}://u:hunter2@127.0.0.1:1/d?{of_the_driver}{more}");
            let e = refusal(&url);
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{url}: {e}");
        }
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    }
    // What only one of them has.
    assert!(refusal("mysql://h/d?pooler=true").to_string().contains("take: "));
    let schema = refusal("mysql://h/d?strategy=session&schema=x");
    assert!(schema.to_string().contains("has no `schema`"), "{schema}");
    #[cfg(feature = "sql-tls")]
    for url in ["postgres://h/d?cert=x", "mysql://h/d?ca=/there/is/none"] {
        assert_eq!(refusal(url).kind(), ErrorKind::InvalidInput, "{url}");
    }
    let members = ["postgres://a/d", "postgres://b/d", "mysql://c/d"];
    let e = block_on(
        dlock::quorum(members)
            .runtime(runtime::own_thread().unwrap())
            .into_future(),
    );
    assert!(
        e.unwrap_err()
            .to_string()
            .contains("cannot be a member of a quorum")
    );
}

#[cfg(not(any(feature = "postgres", feature = "mysql")))]
#[test]
fn a_database_url_without_its_backend_names_the_feature() {
    for (url, feature) in [
        ("postgres://u:hunter2@h/d", "feature `postgres`"),
        ("mariadb://u:hunter2@h/d", "feature `mysql`"),
    ] {
        let e = refusal(url);
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains(feature), "{e}");
    }
}

#[cfg(not(feature = "zookeeper"))]
#[test]
fn a_zookeeper_url_without_its_backend_names_the_feature() {
    let e = refusal("zk://u:hunter2@h");
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("feature `zookeeper`"), "{e}");
}

#[test]
fn debug_of_a_connection_to_be_made_hides_the_url() {
    assert!(!format!("{:?}", dlock::connect("x://u:hunter2@h")).contains("hunter2"));
}

#[cfg(all(feature = "tokio", not(feature = "smol"), not(feature = "async-std")))]
#[test]
fn without_a_runtime_the_error_says_what_to_do() {
    match block_on(dlock::connect("memory://").into_future()) {
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
            assert!(e.to_string().contains("own_thread"), "{e}");
        }
        // Built together with a package that asks the core for another runtime, as `cargo test --workspace`
        // does.
        Ok(client) => assert_ne!(client.runtime().name(), "tokio"),
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn the_tokio_that_is_current_is_used() {
    let client = dlock::connect("memory://").await.unwrap();
    assert_eq!(client.runtime().name(), "tokio");
}

#[cfg(not(feature = "sqlite"))]
#[test]
fn a_disabled_backend_says_which_feature_to_enable() {
    let e = refusal("sqlite::memory:");
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("feature `sqlite`"), "{e}");
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;

    #[test]
    fn two_clients_of_one_file_exclude_one_another() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/a%20b.sqlite?busy_budget=5s", dir.path().display());
        block_on(async {
            let one = connect(&url).await.unwrap();
            let two = connect(&url).await.unwrap();
            let held = one.lock("x").unwrap().acquire().await.unwrap();
            assert!(two.lock("x").unwrap().try_acquire().await.unwrap().is_none());
            held.release().await.unwrap();
            assert!(two.lock("x").unwrap().try_acquire().await.unwrap().is_some());
        });
        assert!(
            dir.path().join("a b.sqlite").exists(),
            "percent signs are decoded"
        );
    }

    #[test]
    fn a_url_with_a_host_or_a_secret_is_refused_and_not_repeated() {
        for rest in [
            "//user:hunter2@host/db",
            "user:hunter2@host/db",
            "//hunter2@host/db",
            "//user:hun/hunter2@host/db",
            "//hunter2:5432/db",
        ] {
            let e = refusal(&format!("sqlite:{rest}"));
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{rest}");
            assert!(e.to_string().contains("names a file"), "{e}");
            assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        }
    }

    #[test]
    fn paths_may_contain_any_characters() {
        let dir = tempfile::tempdir().unwrap();
        for (file, url) in [("a@b:c", "a@b:c"), ("d@e:f", "d%40e%3Af")] {
            block_on(connect(&format!("sqlite:{}/{url}", dir.path().display())).into_future()).unwrap();
            assert!(dir.path().join(file).exists(), "{url}");
        }
        block_on(connect("sqlite://:memory:").into_future()).unwrap();
    }

    #[test]
    fn namespaces_and_table_prefixes_in_the_url_keep_clients_apart() {
        let dir = tempfile::tempdir().unwrap();
        let url = |rest: &str| format!("sqlite://{}/locks.sqlite?{rest}", dir.path().display());
        block_on(async {
            let mut held = Vec::new();
            for rest in [
                "",
                "namespace=a",
                "namespace=b",
                "table_prefix=other_",
                "namespace=a&table_prefix=other_",
            ] {
                let client = connect(&url(rest)).await.unwrap();
                held.push(
                    client
                        .lock("x")
                        .unwrap()
                        .try_acquire()
                        .await
                        .unwrap()
                        .expect(rest),
                );
            }
            let again = connect(&url("namespace=b")).await.unwrap();
            assert!(again.lock("x").unwrap().try_acquire().await.unwrap().is_none());
        });
    }

    #[test]
    fn in_memory_database_is_private() {
        block_on(async {
            let one = connect("sqlite::memory:").await.unwrap();
            let two = connect("sqlite::memory:").await.unwrap();
            let _held = one.lock("x").unwrap().acquire().await.unwrap();
            assert!(two.lock("x").unwrap().try_acquire().await.unwrap().is_some());
        });
    }

    #[test]
    fn unknown_sqlite_keys_are_refused_before_a_file_exists() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("locks.sqlite");
        for query in ["?mode=ro", "?table_prefix=no-dash", "?busy_budget=5"] {
            let e = refusal(&format!("sqlite://{}{query}", file.display()));
            assert_eq!(e.kind(), ErrorKind::InvalidInput, "{query}: {e}");
        }
        assert_eq!(refusal("sqlite://").kind(), ErrorKind::InvalidInput);
        assert!(!file.exists());
    }
}

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
#[test]
fn a_thread_that_blocks_needs_no_runtime_of_its_own() {
    let client = dlock::blocking::connect("memory://?ttl=9s").unwrap();
    let lock = client.lock("x").unwrap();
    let guard = lock.acquire().unwrap();
    assert_eq!(guard.ttl(), Duration::from_secs(9));
    assert!(lock.try_acquire().unwrap().is_none());
    guard.release().unwrap();
    client.close().unwrap();
    let e = dlock::blocking::connect("memory://?color=hunter2").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
}

#[cfg(any(feature = "tokio", feature = "smol", feature = "async-std"))]
#[test]
fn settings_apply_to_a_blocking_connect() {
    let program = LockOptions::new().ttl(Duration::from_secs(7));
    let client = dlock::connect("memory://").defaults(program).blocking().unwrap();
    assert_eq!(
        client.lock("x").unwrap().acquire().unwrap().ttl(),
        Duration::from_secs(7)
    );
}

/// The row of the table of what each backend can do, as far as a store can be asked without a server.
#[cfg(all(feature = "redis", feature = "sqlite"))]
#[test]
fn documented_minimum_ttl_matches_the_code() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/choosing-a-backend.md");
    let page = std::fs::read_to_string(page).unwrap();
    let row = |label: &str| -> Vec<String> {
        let line = page.lines().find(|line| line.starts_with(label)).unwrap();
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let (heads, least) = (row("| capability"), row("| the minimum ttl"));
    let says = |backend: &str| {
        let column = heads.iter().position(|head| head.contains(backend)).unwrap();
        least[column].clone()
    };
    block_on(async {
        for (backend, url) in [("memory", "memory://"), ("SQLite", "sqlite::memory:")] {
            let ttl = connect(url).await.unwrap().capabilities().min_ttl;
            assert_eq!(says(backend), format!("{} ms", ttl.as_millis()), "{backend}");
        }
        let away = dlock::redis::Config::new("127.0.0.1", 1).lazily();
        let away = away.connect(runtime::own_thread().unwrap()).await.unwrap();
        let ttl = dlock::spi::Lock::capabilities(&away).min_ttl;
        let (one, quorum) = (ttl.as_millis(), dlock::combinators::Quorum::MIN_TTL.as_millis());
        assert_eq!(says("Redis"), format!("{one} ms (in a quorum: {quorum} ms)"));
    });
}

/// What is left of the query is the backend's own to read.
#[cfg(feature = "redis")]
#[test]
fn unknown_redis_keys_are_refused() {
    for (url, says) in [
        ("redis://h?ttl=9s&claim_windw=hunter2", "claim_window,"),
        ("redis://h?protocol=resp2", "RESP2"),
        ("redis://h?prefix=a&prefix=hunter2", "twice"),
    ] {
        let e = refusal(url);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
        assert!(e.to_string().contains(says), "{e}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    }
}

/// Something else may listen there, and wait for us to speak first, as a client of MySQL waits for its
/// server.
#[test]
fn opening_ends_at_the_op_timeout() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    for (enabled, scheme) in [
        (cfg!(feature = "redis"), "redis"),
        (cfg!(feature = "zookeeper"), "zk"),
        (cfg!(feature = "postgres"), "postgres"),
        (cfg!(feature = "mysql"), "mysql"),
    ] {
        if !enabled {
            continue;
        }
        let began = std::time::Instant::now();
        let e = refusal(&format!("{scheme}://u:hunter2@{at}/1?op_timeout=400ms"));
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{scheme}: {e}");
        assert!(e.to_string().contains("400ms"), "{scheme}: {e}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{scheme}: {:?}",
            began.elapsed()
        );
    }
}
