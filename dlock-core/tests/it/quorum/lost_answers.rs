//! Answers that were lost, requests that come late, and what is given back then.

use super::*;

#[test]
fn a_release_unanswered_by_a_majority_is_unknown_and_repeated() {
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
fn late_grant_of_a_lost_attempt_is_given_back() {
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
fn a_try_with_lost_answers_is_unknown_and_granted_when_repeated() {
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
fn a_try_with_lost_answers_stays_unknown_while_members_are_away() {
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
fn a_waiter_is_granted_the_freed_name_and_leaves_nothing_behind() {
    simulate(3, async |w| {
        let (a, b) = (w.client("a"), w.client("b"));
        let (of_a, of_b) = (a.client(), b.client());
        for round in 0..5 {
            let held = of_a.lock("n").unwrap().acquire().await.unwrap();
            let token = held.token();
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
            assert!(got.token() > token);
            got.release().await.unwrap();
        }
        w.sleep(ms(500)).await;
        assert!(w.held_at("n").await.is_empty());
        of_a.close().await.unwrap();
        of_b.close().await.unwrap();
    });
}

#[test]
fn a_downgrade_that_some_members_may_have_done_is_unknown() {
    simulate(3, async |w| {
        let a = w.client("a");
        a.granted(&key("n", 1)).await;
        w.sleep(ms(50)).await;
        let part = (&*a.quorum as &dyn Lock).rwlock().unwrap();
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
