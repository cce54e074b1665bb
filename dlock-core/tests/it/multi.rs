//! Several locks taken as one, in virtual time.

use dlock_core::combinators::MultiLock;
use dlock_core::{Client, ErrorKind};

use crate::world::*;

#[test]
fn a_multi_lock_takes_all_or_none_and_never_deadlocks() {
    simulate(|w| async move {
        let (a, b, c) = (w.client(), w.client(), w.client());
        let of = |client: &Client, names: [&str; 3]| {
            MultiLock::new(names.map(|n| client.lock(n).unwrap())).unwrap()
        };
        let (one, two) = (of(&a, ["x", "y", "z"]), of(&b, ["z", "x", "y"]));
        for _ in 0..10 {
            let run = |multi: MultiLock| {
                let runtime = w.runtime.clone();
                async move {
                    let all = multi.acquire().await.unwrap();
                    runtime.sleep(ms(3)).await;
                    assert!(all.is_valid());
                    all.release().await.unwrap();
                }
            };
            futures::join!(run(one.clone()), run(two.clone()));
        }
        let held = c.lock("y").unwrap().acquire().await.unwrap();
        assert!(one.try_acquire().await.unwrap().is_none());
        assert_eq!(
            two.acquire_timeout(ms(50)).await.unwrap_err().kind(),
            ErrorKind::Timeout
        );
        assert!(
            c.lock("x").unwrap().try_acquire().await.unwrap().is_some(),
            "rolled back before the answer"
        );
        drop(held);
        let twice = [a.lock("x").unwrap(), a.lock("x").unwrap()];
        assert_eq!(MultiLock::new(twice).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn multi_lock_is_lost_if_its_first_lease_expired() {
    simulate(|w| async move {
        let (a, b) = (w.client(), w.client());
        let held = b.lock("y").unwrap().acquire().await.unwrap();
        let multi = MultiLock::new([
            a.lock("x").unwrap().options(passive(100)).unwrap(),
            a.lock("y").unwrap().options(passive(100)).unwrap(),
        ])
        .unwrap();
        let later = async {
            w.sleep(ms(300)).await;
            held.release().await.unwrap();
        };
        let (taken, ()) = futures::join!(multi.acquire(), later);
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::Lost);
        assert!(b.lock("y").unwrap().try_acquire().await.unwrap().is_some());
    });
}
