//! The quorum over memory stores behind links, in virtual time: the SPI, and what a client makes of it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::combinators::Quorum;
use dlock_core::memory::{MemoryBuilder, Survives};
use dlock_core::sim::{FaultPlan, Link, Partition, Sim, SimRuntime};
use dlock_core::spi::{
    Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, Lock, Raised, Release, Released, RenewItem,
    RenewOutcome, RequestId,
};
use dlock_core::{
    AutoRenew, Capability, Client, ErrorKind, LockName, LockOptions, Memory, Mode, Runtime, Strength,
    Timestamp, Token,
};
use futures::future::join_all;

mod late_releases;

const TTL: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_millis(500);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn key(text: &str, n: u64) -> LeaseKey {
    LeaseKey::new(name(text), RequestId::new(7, n))
}

fn request(key: &LeaseKey) -> Acquire {
    Acquire::new(key.clone(), TTL)
}

/// Alive, and a tenth of a second away.
fn slow() -> FaultPlan {
    let mut plan = FaultPlan::healthy();
    plan.delay = ms(50)..ms(51);
    plan
}

fn t(n: u64) -> Token {
    Token::new(n).unwrap()
}

/// Some stores, each on a machine of its own.
struct World<'a> {
    sim: &'a Sim,
    stores: Vec<(Memory, SimRuntime)>,
}

/// A quorum of them as one client sees it.
struct Seen {
    runtime: SimRuntime,
    links: Vec<Arc<Link>>,
    quorum: Arc<Quorum>,
}

impl World<'_> {
    fn client(&self, name: &str) -> Seen {
        self.client_with(name, FaultPlan::healthy())
    }

    fn client_with(&self, name: &str, plan: FaultPlan) -> Seen {
        self.client_of(name, plan, |member| member)
    }

    /// Of members that are made of the stores.
    fn client_of(&self, name: &str, plan: FaultPlan, made: impl Fn(Arc<dyn Lock>) -> Arc<dyn Lock>) -> Seen {
        let runtime = self.sim.client_runtime(name);
        let link = |(store, server): &(Memory, SimRuntime)| {
            Link::new(made(store.connect()), &runtime, server, plan.clone())
        };
        let links: Vec<_> = self.stores.iter().map(link).collect();
        let members = links.iter().map(|link| link.clone() as Arc<dyn Lock>).collect();
        let quorum = Quorum::new(members, Arc::new(runtime.clone()), PATIENCE).unwrap();
        Seen {
            runtime,
            links,
            quorum: Arc::new(quorum),
        }
    }

    async fn sleep(&self, d: Duration) {
        self.sim.runtime().sleep(d).await;
    }

    /// At which stores the name is held.
    async fn held_at(&self, text: &str) -> Vec<usize> {
        let mut held = Vec::new();
        for (n, (store, _)) in self.stores.iter().enumerate() {
            let link = store.connect();
            let now = link.watch_part().unwrap().inspect(&name(text)).await.unwrap();
            assert!(now.holders.len() <= 1 && now.waiting == 0, "{now:?}");
            if !now.holders.is_empty() {
                held.push(n);
            }
        }
        held
    }
}

impl Seen {
    /// Reaches these members, and no others.
    fn reaches(&self, members: &[usize]) {
        for (n, link) in self.links.iter().enumerate() {
            match members.contains(&n) {
                true => link.reconnect(),
                false => link.cut(),
            }
        }
    }

    fn requests(&self) -> u64 {
        self.links.iter().map(|link| link.traffic().0).sum()
    }

    fn client(&self) -> Client {
        Client::builder(self.quorum.clone(), Arc::new(self.runtime.clone()))
            .build()
            .unwrap()
    }

    async fn granted(&self, key: &LeaseKey) -> Grant {
        match self.quorum.attempt(&request(key)).await.unwrap() {
            Attempt::Granted(grant) => grant,
            other => panic!("{key:?}: {other:?}"),
        }
    }

    async fn is_refused(&self, key: &LeaseKey) -> bool {
        matches!(
            self.quorum.attempt(&request(key)).await.unwrap(),
            Attempt::Held(_)
        )
    }

    async fn release(&self, key: &LeaseKey) -> Released {
        self.quorum.release(key, Release::Now).await.unwrap()
    }

    async fn renew(&self, key: &LeaseKey) -> RenewOutcome {
        let items = [RenewItem::lease(key.clone(), TTL)];
        let part = (&*self.quorum as &dyn Lock).renew_part().unwrap();
        part.renew(&items).await.pop().unwrap()
    }
}

/// Runs a test over so many stores, under several schedules.
fn simulate(members: usize, test: impl AsyncFn(World<'_>)) {
    simulate_with(members, |_, builder| builder, test);
}

fn simulate_with(
    members: usize,
    set_up: impl Fn(usize, MemoryBuilder) -> MemoryBuilder,
    test: impl AsyncFn(World<'_>),
) {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let stores = (0..members)
            .map(|n| {
                let server = sim.client_runtime(&format!("server {n}"));
                let builder = set_up(n, Memory::builder(Arc::new(server.clone())));
                (builder.build(), server)
            })
            .collect();
        sim.block_on(test(World { sim: &sim, stores }));
    }
}

#[test]
fn a_majority_grants_and_less_than_one_is_given_back() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.reaches(&[2]);
        let error = a.quorum.attempt(&request(&key("n", 1))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        w.sleep(ms(50)).await;
        assert!(w.held_at("n").await.is_empty());
        a.reaches(&[0, 2]);
        a.granted(&key("n", 2)).await;
        assert_eq!(w.held_at("n").await, [0, 2]);
        // It shares a member with every other majority.
        for members in [[0, 1], [1, 2], [0, 2]] {
            b.reaches(&members);
            assert!(b.is_refused(&key("n", 3)).await);
            w.sleep(ms(50)).await;
        }
        assert_eq!(w.held_at("n").await, [0, 2]);
        assert_eq!(a.release(&key("n", 2)).await, Released::Released);
        b.granted(&key("n", 3)).await;
    });
}

#[test]
fn a_member_that_is_dead_delays_nothing_that_a_majority_decides() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.links[1].partition(Partition::Both);
        b.links[1].partition(Partition::Both);
        let before = a.runtime.now();
        a.granted(&key("n", 1)).await;
        assert!(matches!(a.renew(&key("n", 1)).await, RenewOutcome::Renewed(_)));
        assert!(b.is_refused(&key("n", 2)).await);
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
        let took = before.until(a.runtime.now());
        assert!(took < ms(60), "{took:?}");
    });
}

#[test]
fn one_that_was_silent_is_hardly_waited_for_until_it_answers() {
    simulate(3, async |w| {
        let b = w.client("b");
        // A stranger has the name at one member, and another is silent: undecided.
        let stranger = w.stores[1].0.connect();
        let theirs = key("n", 100);
        stranger.attempt(&request(&theirs)).await.unwrap();
        b.links[2].partition(Partition::Both);
        let mut took = Vec::new();
        for n in 2..6 {
            let before = b.runtime.now();
            assert!(b.is_refused(&key("n", n)).await);
            took.push(before.until(b.runtime.now()));
        }
        assert!(
            took[0] >= PATIENCE && took[1..].iter().all(|t| *t < ms(100)),
            "{took:?}"
        );
        // It answers what is asked of it in the background, and is waited for again.
        b.links[2].heal();
        w.sleep(ms(2_000)).await;
        b.links[2].set_plan(slow());
        b.granted(&key("n", 9)).await;
    });
}

#[test]
fn validity_is_that_of_a_majority_counted_from_before_the_first_request() {
    simulate(3, async |w| {
        let a = w.client("a");
        let before = a.runtime.now();
        let grant = a.granted(&key("n", 1)).await;
        assert_eq!((grant.counted_from, grant.expires_in), (before, TTL));
        w.sleep(ms(3_000)).await;
        // A repeated request is answered with what remains, and the same token.
        let again = a.granted(&key("n", 1)).await;
        assert_eq!(again.token, grant.token);
        let (end, of_before) = (
            again.counted_from + again.expires_in,
            grant.counted_from + grant.expires_in,
        );
        // As far as the time that messages take tells them apart.
        assert!(
            end + ms(2) >= of_before && end <= of_before + ms(2),
            "{again:?}, {grant:?}"
        );
    });
}

#[test]
fn what_no_quorum_can_do_is_refused_before_anything_is_sent() {
    simulate(3, async |w| {
        let a = w.client("a");
        let caps = a.quorum.capabilities().clone();
        assert_eq!((caps.backend, caps.min_ttl), ("quorum", ms(50)));
        assert_eq!(caps.strength, Some(Strength::WhileStateSurvives));
        let claimed: Vec<_> = caps.claimed().collect();
        assert_eq!(
            claimed,
            [
                Capability::Shared,
                Capability::PerGrantTtl,
                Capability::Renew,
                Capability::Fencing,
                Capability::Raise,
                Capability::Downgrade,
                Capability::MinimumHold,
                Capability::OwnerLabel
            ]
        );
        let of = async |acquire: Acquire| {
            let error = a.quorum.attempt(&acquire).await.unwrap_err();
            error.kind()
        };
        let plain = request(&key("n", 1));
        let two = std::num::NonZeroU32::new(2).unwrap();
        for acquire in [
            plain.clone().with_mode(Mode::permit(two)),
            plain.clone().with_queue(TTL),
            plain.clone().with_priority(6),
        ] {
            assert_eq!(of(acquire).await, ErrorKind::Unsupported);
        }
        assert_eq!(
            of(Acquire::new(key("n", 1), ms(49))).await,
            ErrorKind::InvalidInput
        );
        let quorum: &dyn Lock = &*a.quorum;
        assert!(quorum.watch_part().is_none());
        assert!(quorum.fencing_part().unwrap().gate().is_none());
        let part = quorum.rwlock_part().unwrap();
        let upgrade = part.convert(&key("n", 1), Mode::Exclusive).await;
        assert_eq!(upgrade.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(a.requests(), 0);
    });
}

#[test]
fn a_quorum_over_a_member_that_cannot_raise_is_unfenced_and_says_so() {
    let set_up = |n, builder: MemoryBuilder| match n {
        1 => builder.without(Capability::Raise),
        _ => builder.strength(Strength::AcrossRestart),
    };
    simulate_with(3, set_up, async |w| {
        let a = w.client("a");
        let caps = a.quorum.capabilities();
        assert!(!caps.has(Capability::Fencing) && !caps.has(Capability::Raise) && caps.strength.is_none());
        assert!((&*a.quorum as &dyn Lock).fencing_part().is_none());
        assert_eq!(a.granted(&key("n", 1)).await.token, None);
        assert!(w.client("b").is_refused(&key("n", 2)).await);
    });
}

#[test]
fn strength_is_the_weakest_and_no_more_than_across_restarts() {
    let skew = Strength::AcrossDataLoss { clock_skew: ms(5) };
    for (of, strength) in [
        ([skew; 3], Strength::AcrossRestart),
        ([skew, Strength::AcrossRestart, skew], Strength::AcrossRestart),
        (
            [skew, Strength::WhileStateSurvives, skew],
            Strength::WhileStateSurvives,
        ),
    ] {
        simulate_with(
            3,
            |n, builder| builder.strength(of[n]),
            async |w| {
                let quorum = w.client("a").quorum;
                assert_eq!(quorum.capabilities().strength, Some(strength));
                assert_eq!(
                    (&*quorum as &dyn Lock).fencing_part().unwrap().strength(),
                    strength
                );
            },
        );
    }
}

#[test]
fn members_that_cannot_be_a_quorum_are_refused() {
    let sim = Sim::new(1);
    let runtime = sim.runtime();
    let member = Memory::new(runtime.clone()).connect();
    let other = || Memory::new(runtime.clone()).connect();
    let kind = |members, patience| {
        Quorum::new(members, runtime.clone(), patience)
            .unwrap_err()
            .kind()
    };
    assert_eq!(kind(vec![], PATIENCE), ErrorKind::InvalidInput);
    assert_eq!(
        kind(vec![member.clone(), other(), member.clone()], PATIENCE),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(vec![member.clone()], Duration::ZERO),
        ErrorKind::InvalidInput
    );
    let of = |n| {
        let quorum = Quorum::new((0..n).map(|_| other()).collect(), runtime.clone(), PATIENCE).unwrap();
        (quorum.members(), quorum.majority())
    };
    assert_eq!([of(1), of(2), of(4), of(5)], [(1, 1), (2, 2), (4, 3), (5, 3)]);
}

#[test]
fn tokens_increase_whichever_majority_grants() {
    simulate(5, async |w| {
        let clients: Vec<_> = (0..3).map(|n| w.client(&format!("client {n}"))).collect();
        let mut rng = w.sim.rng("majorities");
        let mut last = None;
        for n in 0..60 {
            let mut members: Vec<usize> = (0..5).collect();
            for _ in 0..rng.below(3) {
                members.remove(rng.below(members.len() as u64) as usize);
            }
            let client = &clients[rng.below(3) as usize];
            client.reaches(&members);
            let key = key("n", n);
            let grant = client.granted(&key).await;
            assert!(
                grant.token > last,
                "{:?} after {last:?}, by {members:?}",
                grant.token
            );
            last = grant.token;
            assert_eq!(client.release(&key).await, Released::Released);
            // Some counters run ahead: the members are used by others too.
            let other = LeaseKey::new(name("other"), RequestId::new(9, n));
            let store = w.stores[rng.below(5) as usize].0.connect();
            store.attempt(&request(&other)).await.unwrap();
            store.release(&other, Release::Now).await.unwrap();
            w.sleep(ms(50)).await;
        }
    });
}

#[test]
fn readers_share_and_their_tokens_lie_between_those_of_the_writers() {
    simulate(3, async |w| {
        let (a, b, c) = (w.client("a"), w.client("b"), w.client("c"));
        let reads = async |client: &Seen, n| {
            let acquire = request(&key("n", n)).with_mode(Mode::READER);
            match client.quorum.attempt(&acquire).await.unwrap() {
                Attempt::Granted(grant) => grant.token.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let mut last = t(1);
        for round in 0..5 {
            a.reaches(&[round % 3, (round + 1) % 3]);
            let written = a.granted(&key("n", 10 * round as u64)).await.token.unwrap();
            assert!(written > last || round == 0);
            a.release(&key("n", 10 * round as u64)).await;
            w.sleep(ms(30)).await;
            b.reaches(&[(round + 1) % 3, (round + 2) % 3]);
            let of_b = reads(&b, 10 * round as u64 + 1).await;
            let of_c = reads(&c, 10 * round as u64 + 2).await;
            assert!(of_b >= written && of_c >= written);
            assert!(a.is_refused(&key("n", 10 * round as u64 + 3)).await);
            b.release(&key("n", 10 * round as u64 + 1)).await;
            c.release(&key("n", 10 * round as u64 + 2)).await;
            last = of_b.max(of_c);
            w.sleep(ms(50)).await;
        }
    });
}

#[test]
fn renewal_needs_a_majority_of_all_and_not_of_those_that_granted() {
    simulate(5, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.reaches(&[0, 1, 2]);
        let grant = a.granted(&key("n", 1)).await;
        let half = TTL / 2;
        w.sleep(half).await;
        a.reaches(&[0, 1]);
        let outcome = a.renew(&key("n", 1)).await;
        assert!(matches!(outcome, RenewOutcome::Failed(_)), "{outcome:?}");
        // With the third again, it is.
        a.reaches(&[0, 1, 2]);
        match a.renew(&key("n", 1)).await {
            RenewOutcome::Renewed(r) => {
                assert!(r.counted_from >= grant.counted_from + half && r.expires_in == TTL);
            }
            other => panic!("{other:?}"),
        }
        w.sleep(half).await;
        a.reaches(&[0, 1]);
        assert!(matches!(a.renew(&key("n", 1)).await, RenewOutcome::Failed(_)));
        w.sleep(half + ms(10)).await;
        b.reaches(&[2, 3, 4]);
        let next = b.granted(&key("n", 2)).await;
        assert!(next.token > grant.token);
        // By now two of its own still have it, and two do not.
        a.reaches(&[0, 1, 2, 3, 4]);
        assert!(matches!(a.renew(&key("n", 1)).await, RenewOutcome::Gone));
        w.sleep(ms(50)).await;
        assert_eq!(w.held_at("n").await, [2, 3, 4]);
    });
}

#[test]
fn a_hold_that_a_majority_lost_is_gone_and_the_rest_of_it_is_given_back() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        for n in [0, 2] {
            let link = w.stores[n].0.connect();
            link.watch_part()
                .unwrap()
                .force_release(&name("n"))
                .await
                .unwrap();
        }
        assert!(matches!(a.renew(&key("n", 1)).await, RenewOutcome::Gone));
        w.sleep(ms(50)).await;
        assert!(w.held_at("n").await.is_empty());
        b.granted(&key("n", 2)).await;
        assert_eq!(a.release(&key("n", 1)).await, Released::NotHeld);
    });
}

#[test]
fn a_release_is_done_with_a_majority_and_the_others_follow() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        a.links[1].cut();
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
        assert_eq!(w.held_at("n").await, [1]);
        b.granted(&key("n", 2)).await;
        b.release(&key("n", 2)).await;
        // Long before the ttl.
        a.links[1].reconnect();
        w.sleep(ms(1_500)).await;
        assert!(w.held_at("n").await.is_empty());
    });
}

#[test]
fn a_release_that_a_majority_did_not_answer_is_unknown_and_repeated() {
    simulate(3, async |w| {
        let a = w.client("a");
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        for link in &a.links[1..] {
            link.partition(Partition::Replies);
        }
        let error = a.quorum.release(&key("n", 1), Release::Now).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        // It is over for good: nothing is granted or renewed under that key any more.
        assert!(a.quorum.attempt(&request(&key("n", 1))).await.is_err());
        assert!(matches!(a.renew(&key("n", 1)).await, RenewOutcome::Gone));
        a.links.iter().for_each(|link| link.heal());
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
        assert_eq!(a.release(&key("n", 1)).await, Released::NotHeld);
        assert!(w.held_at("n").await.is_empty());
    });
}

#[test]
fn a_request_that_arrives_after_the_release_leaves_nothing() {
    simulate(3, async |w| {
        let a = w.client("a");
        a.links[2].hold();
        a.granted(&key("n", 1)).await;
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
        // In any order: the attempt, and the abandon that followed it.
        a.links[2].let_go();
        w.sleep(ms(2_000)).await;
        assert!(w.held_at("n").await.is_empty());
    });
}

#[test]
fn what_is_granted_late_to_a_lost_try_is_given_back() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.reaches(&[0, 1]);
        a.granted(&key("n", 1)).await;
        b.links[2].hold();
        assert!(b.is_refused(&key("n", 2)).await);
        b.links[2].let_go();
        w.sleep(ms(1_500)).await;
        assert_eq!(w.held_at("n").await, [0, 1]);
    });
}

#[test]
fn a_try_whose_answers_were_lost_is_unknown_and_recognised_when_it_is_repeated() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.links.iter().for_each(|link| link.partition(Partition::Replies));
        let error = a.quorum.attempt(&request(&key("n", 1))).await.unwrap_err();
        assert!(error.may_be_held(), "{error}");
        assert_eq!(w.held_at("n").await, [0, 1, 2]);
        assert!(b.is_refused(&key("n", 2)).await);
        a.links.iter().for_each(|link| link.heal());
        let grant = a.granted(&key("n", 1)).await;
        assert!(grant.expires_in < TTL - PATIENCE + ms(20), "{grant:?}");
        assert_eq!(w.held_at("n").await, [0, 1, 2]);
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
        w.sleep(ms(100)).await;
        assert!(w.held_at("n").await.is_empty());
    });
}

/// That the members cannot be asked says nothing of what they did with what they were asked before.
#[test]
fn a_try_whose_answers_were_lost_stays_unknown_while_nobody_is_there() {
    simulate(3, async |w| {
        let a = w.client("a");
        a.links.iter().for_each(|link| link.partition(Partition::Replies));
        a.quorum.attempt(&request(&key("n", 1))).await.unwrap_err();
        a.links.iter().for_each(|link| link.heal());
        a.reaches(&[]);
        for _ in 0..2 {
            let error = a.quorum.attempt(&request(&key("n", 1))).await.unwrap_err();
            assert!(error.may_be_held(), "{error}");
        }
        assert_eq!(w.held_at("n").await, [0, 1, 2]);
        let answers = a.quorum.abandon(&[key("n", 1)]).await;
        assert!(answers[0].is_err(), "what is held is not undone: {answers:?}");
        a.reaches(&[0, 1, 2]);
        let answers = a.quorum.abandon(&[key("n", 1)]).await;
        assert!(answers[0].is_ok(), "{answers:?}");
        w.sleep(ms(1_000)).await;
        assert!(w.held_at("n").await.is_empty());
    });
}

#[test]
fn an_abandon_ends_what_was_granted_and_what_comes_later() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        let keys = [key("n", 1), key("m", 2), key("o", 3)];
        let token = a.granted(&keys[0]).await.token;
        // Dropped in the middle: sent to all, answered by none.
        let dropped = request(&keys[1]);
        let attempt = a.quorum.attempt(&dropped);
        let _ = futures::future::select(attempt, a.runtime.sleep(Duration::from_nanos(1))).await;
        let answers = a.quorum.abandon(&keys).await;
        assert_eq!(answers[0].clone().unwrap(), Abandoned::WasGranted(token));
        assert!(answers[1].is_ok());
        assert_eq!(answers[2].clone().unwrap(), Abandoned::Nothing);
        for (n, key) in keys.iter().enumerate() {
            let error = a.quorum.attempt(&request(key)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "{n}");
        }
        w.sleep(ms(1_000)).await;
        for text in ["n", "m", "o"] {
            assert!(w.held_at(text).await.is_empty(), "{text}");
        }
        b.granted(&key("m", 4)).await;
    });
}

#[test]
fn a_waiter_is_granted_when_the_name_is_free_and_leaves_nothing_on_its_way() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        let (of_a, of_b) = (a.client(), b.client());
        for round in 0..5 {
            let held = of_a.lock("n").unwrap().acquire().await.unwrap();
            let waiting = of_b.lock("n").unwrap();
            let waiting = waiting.acquire_timeout(ms(5_000));
            let releasing = async {
                w.sleep(ms(700)).await;
                held.release().await.unwrap();
                w.sim.runtime().now()
            };
            let (got, released_at) = futures::future::join(waiting, releasing).await;
            let got = got.unwrap_or_else(|e| panic!("round {round}: {e}"));
            let gap = released_at.until(w.sim.runtime().now());
            assert!(gap < ms(200), "{gap:?}");
            assert!(got.token() > held.token());
            got.release().await.unwrap();
        }
        w.sleep(ms(500)).await;
        assert!(w.held_at("n").await.is_empty());
        of_a.close().await.unwrap();
        of_b.close().await.unwrap();
    });
}

#[test]
fn of_many_that_try_at_once_one_is_granted() {
    simulate(3, async |w| {
        let clients: Vec<_> = (0..8).map(|n| w.client(&format!("client {n}"))).collect();
        for round in 0..5_u64 {
            let tries = (0..64).map(|n| {
                let client = &clients[n % 8];
                let key = key(&format!("race {round}"), 1_000 * round + n as u64);
                async move { client.quorum.attempt(&request(&key)).await.unwrap() }
            });
            let answers = join_all(tries).await;
            let won = answers
                .iter()
                .filter(|a| matches!(a, Attempt::Granted(_)))
                .count();
            assert_eq!(won, 1, "round {round}");
        }
        w.sleep(ms(500)).await;
    });
}

#[test]
fn a_hold_lives_on_while_a_minority_is_away_and_is_lost_in_time_when_a_majority_is() {
    simulate(5, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        let client = a.client();
        let options = LockOptions::new().ttl(ms(1_000));
        let held = client
            .lock("n")
            .unwrap()
            .options(options)
            .unwrap()
            .acquire()
            .await
            .unwrap();
        for n in [0, 3] {
            a.links[n].partition(Partition::Both);
        }
        w.sleep(ms(5_000)).await;
        assert!(held.is_valid());
        a.links[1].partition(Partition::Both);
        w.sleep(ms(1_001)).await;
        assert!(!held.is_valid() && held.loss().is_some());
        w.sleep(ms(200)).await;
        b.granted(&key("n", 2)).await;
    });
}

#[test]
fn a_writer_becomes_a_reader_with_nobody_in_between() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        let written = a.granted(&key("n", 1)).await;
        let part = (&*a.quorum as &dyn Lock).rwlock_part().unwrap();
        w.sleep(ms(1_000)).await;
        let before = a.runtime.now();
        match part.convert(&key("n", 1), Mode::READER).await.unwrap() {
            Converted::Done(grant) => {
                assert_eq!((grant.token, grant.counted_from), (written.token, before));
                assert_eq!(grant.expires_in, TTL);
            }
            other => panic!("{other:?}"),
        }
        assert!(b.is_refused(&key("n", 2)).await);
        let reading = request(&key("n", 3)).with_mode(Mode::READER);
        let read = match b.quorum.attempt(&reading).await.unwrap() {
            Attempt::Granted(grant) => grant.token,
            other => panic!("{other:?}"),
        };
        assert!(read >= written.token);
        assert_eq!(a.release(&key("n", 1)).await, Released::Released);
        assert_eq!(b.release(&key("n", 3)).await, Released::Released);
        let gone = part.convert(&key("n", 1), Mode::READER).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Lost);
    });
}

#[test]
fn a_downgrade_that_some_members_may_have_done_is_unknown() {
    simulate(3, async |w| {
        let a = w.client("a");
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        let part = (&*a.quorum as &dyn Lock).rwlock_part().unwrap();
        a.reaches(&[]);
        let error = part.convert(&key("n", 1), Mode::READER).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        a.reaches(&[1]);
        let error = part.convert(&key("n", 1), Mode::READER).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        a.reaches(&[0, 1]);
        let done = part.convert(&key("n", 1), Mode::READER).await.unwrap();
        assert!(matches!(done, Converted::Done(_)));
    });
}

#[test]
fn a_minimum_hold_keeps_the_name_taken_at_a_majority() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        let released = a.quorum.release(&key("n", 1), Release::KeepFor(ms(2_000))).await;
        assert_eq!(released.unwrap(), Released::Released);
        w.sleep(ms(1_900)).await;
        assert!(b.is_refused(&key("n", 2)).await);
        w.sleep(ms(200)).await;
        b.granted(&key("n", 3)).await;
    });
}

#[test]
fn closing_gives_back_what_is_owed_and_answers_closed_from_then_on() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        b.reaches(&[0, 1]);
        b.granted(&key("n", 1)).await;
        // Holds 2 until it has heard that it is lost.
        assert!(a.is_refused(&key("n", 2)).await);
        let before = a.runtime.now();
        a.quorum.close().await.unwrap();
        let took = before.until(a.runtime.now());
        assert!(took < PATIENCE, "{took:?}");
        assert_eq!(w.held_at("n").await, [0, 1]);
        let kind = |e: dlock_core::Error| e.kind();
        let closed = ErrorKind::Closed;
        assert_eq!(
            kind(a.quorum.attempt(&request(&key("n", 3))).await.unwrap_err()),
            closed
        );
        assert_eq!(
            kind(a.quorum.release(&key("n", 3), Release::Now).await.unwrap_err()),
            closed
        );
        assert_eq!(
            kind(a.quorum.abandon(&[key("n", 3)]).await.pop().unwrap().unwrap_err()),
            closed
        );
        assert!(matches!(a.renew(&key("n", 3)).await, RenewOutcome::Failed(e) if e.kind() == closed));
        a.quorum.close().await.unwrap();
    });
}

#[test]
fn a_member_that_forgets_its_leases_lets_a_second_in_and_the_tokens_tell_them_apart() {
    let durable = |_, builder: MemoryBuilder| builder.strength(Strength::AcrossRestart);
    simulate_with(3, durable, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.reaches(&[0, 1]);
        let first = a.granted(&key("n", 1)).await;
        w.stores[1].0.crash(Survives::Nothing);
        b.reaches(&[1, 2]);
        let second = b.granted(&key("n", 2)).await;
        assert!(second.token > first.token);
    });
}

#[test]
fn a_member_that_stays_away_as_long_as_the_leases_that_it_forgot_lets_nobody_in() {
    let durable = |_, builder: MemoryBuilder| builder.strength(Strength::AcrossRestart);
    simulate_with(3, durable, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.reaches(&[0, 1]);
        let first = a.granted(&key("n", 1)).await;
        let end = first.counted_from + first.expires_in;
        w.stores[1].0.crash(Survives::Nothing);
        b.reaches(&[0, 2]);
        for n in 2.. {
            if a.runtime.now() + ms(600) >= end {
                break;
            }
            assert!(b.is_refused(&key("n", n)).await);
            w.sleep(ms(500)).await;
        }
        // The margin on top.
        w.sleep(a.runtime.now().until(end) + ms(102)).await;
        b.reaches(&[1, 2]);
        assert!(b.granted(&key("n", 1_000)).await.token > first.token);
    });
}

#[test]
fn a_quorum_of_quorums_is_a_quorum() {
    for seed in 0..5 {
        let sim = Sim::new(seed);
        let runtime = sim.runtime();
        let stores: Vec<Vec<Memory>> = (0..3)
            .map(|_| (0..3).map(|_| Memory::new(runtime.clone())).collect())
            .collect();
        let quorum = |members| Quorum::new(members, runtime.clone(), PATIENCE).unwrap();
        let client = || {
            let inner = |of: &Vec<Memory>| {
                Arc::new(quorum(of.iter().map(Memory::connect).collect())) as Arc<dyn Lock>
            };
            quorum(stores.iter().map(inner).collect())
        };
        sim.block_on(async {
            let mut last = None;
            for n in 0..30_u64 {
                // Others use the stores too.
                let other = LeaseKey::new(name("other"), RequestId::new(9, n));
                let store = stores[n as usize % 3][n as usize / 3 % 3].connect();
                store.attempt(&request(&other)).await.unwrap();
                store.release(&other, Release::Now).await.unwrap();
                let outer = client();
                let Attempt::Granted(grant) = outer.attempt(&request(&key("n", n))).await.unwrap() else {
                    panic!("a free name is refused");
                };
                assert!(grant.token > last, "{:?} after {last:?}", grant.token);
                let fencing = (&outer as &dyn Lock).fencing_part().unwrap();
                let to = t(grant.token.unwrap().get() + n % 4);
                assert_eq!(fencing.raise(&key("n", n), to).await.unwrap(), Raised::Raised(to));
                last = Some(to);
                let released = outer.release(&key("n", n), Release::Now).await.unwrap();
                assert_eq!(released, Released::Released);
                assert_eq!(fencing.raise(&key("n", n), to).await.unwrap(), Raised::NotHeld);
            }
        });
    }
}

#[test]
fn members_in_this_process_cost_no_task_and_no_timer() {
    let sim = Sim::new(3);
    let node = sim.client_runtime("all in one");
    let runtime: Arc<dyn Runtime> = Arc::new(node.clone());
    let members = (0..3).map(|_| Memory::new(runtime.clone()).connect()).collect();
    let quorum = Quorum::new(members, runtime, PATIENCE).unwrap();
    let now = futures::FutureExt::now_or_never(async {
        for n in 0..100 {
            let Attempt::Granted(_) = quorum.attempt(&request(&key("n", n))).await.unwrap() else {
                panic!("a free name is refused");
            };
            assert_eq!(
                quorum.release(&key("n", n), Release::Now).await.unwrap(),
                Released::Released
            );
        }
    });
    assert!(now.is_some() && node.tasks_alive() == 0);
}

#[test]
fn guards_know_the_token_and_the_deadline_of_the_whole() {
    simulate(3, async |w| {
        let a = w.client("a");
        let client = a.client();
        let options = LockOptions::new().ttl(TTL).auto_renew(AutoRenew::Off);
        let before: Timestamp = a.runtime.now();
        let held = client
            .lock("n")
            .unwrap()
            .options(options)
            .unwrap()
            .acquire()
            .await
            .unwrap();
        // 1 % and 2 ms off, counted from before the first request.
        assert_eq!(held.deadline(), before + (TTL - ms(102)));
        assert_eq!(held.token(), Some(t(1)));
        assert_eq!(
            client.semaphore("s", 2).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        held.release().await.unwrap();
    });
}
