//! Interleavings that once broke a promise, each played out on purpose.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::memory::Config;
use dlock_core::sim::{FaultPlan, Link, Partition, Sim, SimRuntime};
use dlock_core::spi::{self, Abandoned, Acquire, Attempt, LeaseKey, Release, Released, Signal};
use dlock_core::{
    AutoRenew, Capabilities, Client, ErrorKind, GuardEvent, LockOptions, LossReason, Memory, Result, Runtime,
    Upgrade,
};
use futures::future::join;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt};

use crate::twisted::Twisted;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client behind a network, and one that is at the store.
struct Remote {
    sim: Sim,
    node: SimRuntime,
    store: Memory,
    link: Arc<Link>,
    client: Client,
    local: Client,
}

impl Remote {
    fn new(seed: u64, plan: FaultPlan) -> Self {
        let sim = Sim::new(seed);
        let node = sim.client_runtime_with("client", ms(0), 0);
        let server = sim.client_runtime_with("server", ms(0), 0);
        let store = Memory::new(Arc::new(server.clone()));
        let link = Link::new(store.connect(), &node, &server, plan);
        let client = Client::builder(link.clone(), Arc::new(node.clone()))
            .build()
            .unwrap();
        let local = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        Self {
            sim,
            node,
            store,
            link,
            client,
            local,
        }
    }
}

/// A store that rolls nothing back: the refusal says nothing of what was done before it.
#[test]
fn refusal_after_a_grant_is_given_back() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let backend = Twisted::new(&store, sim.runtime());
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        let other = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            backend.refuse_next_grant.store(true, Ordering::SeqCst);
            let e = client.lock("a").unwrap().try_acquire().await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::PermissionDenied);
            assert!(other.lock("a").unwrap().try_acquire().await.unwrap().is_some());
        });
    }
}

/// Of several leases one cannot be renewed, to its end. The others are not asked for with it when it has
/// hardly any time left: a question that is given up then tells of none of them.
#[test]
fn unrenewable_lease_blocks_no_other_renewal() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let backend = Twisted::new(&store, sim.runtime());
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            let ttl = LockOptions::new().ttl(Duration::from_secs(8));
            let held = async |name| {
                let lock = client.lock(name).unwrap().options(ttl.clone()).unwrap();
                lock.acquire().await.unwrap()
            };
            let (sick, well) = (held("sick").await, held("well").await);
            *backend.away.lock().unwrap() = Some(("sick", Duration::from_secs(1)));
            let mut told = well.events();
            let ends = sick.lost();
            assert_eq!(ends.await, LossReason::Expired);
            assert!(well.is_valid());
            let mut renewed = 0;
            while let Some(Some(event)) = told.next().now_or_never() {
                assert!(
                    !matches!(event, GuardEvent::RenewalFailed(_)),
                    "seed {seed}: {event:?}"
                );
                renewed += u32::from(matches!(event, GuardEvent::Renewed));
            }
            assert!(renewed >= 2, "seed {seed}: {renewed}");
        });
    }
}

#[test]
fn a_wait_that_ends_with_an_error_withdraws_from_the_queue() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let backend = Twisted::new(&store, sim.runtime());
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        let holder = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            let guard = holder.lock("a").unwrap().acquire().await.unwrap();
            backend.deny_renewals.store(true, Ordering::SeqCst);
            let lock = client.lock("a").unwrap();
            assert_eq!(
                lock.acquire().await.unwrap_err().kind(),
                ErrorKind::PermissionDenied
            );
            sim.runtime().sleep(ms(50)).await;
            assert_eq!(store.sizes().queued, 0);
            guard.release().await.unwrap();
        });
    }
}

#[test]
fn closing_waits_for_a_release_that_is_on_its_way() {
    for seed in 0..20 {
        let w = Remote::new(seed, FaultPlan::healthy());
        w.sim.block_on(async {
            let guard = w.client.lock("a").unwrap().acquire().await.unwrap();
            // It is lost on its way, so somebody has to send it again.
            w.link.partition(Partition::Requests);
            let mut releasing = Box::pin(guard.release());
            assert!(futures::poll!(releasing.as_mut()).is_pending());
            w.sim.runtime().sleep(ms(10)).await;
            w.link.heal();
            let (released, closed) = join(releasing, w.client.close()).await;
            closed.unwrap();
            // It was sent, and its answer is not known to the caller.
            assert!(matches!(released, Ok(()) | Err(_)));
            if let Err(e) = released {
                assert_eq!(e.kind(), ErrorKind::Unknown);
            }
            assert!(w.local.lock("a").unwrap().try_acquire().await.unwrap().is_some());
        });
    }
}

/// The keeper is awake for another reason at the very moment at which closing begins.
#[cfg(feature = "tokio")]
#[test]
fn closing_releases_what_is_held_whatever_the_keeper_was_doing() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let runtime = dlock_core::runtime::Tokio::from_handle(tokio.handle().clone()).unwrap();
    let store = Memory::new(runtime.clone());
    for round in 0..3_000_u64 {
        let client = Client::builder(store.connect(), runtime.clone()).build().unwrap();
        let other = Client::builder(store.connect(), runtime.clone()).build().unwrap();
        tokio.block_on(async {
            let held = client.lock("held").unwrap().acquire().await.unwrap();
            let dropped = client.lock("dropped").unwrap().acquire().await.unwrap();
            let elsewhere = std::thread::spawn(move || drop(dropped));
            for _ in 0..round * 37 % 3_001 {
                std::hint::spin_loop();
            }
            client.close().await.unwrap();
            elsewhere.join().unwrap();
            assert!(!held.is_valid());
            let now = other.lock("held").unwrap().try_acquire().await.unwrap();
            assert!(now.is_some(), "round {round}: it was closed, and holds the lock");
            other.close().await.unwrap();
        });
    }
}

#[test]
fn the_keeper_ends_a_release_of_unknown_outcome_and_events_tell() {
    for seed in 0..20 {
        let w = Remote::new(seed, FaultPlan::healthy());
        w.sim.block_on(async {
            let guard = w.client.lock("a").unwrap().acquire().await.unwrap();
            let (held, mut events) = (guard.held(), guard.events());
            w.link.partition(Partition::Replies);
            assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unknown);
            assert!(!held.is_valid());
            assert!(
                events.next().now_or_never().is_none(),
                "seed {seed}: it is not known yet"
            );
            w.link.heal();
            w.sim.runtime().sleep(Duration::from_secs(5)).await;
            assert!(
                matches!(events.next().await, Some(GuardEvent::Released)),
                "seed {seed}"
            );
            assert_eq!(held.loss(), None);
        });
    }
}

#[test]
fn a_release_that_the_store_does_not_know_is_a_refusal() {
    let w = Remote::new(1, FaultPlan::healthy());
    w.sim.block_on(async {
        let guard = w.client.lock("a").unwrap().acquire().await.unwrap();
        w.local.force_release("a").await.unwrap();
        let held = guard.held();
        let e = guard.release().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Lost);
        assert_eq!(held.loss(), Some(LossReason::Refused));
    });
}

#[test]
fn conversion_takes_effect_at_once() {
    for seed in 0..20 {
        let w = Remote::new(seed, FaultPlan::healthy());
        w.sim.block_on(async {
            let guard = w.client.rwlock("a").unwrap().write().acquire().await.unwrap();
            w.local.force_release("a").await.unwrap();
            assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
            assert!(!guard.is_valid());
            assert_eq!(guard.loss(), Some(LossReason::Refused));
        });
    }
}

#[test]
fn one_renewal_that_hangs_costs_no_lock() {
    // A driver without a time limit of its own: a call whose reply is lost never returns.
    let mut plan = FaultPlan::healthy();
    plan.hang = 1.0;
    let w = Remote::new(3, plan);
    w.sim.block_on(async {
        let options = LockOptions::new().ttl(Duration::from_secs(3));
        let lock = w.client.lock("a").unwrap().options(options).unwrap();
        let guard = lock.acquire().await.unwrap();
        w.sim.runtime().sleep(ms(900)).await;
        w.link.partition(Partition::Both);
        w.sim.runtime().sleep(ms(400)).await;
        w.link.heal();
        w.sim.runtime().sleep(Duration::from_secs(20)).await;
        assert!(guard.is_valid(), "{:?}", guard.loss());
    });
}

/// A grant that is provisional lives for a moment: the first try to confirm it must not take the time of a
/// lease.
#[test]
fn a_confirmation_that_hangs_costs_no_grant() {
    let mut plan = FaultPlan::healthy();
    plan.hang = 1.0;
    let sim = Sim::new(3);
    let node = sim.client_runtime_with("client", ms(0), 0);
    let server = sim.client_runtime_with("server", ms(0), 0);
    let config = Config::new().claim_window(Some(ms(600)));
    let store = config.connect(Arc::new(server.clone()));
    let link = Link::new(store.connect(), &node, &server, plan);
    let client = Client::builder(link.clone(), Arc::new(node.clone()))
        .build()
        .unwrap();
    let holder = Client::builder(store.connect(), sim.runtime()).build().unwrap();
    sim.block_on(async {
        let held = holder.lock("a").unwrap().acquire().await.unwrap();
        let lock = client.lock("a").unwrap();
        let release = async {
            sim.runtime().sleep(ms(200)).await;
            held.release().await.unwrap();
        };
        let (guard, ()) = join(lock.acquire(), release).await;
        let guard = guard.unwrap();
        link.partition(Partition::Both);
        sim.runtime().sleep(ms(350)).await;
        link.heal();
        sim.runtime().sleep(Duration::from_secs(5)).await;
        assert!(guard.is_valid(), "{:?}", guard.loss());
    });
}

#[test]
fn a_body_takes_no_step_after_its_lock_is_gone() {
    for seed in 0..20 {
        let w = Remote::new(seed, FaultPlan::healthy());
        let steps = Arc::new(AtomicU32::new(0));
        let (node, counted) = (w.node.clone(), steps.clone());
        w.sim.block_on(async {
            let options = LockOptions::new().ttl(ms(500)).auto_renew(AutoRenew::Off);
            let lock = w.client.lock("a").unwrap().options(options).unwrap();
            let body = lock.with(|_| async move {
                for _ in 0..100 {
                    node.sleep(ms(100)).await;
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
            let stall = async {
                w.sim.runtime().sleep(ms(250)).await;
                // Nobody runs, time passes: afterwards the body's timer and the loss are due at once.
                w.node.world().stall(Duration::from_secs(2));
            };
            let (ended, ()) = join(body, stall).await;
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Lost);
        });
        assert_eq!(steps.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn pending_release_events_end_with_the_client() {
    let w = Remote::new(5, FaultPlan::healthy());
    w.sim.block_on(async {
        let guard = w.client.lock("a").unwrap().acquire().await.unwrap();
        let mut events = guard.events();
        w.link.partition(Partition::Both);
        drop(guard);
        // The store is away for good; closing gives up after the time limit of an operation.
        w.client.close().await.unwrap();
        let last = async {
            let mut last = None;
            while let Some(event) = events.next().await {
                last = Some(event);
            }
            last
        };
        assert!(matches!(last.await, Some(GuardEvent::Lost(LossReason::Closed))));
    });
    assert_eq!(w.store.sizes().queued, 0);
}

#[test]
fn a_re_entry_gets_no_more_than_is_held() {
    let sim = Sim::new(1);
    let store = Memory::new(sim.runtime());
    let client = Client::builder(store.connect(), sim.runtime()).build().unwrap();
    sim.block_on(async {
        let owner = client.owner();
        let rw = client.rwlock("a").unwrap();
        let write = rw.write().clone().reentrant(&owner).unwrap();
        let outer = write.acquire().await.unwrap();
        let inner = write.acquire().await.unwrap();
        // The inner one counts on it.
        assert_eq!(
            outer.downgrade().await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        assert!(outer.mode().is_exclusive() && inner.mode().is_exclusive());
        drop(inner);
        outer.downgrade().await.unwrap();
        assert_eq!(write.acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(outer.try_upgrade().await.unwrap(), Upgrade::Done);
        write.acquire().await.unwrap();
    });
}

/// A wait limit counts from the call, however long the first answer takes.
#[test]
fn a_wait_limit_counts_from_the_call() {
    let mut plan = FaultPlan::healthy();
    plan.delay = ms(100)..ms(120);
    let w = Remote::new(1, plan);
    w.sim.block_on(async {
        let _held = w.local.lock("a").unwrap().acquire().await.unwrap();
        let began = w.sim.runtime().now();
        let lock = w.client.lock("a").unwrap();
        assert_eq!(
            lock.acquire_timeout(ms(300)).await.unwrap_err().kind(),
            ErrorKind::Timeout
        );
        // And the withdrawal, there and back.
        let took = w.sim.runtime().now().since(began);
        assert!(took >= ms(300) && took < ms(300) + ms(250), "{took:?}");
    });
}

/// Pushes are down and commands are up: the store is not asked in a loop.
#[test]
fn a_store_whose_pushes_end_at_once_is_asked_with_pauses() {
    struct NoPushes(Arc<dyn spi::Lock>, AtomicU32);

    #[async_trait]
    impl spi::Lock for NoPushes {
        fn capabilities(&self) -> &Capabilities {
            self.0.capabilities()
        }
        fn renew(&self) -> Option<&dyn spi::Renew> {
            self.0.renew()
        }

        fn rwlock(&self) -> Option<&dyn spi::RwLock> {
            self.0.rwlock()
        }

        fn fencing(&self) -> Option<&dyn spi::Fencing> {
            self.0.fencing()
        }

        fn watch(&self) -> Option<&dyn spi::Watch> {
            self.0.watch()
        }
        fn signals(&self) -> BoxStream<'static, Signal> {
            self.0.signals()
        }
        async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
            self.1.fetch_add(1, Ordering::SeqCst);
            let mut answer = self.0.attempt(request).await?;
            if let Attempt::Queued(wait) = &mut answer {
                wait.wake = spi::Wake::Push(futures::stream::empty().boxed());
            }
            Ok(answer)
        }
        async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
            self.0.release(lease, how).await
        }
        async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
            self.0.abandon(requests).await
        }
        async fn close(&self) -> Result<()> {
            self.0.close().await
        }
    }

    let sim = Sim::new(1);
    let store = Memory::new(sim.runtime());
    let backend = Arc::new(NoPushes(store.connect(), AtomicU32::new(0)));
    let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
    let holder = Client::builder(store.connect(), sim.runtime()).build().unwrap();
    sim.block_on(async {
        let held = holder.lock("a").unwrap().acquire().await.unwrap();
        let lock = client.lock("a").unwrap();
        let mut waiting = Box::pin(lock.acquire());
        assert!(poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await);
        let release = async {
            sim.runtime().sleep(Duration::from_secs(10)).await;
            held.release().await.unwrap();
        };
        let (guard, ()) = join(waiting, release).await;
        assert!(guard.unwrap().is_valid());
        let asked = backend.1.load(Ordering::SeqCst);
        assert!(asked < 60, "asked {asked} times in ten seconds");
    });
}

/// The deadline has passed, and nothing has had the time to notice: the next call does.
#[test]
fn guard_answers_by_the_clock() {
    for seed in 0..20 {
        let w = Remote::new(seed, FaultPlan::healthy());
        w.sim.block_on(async {
            let owner = w.client.owner();
            let passive = LockOptions::new().ttl(ms(500)).auto_renew(AutoRenew::Off);
            let lock = w.client.lock("a").unwrap().options(passive.clone()).unwrap();
            let lock = lock.reentrant(&owner).unwrap();
            let (_outer, inner) = (lock.acquire().await.unwrap(), lock.acquire().await.unwrap());
            let other = w.client.rwlock("b").unwrap();
            let reader = other.read().clone().options(passive.clone()).unwrap();
            let reader = reader.acquire().await.unwrap();
            let writer = w.client.rwlock("c").unwrap();
            let writer = writer.write().clone().options(passive).unwrap();
            let writer = writer.acquire().await.unwrap();
            w.node.world().stall(Duration::from_secs(2));
            let answers = [
                inner.release().now_or_never().unwrap(),
                reader.downgrade().now_or_never().unwrap(),
                writer.try_upgrade().now_or_never().unwrap().map(|_| ()),
            ];
            for (n, answer) in answers.into_iter().enumerate() {
                let e = answer.unwrap_err();
                assert_eq!(
                    (e.kind(), e.loss_reason()),
                    (ErrorKind::Lost, Some(LossReason::Expired)),
                    "{n}"
                );
            }
        });
    }
}

/// A part of the store hangs, and many guards of what is there were dropped. Those of what is elsewhere need
/// not wait for them.
#[test]
fn hanging_releases_delay_no_others() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let store = Memory::new(sim.runtime());
        let backend = Twisted::new(&store, sim.runtime());
        let client = Client::builder(backend.clone(), sim.runtime()).build().unwrap();
        let other = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            *backend.silent.lock().unwrap() = Some("sick");
            for n in 0..300 {
                drop(client.lock(format!("sick{n}")).unwrap().acquire().await.unwrap());
            }
            drop(client.lock("well").unwrap().acquire().await.unwrap());
            sim.runtime().sleep(ms(600)).await;
            assert!(other.lock("well").unwrap().try_acquire().await.unwrap().is_some());
        });
    }
}

/// The time limit of an operation is shorter than it takes to find out that a part of the store is away.
#[test]
fn a_short_time_limit_of_operations_costs_no_renewal() {
    let sim = Sim::new(1);
    let store = Memory::new(sim.runtime());
    let backend = Twisted::new(&store, sim.runtime());
    let client = Client::builder(backend.clone(), sim.runtime())
        .op_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    sim.block_on(async {
        let mut guards = Vec::new();
        for n in 0..20 {
            let lock = client.lock(format!("name{n}")).unwrap();
            guards.push(lock.acquire().await.unwrap());
        }
        // An eighth of the ttl, which is 30 seconds.
        *backend.away.lock().unwrap() = Some(("name7", ms(3_750)));
        sim.runtime().sleep(Duration::from_secs(90)).await;
        for (n, guard) in guards.iter().enumerate() {
            assert_eq!(guard.is_valid(), n != 7, "{}", guard.name());
        }
    });
}

/// The process stands still just when its turn comes, and for longer than the turn lasts. It has waited long;
/// nothing is wrong with the store.
#[test]
fn grant_slept_through_does_not_end_the_wait() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let node = sim.client_runtime_with("client", ms(0), 0);
        let store = Config::new().claim_window(Some(ms(300))).connect(sim.runtime());
        let link = Link::new(
            store.connect(),
            &node,
            &sim.client_runtime("server"),
            FaultPlan::healthy(),
        );
        let client = Client::builder(link, Arc::new(node.clone())).build().unwrap();
        let holder = Client::builder(store.connect(), sim.runtime()).build().unwrap();
        sim.block_on(async {
            let held = holder.lock("a").unwrap().acquire().await.unwrap();
            let lock = client.lock("a").unwrap();
            let turn = async {
                sim.runtime().sleep(Duration::from_secs(30)).await;
                held.release().await.unwrap();
                node.world().stall(ms(2_000));
            };
            let (guard, ()) = join(lock.acquire(), turn).await;
            assert!(guard.unwrap().is_valid(), "seed {seed}");
        });
    }
}

/// Two guards of one owner let go at the same moment: neither has lost anything.
#[cfg(feature = "tokio")]
#[test]
fn guards_of_one_owner_are_released_concurrently() {
    let runtime = dlock_core::runtime::own_thread().unwrap();
    let store = Memory::new(runtime.clone());
    let client = Client::builder(store.connect(), runtime).build().unwrap();
    let owner = client.owner();
    let lock = client.lock("a").unwrap().reentrant(&owner).unwrap();
    for round in 0..3_000 {
        let guards = [(); 2].map(|()| futures::executor::block_on(lock.acquire()).unwrap());
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            for guard in guards {
                let together = &together;
                threads.spawn(move || {
                    together.wait();
                    let released = futures::executor::block_on(guard.release());
                    assert!(released.is_ok(), "round {round}: {released:?}");
                });
            }
        });
    }
}
