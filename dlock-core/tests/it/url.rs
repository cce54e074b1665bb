//! The URLs that all backends share.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_core::spi::{Host, Url, UrlValue};

#[test]
fn files_are_read() {
    for (url, scheme, place) in [
        ("memory://", "memory", ""),
        ("sqlite::memory:", "sqlite", ":memory:"),
        ("sqlite:locks.db", "sqlite", "locks.db"),
        ("sqlite://locks.db?ttl=1s", "sqlite", "locks.db"),
        (
            "sqlite:///var/lib/my%20locks.db",
            "sqlite",
            "/var/lib/my locks.db",
        ),
        ("SQLite://a+b", "sqlite", "a+b"),
    ] {
        let parsed = Url::parse(url).unwrap();
        assert_eq!(
            (parsed.scheme(), &*parsed.file().unwrap()),
            (scheme, place),
            "{url}"
        );
    }
}

#[test]
fn servers_need_slashes() {
    for url in ["x:h", "x:/h", "x:u:hunter2@h"] {
        let e = Url::parse(url).unwrap().servers(7).unwrap_err().to_string();
        assert!(e.contains("`x://host:port`") && !e.contains("hunter2"), "{e}");
    }
}

#[test]
fn servers_are_read() {
    for (url, user, password, hosts, path) in [
        ("x://h", None, None, "h:7", ""),
        ("x://h/", None, None, "h:7", ""),
        ("x://h:8/a/b", None, None, "h:8", "a/b"),
        ("x://a,b:1/m%20n", None, None, "a:7,b:1", "m n"),
        ("x://[::1]", None, None, "[::1]:7", ""),
        ("x://[fe80::1%eth0]:9", None, None, "[fe80::1%eth0]:9", ""),
        ("x://bob@h", Some("bob"), None, "h:7", ""),
        ("x://:secret@h", None, Some("secret"), "h:7", ""),
        (
            "x://bob:hun%40ter%2F2@h",
            Some("bob"),
            Some("hun@ter/2"),
            "h:7",
            "",
        ),
        ("x://bob:hun@ter2@h", Some("bob"), Some("hun@ter2"), "h:7", ""),
        ("x://bob:a:b@h", Some("bob"), Some("a:b"), "h:7", ""),
    ] {
        let servers = Url::parse(url)
            .unwrap()
            .servers(7)
            .unwrap_or_else(|e| panic!("{url}: {e}"));
        let shown: Vec<_> = servers.hosts.iter().map(Host::to_string).collect();
        assert_eq!(
            (
                servers.user.as_deref(),
                servers.password.as_deref(),
                &*shown.join(","),
                &*servers.path
            ),
            (user, password, hosts, path),
            "{url}"
        );
    }
}

#[test]
fn malformed_hosts_are_refused_and_not_repeated() {
    for place in [
        "",
        ",a",
        "hunter2:",
        "hunter2:port",
        "hunter2:70000",
        "h:0",
        "[::1",
        "[::1]x",
        "::1",
        "hun ter2",
    ] {
        let e = Url::parse(&format!("x://{place}"))
            .unwrap()
            .servers(7)
            .expect_err(place);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{place}");
        assert!(!format!("{e} {e:?}").contains("ter2"), "{e:?}");
    }
}

#[test]
fn values_are_decoded_and_typed() {
    let mut url = Url::parse("x://?namespace=a%26b%2Fc&ttl=90s&op_timeout=1500ms&n=12&on=true").unwrap();
    assert_eq!(url.take::<String>("namespace").unwrap().unwrap(), "a&b/c");
    assert_eq!(
        url.take::<Duration>("ttl").unwrap().unwrap(),
        Duration::from_secs(90)
    );
    assert_eq!(
        url.take::<Duration>("op_timeout").unwrap().unwrap(),
        Duration::from_millis(1500)
    );
    assert_eq!(url.take::<u32>("n").unwrap().unwrap(), 12);
    assert!(url.take::<bool>("on").unwrap().unwrap());
    assert!(url.take::<Duration>("absent").unwrap().is_none());
    url.finish().unwrap();
}

#[test]
fn durations_without_a_unit_or_a_meaning_are_refused() {
    let refused = [
        "",
        "5",
        "s",
        "0s",
        "-1s",
        "1.5s",
        "1 s",
        "1d",
        "18446744073709551615h",
        "99999999999999999999s",
        "1s1s",
    ];
    for text in refused {
        assert!(Duration::parse(text).is_none(), "{text}");
    }
}

#[test]
fn numbers_are_whole_and_above_zero() {
    assert_eq!(u32::parse("12"), Some(12));
    for text in ["", "0", "-1", "+1", "1.5", "x", "4294967296"] {
        assert!(u32::parse(text).is_none(), "{text}");
    }
}

/// What is said of that URL by a backend that knows `namespace` and `ttl`.
fn refused(url: &str) -> String {
    let outcome = Url::parse(url).and_then(|mut url| {
        url.file()?;
        url.take::<Duration>("ttl")?;
        url.take::<String>("namespace")?;
        url.finish()
    });
    let e = outcome.expect_err(url);
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}");
    format!("{e} {e:?}")
}

#[test]
fn a_refusal_repeats_no_value() {
    for url in [
        "hunter2",
        "x://u:hunter2@h#f",
        "x://hunter2%zz",
        "x://hunter2%2",
        "x://hunter2%ff",
        "x://hunter2%\u{e9}\u{e9}",
        "x://h?hunter2",
        "x://h?namespace=&ttl=hunter2",
        "x://h?ttl=hunter2",
        "x://h?namespace=hunter2&namespace=hunter2",
        "x://h?hun ter=hunter2",
        // A password that was not encoded: `u:pass?hunter2=@h`.
        "x://u:pass?hunter2=@h",
    ] {
        assert!(!refused(url).contains("hunter2"), "{url}");
    }
    assert!(refused("x://h?ttl=1").contains("500ms"));
    assert!(refused("x://h?namespace=a&namespace=b").contains("`namespace` twice"));
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_known_one() {
    let near = refused("x://h?ttl=1s&namespcae=a");
    assert!(
        near.contains("`namespcae`") && near.contains("did you mean `namespace`?"),
        "{near}"
    );
    let far = refused("x://h?colour=red");
    assert!(
        far.contains("`colour`") && far.contains("namespace, ttl") && !far.contains("did you mean"),
        "{far}"
    );
    let mine = Url::parse("x://h?ttl=1s")
        .and_then(Url::finish)
        .unwrap_err()
        .to_string();
    assert!(mine.contains("one of the client"), "{mine}");
}

#[test]
fn keys_that_belong_together_come_together() {
    assert_eq!(
        Url::both(("cert", Some(1)), ("key", Some(2))).unwrap(),
        Some((1, 2))
    );
    assert_eq!(Url::both::<u8>(("cert", None), ("key", None)).unwrap(), None);
    assert!(
        Url::both(("cert", Some(1)), ("key", None))
            .unwrap_err()
            .to_string()
            .contains("`cert` and `key`")
    );
}

#[test]
fn debug_shows_no_secret() {
    let url = Url::parse("x://u:hunter2@h?k=hunter2").unwrap();
    let shown = format!("{url:?} {:?}", url.servers(1).unwrap());
    assert!(shown.contains('x') && !shown.contains("hunter2"), "{shown}");
}
