use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;

use super::{Sim, SimRuntime};
use crate::runtime::Runtime;

const MS: Duration = Duration::from_millis(1);

/// Ten tasks that sleep and write down their turn: the order is the schedule.
fn schedule(seed: u64) -> (Vec<u32>, u64) {
    let sim = Sim::new(seed);
    let order = Arc::new(Mutex::new(Vec::new()));
    let runtime = sim.runtime();
    for n in 0..10 {
        let (order, rt) = (order.clone(), runtime.clone());
        runtime.spawn(
            async move {
                rt.sleep(MS).await;
                order.lock().unwrap().push(n);
            }
            .boxed(),
        );
    }
    sim.block_on(runtime.sleep(2 * MS));
    let order = order.lock().unwrap().clone();
    (order, sim.event_hash())
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let (order, hash) = schedule(seed);
        assert_eq!((order.clone(), hash), schedule(seed));
        assert_eq!(order.len(), 10);
        orders.insert(order);
    }
    assert!(orders.len() > 40, "only {} schedules from 50 seeds", orders.len());
}

#[test]
#[should_panic(expected = "seed 0x2a: nothing can happen any more")]
fn a_deadlock_is_reported_with_its_seed() {
    Sim::new(42).block_on(pending::<()>());
}

#[test]
#[should_panic(expected = "limit of polls")]
fn a_task_that_spins_is_reported() {
    let sim = Sim::new(1).with_limits(1_000, Duration::MAX);
    sim.block_on(std::future::poll_fn::<(), _>(|cx| {
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }));
}

#[test]
#[should_panic(expected = "limit of virtual time")]
fn a_run_that_never_ends_is_reported() {
    let sim = Sim::new(1).with_limits(u64::MAX, Duration::from_secs(60));
    let rt = sim.runtime();
    sim.block_on(async {
        loop {
            rt.sleep(Duration::from_secs(1)).await;
        }
    });
}

#[test]
fn a_stopped_node_does_nothing_while_its_clock_goes_on() {
    let sim = Sim::new(3);
    let node = sim.client_runtime("a");
    let ticks = Arc::new(AtomicU32::new(0));
    let (counter, rt) = (ticks.clone(), node.clone());
    node.spawn(
        async move {
            loop {
                rt.sleep(MS).await;
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        .boxed(),
    );
    let base = sim.runtime();
    sim.block_on(base.sleep(10 * MS + MS / 2));
    assert_eq!(ticks.load(Ordering::Relaxed), 10);
    node.pause();
    let before = node.now();
    sim.block_on(base.sleep(10 * MS));
    assert_eq!(ticks.load(Ordering::Relaxed), 10);
    assert_eq!(node.now().since(before), 10 * MS);
    node.resume();
    sim.block_on(base.sleep(MS / 10));
    assert_eq!(
        ticks.load(Ordering::Relaxed),
        11,
        "the timer that was due fires at once"
    );
}

#[test]
fn a_timer_of_a_stopped_node_does_not_fire_for_others_either() {
    let sim = Sim::new(3);
    let node = sim.client_runtime("a");
    let base = sim.runtime();
    let mut sleep = node.sleep(MS);
    node.pause();
    sim.block_on(async {
        let mut long = base.sleep(5 * MS);
        futures::select_biased! {
            () = (&mut sleep).fuse() => panic!("fired while stopped"),
            () = (&mut long).fuse() => {}
        }
        node.resume();
        sleep.await;
    });
}

#[test]
fn clocks_drift_apart_and_no_timer_fires_early_on_its_own_clock() {
    let sim = Sim::new(3);
    let clocks: [SimRuntime; 3] = [(7, -5_000), (0, 0), (123_456, 9_999)]
        .map(|(offset, ppm)| sim.client_runtime_with("c", Duration::from_nanos(offset), ppm));
    for clock in &clocks {
        for nanos in [1, 3, 999_999, 1_000_000_007] {
            let (local, real) = (clock.now(), sim.now());
            sim.block_on(clock.sleep(Duration::from_nanos(nanos)));
            let slept = clock.now().since(local).as_nanos() as u64;
            assert!((nanos..=nanos + 1).contains(&slept), "{slept} for {nanos}");
            let real = sim.now().since(real).as_nanos() as f64;
            let expected = nanos as f64 / (1.0 + f64::from(clock.drift_ppm()) / 1e6);
            assert!((real - expected).abs() <= 2.0, "{real} {expected}");
        }
    }
}

#[test]
fn a_stall_passes_time_without_running_anybody() {
    let sim = Sim::new(3);
    let rt = sim.runtime();
    let (tx, mut rx) = oneshot::channel();
    let sleeper = rt.clone();
    rt.spawn(
        async move {
            sleeper.sleep(MS).await;
            let _ = tx.send(sleeper.now());
        }
        .boxed(),
    );
    let start = rt.now();
    sim.block_on(rt.sleep(MS / 2));
    sim.stall(50 * MS);
    assert!(rx.try_recv().unwrap().is_none());
    let fired = sim.block_on(rx).unwrap();
    assert_eq!(fired.since(start), 50 * MS + MS / 2);
}

#[test]
fn waking_and_spawning_work_from_another_thread() {
    let sim = Sim::new(3);
    let rt = sim.runtime();
    let (tx, rx) = oneshot::channel();
    let elsewhere = rt.clone();
    std::thread::spawn(move || {
        elsewhere.spawn(
            async move {
                let _ = tx.send(5);
            }
            .boxed(),
        );
    })
    .join()
    .unwrap();
    assert_eq!(sim.block_on(rx), Ok(5));
    assert_eq!(sim.tasks_alive(), 0);
}

#[test]
fn the_tasks_end_with_the_world() {
    struct Flag(Arc<AtomicU32>, Arc<dyn Runtime>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            // Too late to run; must neither panic nor leak.
            self.1.spawn(async {}.boxed());
        }
    }
    let dropped = Arc::new(AtomicU32::new(0));
    let sim = Sim::new(3);
    let world = Arc::downgrade(sim.world());
    let rt = sim.runtime();
    let flag = Flag(dropped.clone(), rt.clone());
    rt.spawn(
        async move {
            let _flag = flag;
            pending::<()>().await;
        }
        .boxed(),
    );
    sim.block_on(rt.sleep(MS));
    drop((sim, rt));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    assert!(world.upgrade().is_none(), "the world leaked");
}

#[test]
fn killed_node_does_nothing() {
    let sim = Sim::new(3);
    let rt = sim.runtime();
    let node = sim.client_runtime("victim");
    let done = Arc::new(AtomicU32::new(0));
    struct Last(Arc<AtomicU32>, SimRuntime);
    impl Drop for Last {
        fn drop(&mut self) {
            let done = self.0.clone();
            self.1.spawn(
                async move {
                    let _ = done.fetch_add(1, Ordering::Relaxed);
                }
                .boxed(),
            );
        }
    }
    let (last, sleeper) = (Last(done.clone(), node.clone()), node.clone());
    node.spawn(
        async move {
            sleeper.sleep(MS).await;
            last.0.fetch_add(1, Ordering::Relaxed);
        }
        .boxed(),
    );
    sim.block_on(rt.sleep(MS / 2));
    // Stopped or not.
    node.pause();
    node.kill();
    assert_eq!(node.tasks_alive(), 0);
    let late = done.clone();
    node.spawn(
        async move {
            let _ = late.fetch_add(1, Ordering::Relaxed);
        }
        .boxed(),
    );
    node.resume();
    sim.block_on(rt.sleep(10 * MS));
    assert_eq!(done.load(Ordering::Relaxed), 0);
}
