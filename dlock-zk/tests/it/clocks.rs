//! A session that is near its end by the clock of its client: what is handed out then is asked for once more,
//! and lasts.

use dlock_core::spi::{Lock as _, Release, RenewItem, RenewOutcome, RwLock as _};
use dlock_core::{Mode, Runtime as _};

use crate::bent::Bent;
use crate::frames::{SET, Stop, Way};
use crate::{LONG, at_once, config, granted, key, listens, open, queued, start, turn, waits};

const X: Mode = Mode::Exclusive;

#[tokio::test]
async fn a_grant_is_not_of_a_session_that_is_about_to_end() {
    let server = start().await;
    let clock = Bent::new();
    let address = server.address().to_string();
    let lock = config().servers(&address).connect(clock.clone()).await.unwrap();
    let other = open(&server).await;
    let held = key("held", 1, 0);
    granted(&lock, &at_once(&held, X)).await;
    let from = clock.forward();
    let again = granted(&lock, &at_once(&held, X)).await;
    assert!(again.counted_from >= from, "asked again");
    let [pushed, polled] = [("pushed", 1), ("polled", 2)].map(|(name, n)| (key(name, 2, n), key(name, 1, n)));
    granted(&other, &at_once(&pushed.0, X)).await;
    let mut wait = waits(&lock, &queued(&pushed.1, X)).await;
    let from = clock.forward();
    other.release(&pushed.0, Release::Now).await.unwrap();
    assert!(turn(&mut wait).await.counted_from >= from, "pushed");
    granted(&other, &at_once(&polled.0, X)).await;
    drop(waits(&lock, &queued(&polled.1, X)).await);
    other.release(&polled.0, Release::Now).await.unwrap();
    let from = clock.forward();
    let items = [RenewItem::queued(polled.1, LONG)];
    let outcomes = lock.renew().unwrap().renew(&items).await;
    let [RenewOutcome::Granted(grant)] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    assert!(grant.counted_from >= from, "polled");
}

/// It was asked a long time ago, and answered; whoever asked never took the answer.
#[tokio::test]
async fn an_answer_that_is_too_old_renews_nothing() {
    let server = start().await;
    let clock = Bent::new();
    let address = server.address().to_string();
    let lock = config().servers(&address).connect(clock.clone()).await.unwrap();
    let held = key("x", 1, 1);
    granted(&lock, &at_once(&held, X)).await;
    let mut stuck = lock.convert(&held, X);
    assert!(futures::poll!(&mut stuck).is_pending());
    for from in [clock.forward(), clock.now()] {
        let items = [RenewItem::lease(held.clone(), LONG)];
        let outcomes = lock.renew().unwrap().renew(&items).await;
        let [RenewOutcome::Renewed(renewal)] = &outcomes[..] else {
            panic!("{outcomes:?}");
        };
        assert!(renewal.counted_from >= from, "{renewal:?}");
    }
    stuck.await.unwrap();
}

#[tokio::test]
async fn leases_of_a_session_that_does_not_answer_are_not_renewed() {
    let server = start().await;
    let way = Way::to(server.address()).unwrap();
    let clock = Bent::new();
    let address = way.address.to_string();
    let lock = config().servers(&address).connect(clock.clone()).await.unwrap();
    listens(&server, &lock).await;
    let held = [0, 1].map(|n| key("x", 1, n));
    for k in &held {
        granted(&lock, &at_once(k, Mode::READER)).await;
    }
    clock.forward();
    way.stop(Stop::Before(SET));
    let items = held.map(|k| RenewItem::lease(k, LONG));
    let losing = async {
        way.stopped().await;
        way.break_off();
    };
    let (outcomes, ()) = futures::join!(lock.renew().unwrap().renew(&items), losing);
    assert!(
        matches!(outcomes[..], [RenewOutcome::Failed(_), RenewOutcome::Failed(_)]),
        "{outcomes:?}"
    );
}
