use super::*;
use dlock_core::ErrorKind;

fn settings(url: &str) -> Settings {
    Config::from_url(url).unwrap().settings().unwrap()
}

#[test]
fn an_ensemble_with_a_chroot_is_read() {
    let read = settings("zk://user:p%40ss@a,b:7,[::1]:9/app/locks/");
    assert_eq!(&*read.at, "a:2181,b:7,[::1]:9/app/locks");
    let each = "tcp://a:2181,tcp://b:7,tcp://[::1]:9";
    assert_eq!(read.servers, [each; 6].join(","));
    assert_eq!(read.paths.ours(), "/app/locks/dlock");
    assert_eq!(read.login, Some(("user".into(), "p@ss".into())));
}

#[test]
fn a_url_says_what_code_can_say() {
    let url = "zookeeper://h?root=/r&session_timeout=6s&timeout=1s&layout=curator&access=world:anyone:cdrw";
    let by_url = Config::from_url(url).unwrap();
    let by_code = Config::new("h")
        .root("/r")
        .session_timeout(Duration::from_secs(6))
        .timeout(Duration::from_secs(1))
        .layout(Layout::Curator)
        .access(Access::List("world:anyone:cdrw".into()));
    assert_eq!(format!("{by_url:?}"), format!("{by_code:?}"));
    let unfair = Config::from_url("zk://h?unfair=true&access=creator").unwrap();
    assert_eq!(
        format!("{unfair:?}"),
        format!("{:?}", Config::new("h").unfair().access(Access::Creator))
    );
}

#[test]
fn what_is_wrong_is_refused_without_repeating_it() {
    let wrong = " zk:// zk://hunter2@h zk://:hunter2@h redis://u:hunter2@h zk://u:hunter2@h:0 \
        zk://u:hunter2@h:99999 zk://u:hunter2@h//x zk://u:hunter2@h/../x zk://u:hunter2@h/zookeeper/x \
        zk://u:hunter2@h/a%00b zk://u:hunter2@h?x=1 zk://u:hunter2@h?layout=hunter2 \
        zk://u:hunter2@h?root=hunter2 zk://u:hunter2@a,,b";
    for wrong in wrong.split(' ') {
        let e = Config::from_url(wrong).expect_err(wrong);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{wrong}");
        assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn a_host_that_no_certificate_can_name_is_refused_with_tls() {
    for host in ["h\u{f6}st", "a..b", "-", "[fe80::1%25eth0]"] {
        let e = Config::from_url(&format!("zks://{host}/x"));
        assert_eq!(e.expect_err(host).kind(), ErrorKind::InvalidInput, "{host}");
    }
    for host in ["zk-1.eu.example", "127.0.0.1", "[::1]", "a_b"] {
        let _ = Config::from_url(&format!("zks://{host}/x")).expect(host);
    }
}

#[cfg(feature = "tls")]
#[test]
fn certificates_without_tls_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let url = format!("zk://h?ca={}", file.path().display());
    let e = Config::from_url(&url).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_form_whose_feature_is_not_there_is_refused() {
    let e = Config::from_url("zks://h").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
}
