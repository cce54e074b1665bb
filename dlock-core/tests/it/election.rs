//! Leader election over the exclusive lock of a name.

use std::cell::RefCell;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;

use dlock_core::{Capability, ErrorKind, LossReason};
use futures::StreamExt as _;
use futures::future::{Either, join, join3, select};

use crate::world::{ms, simulate, simulate_with, ttl};

#[test]
fn one_leads_and_the_next_follows_with_a_larger_token() {
    simulate(async |w| {
        let (a, b) = (w.client(), w.client());
        let a = a.election("x").unwrap().value("a").unwrap();
        let b = b.election("x").unwrap().value("b").unwrap();
        let first = a.campaign().await.unwrap();
        assert!(b.try_campaign().await.unwrap().is_none());
        let e = b.campaign_timeout(ms(50)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Timeout);
        let token = first.token();
        let shown = b.leader().await.unwrap().unwrap();
        assert_eq!((shown.value.as_deref(), shown.token), (Some("a"), token));
        let (resigned, second) = join(
            async {
                w.sleep(ms(50)).await;
                first.resign().await
            },
            b.campaign(),
        )
        .await;
        resigned.unwrap();
        assert!(second.unwrap().token() > token);
    });
}

#[test]
fn observers_see_each_leader_once_in_the_order_of_tokens() {
    simulate(async |w| {
        let (a, b, c) = (w.client(), w.client(), w.client());
        let watched = c.election("x").unwrap();
        let first = a.election("x").unwrap().value("0").unwrap().campaign().await;
        let mut leaders = watched.observe().await.unwrap();
        // It holds from before, and is renewed meanwhile.
        w.sleep(ms(100)).await;
        first.unwrap().resign().await.unwrap();
        for n in 1..5 {
            let who = if n % 2 == 0 { &a } else { &b };
            let election = who.election("x").unwrap().value(n.to_string()).unwrap();
            election.campaign().await.unwrap().resign().await.unwrap();
        }
        let seen: Vec<_> = leaders
            .by_ref()
            .take(5)
            .map(|leader| leader.unwrap())
            .collect()
            .await;
        let values: Vec<_> = seen.iter().map(|l| l.value.as_deref().unwrap()).collect();
        assert_eq!(values, ["0", "1", "2", "3", "4"]);
        assert!(seen.windows(2).all(|two| two[0].token < two[1].token));
        let (next, pause) = (pin!(leaders.next()), pin!(w.sleep(ms(500))));
        assert!(matches!(select(next, pause).await, Either::Right(_)));
    });
}

#[test]
fn work_is_dropped_at_the_loss_and_begun_again() {
    simulate(async |w| {
        let (client, operator) = (w.client(), w.client());
        let election = client.election("x").unwrap().options(ttl(300)).unwrap();
        let terms = Rc::new(RefCell::new(Vec::new()));
        let worked = election.lead(|held| {
            let terms = terms.clone();
            async move {
                terms.borrow_mut().push(held.token());
                // It is dropped here, once.
                if terms.borrow().len() == 1 {
                    pending::<()>().await;
                }
                assert!(held.is_valid());
                "done"
            }
        });
        let forced = async {
            w.sleep(ms(200)).await;
            assert_eq!(operator.force_release("x").await.unwrap(), 1);
        };
        let (value, ()) = join(worked, forced).await;
        assert_eq!(value.unwrap(), "done");
        let terms = terms.take();
        assert_eq!(terms.len(), 2);
        assert!(terms[0] < terms[1]);
        assert!(election.leader().await.unwrap().is_none());
    });
}

#[test]
fn who_steps_down_lets_the_next_one_lead() {
    let both = [false, true];
    for has_queue in both {
        let set_up = |store: dlock_core::memory::MemoryBuilder| match has_queue {
            true => store,
            false => store.without(Capability::Queue).without(Capability::Priority),
        };
        simulate_with(set_up, async |w| {
            let (a, b) = (w.client(), w.client());
            let (a, b) = (a.election("x").unwrap(), b.election("x").unwrap());
            let first = a.campaign().await.unwrap();
            let again = async {
                w.sleep(ms(50)).await;
                first.step_down().await.unwrap();
                a.campaign().await.unwrap().token()
            };
            let other = async {
                let second = b.campaign().await.unwrap();
                w.sleep(ms(1500)).await;
                let token = second.token();
                second.resign().await.unwrap();
                token
            };
            let (again, other) = join(again, other).await;
            assert!(other < again);
        });
    }
}

#[test]
fn leading_ends_with_the_client() {
    simulate(async |w| {
        let client = w.client();
        let election = client.election("x").unwrap();
        let held = Rc::new(RefCell::new(None));
        let worked = election.lead(|leadership| {
            *held.borrow_mut() = Some(leadership);
            pending::<()>()
        });
        let closed = async {
            w.sleep(ms(50)).await;
            client.close().await.unwrap();
        };
        let (worked, ()) = join(worked, closed).await;
        assert_eq!(worked.unwrap_err().kind(), ErrorKind::Closed);
        let held = held.take().unwrap();
        assert_eq!(held.loss(), Some(LossReason::Closed));
    });
}

#[test]
fn never_do_two_lead_by_their_own_account() {
    simulate(async |w| {
        let leading = Rc::new(RefCell::new(0));
        let candidate = |n: u64| {
            let (client, operator, leading) = (w.client(), w.client(), leading.clone());
            let w = &w;
            async move {
                let election = client.election("x").unwrap().options(ttl(200)).unwrap();
                let mut terms = 0;
                election
                    .lead(|held| {
                        terms += 1;
                        let (last, leading, operator) = (terms == 4, leading.clone(), operator.clone());
                        async move {
                            assert!(held.is_valid());
                            *leading.borrow_mut() += 1;
                            assert_eq!(*leading.borrow(), 1);
                            w.sleep(ms(10 + 7 * n)).await;
                            *leading.borrow_mut() -= 1;
                            if !last {
                                operator.force_release("x").await.unwrap();
                                pending::<()>().await;
                            }
                        }
                    })
                    .await
                    .unwrap();
            }
        };
        join3(candidate(1), candidate(2), candidate(3)).await;
    });
}
