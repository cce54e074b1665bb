//! The primary dies, and its standby takes its place and address: it has the tokens, and no sessions.

use std::time::Duration;

use dlock_core::{ErrorKind, LossReason};
use dlock_sql::session::postgres::builder;

use super::postgres::pool;
use super::{LONG, blocking, client, here, in_the_end, run};
use crate::servers::{Following, PostgresPair};

const TTL: Duration = Duration::from_secs(3);

#[test]
fn who_held_is_told_and_the_next_ones_token_is_larger() {
    run(|| async {
        let pair = blocking(|| PostgresPair::start(Following::InStep));
        let pool = pool(&pair.url(), None);
        let open = async || {
            let builder = builder().session_ttl(TTL).timeout(LONG);
            client(builder.open_pool(&pool, here()).await.unwrap())
        };
        let (first, second) = (open().await, open().await);
        let guard = first.lock("a").unwrap().acquire().await.unwrap();
        let lock = second.lock("a").unwrap();
        let waiting = tokio::spawn(async move { in_the_end(&lock, LONG).await });
        blocking(|| pair.first().wait_until_blocked(1, LONG));
        blocking(|| pair.fail_over());
        let reason = tokio::time::timeout(LONG, guard.lost()).await.unwrap();
        assert!(
            matches!(reason, LossReason::Expired | LossReason::SessionLost),
            "{reason:?}"
        );
        assert!(!guard.is_valid());
        let next = waiting.await.unwrap();
        assert!(next.is_valid() && next.token() > guard.token());
        let again = first.lock("a").unwrap().try_acquire().await;
        assert!(again.is_ok_and(|taken| taken.is_none()), "two hold it");
    });
}

#[test]
fn a_standby_is_refused() {
    run(|| async {
        let pair = blocking(|| PostgresPair::start(Following::InStep));
        let at_primary = pool(&pair.url(), None);
        let opened = builder().timeout(LONG).open_pool(&at_primary, here()).await;
        client(opened.unwrap()).close().await.unwrap();
        let at_standby = pool(&pair.second().url(), None);
        let e = builder()
            .timeout(LONG)
            .open_pool(&at_standby, here())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains("standby"), "{e}");
    });
}
