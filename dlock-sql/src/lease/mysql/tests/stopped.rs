//! Test: a client is stopped, or cut off, in the middle of a transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock as _};
use dlock_core::{LockName, RequestId, runtime};

use crate::lease::mysql::MysqlLease;
use crate::lease::mysql::text::list;
use crate::servers::MariaDbServer;

#[test]
fn who_stops_in_the_middle_of_a_transaction_keeps_others_waiting_for_a_second() {
    let server = Arc::new(MariaDbServer::start().unwrap());
    let url = server.url();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let here = runtime::detect().unwrap();
        let stopped = MysqlLease::open(&url, here.clone()).await.unwrap();
        let other = MysqlLease::open(&url, here).await.unwrap();
        let name = LockName::new("x").unwrap();
        let ask = |id| {
            let key = LeaseKey::new(name.clone(), RequestId::new(5, id));
            Acquire::new(key, Duration::from_secs(600))
        };
        // So that there is a row to be locked.
        let held = ask(1);
        assert!(matches!(
            stopped.attempt(&held).await.unwrap(),
            Attempt::Granted(_)
        ));
        let load = stopped.db.sql.load(&list([name.as_bytes()]));
        let (mut lent, _, found) = stopped.db.begin(&load).await.unwrap();
        assert!(!found.is_empty());
        // A transaction, which waits for the row.
        let began = Instant::now();
        let answer = other.attempt(&ask(2).with_queue(Duration::from_secs(600))).await;
        assert!(matches!(answer.unwrap(), Attempt::Queued(_)));
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(2), "{waited:?}");
        // Its other half is refused, and nothing of it was done.
        let commit = crate::lease::mysql::call::Statement::Text("COMMIT".to_owned());
        let late = lent.run(commit).await;
        assert!(late.is_err());
    });
}
