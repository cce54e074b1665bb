//! A client that gets a minority gives it back, and leaves no key that keeps others out until its ttl.

use crate::site::{LONG, NAME, SLACK, Site};
use dlock_testkit::{RedisOptions, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_minority_granted_is_given_back_at_once() {
    let site = Site::new(5, &RedisOptions::new());
    let one = site.party_that_sees(&site.first(), LONG).await;
    let two = site.party(LONG).await;
    let first = one.acquires().await;
    assert_eq!(site.held_at(), [0, 1, 2]);
    assert!(!site.has_granted(3) && !site.has_granted(4));

    // The second is granted by the members 3 and 4, and by nobody else.
    assert!(two.tries().await.is_none());
    until("3 and 4 have granted", SLACK, || {
        Ok(site.has_granted(3) && site.has_granted(4))
    })
    .unwrap();
    until("what 3 and 4 granted is given back", SLACK, || {
        Ok(site.held_at() == [0, 1, 2])
    })
    .unwrap();

    first.release().await.unwrap();
    until("nothing is left", SLACK, || Ok(site.held_at().is_empty())).unwrap();
    two.client
        .lock(NAME)
        .unwrap()
        .try_acquire()
        .await
        .unwrap()
        .expect("it is free");
}
