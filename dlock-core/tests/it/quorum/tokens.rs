//! Fencing: tokens over whatever majority grants, and the strength that is declared.

use super::*;

#[test]
fn a_quorum_over_a_member_that_cannot_raise_says_it_is_unfenced() {
    let set_up = |n, config: Config| match n {
        1 => config.without(Capability::Raise),
        _ => config.strength(Strength::AcrossRestart),
    };
    simulate_with(3, set_up, async |w| {
        let a = w.client("a");
        let caps = a.quorum.capabilities();
        assert!(!caps.has(Capability::Fencing) && !caps.has(Capability::Raise) && caps.strength.is_none());
        assert!((&*a.quorum as &dyn Lock).fencing().is_none());
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
            |n, config| config.strength(of[n]),
            async |w| {
                let quorum = w.client("a").quorum;
                assert_eq!(quorum.capabilities().strength, Some(strength));
                assert_eq!((&*quorum as &dyn Lock).fencing().unwrap().strength(), strength);
            },
        );
    }
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
fn readers_share_with_tokens_between_those_of_the_writers() {
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
fn a_second_holder_after_a_member_forgot_has_a_larger_token() {
    let durable = |_, config: Config| config.strength(Strength::AcrossRestart);
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
fn a_member_away_for_as_long_as_its_leases_lets_no_second_in() {
    let durable = |_, config: Config| config.strength(Strength::AcrossRestart);
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
