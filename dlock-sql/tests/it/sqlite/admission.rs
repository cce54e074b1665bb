use std::time::Duration;

use dlock_core::spi::{Abandoned, Attempt, Converted, Lock as _, Release, Released, RenewItem, RenewOutcome};
use dlock_core::{ErrorKind, LossReason, Mode, Timestamp};
use dlock_sql::sqlite::Config;

use super::support::*;

/// The life of what is to end in a test: longer than a busy machine takes for the calls before.
const BRIEF: Duration = Duration::from_millis(300);

#[test]
fn one_holder_at_a_time_and_the_next_token_is_larger() {
    everywhere(|lock| async move {
        let (a, b) = (ask("n"), ask("n"));
        let first = granted(&lock, &a).await;
        assert_eq!(first.expires_in, TTL);
        held(&lock, &b).await;
        assert_eq!(
            lock.release(&a.key, Release::Now).await.unwrap(),
            Released::Released
        );
        let second = granted(&lock, &b).await;
        assert!(second.token > first.token);
    });
}

#[test]
fn the_queue_is_served_by_priority_then_arrival_without_barging() {
    everywhere(|lock| async move {
        let holder = ask("n");
        granted(&lock, &holder).await;
        let late = [5, 5, 9, 1].map(|p| join("n", Mode::Exclusive).with_priority(p));
        for a in &late {
            queued(&lock, a).await;
        }
        lock.release(&holder.key, Release::Now).await.unwrap();
        let mut last = None;
        for i in [2, 0, 1, 3] {
            held(&lock, &ask("n").with_priority(10)).await;
            for (j, other) in late.iter().enumerate().filter(|(j, _)| *j != i) {
                if let RenewOutcome::Granted(g) =
                    renew(&lock, RenewItem::queued(other.key.clone(), TTL)).await
                {
                    panic!("{j} came before {i}: {g:?}");
                }
            }
            let token = asked(&lock, &late[i]).await.unwrap();
            assert!(Some(token) > last);
            last = Some(token);
            lock.release(&late[i].key, Release::Now).await.unwrap();
        }
        granted(&lock, &ask("n")).await;
    });
}

#[test]
fn a_dead_waiter_is_in_the_way_for_no_longer_than_its_ttl() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let mut other = stranger(&files).await;
        granted(&lock, &ask("n")).await;
        let ttl = ms(800);
        let waiter = ask("n").with_queue(ttl);
        queued(&lock, &waiter).await;
        for _ in 0..8 {
            let before = Timestamp::now();
            renew(&lock, RenewItem::queued(waiter.key.clone(), ttl)).await;
            let after = Timestamp::now();
            let until = number(&mut other, "SELECT expires FROM dlock_entry WHERE phase = 0").await;
            let until = Timestamp::from_nanos(until as u64);
            assert!(until <= after + ttl, "{:?} too late", until.since(after + ttl));
            // Nor is it dropped much sooner.
            assert!(until >= before + ttl / 16 * 15);
            runtime.sleep(ms(30)).await;
        }
    });
}

#[test]
fn readers_share_and_a_waiting_writer_keeps_new_readers_out() {
    everywhere(|lock| async move {
        let (r1, r2) = (join("n", Mode::READER), join("n", Mode::READER));
        granted(&lock, &r1).await;
        granted(&lock, &r2).await;
        let (w, r3) = (join("n", Mode::Exclusive), join("n", Mode::READER));
        queued(&lock, &w).await;
        queued(&lock, &r3).await;
        lock.release(&r1.key, Release::Now).await.unwrap();
        assert_eq!(asked(&lock, &w).await, None);
        lock.release(&r2.key, Release::Now).await.unwrap();
        assert!(asked(&lock, &w).await.is_some());
        assert_eq!(asked(&lock, &r3).await, None);
    });
}

#[test]
fn a_withdrawn_writer_lets_in_all_readers_behind_it() {
    everywhere(|lock| async move {
        granted(&lock, &ask("n").with_mode(Mode::READER)).await;
        let w = join("n", Mode::Exclusive);
        queued(&lock, &w).await;
        let readers = [join("n", Mode::READER), join("n", Mode::READER)];
        for r in &readers {
            queued(&lock, r).await;
        }
        let answer = lock
            .abandon(std::slice::from_ref(&w.key))
            .await
            .remove(0)
            .unwrap();
        assert_eq!(answer, Abandoned::Withdrawn);
        for r in &readers {
            assert!(asked(&lock, r).await.is_some());
        }
    });
}

#[test]
fn permits_are_counted_and_another_class_is_refused() {
    everywhere(|lock| async move {
        let (a, b, c) = (
            join("n", permits(2)),
            join("n", permits(2)),
            join("n", permits(2)),
        );
        granted(&lock, &a).await;
        granted(&lock, &b).await;
        queued(&lock, &c).await;
        for other in [permits(3), Mode::READER] {
            let e = lock.attempt(&ask("n").with_mode(other)).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidInput);
        }
        lock.release(&a.key, Release::Now).await.unwrap();
        assert!(asked(&lock, &c).await.is_some());
    });
}

#[test]
fn a_retry_answers_the_same_grant_with_its_remaining_life() {
    everywhere(|lock| async move {
        let a = ask("n");
        let first = granted(&lock, &a).await;
        std::thread::sleep(ms(20));
        let again = granted(&lock, &a).await;
        assert_eq!(again.token, first.token);
        assert!(again.expires_in <= TTL - ms(20), "{:?}", again.expires_in);
        assert_eq!(
            lock.release(&a.key, Release::Now).await.unwrap(),
            Released::Released
        );
        assert_eq!(
            lock.release(&a.key, Release::Now).await.unwrap(),
            Released::Released
        );
        let e = lock.attempt(&a).await.unwrap_err();
        assert_eq!(e.loss_reason(), Some(LossReason::Released));
        assert_eq!(
            lock.release(&ask("n").key, Release::Now).await.unwrap(),
            Released::NotHeld
        );
    });
}

#[test]
fn an_abandoned_key_holds_nothing_and_never_comes_back() {
    everywhere(|lock| async move {
        let (a, b) = (ask("n"), ask("n"));
        let grant = granted(&lock, &a).await;
        let answers = lock.abandon(&[a.key.clone(), b.key.clone()]).await;
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [Abandoned::WasGranted(grant.token), Abandoned::Nothing]);
        for gone in [&a, &b] {
            let e = lock.attempt(gone).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Lost);
        }
        granted(&lock, &ask("n")).await;
    });
}

#[test]
fn an_expired_lease_is_gone_and_goes_to_the_next_in_line() {
    everywhere(|lock| async move {
        let mut a = ask("n");
        a.ttl = BRIEF;
        let first = granted(&lock, &a).await;
        let b = join("n", Mode::Exclusive);
        let Attempt::Queued(wait) = lock.attempt(&b).await.unwrap() else {
            panic!("not queued");
        };
        assert!(wait.recheck_in.unwrap() <= BRIEF);
        std::thread::sleep(BRIEF + ms(10));
        assert!(asked(&lock, &b).await > first.token);
        let late = renew(&lock, RenewItem::lease(a.key.clone(), TTL)).await;
        assert!(matches!(late, RenewOutcome::Gone), "{late:?}");
        assert_eq!(
            lock.release(&a.key, Release::Now).await.unwrap(),
            Released::NotHeld
        );
        held(&lock, &ask("n")).await;
    });
}

#[test]
fn a_waiter_that_died_in_the_queue_costs_only_its_queue_lease() {
    everywhere(|lock| async move {
        let holder = ask("n");
        granted(&lock, &holder).await;
        let dead = ask("n").with_queue(BRIEF);
        queued(&lock, &dead).await;
        let alive = join("n", Mode::Exclusive);
        queued(&lock, &alive).await;
        lock.release(&holder.key, Release::Now).await.unwrap();
        assert_eq!(asked(&lock, &alive).await, None, "it is the dead one's turn");
        std::thread::sleep(BRIEF + ms(10));
        assert!(asked(&lock, &alive).await.is_some());
        let late = renew(&lock, RenewItem::queued(dead.key.clone(), TTL)).await;
        assert!(matches!(late, RenewOutcome::Gone), "{late:?}");
    });
}

#[test]
fn a_renewal_starts_the_ttl_anew_and_keeps_the_token() {
    everywhere(|lock| async move {
        let a = ask("n");
        let grant = granted(&lock, &a).await;
        for ttl in [TTL, TTL, 2 * TTL] {
            std::thread::sleep(ms(10));
            let renewed = renew(&lock, RenewItem::lease(a.key.clone(), ttl)).await;
            let RenewOutcome::Renewed(life) = renewed else {
                panic!("{renewed:?}");
            };
            assert_eq!(life.expires_in, ttl);
        }
        let again = granted(&lock, &a).await;
        assert_eq!(again.token, grant.token);
        assert!(
            again.expires_in > TTL,
            "the last one counts: {:?}",
            again.expires_in
        );
    });
}

#[test]
fn many_are_renewed_in_one_call_each_with_an_answer_of_its_own() {
    everywhere(|lock| async move {
        let held: Vec<_> = (0..100).map(|i| ask(&format!("n{i}"))).collect();
        for a in &held {
            granted(&lock, a).await;
        }
        let mut items: Vec<_> = held
            .iter()
            .map(|a| RenewItem::lease(a.key.clone(), TTL))
            .collect();
        items.push(RenewItem::lease(key("n0"), TTL));
        items.push(RenewItem::lease(held[0].key.clone(), ms(0)));
        let part: &dyn dlock_core::spi::Lock = &lock;
        let answers = part.renew().unwrap().renew(&items).await;
        assert!(
            answers[..100]
                .iter()
                .all(|a| matches!(a, RenewOutcome::Renewed(_)))
        );
        assert!(matches!(answers[100], RenewOutcome::Gone));
        assert!(matches!(&answers[101], RenewOutcome::Failed(e) if e.kind() == ErrorKind::InvalidInput));
    });
}

#[test]
fn a_minimum_hold_is_no_lease_and_keeps_the_name_taken() {
    everywhere(|lock| async move {
        let a = ask("n");
        granted(&lock, &a).await;
        let kept = lock.release(&a.key, Release::KeepFor(BRIEF)).await.unwrap();
        assert_eq!(kept, Released::Released);
        held(&lock, &ask("n")).await;
        let late = renew(&lock, RenewItem::lease(a.key.clone(), TTL)).await;
        assert!(matches!(late, RenewOutcome::Gone), "{late:?}");
        std::thread::sleep(BRIEF + ms(10));
        granted(&lock, &ask("n")).await;
    });
}

#[test]
fn a_downgrade_keeps_the_token_and_lets_readers_in() {
    everywhere(|lock| async move {
        let w = ask("n");
        let grant = granted(&lock, &w).await;
        let r = join("n", Mode::READER);
        queued(&lock, &r).await;
        let part: &dyn dlock_core::spi::Lock = &lock;
        let convert = part.rwlock().unwrap();
        let Converted::Done(down) = convert.convert(&w.key, Mode::READER).await.unwrap() else {
            panic!("a downgrade is always possible");
        };
        assert_eq!(down.token, grant.token);
        assert!(asked(&lock, &r).await > grant.token);
        // Two upgraders would wait for one another.
        let first = convert.convert(&w.key, Mode::Exclusive).await.unwrap();
        assert_eq!(first, Converted::Busy);
        let second = convert.convert(&r.key, Mode::Exclusive).await.unwrap();
        assert_eq!(second, Converted::WouldDeadlock);
        lock.release(&r.key, Release::Now).await.unwrap();
        let Converted::Done(up) = convert.convert(&w.key, Mode::Exclusive).await.unwrap() else {
            panic!("it is the only holder");
        };
        assert!(up.token > down.token);
        held(&lock, &ask("n").with_mode(Mode::READER)).await;
        let e = convert.convert(&r.key, Mode::READER).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Lost);
    });
}

#[test]
fn wrong_requests_are_refused_before_anything_happens() {
    everywhere(|lock| async move {
        let long = "x".repeat(lock.capabilities().max_name_len + 1);
        let label = "x".repeat(lock.capabilities().max_owner_len + 1);
        let mut short = ask("n");
        short.ttl = ms(0);
        let wrong = [
            ask(&long),
            short,
            ask("n").with_priority(0),
            ask("n").with_priority(11),
            ask("n").with_owner(label.into()),
        ];
        for a in wrong {
            assert_eq!(
                lock.attempt(&a).await.unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
        granted(&lock, &ask(&long[1..])).await;
        granted(&lock, &ask("n")).await;
    });
}

#[test]
fn a_caller_that_vanishes_at_any_poll_disturbs_nothing() {
    everywhere(|lock| async move {
        for polls in 0..4 {
            let a = ask("n");
            let mut call = Box::pin(lock.attempt(&a));
            for _ in 0..polls {
                if futures::poll!(call.as_mut()).is_ready() {
                    break;
                }
            }
            drop(call);
            lock.abandon(std::slice::from_ref(&a.key))
                .await
                .remove(0)
                .unwrap();
            let next = ask("n");
            granted(&lock, &next).await;
            lock.release(&next.key, Release::Now).await.unwrap();
        }
    });
}

#[test]
fn after_close_everything_answers_closed() {
    everywhere(|lock| async move {
        granted(&lock, &ask("n")).await;
        lock.close().await.unwrap();
        lock.close().await.unwrap();
        assert_eq!(
            lock.attempt(&ask("n")).await.unwrap_err().kind(),
            ErrorKind::Closed
        );
    });
}

#[test]
fn closing_one_clone_leaves_the_others_open() {
    everywhere(|lock| async move {
        let other = lock.clone();
        granted(&lock, &ask("n")).await;
        lock.close().await.unwrap();
        assert_eq!(
            lock.attempt(&ask("n")).await.unwrap_err().kind(),
            ErrorKind::Closed
        );
        held(&other, &ask("n")).await;
        drop(other.clone());
        held(&other, &ask("n")).await;
        other.close().await.unwrap();
        assert_eq!(
            other.attempt(&ask("n")).await.unwrap_err().kind(),
            ErrorKind::Closed
        );
    });
}
