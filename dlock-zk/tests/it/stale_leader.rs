//! A leader that others have replaced while it stood still.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Mode;
use dlock_core::spi::{Renew as _, RenewItem, RenewOutcome};

use crate::{LONG, at_once, config, granted, here, key};
use dlock_testkit::{Mode as Does, ZkEnsemble, ZkOptions, until};

/// Its followers give it up after two of them; and so long it may take until it sees that it leads nobody any
/// more.
const TICK: Duration = Duration::from_secs(2);

/// When it goes on it answers what came meanwhile, before it has found out. Nothing of that says that a
/// session lives: the others have it now.
#[tokio::test]
async fn a_leader_that_was_replaced_confirms_no_session() {
    let options = ZkOptions::new().tick(TICK).line("syncLimit=2");
    let started = tokio::task::spawn_blocking(|| Arc::new(ZkEnsemble::with(options).unwrap()));
    let all = started.await.unwrap();
    let leader = all.leader().unwrap();
    let lock = config()
        .session_timeout(Duration::from_secs(30))
        .servers(&all.members()[leader].address().to_string())
        .connect(here())
        .await
        .unwrap();
    let held = key("x", 1, 1);
    let mut request = at_once(&held, Mode::Exclusive);
    request.ttl = Duration::from_secs(60);
    granted(&lock, &request).await;
    let stopped = all.clone();
    tokio::task::spawn_blocking(move || stopped.members()[leader].pause().unwrap())
        .await
        .unwrap();
    let replaced = all.clone();
    let replacing = tokio::task::spawn_blocking(move || {
        until("the others have a leader", LONG, || {
            let others = replaced.members().iter().enumerate();
            let mut others = others.filter(|(n, _)| *n != leader).map(|(_, m)| m);
            Ok(others.any(|m| matches!(m.mode(), Ok(Does::Leader))))
        })
        .unwrap();
        replaced.members()[leader].go_on().unwrap();
    });
    let items = [RenewItem::lease(held, Duration::from_secs(60))];
    let (renewed, replaced) = futures::join!(lock.renew(&items), replacing);
    replaced.unwrap();
    assert!(matches!(renewed[..], [RenewOutcome::Failed(_)]), "{renewed:?}");
}
