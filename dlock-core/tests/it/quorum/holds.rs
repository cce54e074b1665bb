//! What becomes of a hold: renewed, lost, converted, released.

use super::*;

#[test]
fn renewal_needs_a_majority_of_all_not_of_those_that_granted() {
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
fn a_hold_that_a_majority_lost_is_gone_and_its_rest_given_back() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        for n in [0, 2] {
            let link = w.stores[n].0.connect();
            link.watch().unwrap().force_release(&name("n")).await.unwrap();
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
fn a_hold_survives_an_absent_minority_but_no_absent_majority() {
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
        let part = (&*a.quorum as &dyn Lock).rwlock().unwrap();
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
fn closing_gives_back_what_is_owed_and_then_answers_closed() {
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

/// One hold cannot be decided without a member that hangs: asked for in one call, it must not cost the other,
/// which the rest renewed.
#[test]
fn hold_on_a_hanging_member_delays_no_other() {
    simulate(3, async |w| {
        let a = w.client("a");
        let client = a.client();
        // Much shorter than five times the patience.
        let options = LockOptions::new().ttl(ms(1_600));
        let held = async |name: &str| {
            let lock = client.lock(name).unwrap().options(options.clone()).unwrap();
            lock.acquire().await.unwrap()
        };
        a.reaches(&[0, 2]);
        let needs_it = held("x").await;
        a.reaches(&[0, 1, 2]);
        let does_not = held("y").await;
        a.links[2].partition(Partition::Both);
        w.sleep(ms(10_000)).await;
        assert!(!needs_it.is_valid());
        assert!(does_not.is_valid(), "{:?}", does_not.loss());
    });
}

/// All members are alive, and all are slow: a sixth of the ttl away. While nobody has answered, waiting costs
/// nobody anything.
#[test]
fn slow_members_are_waited_for() {
    simulate(3, async |w| {
        let mut plan = FaultPlan::healthy();
        plan.delay = ms(80)..ms(85);
        let a = w.client_with("a", plan);
        let options = LockOptions::new().ttl(ms(1_000));
        let lock = a.client().lock("n").unwrap().options(options).unwrap();
        let guard = lock.acquire().await.unwrap();
        w.sleep(ms(20_000)).await;
        assert!(guard.is_valid(), "{:?}", guard.loss());
    });
}
