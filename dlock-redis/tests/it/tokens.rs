//! Fencing tokens grow: through what a server can lose, as far as its clock does not go back; and what
//! happens where it does.

use std::time::Duration;

use dlock_core::spi::{Acquire, Fencing as _, Lock as _, Raised};
use dlock_core::{Access, Admission, Client, FenceGate as _, LockName, Token};

use crate::{client, client_of, is_granted, key, open};
use dlock_testkit::{Persistence, RedisOptions, RedisPair, RedisServer};

async fn token(client: &Client) -> Token {
    let held = client.lock("x").unwrap().acquire().await.unwrap();
    let token = held.token().unwrap();
    held.release().await.unwrap();
    token
}

#[tokio::test]
async fn they_grow_after_everything_was_deleted() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    let mut last = token(&client).await;
    for _ in 0..20 {
        server.ask(&["FLUSHALL"]).unwrap();
        let next = token(&client).await;
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

#[tokio::test]
async fn they_grow_through_a_restart_of_a_server_that_keeps_nothing() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    let last = token(&client).await;
    server.crash().unwrap();
    server.start_again().unwrap();
    let next = token(&client).await;
    assert!(next > last, "{next} after {last}");
}

/// The counter goes on although the clock went back: as long as the counter is there.
#[tokio::test]
async fn they_grow_while_the_clock_goes_back() {
    let options = RedisOptions::new().own_clock().persistence(Persistence::Always);
    let server = RedisServer::with(options).unwrap();
    let client = client(&server).await;
    let mut last = token(&client).await;
    for _ in 0..3 {
        server.clock().unwrap().step(-3_600_000).unwrap();
        let next = token(&client).await;
        assert!(next > last, "{next} after {last}");
        server.crash().unwrap();
        server.start_again().unwrap();
        last = token(&client).await;
        assert!(last > next, "{last} after {next}");
    }
}

/// The promotion of a replica that lacks the last grants.
#[tokio::test(flavor = "multi_thread")]
async fn they_grow_over_a_failover_to_a_stale_replica() {
    let pair = RedisPair::with(RedisOptions::new()).unwrap();
    let client = client(pair.serving()).await;
    token(&client).await;
    pair.serving().cut_replicas().unwrap();
    let lost = token(&client).await;
    pair.take_over().unwrap();
    let next = token(&client).await;
    assert!(
        next > lost,
        "{next} after {lost}, which the new master never heard of"
    );
}

/// Beyond what is declared: the counter is lost *and* the clock is behind the last token. Tokens fall, and
/// until the clock has caught up the gate cannot tell the last holder of before from its successors:
/// whichever of them wrote first.
#[tokio::test]
async fn the_gate_may_admit_an_old_holder_if_counter_and_clock_fell() {
    let keeps = RedisServer::start().unwrap();
    let gate = open(&keeps).await;
    let server = RedisServer::with(RedisOptions::new().own_clock()).unwrap();
    let client = client_of(open(&server).await);
    let admits = async |resource: &str, t| {
        let resource = LockName::new(resource).unwrap();
        gate.admit(&resource, t, Access::Exclusive).await.unwrap() == Admission::Admitted
    };
    let old = token(&client).await;
    let last = token(&client).await;
    assert!(admits("written before", last).await);
    server.ask(&["FLUSHALL"]).unwrap();
    server.clock().unwrap().step(-3_600_000).unwrap();
    let fallen = token(&client).await;
    assert!(fallen < old, "an hour back and nothing left to count on");
    // The last one has written: the older ones are refused as ever, the new one is too, and the last one is
    // not.
    assert!(!admits("written before", old).await && !admits("written before", fallen).await);
    assert!(admits("written before", last).await);
    // It has not: the new one is admitted, and the last one after it, which shuts the new one out.
    assert!(admits("not written before", fallen).await);
    assert!(admits("not written before", last).await);
    assert!(!admits("not written before", fallen).await);
    // It is over when the clock has caught up.
    server.clock().unwrap().set(0).unwrap();
    let caught_up = token(&client).await;
    assert!(caught_up > last);
    for resource in ["written before", "not written before"] {
        assert!(admits(resource, caught_up).await && !admits(resource, last).await);
    }
}

/// In the last millisecond of a lease nothing is left of it, and it is there.
#[tokio::test]
async fn a_raise_at_the_very_end_of_a_lease_is_no_error() {
    let server = RedisServer::start().unwrap();
    let lock = open(&server).await;
    for n in 0..30 {
        let lease = key("x", 1, n);
        let request = Acquire::new(lease.clone(), Duration::from_millis(30));
        assert!(is_granted(&lock.attempt(&request).await.unwrap()));
        let mut raised = 0;
        while lock.raise(&lease, Token::new(1).unwrap()).await.unwrap() != Raised::NotHeld {
            raised += 1;
        }
        assert!(raised > 0);
    }
}
