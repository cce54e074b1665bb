//! What a majority cannot decide is refused before anything is sent. Here nobody is there to be asked:
//! whatever was sent would be `Unavailable`.

use std::time::Duration;

use dlock::RequestId;
use dlock::spi::{Acquire, LeaseKey, Queueing};
use dlock::{Capability, ErrorKind, LockName, LockOptions, Mode};

use crate::site::{NAME, client};

#[tokio::test]
async fn permits_queues_and_priorities_are_unsupported_and_never_sent() {
    let nowhere = [([127, 0, 0, 1], 9).into(); 5];
    let client = client(&nowhere, |config| config, Duration::from_secs(1)).await;
    for absent in [
        Capability::Permits,
        Capability::Queue,
        Capability::Priority,
        Capability::Gate,
    ] {
        assert!(!client.capabilities().has(absent), "{absent:?}");
    }
    // By the API.
    let permits = async {
        let pool = client.semaphore(NAME, 2)?;
        pool.acquire().await.map(drop)
    };
    let priority = async {
        let lock = client.lock(NAME)?.options(LockOptions::new().priority(9))?;
        lock.acquire().await.map(drop)
    };
    for (what, outcome) in [("permits", permits.await), ("priority", priority.await)] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported, "{what}");
    }
    // The backend refuses it to every caller.
    let key = LeaseKey::new(LockName::new(NAME).unwrap(), RequestId::new(1, 1));
    let plain = Acquire::new(key, Duration::from_secs(1));
    let (mut permit, mut queued, mut first) = (plain.clone(), plain.clone(), plain.clone());
    permit.mode = Mode::Shared {
        limit: std::num::NonZeroU32::new(2),
    };
    queued.queue = Queueing::Join;
    first.priority = 9;
    for (what, request) in [("permits", permit), ("a queue", queued), ("a priority", first)] {
        let e = client.backend().attempt(&request).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{what}: {e}");
    }
    // The plain one is sent, and finds nobody.
    let e = client.backend().attempt(&plain).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
}
