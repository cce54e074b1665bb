use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};

use super::*;
use crate::Mode;
use crate::capabilities::Capability;
use crate::error::{ErrorKind, Result};
use crate::gate::{Access, FenceGate};
use crate::inspection::Change;
use crate::name::LockName;
use crate::request_id::RequestId;
use crate::runtime::Runtime;
use crate::spi::{
    Abandoned, Acquire, Attempt, LeaseKey, Lock, News, Push, Queueing, Release, RenewItem, RenewOutcome,
    Signal, Wait, Wake as WakeUp,
};
use crate::timestamp::Timestamp;
use crate::token::{Strength, Token};

/// A clock that stands still until it is moved, with sleeps that end as it moves.
#[derive(Debug)]
struct Hand {
    now: Mutex<Timestamp>,
    sleeps: Mutex<Vec<(Timestamp, oneshot::Sender<()>)>>,
}

impl Hand {
    fn new(nanos: u64) -> Arc<Self> {
        Arc::new(Self {
            now: Mutex::new(Timestamp::from_nanos(nanos)),
            sleeps: Mutex::default(),
        })
    }

    fn advance(&self, d: Duration) {
        let now = *self.now.lock().unwrap() + d;
        *self.now.lock().unwrap() = now;
        self.sleeps.lock().unwrap().retain(|(at, _)| *at > now);
    }
}

impl Runtime for Hand {
    fn spawn(&self, _: BoxFuture<'static, ()>) {
        panic!("the memory backend spawns nothing")
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (sender, receiver) = oneshot::channel();
        self.sleeps.lock().unwrap().push((self.now() + duration, sender));
        receiver.map(|_| ()).boxed()
    }
    fn now(&self) -> Timestamp {
        *self.now.lock().unwrap()
    }
    fn fill_random(&self, buffer: &mut [u8]) {
        buffer.fill(7);
    }
    fn name(&self) -> &'static str {
        "hand"
    }
}

const TTL: Duration = Duration::from_secs(1);

fn name() -> LockName {
    LockName::new("a").unwrap()
}

fn request(n: u64) -> Acquire {
    Acquire::new(LeaseKey::new(name(), RequestId::new(1, n)), TTL).with_queue(Duration::from_secs(60))
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the memory backend never waits")
}

fn queued(lock: &MemoryLock, n: u64) -> BoxStream<'static, Push> {
    match ready(lock.attempt(&request(n))) {
        Ok(Attempt::Queued(Wait {
            wake: WakeUp::Push(pushes),
            ..
        })) => pushes,
        other => panic!("{other:?}"),
    }
}

fn next(stream: &mut BoxStream<'static, Result<Change>>) -> Option<Option<Result<Change>>> {
    stream.next().now_or_never()
}

#[test]
fn a_pushed_hand_off_has_a_deadline_on_the_waiters_own_clock() {
    let (server, client) = (Hand::new(5_000_000_000), Hand::new(900_000_000_000));
    let store = Memory::new(server.clone());
    let (holder, waiter) = (store.lock(), store.lock_on(client.clone()));
    assert!(matches!(
        ready(holder.attempt(&request(1))),
        Ok(Attempt::Granted(_))
    ));
    let mut pushes = queued(&waiter, 2);
    assert!(pushes.next().now_or_never().is_none());
    server.advance(TTL / 2);
    client.advance(TTL / 2);
    ready(holder.release(&request(1).key, Release::Now)).unwrap();
    let Some(Some(Push::Granted(grant))) = pushes.next().now_or_never() else {
        panic!()
    };
    assert_eq!(grant.counted_from + grant.expires_in, client.now() + TTL);
    assert_eq!(grant.key, request(2).key);
    assert_eq!(store.sizes().listeners, 0);
}

#[test]
fn a_watcher_is_told_of_an_expiry_in_time_and_leaves_no_trace() {
    let hand = Hand::new(1);
    let store = Memory::new(hand.clone());
    let lock = store.lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut changes = ready(lock.watch().unwrap().watch(&name())).unwrap();
    let first = next(&mut changes);
    assert!(
        matches!(first, Some(Some(Ok(Change::Snapshot { now, skipped: false }))) if now.holders.len() == 1)
    );
    let mut pushes = queued(&lock, 2);
    assert!(next(&mut changes).is_none());
    hand.advance(TTL);
    assert!(matches!(next(&mut changes), Some(Some(Ok(Change::Expired { id }))) if id == request(1).key.id));
    assert!(matches!(next(&mut changes), Some(Some(Ok(Change::Granted(h)))) if h.id == request(2).key.id));
    assert!(matches!(
        pushes.next().now_or_never(),
        Some(Some(Push::Granted(_)))
    ));
    drop(changes);
    assert!(store.shared.lock().watchers.is_empty());
}

#[test]
fn a_watcher_is_woken_for_an_expiry_that_came_nearer() {
    let hand = Hand::new(1);
    let lock = Memory::new(hand.clone()).lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut changes = ready(lock.watch().unwrap().watch(&name())).unwrap();
    while next(&mut changes).is_some() {}
    ready(lock.release(&request(1).key, Release::Now)).unwrap();
    let mut brief = request(2);
    brief.ttl = TTL / 4;
    ready(lock.attempt(&brief)).unwrap();
    while next(&mut changes).is_some() {}
    let woken = Arc::<Woken>::default();
    woken.waits_for(&mut changes);
    hand.advance(TTL / 4);
    assert_eq!(woken.times(), 1);
    assert!(matches!(
        next(&mut changes),
        Some(Some(Ok(Change::Expired { .. })))
    ));
}

#[test]
fn a_store_goes_by_its_own_clock_which_never_goes_back() {
    let (hand, clock) = (Hand::new(1), Hand::new(1));
    let read = clock.clone();
    let store = Config::new()
        .clock(Arc::new(move || read.now()))
        .connect(hand.clone());
    let lock = store.lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut changes = ready(lock.watch().unwrap().watch(&name())).unwrap();
    while next(&mut changes).is_some() {}
    hand.advance(TTL);
    assert!(next(&mut changes).is_none(), "for the store no time has passed");
    let left = || ready(lock.watch().unwrap().inspect(&name())).unwrap().holders[0].expires_in;
    clock.advance(TTL / 2);
    assert_eq!(left(), TTL / 2);
    *clock.now.lock().unwrap() = Timestamp::from_nanos(1);
    assert_eq!(left(), TTL / 2);
}

#[test]
fn each_copy_of_a_waiting_request_hears_of_its_grant() {
    let lock = Memory::new(Hand::new(1)).lock();
    ready(lock.attempt(&request(1))).unwrap();
    let copies = [queued(&lock, 2), queued(&lock, 2)];
    ready(lock.release(&request(1).key, Release::Now)).unwrap();
    for mut pushes in copies {
        let pushed = pushes.next().now_or_never();
        assert!(matches!(pushed, Some(Some(Push::Granted(_)))));
    }
}

#[test]
fn a_look_finds_a_change_of_holders_and_nothing_else() {
    let lock = Memory::new(Hand::new(1)).lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut at_once = request(2);
    at_once.queue = Queueing::No;
    let Ok(Attempt::Held(wait)) = ready(lock.attempt(&at_once)) else {
        panic!("it is held")
    };
    let WakeUp::Poll { probe, .. } = wait.wake else {
        panic!("it is not in line")
    };
    let look = || ready(probe.look()).unwrap();
    let item = RenewItem::lease(request(1).key, TTL * 2);
    ready(lock.renew().unwrap().renew(&[item]));
    assert_eq!(look(), News::Nothing);
    ready(lock.release(&request(1).key, Release::Now)).unwrap();
    ready(lock.attempt(&request(3))).unwrap();
    assert_eq!((look(), look()), (News::Changed, News::Nothing));
}

#[test]
fn a_slow_watcher_costs_bounded_memory_and_is_told_so() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    let mut changes = ready(lock.watch().unwrap().watch(&name())).unwrap();
    for n in 0..2000 {
        ready(lock.attempt(&request(n))).unwrap();
        ready(lock.release(&request(n).key, Release::Now)).unwrap();
    }
    ready(lock.attempt(&request(5000))).unwrap();
    let Some(Some(Ok(Change::Snapshot { now, skipped: true }))) = next(&mut changes) else {
        panic!()
    };
    assert_eq!(now.holders[0].id, request(5000).key.id);
    assert!(next(&mut changes).is_none());
}

#[test]
fn a_crash_ends_the_streams_and_keeps_or_loses_the_state() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut pushes = queued(&lock, 2);
    let mut changes = ready(lock.watch().unwrap().watch(&name())).unwrap();
    store.crash(Survives::Memory);
    assert!(matches!(pushes.next().now_or_never(), Some(None)));
    let broken = next(&mut changes);
    assert!(matches!(broken, Some(Some(Err(e))) if e.kind() == ErrorKind::Unavailable));
    assert!(matches!(next(&mut changes), Some(None)));
    assert_eq!((store.sizes().names, store.sizes().queued), (1, 1));
    store.crash(Survives::Nothing);
    assert_eq!(store.sizes(), Sizes::default());
}

#[test]
fn a_store_with_a_disk_keeps_tokens_and_gates_but_no_leases() {
    let durable = Config::new().strength(Strength::AcrossRestart);
    let store = durable.connect(Hand::new(1));
    let lock = store.lock();
    store.skip_tokens(1 << 40);
    ready(lock.attempt(&request(1))).unwrap();
    assert_eq!(store.last_token(), (1 << 40) + 1);
    let token = Token::new(store.last_token()).unwrap();
    let gate = gate_of(&lock);
    assert!(ready(gate.write(&name(), token, b"kept")).unwrap().is_admitted());
    store.crash(Survives::Nothing);
    assert_eq!((store.starts(), store.sizes().names), (2, 0));
    assert_eq!(ready(gate.read(&name())).unwrap().unwrap().value, b"kept");
    ready(lock.attempt(&request(2))).unwrap();
    assert_eq!(store.last_token(), (1 << 40) + 2);
}

#[test]
fn foreign_record_is_reported_until_mended() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut pushes = queued(&lock, 2);
    store.spoil(&name(), "no lock");
    for n in [1, 3] {
        let error = ready(lock.attempt(&request(n))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BackendData);
    }
    let error = ready(lock.watch().unwrap().inspect(&name())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackendData);
    assert_eq!(store.spoiled(&name()).as_deref(), Some("no lock"));
    let over = ready(lock.release(&request(1).key, Release::Now)).unwrap();
    assert_eq!(over, crate::spi::Released::NotHeld);
    store.mend(&name());
    assert_eq!(store.spoiled(&name()), None);
    assert!(
        matches!(pushes.next().now_or_never(), Some(Some(Push::Granted(_)))),
        "who waited is next"
    );
}

#[test]
fn bad_requests_and_closed_connections_are_refused() {
    let store = Config::new().max_name_len(1024).connect(Hand::new(1));
    let lock = store.lock();
    let mut zero = request(1);
    zero.ttl = Duration::ZERO;
    let mut long = request(1);
    long.key.name = LockName::new([b'x'; 1025]).unwrap();
    let no_life_in_line = request(1).with_queue(Duration::ZERO);
    let mut not_in_line = no_life_in_line.clone();
    not_in_line.queue = Queueing::No;
    for bad in [zero, long, request(1).with_priority(11), no_life_in_line] {
        assert_eq!(
            ready(lock.attempt(&bad)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    assert!(ready(lock.attempt(&not_in_line)).is_ok());
    ready(lock.close()).unwrap();
    assert_eq!(
        ready(lock.attempt(&request(1))).unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert!(
        ready(store.connect().attempt(&request(1))).is_ok(),
        "other connections go on"
    );
}

#[test]
fn closed_connection_sends_and_receives_nothing() {
    let store = Memory::new(Hand::new(1));
    let (lock, other) = (store.lock(), store.lock());
    ready(lock.attempt(&request(1))).unwrap();
    let mut pushes = [queued(&lock, 2), queued(&other, 3)];
    let mut changes = [&lock, &other].map(|l| ready(l.watch().unwrap().watch(&name())).unwrap());
    for changes in &mut changes {
        assert!(matches!(next(changes), Some(Some(Ok(Change::Snapshot { .. })))));
    }
    ready(lock.close()).unwrap();
    ready(lock.close()).unwrap();
    assert!(matches!(pushes[0].next().now_or_never(), Some(None)));
    let broken = next(&mut changes[0]);
    assert!(matches!(broken, Some(Some(Err(e))) if e.kind() == ErrorKind::Closed));
    assert!(pushes[1].next().now_or_never().is_none() && next(&mut changes[1]).is_none());
    let (key, token) = (request(1).key, Token::new(7).unwrap());
    let item = RenewItem::lease(key.clone(), TTL);
    let refused = [
        ready(lock.attempt(&request(4))).err(),
        ready(lock.release(&key, Release::Now)).err(),
        ready(lock.abandon(std::slice::from_ref(&key))).remove(0).err(),
        match ready(lock.renew().unwrap().renew(&[item])).remove(0) {
            RenewOutcome::Failed(e) => Some(e),
            _ => None,
        },
        ready(lock.rwlock().unwrap().convert(&key, Mode::Exclusive)).err(),
        ready(lock.fencing().unwrap().raise(&key, token)).err(),
        ready(lock.watch().unwrap().inspect(&name())).err(),
        ready(lock.watch().unwrap().force_release(&name())).err(),
        ready(lock.watch().unwrap().list(b"", None)).err(),
        ready(gate_of(&lock).write(&name(), token, b"x")).err(),
    ];
    for (n, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap().kind(), ErrorKind::Closed, "{n}");
    }
    assert_eq!((store.sizes().names, store.sizes().queued), (1, 2));
}

#[test]
fn a_store_without_tokens_shows_none() {
    let store = Config::new().without(Capability::Fencing).connect(Hand::new(1));
    let lock = store.lock();
    assert!(lock.fencing().is_none());
    let Ok(Attempt::Granted(grant)) = ready(lock.attempt(&request(1))) else {
        panic!("it is free");
    };
    assert_eq!(grant.token, None);
    let abandoned = ready(lock.abandon(&[request(1).key])).remove(0).unwrap();
    assert_eq!(abandoned, Abandoned::WasGranted(None));
}

#[test]
fn a_fail_over_breaks_the_connections_and_keeps_all() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    ready(lock.attempt(&request(1))).unwrap();
    let mut pushes = queued(&lock, 2);
    store.fail_over();
    assert!(matches!(pushes.next().now_or_never(), Some(None)));
    assert_eq!((store.starts(), store.term(), store.sizes().queued), (2, 1, 1));
}

#[test]
fn names_and_labels_too_long_are_refused_with_both_lengths() {
    let store = Config::new().max_name_len(1024).connect(Hand::new(1));
    let lock = store.lock();
    let max = lock.capabilities().max_name_len;
    let long = LockName::new(vec![b'x'; max + 1]).unwrap();
    let fits = LockName::new(vec![b'x'; max]).unwrap();
    let gate = gate_of(&lock);
    let token = Token::new(1).unwrap();
    assert!(ready(gate.write(&fits, token, b"")).unwrap().is_admitted());
    let mut refused = vec![
        ready(gate.admit(&long, token, Access::Shared)).unwrap_err(),
        ready(gate.write(&long, token, b"")).unwrap_err(),
        ready(gate.read(&long)).unwrap_err(),
        ready(lock.watch().unwrap().inspect(&long)).unwrap_err(),
    ];
    for e in &refused {
        let says = format!("the name has {} bytes, but memory accepts at most {max}", max + 1);
        assert!(e.to_string().contains(&says), "{e}");
    }
    let mut labelled = request(1);
    let max = lock.capabilities().max_owner_len;
    labelled.owner = Some("x".repeat(max + 1).into());
    refused.push(ready(lock.attempt(&labelled)).unwrap_err());
    let says = format!("has {} bytes, but memory accepts at most {max}", max + 1);
    assert!(refused[4].to_string().contains(&says), "{}", refused[4]);
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::InvalidInput));
}

#[test]
fn the_gate_refuses_an_overtaken_writer_and_skips_its_change() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    let token = |n| Token::new(n).unwrap();
    let add = |t, b| {
        lock.write_with(&name(), token(t), Access::Exclusive, |v| v.push(b))
            .unwrap()
    };
    assert_eq!(add(2, b'x'), Ok(()));
    assert_eq!(add(1, b'y'), Err(token(2)));
    let stored = ready(gate_of(&lock).read(&name())).unwrap().unwrap();
    assert_eq!(stored.value, b"x");
}

fn gate_of(lock: &MemoryLock) -> &dyn FenceGate {
    let part = lock.fencing().and_then(|f| f.gate());
    part.expect("the memory backend has a gate")
}

#[test]
fn lapsed_names_that_are_never_asked_for_again_are_forgotten() {
    let clock = Hand::new(1);
    let store = Memory::new(clock.clone());
    let lock = store.connect();
    let mut sequence = 0;
    let mut take = || {
        sequence += 1;
        let name = LockName::new(format!("{sequence}")).unwrap();
        let request = Acquire::new(LeaseKey::new(name, RequestId::new(1, sequence)), TTL);
        let attempt = lock.attempt(&request).now_or_never().unwrap().unwrap();
        assert!(matches!(attempt, Attempt::Granted(_)));
        request.key
    };
    // What the table was once large enough for is no measure: these are let go in order.
    let many: Vec<_> = (0..3_000).map(|_| take()).collect();
    for key in &many {
        lock.release(key, Release::Now).now_or_never().unwrap().unwrap();
    }
    for _ in 0..20 {
        (0..100).for_each(|_| drop(take()));
        clock.advance(TTL);
        // Of 100 that are in use at a time, what is dead is no more than as much again, and what came since.
        assert!(store.sizes().names <= 300, "{:?}", store.sizes());
    }
}

#[test]
fn a_wrong_password_is_refused_and_shown_nowhere() {
    let clock = Hand::new(1);
    let config = Config::new().password("right-one");
    assert!(!format!("{config:?}").contains("right-one"));
    let store = config.connect(clock.clone());
    assert!(store.connect_with("right-one").is_ok());
    let Err(e) = store.connect_with("wrong-one") else {
        panic!("a wrong password was accepted");
    };
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    for text in [format!("{e} {e:?}"), format!("{store:?}")] {
        assert!(!text.contains("-one"), "{text}");
    }
    assert!(Memory::new(clock).connect_with("").is_err());
}

/// How often somebody was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    /// Polls, and then waits for what wakes.
    fn waits_for<T>(self: &Arc<Self>, stream: &mut BoxStream<'static, T>) {
        let waker = Arc::clone(self).into();
        assert!(
            stream
                .poll_next_unpin(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }

    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn watchers_are_woken_by_close_and_by_crash() {
    let store = Memory::new(Hand::new(1));
    let locks = [store.lock(), store.lock()];
    let woken = [Arc::<Woken>::default(), Arc::default()];
    let mut changes = locks.each_ref().map(|lock| {
        let mut changes = ready(lock.watch().unwrap().watch(&name())).unwrap();
        assert!(matches!(
            next(&mut changes),
            Some(Some(Ok(Change::Snapshot { .. })))
        ));
        changes
    });
    let both = || woken.each_ref().map(|w| w.times());
    woken[0].waits_for(&mut changes[0]);
    woken[1].waits_for(&mut changes[1]);
    for _ in 0..2 {
        ready(locks[0].close()).unwrap();
        assert_eq!(both(), [1, 0]);
    }
    store.crash(Survives::Memory);
    assert_eq!(both()[1], 1);
    for changes in &mut changes {
        assert!(matches!(next(changes), Some(Some(Err(_)))));
        assert!(matches!(next(changes), Some(None)), "an error is the last item");
    }
    drop(changes);
    assert_eq!(store.sizes().watchers, 0);
}

#[test]
fn listeners_get_doubt_and_return() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    drop(lock.signals());
    let (mut one, mut two) = (lock.signals(), store.lock().signals());
    store.crash(Survives::Memory);
    for signals in [&mut one, &mut two] {
        let told = [signals.next().now_or_never(), signals.next().now_or_never()];
        assert!(
            matches!(told, [Some(Some(Signal::Doubt)), Some(Some(Signal::Back))]),
            "{told:?}"
        );
        assert!(signals.next().now_or_never().is_none());
    }
    assert_eq!(
        store.shared.lock().signals.len(),
        2,
        "those that are gone are forgotten"
    );
}

#[test]
fn the_store_itself_refuses_what_it_does_not_claim() {
    let limited = Config::new().max_held(Some(3)).max_waiters(Some(5));
    let limited = limited.connect(Hand::new(1)).lock();
    let caps = limited.capabilities();
    assert_eq!((caps.max_held, caps.max_waiters), (Some(3), Some(5)));
    let config = Config::new()
        .without(Capability::Raise)
        .without(Capability::Permits);
    let lock = config.connect(Hand::new(1)).lock();
    ready(lock.attempt(&request(1))).unwrap();
    let (key, token) = (request(1).key, Token::new(7).unwrap());
    let permit = Mode::permit(std::num::NonZeroU32::MIN);
    let refused = [
        ready(lock.fencing().unwrap().raise(&key, token)).err(),
        ready(lock.rwlock().unwrap().convert(&key, permit)).err(),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap().kind(), ErrorKind::Unsupported);
    }
    let long = LockName::new(vec![b'a'; 1 << 20]).unwrap();
    let watched = ready(lock.watch().unwrap().watch(&long)).err();
    assert_eq!(watched.unwrap().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_store_without_a_disk_forgets_its_gates_in_a_crash() {
    let store = Memory::new(Hand::new(1));
    let lock = store.lock();
    let token = Token::new(2).unwrap();
    let written = ready(gate_of(&lock).write(&name(), token, b"x")).unwrap();
    assert!(written.is_admitted());
    store.crash(Survives::Memory);
    assert!(ready(gate_of(&lock).read(&name())).unwrap().is_some());
    store.crash(Survives::Nothing);
    assert!(ready(gate_of(&lock).read(&name())).unwrap().is_none());
}
