//! Re-entrant rows.

use super::site::everywhere;

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use std::time::Duration;

        use dlock_core::{ErrorKind, LockName};
        use dlock_sql::direct::Tables;
        use dlock_sql::direct::reentrant::{Entered, Hold, Holder, Owner, ReentrantRows};

        use crate::direct::site::{LONG, polled, run};

        type Db = $db;

        fn name() -> LockName {
            LockName::new("invoice/42").unwrap()
        }

        fn ms(n: u64) -> Duration {
            Duration::from_millis(n)
        }

        async fn open() -> (ReentrantRows<Db>, crate::direct::site::Site<Db>) {
            let site = $open().await;
            let rows = ReentrantRows::new(site.pool.clone(), Tables::default(), site.runtime.clone());
            rows.create_table().await.unwrap();
            rows.create_table().await.unwrap();
            (rows, site)
        }

        async fn held(owner: &mut Owner<Db>, ttl: Duration) -> Hold {
            match owner.enter(&name(), ttl).await.unwrap() {
                Entered::Held(hold) => hold,
                other => panic!("not held: {other:?}"),
            }
        }

        async fn busy(owner: &mut Owner<Db>) -> Holder {
            match owner.enter(&name(), LONG).await.unwrap() {
                Entered::Busy(holder) => holder,
                other => panic!("not busy: {other:?}"),
            }
        }

        #[test]
        fn an_owner_enters_again_and_is_out_when_it_has_left_as_often() {
            run(async {
                let (rows, _site) = open().await;
                let (mut one, mut other) = (rows.owner("one").unwrap(), rows.owner("one").unwrap());
                let outer = held(&mut one, LONG).await;
                let inner = held(&mut one, LONG).await;
                assert_eq!((outer.holds(), inner.holds()), (1, 2));
                assert_eq!(outer.token(), inner.token());
                assert!(outer.is_valid() && outer.remaining() <= LONG);
                // One of the same label is another.
                let seen = busy(&mut other).await;
                assert_eq!((seen.label.as_str(), seen.holds, seen.token), ("one", 2, outer.token()));
                assert!(seen.remaining <= LONG && seen.remaining > LONG / 2);
                one.leave(inner).await.unwrap();
                assert_eq!(busy(&mut other).await.holds, 1);
                let token = outer.token();
                one.leave(outer).await.unwrap();
                assert_eq!(rows.inspect(&name()).await.unwrap(), None);
                let next = held(&mut other, LONG).await;
                assert!(next.token() > token && next.holds() == 1);
            });
        }

        #[test]
        fn what_ran_out_is_lost_and_another_has_it() {
            run(async {
                let (rows, _site) = open().await;
                let (mut one, mut other) = (rows.owner("one").unwrap(), rows.owner("other").unwrap());
                let mut first = held(&mut one, ms(300)).await;
                tokio::time::sleep(ms(350)).await;
                assert!(!first.is_valid());
                let second = held(&mut other, LONG).await;
                assert!(second.token() > first.token());
                let e = one.renew(&mut first, LONG).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Lost);
                let e = one.leave(first).await.unwrap_err();
                assert_eq!((e.kind(), e.is_retryable()), (ErrorKind::Lost, false));
                assert_eq!(rows.inspect(&name()).await.unwrap().unwrap().label, "other");
                // Its own hold that ran out is lost to an owner, too.
                other.leave(second).await.unwrap();
                let old = held(&mut one, ms(100)).await;
                tokio::time::sleep(ms(150)).await;
                let new = held(&mut one, LONG).await;
                assert_eq!((new.holds(), new.token() > old.token()), (1, true));
                assert_eq!(one.leave(old).await.unwrap_err().kind(), ErrorKind::Lost);
                one.leave(new).await.unwrap();
            });
        }

        #[test]
        fn a_hold_is_renewed_and_never_made_shorter() {
            run(async {
                let (rows, _site) = open().await;
                let mut one = rows.owner("one").unwrap();
                let mut hold = held(&mut one, ms(400)).await;
                one.renew(&mut hold, LONG).await.unwrap();
                assert!(hold.remaining() > LONG / 2);
                let inner = held(&mut one, ms(10)).await;
                let left = rows.inspect(&name()).await.unwrap().unwrap().remaining;
                assert!(left > LONG / 2, "{left:?}");
                one.leave(inner).await.unwrap();
                one.renew(&mut hold, ms(10)).await.unwrap();
                assert!(hold.remaining() > LONG / 2);
                one.leave(hold).await.unwrap();
            });
        }

        #[test]
        fn of_many_owners_one_is_in_at_a_time() {
            run(async {
                let (rows, _site) = open().await;
                let inside = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
                let owners = (0..5).map(|n| {
                    let (rows, inside) = (rows.clone(), inside.clone());
                    tokio::spawn(async move {
                        use std::sync::atomic::Ordering::SeqCst;
                        let mut owner = rows.owner(&format!("owner {n}")).unwrap();
                        let (mut done, mut tokens) = (0, Vec::new());
                        while done < 5 {
                            let Entered::Held(hold) = owner.enter(&name(), LONG).await.unwrap() else {
                                tokio::time::sleep(ms(3)).await;
                                continue;
                            };
                            assert_eq!(inside.fetch_add(1, SeqCst), 0);
                            tokens.push(hold.token());
                            tokio::time::sleep(ms(1)).await;
                            inside.fetch_sub(1, SeqCst);
                            owner.leave(hold).await.unwrap();
                            done += 1;
                        }
                        tokens
                    })
                });
                let mut all = Vec::new();
                for owner in owners.collect::<Vec<_>>() {
                    let tokens = owner.await.unwrap();
                    assert!(tokens.is_sorted());
                    all.extend(tokens);
                }
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), 25);
            });
        }

        #[test]
        fn an_entry_that_was_dropped_half_way_is_taken_back() {
            run(async {
                let (rows, _site) = open().await;
                let (mut one, mut other) = (rows.owner("one").unwrap(), rows.owner("other").unwrap());
                let mut dropped = 0;
                for n in 1..=40 {
                    match polled(n, one.enter(&name(), LONG)).await {
                        Some(Ok(Entered::Held(hold))) => one.leave(hold).await.unwrap(),
                        Some(other) => panic!("{other:?}"),
                        None => {
                            dropped += 1;
                            one.settle().await.unwrap();
                        }
                    }
                    let free = held(&mut other, LONG).await;
                    other.leave(free).await.unwrap();
                }
                assert!(dropped > 0);
            });
        }

        #[test]
        fn a_change_whose_answer_is_lost_counts_once() {
            run(async {
                let (rows, site) = open().await;
                let mut one = rows.owner("one").unwrap();
                let counted = async || {
                    let holder = rows.inspect(&name()).await.unwrap();
                    holder.map_or(0, |holder| holder.holds)
                };
                let mut dropped = 0;
                for n in 1..=40 {
                    // Dropped, there is no hold; told of, it is dropped too, and counts.
                    let told = polled(n, one.enter(&name(), LONG)).await.is_some();
                    let outer = held(&mut one, LONG).await;
                    assert_eq!(outer.holds(), 1 + u32::from(told));
                    let told_again = polled(n, one.enter(&name(), LONG)).await.is_some();
                    let inner = held(&mut one, LONG).await;
                    assert_eq!(inner.holds(), outer.holds() + 1 + u32::from(told_again));
                    let (before, token) = (inner.holds(), inner.token());
                    let left = polled(n, one.leave(inner)).await;
                    dropped += u32::from(!told) + u32::from(!told_again) + u32::from(left.is_none());
                    one.settle().await.unwrap();
                    assert_eq!((counted().await, outer.token()), (before - 1, token));
                    one.leave(outer).await.unwrap();
                    assert_eq!(counted().await, before - 2);
                    // A new one, for which the holds of the old one have gone.
                    let clear = "UPDATE dlock_reentrant SET holds = 0";
                    sqlx::query(clear).execute(&site.pool).await.unwrap();
                    one = rows.owner("one").unwrap();
                }
                assert!(dropped > 0);
            });
        }

        #[test]
        fn what_is_wrong_is_said_before_anything_is_done() {
            run(async {
                let (rows, _site) = open().await;
                let mut one = rows.owner("one").unwrap();
                for ttl in [Duration::ZERO, Duration::MAX] {
                    let e = one.enter(&name(), ttl).await.unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::InvalidInput);
                }
                let long = LockName::new(vec![b'a'; 1025]).unwrap();
                assert_eq!(one.enter(&long, LONG).await.unwrap_err().kind(), ErrorKind::InvalidInput);
                assert_eq!(rows.owner(&"a".repeat(256)).unwrap_err().kind(), ErrorKind::InvalidInput);
                // Names are bytes: nothing is folded or trimmed.
                for bytes in [b"a".as_slice(), b"A", b"a ", b"\0", b"\xff", &[b'a'; 1024]] {
                    let name = LockName::new(bytes).unwrap();
                    let entered = one.enter(&name, LONG).await.unwrap();
                    assert!(matches!(entered, Entered::Held(hold) if hold.holds() == 1), "{name}");
                }
            });
        }
    };
}

everywhere!(tests);
