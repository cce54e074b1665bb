//! What a majority grants, for how long, and what is refused.

use super::*;

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
fn silent_member_is_barely_waited_for() {
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
fn a_majoritys_validity_counts_from_before_the_first_request() {
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
fn quorum_refuses_unsupported_requests_before_sending() {
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
                Capability::Downgrade,
                Capability::MinimumHold,
                Capability::OwnerLabel
            ]
        );
        let plain = request(&key("n", 1));
        let two = std::num::NonZeroU32::new(2).unwrap();
        for acquire in [plain.clone().with_mode(Mode::permit(two)), plain.with_queue(TTL)] {
            let refused = a.quorum.attempt(&acquire).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
        }
        let quorum: &dyn Lock = &*a.quorum;
        assert!(quorum.watch().is_none());
        assert!(quorum.fencing().unwrap().gate().is_none());
        let part = quorum.rwlock().unwrap();
        let upgrade = part.convert(&key("n", 1), Mode::Exclusive).await;
        assert_eq!(upgrade.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(a.requests(), 0);
    });
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
fn a_quorum_of_quorums_is_unfenced() {
    let sim = Sim::new(1);
    let quorum = |members| Quorum::new(members, sim.runtime(), PATIENCE).unwrap();
    let inner = || {
        let stores = (0..3).map(|_| Memory::new(sim.runtime()).connect()).collect();
        Arc::new(quorum(stores)) as Arc<dyn Lock>
    };
    let outer = quorum((0..3).map(|_| inner()).collect());
    assert!(!outer.capabilities().has(Capability::Fencing));
    assert!((&outer as &dyn Lock).fencing().is_none());
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
