//! Elections, in virtual time. What holds on every backend is in the rules of section 19 of the kit.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;

use dlock_core::memory::Survives;
use dlock_core::{Capability, Client, Election, ErrorKind, LockOptions};
use futures::StreamExt as _;
use futures::future::{join, join3, select};

use crate::world::{ms, passive, simulate, simulate_with, ttl};

fn election(client: &Client, options: LockOptions) -> Election {
    client.election("e").unwrap().options(options).unwrap()
}

#[test]
fn short_work_is_repeated_with_pauses() {
    simulate(async |world| {
        let client = world.client();
        let begun = Cell::new(0);
        let leading = async {
            let election = election(&client, ttl(1000));
            let lead = election.lead(async |_| {
                begun.set(begun.get() + 1);
                ControlFlow::<()>::Continue(())
            });
            assert_eq!(lead.await.unwrap_err().kind(), ErrorKind::Closed);
        };
        let closing = async {
            world.sleep(ms(10_000)).await;
            client.close().await.unwrap();
        };
        join(leading, closing).await;
        assert!((12..40).contains(&begun.get()), "{begun:?}");
    });
}

#[test]
fn a_wait_limit_does_not_cost_a_candidate_its_place() {
    simulate(async |world| {
        let (a, b, c) = (world.client(), world.client(), world.client());
        let order = RefCell::new(Vec::new());
        let first = election(&a, ttl(1000)).campaign().await.unwrap();
        let leads = async |client: &Client, who: char, after| {
            world.sleep(ms(after)).await;
            let election = election(client, ttl(1000).wait_limit(ms(300)));
            let lead = election.lead(async |_| {
                order.borrow_mut().push(who);
                ControlFlow::Break(())
            });
            lead.await.unwrap();
        };
        let resigns = async {
            world.sleep(ms(1000)).await;
            first.resign().await.unwrap();
        };
        join3(leads(&b, 'b', 0), leads(&c, 'c', 100), resigns).await;
        assert_eq!(*order.borrow(), ['b', 'c']);
    });
}

#[test]
fn without_a_queue_the_former_leader_pauses() {
    let (turns, again) = (Cell::new(0), Cell::new(0));
    let no_queue = |c: dlock_core::memory::Config| c.without(Capability::Queue).without(Capability::Priority);
    simulate_with(no_queue, async |world| {
        let clients = [world.client(), world.client()];
        let order = RefCell::new(Vec::new());
        let options = ttl(1000).max_hold(ms(200));
        let leads = async |n: usize| {
            let election = election(&clients[n], options.clone());
            let lead = election.lead(async |_| {
                order.borrow_mut().push(n);
                // One is relieved by its maximum hold, the other steps down.
                world.sleep(ms(if n == 0 { 60_000 } else { 100 })).await;
                ControlFlow::<()>::Continue(())
            });
            let _ = lead.await;
        };
        let both = Box::pin(join(leads(0), leads(1)));
        select(both, Box::pin(world.sleep(ms(20_000)))).await;
        let order = order.borrow();
        turns.set(turns.get() + order.len());
        again.set(again.get() + order.windows(2).filter(|two| two[0] == two[1]).count());
    });
    // A chance and no promise: without the pause it is one in nine.
    assert!(
        again.get() * 10 < turns.get(),
        "{again:?} of {turns:?} led again at once"
    );
}

#[test]
fn observer_reports_leaders_after_token_reset() {
    simulate(async |world| {
        let (candidate, observer) = (world.client(), world.client());
        let election = election(&candidate, passive(1000));
        for _ in 0..5 {
            election.campaign().await.unwrap().resign().await.unwrap();
        }
        let first = election.campaign().await.unwrap();
        let mut leaders = observer.election("e").unwrap().observe().await.unwrap();
        assert_eq!(leaders.next().await.unwrap().unwrap().token, first.token());
        world.store.crash(Survives::Nothing);
        // It may be the first that is seen then, and not be told.
        let second = election.campaign().await.unwrap();
        assert!(second.token() < first.token());
        let told = Box::pin(async { leaders.next().await.unwrap().unwrap().token });
        let third = Box::pin(async {
            world.sleep(ms(500)).await;
            second.resign().await.unwrap();
            let third = election.campaign().await.unwrap();
            world.sleep(ms(500)).await;
            third.token()
        });
        let (told, third) = join(told, third).await;
        assert!(told < first.token() && told <= third, "{told:?}");
    });
}
