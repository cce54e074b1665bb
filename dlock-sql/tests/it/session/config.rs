//! What is refused without a server.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_sql::session::Config;

#[test]
fn bad_settings_are_refused() {
    let config = || Config::from_url("mysql://there/shop").unwrap();
    config().check().unwrap();
    for ttl in [Duration::from_secs(1), Duration::from_secs(601)] {
        let refused = config().session_ttl(ttl).check().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    for prefix in ["", "1a", "a-b", "a\"b", "A"] {
        assert!(config().prefix(prefix).check().is_err(), "{prefix}");
    }
    assert!(config().schema("locks").check().is_err());
    assert!(config().timeout(Duration::ZERO).check().is_err());
    assert!(config().restart_grace(Duration::from_secs(601)).check().is_err());
}

#[test]
fn a_url_that_is_not_known_is_refused_and_not_quoted() {
    for url in ["http://a:secret@b", "secret", "mysql://a:secret@b:port/x"] {
        let refused = Config::from_url(url).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(!format!("{refused} {refused:?}").contains("secret"), "{refused}");
    }
    let config = Config::from_url("mysql://a:secret@b/x").unwrap();
    assert!(!format!("{config:?}").contains("secret"));
}
