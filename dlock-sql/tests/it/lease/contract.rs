//! What every server has to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use dlock_core::spi::{
    Abandoned, Attempt, Converted, LeaseKey, Lock, Raised, Release, Released, RenewItem, RenewOutcome,
};
use dlock_core::{Change, Client, ErrorKind, LockName, Mode, Runtime, Token};

use futures::StreamExt as _;
use futures::future::{Either, select};

use super::site::{self, *};

async fn one_holds_it_and_is_recognised(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let (a, b) = (ask("x"), ask("x"));
    let first = granted(lock, &a).await;
    assert_eq!(first.expires_in, TTL);
    let again = granted(lock, &a).await;
    assert_eq!(again.token, first.token, "a retry");
    assert!(again.expires_in <= TTL && again.expires_in > TTL - ms(20_000));
    held(lock, &b).await;
    assert_eq!(
        lock.release(&b.key, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    held(lock, &b).await;
    assert_eq!(
        lock.release(&a.key, Release::Now).await.unwrap(),
        Released::Released
    );
    assert_eq!(
        lock.release(&a.key, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    let second = granted(lock, &b).await;
    assert!(second.token > first.token);
}

async fn waiters_are_admitted_in_order(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let a = ask("x");
    granted(lock, &a).await;
    let (late, early) = (
        join("x", Mode::Exclusive),
        join("x", Mode::Exclusive).with_priority(9),
    );
    queued(lock, &late).await;
    queued(lock, &early).await;
    held(lock, &ask("x")).await;
    assert_eq!(asked(lock, &early).await, None);
    lock.release(&a.key, Release::Now).await.unwrap();
    assert_eq!(asked(lock, &late).await, None);
    let first = asked(lock, &early).await.unwrap();
    assert_eq!(asked(lock, &early).await, Some(first), "asked again");
    lock.release(&early.key, Release::Now).await.unwrap();
    assert!(asked(lock, &late).await.unwrap() > first);
}

async fn readers_share_and_a_writer_waits_for_all(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let (a, b) = (join("x", Mode::READER), join("x", Mode::READER));
    granted(lock, &a).await;
    granted(lock, &b).await;
    let other = lock.attempt(&join("x", permits(3))).await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidInput, "{other}");
    let writer = join("x", Mode::Exclusive);
    queued(lock, &writer).await;
    let behind = join("x", Mode::READER);
    queued(lock, &behind).await;
    lock.release(&a.key, Release::Now).await.unwrap();
    assert_eq!(asked(lock, &writer).await, None);
    // A writer that withdraws lets in the reader behind it.
    let withdrawn = lock.abandon(std::slice::from_ref(&writer.key)).await.remove(0);
    assert_eq!(withdrawn.unwrap(), Abandoned::Withdrawn);
    assert!(asked(lock, &behind).await.is_some());
}

async fn permits_are_as_many_as_they_are(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let all: Vec<_> = (0..3).map(|_| join("x", permits(2))).collect();
    granted(lock, &all[0]).await;
    granted(lock, &all[1]).await;
    queued(lock, &all[2]).await;
    lock.release(&all[1].key, Release::Now).await.unwrap();
    assert!(asked(lock, &all[2]).await.is_some());
}

async fn what_is_abandoned_is_not_heard_when_it_comes_late(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let a = ask("x");
    let nothing = lock.abandon(std::slice::from_ref(&a.key)).await.remove(0);
    assert_eq!(nothing.unwrap(), Abandoned::Nothing);
    assert_eq!(lock.attempt(&a).await.unwrap_err().kind(), ErrorKind::Lost);
    let b = ask("x");
    let token = granted(lock, &b).await.token;
    let was = lock.abandon(std::slice::from_ref(&b.key)).await.remove(0);
    assert_eq!(was.unwrap(), Abandoned::WasGranted(token));
    assert_eq!(lock.attempt(&b).await.unwrap_err().kind(), ErrorKind::Lost);
    granted(lock, &ask("x")).await;
}

async fn a_lease_ends_by_itself(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let mut a = ask("x");
    a.ttl = ms(1_500);
    let first = granted(lock, &a).await;
    let waiter = join("x", Mode::Exclusive);
    queued(lock, &waiter).await;
    assert!(until_asked(lock, &waiter).await > first.token.unwrap());
    let gone = renew(lock, RenewItem::lease(a.key.clone(), TTL)).await;
    assert!(matches!(gone, RenewOutcome::Gone), "{gone:?}");
    assert_eq!(
        lock.release(&a.key, Release::Now).await.unwrap(),
        Released::NotHeld
    );
    assert!(matches!(
        renew(lock, RenewItem::lease(waiter.key.clone(), TTL)).await,
        RenewOutcome::Renewed(_)
    ));
}

async fn many_leases_are_renewed_at_once(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let mut items = Vec::new();
    for n in 0..700 {
        let mode = if n % 7 == 0 { Mode::READER } else { Mode::Exclusive };
        let a = ask(&format!("n{n}")).with_mode(mode);
        granted(lock, &a).await;
        items.push(RenewItem::lease(a.key, TTL));
    }
    items.push(RenewItem::lease(key("n3"), TTL));
    items.push(RenewItem::lease(key("nobody"), TTL));
    let outcomes = lock.renew().unwrap().renew(&items).await;
    assert_eq!(outcomes.len(), 702);
    for (n, outcome) in outcomes.iter().enumerate() {
        match n < 700 {
            true => assert!(
                matches!(outcome, RenewOutcome::Renewed(r) if r.expires_in > TTL - ms(10_000)),
                "{n}: {outcome:?}"
            ),
            false => assert!(matches!(outcome, RenewOutcome::Gone), "{n}: {outcome:?}"),
        }
    }
}

async fn a_mode_is_turned_into_another(lock: Arc<dyn Lock>) {
    let rw = lock.rwlock().unwrap();
    let a = ask("x");
    let first = granted(&*lock, &a).await;
    let Converted::Done(shared) = rw.convert(&a.key, Mode::READER).await.unwrap() else {
        panic!()
    };
    assert_eq!(shared.token, first.token);
    let b = join("x", Mode::READER);
    granted(&*lock, &b).await;
    assert_eq!(
        rw.convert(&a.key, Mode::Exclusive).await.unwrap(),
        Converted::Busy
    );
    assert_eq!(
        rw.convert(&b.key, Mode::Exclusive).await.unwrap(),
        Converted::WouldDeadlock
    );
    lock.release(&b.key, Release::Now).await.unwrap();
    let Converted::Done(alone) = rw.convert(&a.key, Mode::Exclusive).await.unwrap() else {
        panic!()
    };
    assert!(alone.token > first.token);
    held(&*lock, &ask("x").with_mode(Mode::READER)).await;
    let e = rw.convert(&b.key, Mode::Exclusive).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Lost);
}

async fn a_token_is_raised_while_it_is_held(lock: Arc<dyn Lock>) {
    let fencing = lock.fencing().unwrap();
    let a = ask("x");
    granted(&*lock, &a).await;
    let to = Token::new(1 << 60).unwrap();
    assert_eq!(fencing.raise(&a.key, to).await.unwrap(), Raised::Raised(to));
    lock.release(&a.key, Release::Now).await.unwrap();
    assert_eq!(fencing.raise(&a.key, to).await.unwrap(), Raised::NotHeld);
    assert!(granted(&*lock, &ask("x")).await.token > Some(to));
}

async fn a_minimum_hold_keeps_others_out(lock: Arc<dyn Lock>) {
    let lock = &*lock;
    let (a, b) = (ask("x"), join("x", Mode::Exclusive));
    granted(lock, &a).await;
    queued(lock, &b).await;
    lock.release(&a.key, Release::KeepFor(ms(1_500))).await.unwrap();
    assert_eq!(asked(lock, &b).await, None);
    until_asked(lock, &b).await;
}

async fn an_operator_sees_and_ends_it(lock: Arc<dyn Lock>) {
    let watch = lock.watch().unwrap();
    let name = LockName::new("x").unwrap();
    assert_eq!(watch.inspect(&name).await.unwrap().holders, []);
    let a = ask("x").with_owner("it's \"me\"; --".into());
    let token = granted(&*lock, &a).await.token;
    let b = join("x", Mode::Exclusive);
    queued(&*lock, &b).await;
    let seen = watch.inspect(&name).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting), (1, 1));
    let holder = &seen.holders[0];
    assert_eq!(
        (holder.id, holder.token, holder.mode),
        (a.key.id, token, Mode::Exclusive)
    );
    assert_eq!(holder.owner.as_deref(), Some("it's \"me\"; --"));
    assert_eq!(watch.force_release(&name).await.unwrap(), 1);
    assert!(asked(&*lock, &b).await > token);
}

/// Where a watcher is told of, or finds, each change.
async fn changes_are_told_one_by_one(lock: Arc<dyn Lock>) {
    let name = LockName::new("x").unwrap();
    let mut changes = lock.watch().unwrap().watch(&name).await.unwrap();
    let mut next = async || within(ms(10_000), changes.next()).await.unwrap().unwrap();
    assert!(matches!(next().await, Change::Snapshot { now, skipped: false } if now.holders.is_empty()));
    let mut a = ask("x");
    a.ttl = ms(1_500);
    let token = granted(&*lock, &a).await.token;
    assert!(matches!(next().await, Change::Granted(h) if h.token == token));
    let b = join("x", Mode::READER).with_owner("b".into());
    queued(&*lock, &b).await;
    // Nobody asks any more: the watch itself finds that it is over.
    assert_eq!(next().await, Change::Expired { id: a.key.id });
    let Change::Granted(h) = next().await else {
        panic!()
    };
    assert_eq!(
        (h.id, h.mode, h.owner.as_deref()),
        (b.key.id, Mode::READER, Some("b"))
    );
    lock.release(&b.key, Release::Now).await.unwrap();
    assert_eq!(next().await, Change::Released { id: b.key.id });
    lock.close().await.unwrap();
    within(ms(10_000), changes.next()).await.unwrap().unwrap_err();
}

async fn a_forced_end_is_told_or_a_snapshot_says_it_was_missed(lock: Arc<dyn Lock>) {
    let name = LockName::new("x").unwrap();
    let watch = lock.watch().unwrap();
    let a = ask("x");
    granted(&*lock, &a).await;
    let mut changes = watch.watch(&name).await.unwrap();
    let mut next = async || within(ms(10_000), changes.next()).await.unwrap().unwrap();
    assert!(matches!(next().await, Change::Snapshot { now, .. } if now.holders[0].id == a.key.id));
    assert_eq!(watch.force_release(&name).await.unwrap(), 1);
    match next().await {
        Change::Forced { id } => assert_eq!(id, a.key.id),
        Change::Snapshot { now, skipped: true } => assert_eq!(now.holders, []),
        other => panic!("{other:?}"),
    }
    // A lease that was renewed meanwhile did not run out when it would have.
    let mut b = ask("x");
    b.ttl = ms(1_000);
    granted(&*lock, &b).await;
    assert!(matches!(next().await, Change::Granted(_)));
    renew(&*lock, RenewItem::lease(b.key.clone(), TTL)).await;
    // Longer than it would have lived, and long enough for a poll to see the renewal.
    let quiet = select(Box::pin(next()), smol::Timer::after(ms(1_500))).await;
    let Either::Right((_, told)) = quiet else {
        panic!("told of a renewal")
    };
    lock.release(&b.key, Release::Now).await.unwrap();
    assert_eq!(told.await, Change::Released { id: b.key.id });
}

async fn a_gate_decides_as_the_rule_does(lock: Arc<dyn Lock>) {
    crate::direct::gate::decides_as_the_rule_does(lock.fencing().unwrap().gate().unwrap()).await;
}

async fn two_hundred_wait_and_one_is_in(lock: Arc<dyn Lock>, runtime: Arc<dyn Runtime>) {
    let client = Client::builder(lock, runtime).build().unwrap();
    let inside = AtomicU32::new(0);
    let all = (0..200).map(|_| async {
        let guard = client.lock("x").unwrap().acquire().await.unwrap();
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        smol::future::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        guard.release().await.unwrap();
    });
    futures::future::join_all(all).await;
    client.close().await.unwrap();
}

/// As the arm of a `select!` whose other arm takes its time.
async fn an_unpolled_request_keeps_no_connection(lock: Arc<dyn Lock>) {
    let asks: Vec<_> = (0..8).map(|n| ask(&format!("resting/{n}"))).collect();
    let mut resting = Vec::new();
    for a in &asks {
        let mut one = lock.attempt(a);
        // It may be done already, by another thread.
        match futures::poll!(&mut one) {
            Poll::Pending => resting.push(one),
            Poll::Ready(answer) => assert!(matches!(answer.unwrap(), Attempt::Granted(_))),
        }
    }
    within(TTL / 2, granted(&*lock, &ask("another"))).await;
    for one in resting {
        assert!(matches!(one.await.unwrap(), Attempt::Granted(_)));
    }
}

async fn a_closed_one_says_so(lock: Arc<dyn Lock>) {
    lock.close().await.unwrap();
    let a = ask("x");
    assert_eq!(lock.attempt(&a).await.unwrap_err().kind(), ErrorKind::Closed);
    let key: &LeaseKey = &a.key;
    assert_eq!(
        lock.release(key, Release::Now).await.unwrap_err().kind(),
        ErrorKind::Closed
    );
}

macro_rules! contract {
    (tells: $open:path) => {
        contract!($open);

        #[test]
        fn changes_are_told_one_by_one() {
            for on in [site::On::Tokio, site::On::Smol] {
                site::run(on, async |runtime| super::changes_are_told_one_by_one(open(runtime).await).await);
            }
        }

        #[test]
        fn a_forced_end_is_told_or_a_snapshot_says_it_was_missed() {
            site::run(site::On::Tokio, async |runtime| {
                let lock = open(runtime).await;
                super::a_forced_end_is_told_or_a_snapshot_says_it_was_missed(lock).await;
            });
        }
    };
    ($on:expr, $open:path: $($test:ident),+ $(,)?) => {
        $(
            #[test]
            fn $test() {
                run($on, async |runtime| crate::lease::contract::$test($open(runtime).await).await);
            }
        )+

        #[test]
        fn two_hundred_wait_and_one_is_in() {
            run($on, async |runtime| {
                let lock = $open(runtime.clone()).await;
                crate::lease::contract::two_hundred_wait_and_one_is_in(lock, runtime).await;
            });
        }
    };
    ($on:expr, $open:path) => {
        use crate::lease::site::{On, run};

        contract!($on, $open:
            one_holds_it_and_is_recognised,
            waiters_are_admitted_in_order,
            readers_share_and_a_writer_waits_for_all,
            permits_are_as_many_as_they_are,
            what_is_abandoned_is_not_heard_when_it_comes_late,
            a_lease_ends_by_itself,
            many_leases_are_renewed_at_once,
            a_mode_is_turned_into_another,
            a_token_is_raised_while_it_is_held,
            a_minimum_hold_keeps_others_out,
            an_operator_sees_and_ends_it,
            a_gate_decides_as_the_rule_does,
            an_unpolled_request_keeps_no_connection,
            a_closed_one_says_so,
        );
    };
    ($open:path) => {
        mod on_tokio {
            contract!(On::Tokio, $open);
        }
        mod on_smol {
            contract!(On::Smol, $open);
        }
    };
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;

    async fn open(runtime: Arc<dyn Runtime>) -> Arc<dyn Lock> {
        use dlock_sql::lease::Config;
        let config = Config::from_postgres_options(postgres().await).connections(2);
        config.connect(runtime).await.unwrap()
    }

    contract!(tells: super::open);
}

/// As behind a pooler, though there is none: in full, and looking.
#[cfg(feature = "postgres")]
mod postgres_in_full {
    use super::*;

    async fn open(runtime: Arc<dyn Runtime>) -> Arc<dyn Lock> {
        use dlock_sql::lease::Config;
        let config = Config::from_postgres_options(postgres().await).behind_pooler();
        config.schema("its own").connect(runtime).await.unwrap()
    }

    contract!(super::open);
}

#[cfg(feature = "mysql")]
mod mysql {
    use super::*;

    async fn open(runtime: Arc<dyn Runtime>) -> Arc<dyn Lock> {
        use dlock_sql::lease::Config;
        let config = Config::from_mysql_options(mysql().await).connections(2);
        config.connect(runtime).await.unwrap()
    }

    contract!(tells: super::open);
}
