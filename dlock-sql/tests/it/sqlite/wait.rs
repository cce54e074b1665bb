use std::sync::Arc;

use dlock_core::RequestId;
use dlock_core::spi::{Acquire, Attempt, LeaseKey, Lock as _, News, Probe, Release, RenewItem, Wake};
use dlock_core::{Mode, Runtime, Timestamp};
use dlock_sql::sqlite::{Config, SqliteLock};

use super::support::*;

/// Queues, and says how to look for news.
async fn waits(lock: &SqliteLock, a: &Acquire) -> Arc<dyn Probe> {
    let Attempt::Queued(wait) = lock.attempt(a).await.unwrap() else {
        panic!("not queued");
    };
    match wait.wake {
        Wake::Poll { probe, .. } => probe,
        _ => panic!("SQLite cannot push"),
    }
}

async fn looks(probe: &Arc<dyn Probe>) -> News {
    probe.look().await.unwrap()
}

fn admitted(requests: &[&Acquire]) -> News {
    let mut ids: Vec<_> = requests.iter().map(|a| a.key.id).collect();
    ids.sort_unstable();
    News::Admitted(ids)
}

/// The same request, of another client.
fn of_another_client(mut a: Acquire) -> Acquire {
    let id = RequestId::new(a.key.id.client() + 1, a.key.id.sequence());
    a.key = LeaseKey::new(a.key.name, id);
    a
}

async fn open(files: &Files, runtime: &Arc<dyn Runtime>) -> SqliteLock {
    Config::new(files.path()).connect(runtime.clone()).await.unwrap()
}

#[test]
fn a_probe_sees_changes_of_its_name_and_no_others() {
    everywhere(|lock| async move {
        let (holder, waiter) = (ask("n"), join("n", Mode::Exclusive));
        granted(&lock, &holder).await;
        let probe = waits(&lock, &waiter).await;
        assert_eq!(looks(&probe).await, News::Nothing);
        granted(&lock, &ask("other")).await;
        assert_eq!(looks(&probe).await, News::Nothing);
        lock.release(&holder.key, Release::Now).await.unwrap();
        // Until it is told: an answer that gets lost must not be the last one.
        for _ in 0..3 {
            assert_eq!(looks(&probe).await, admitted(&[&waiter]));
        }
        assert!(asked(&lock, &waiter).await.is_some());
        assert_eq!(looks(&probe).await, News::Nothing);
    });
}

#[test]
fn of_what_another_process_does_only_new_holders_are_news() {
    with_files(|files, runtime| async move {
        let (ours, theirs) = (open(&files, &runtime).await, open(&files, &runtime).await);
        let (holder, waiter) = (ask("n"), join("n", Mode::Exclusive));
        granted(&theirs, &holder).await;
        let probe = waits(&ours, &waiter).await;
        assert_eq!(looks(&probe).await, News::Nothing);

        granted(&theirs, &ask("other")).await;
        assert_eq!(looks(&probe).await, News::Nothing);
        let behind = of_another_client(join("n", Mode::Exclusive));
        queued(&theirs, &behind).await;
        assert_eq!(looks(&probe).await, News::Nothing);
        renew(&theirs, RenewItem::lease(holder.key.clone(), TTL * 2)).await;
        assert_eq!(looks(&probe).await, News::Nothing);
        renew(&theirs, RenewItem::queued(behind.key.clone(), TTL * 2)).await;
        assert_eq!(looks(&probe).await, News::Nothing);

        theirs.release(&holder.key, Release::Now).await.unwrap();
        assert_eq!(looks(&probe).await, admitted(&[&waiter]));
        assert!(asked(&ours, &waiter).await.is_some());
        ours.release(&waiter.key, Release::Now).await.unwrap();
        // Somebody else's turn: the lock moves, and there is nobody here to be asked for.
        assert_eq!(looks(&probe).await, admitted(&[]));
        assert_eq!(looks(&probe).await, News::Nothing);
        assert!(asked(&theirs, &behind).await.is_some());
        assert_eq!(looks(&probe).await, News::Nothing);
    });
}

#[test]
fn all_readers_that_a_writer_lets_in_are_named() {
    with_files(|files, runtime| async move {
        let (ours, theirs) = (open(&files, &runtime).await, open(&files, &runtime).await);
        let writer = ask("n");
        granted(&theirs, &writer).await;
        let readers = [(); 20].map(|()| join("n", Mode::READER));
        let probe = waits(&ours, &readers[0]).await;
        for reader in &readers[1..] {
            queued(&ours, reader).await;
        }
        theirs.release(&writer.key, Release::Now).await.unwrap();
        assert_eq!(looks(&probe).await, admitted(&readers.each_ref()));
        for reader in &readers[..10] {
            assert!(asked(&ours, reader).await.is_some());
        }
        let rest: Vec<_> = readers[10..].iter().collect();
        assert_eq!(looks(&probe).await, admitted(&rest));
    });
}

#[test]
fn a_lease_that_runs_out_is_news_even_if_nothing_is_stored() {
    with_files(|files, runtime| async move {
        let (ours, theirs) = (open(&files, &runtime).await, open(&files, &runtime).await);
        let (first, waiter) = (ask("n"), join("n", Mode::Exclusive));
        granted(&theirs, &first).await;
        // In front of ours, and never seen again once it is admitted.
        let dead = of_another_client(ask("n").with_queue(ms(400)));
        queued(&theirs, &dead).await;
        let begun = Timestamp::now();
        let probe = waits(&ours, &waiter).await;
        theirs.release(&first.key, Release::Now).await.unwrap();
        assert_eq!(looks(&probe).await, admitted(&[]));
        while looks(&probe).await == News::Nothing {
            assert!(Timestamp::now() < begun + TTL / 2, "nobody says that it ran out");
            runtime.sleep(ms(5)).await;
        }
        assert_eq!(looks(&probe).await, News::Changed);
        assert!(asked(&ours, &waiter).await.is_some());
        assert_eq!(looks(&probe).await, admitted(&[]));
        assert_eq!(looks(&probe).await, News::Nothing);
    });
}

/// Looks until it pays to ask in full, which is to be long before the lease of the holder is over.
async fn changes(probe: &Arc<dyn Probe>) {
    let begun = Timestamp::now();
    while looks(probe).await != News::Changed {
        assert!(Timestamp::now() < begun + TTL / 2, "nobody says that it ran out");
    }
}

/// In one process, where the file says nothing.
#[test]
fn the_end_of_a_minimum_hold_is_news() {
    everywhere(|lock| async move {
        let (first, second) = (ask("n"), join("n", Mode::Exclusive));
        let third = join("n", Mode::Exclusive);
        granted(&lock, &first).await;
        let probe = waits(&lock, &second).await;
        queued(&lock, &third).await;
        // Of the first it knows what the attempt has said, of the second the end of a whole lease.
        for (holder, next) in [(&first, &second), (&second, &third)] {
            lock.release(&holder.key, Release::KeepFor(ms(80))).await.unwrap();
            changes(&probe).await;
            assert!(asked(&lock, next).await.is_some());
            while looks(&probe).await != News::Nothing {}
        }
        lock.release(&third.key, Release::Now).await.unwrap();
    });
}

#[test]
fn the_end_of_a_dead_waiter_is_news_once_it_is_in_front() {
    everywhere(|lock| async move {
        let (reader, writer) = (ask("n").with_mode(Mode::READER), join("n", Mode::Exclusive));
        granted(&lock, &reader).await;
        queued(&lock, &writer).await;
        // Behind that writer, and never seen again.
        let dead = of_another_client(ask("n").with_queue(ms(400)));
        queued(&lock, &dead).await;
        let waiter = join("n", Mode::READER);
        let probe = waits(&lock, &waiter).await;
        lock.abandon(&[writer.key]).await.remove(0).unwrap();
        changes(&probe).await;
        assert!(asked(&lock, &waiter).await.is_some());
        lock.release(&reader.key, Release::Now).await.unwrap();
        lock.release(&waiter.key, Release::Now).await.unwrap();
    });
}

#[test]
fn a_look_that_is_dropped_takes_no_news_with_it() {
    with_files(|files, runtime| async move {
        let (ours, theirs) = (open(&files, &runtime).await, open(&files, &runtime).await);
        for polls in 0..6 {
            let (holder, waiter) = (ask("n"), join("n", Mode::Exclusive));
            granted(&theirs, &holder).await;
            let probe = waits(&ours, &waiter).await;
            theirs.release(&holder.key, Release::Now).await.unwrap();
            let mut look = probe.look();
            for _ in 0..polls {
                if futures::poll!(&mut look).is_ready() {
                    break;
                }
                runtime.sleep(ms(2)).await;
            }
            drop(look);
            assert_eq!(looks(&probe).await, admitted(&[&waiter]), "after {polls} polls");
            asked(&ours, &waiter).await.unwrap();
            ours.release(&waiter.key, Release::Now).await.unwrap();
        }
    });
}

#[test]
fn what_cannot_be_read_is_an_error_of_its_name_alone() {
    with_files(|files, runtime| async move {
        let lock = open(&files, &runtime).await;
        let mut other = stranger(&files).await;
        let (bad, good) = (join("bad", Mode::Exclusive), join("good", Mode::Exclusive));
        granted(&lock, &ask("bad")).await;
        granted(&lock, &ask("good")).await;
        let (bad, good) = (waits(&lock, &bad).await, waits(&lock, &good).await);
        sql(
            &mut other,
            "UPDATE dlock_entry SET id = x'00' WHERE name = CAST('bad' AS BLOB) AND phase = 2",
        )
        .await;
        let (bad, good) = futures::join!(bad.look(), good.look());
        assert_eq!(bad.unwrap_err().kind(), dlock_core::ErrorKind::BackendData);
        assert_eq!(good.unwrap(), News::Nothing);
    });
}

/// What is asked for together runs in one transaction: the answer to the first is old when the commit is
/// done.
#[test]
fn a_waiter_sees_the_release_that_came_with_its_own_attempt() {
    everywhere(|lock| async move {
        for _ in 0..20 {
            let (holder, waiter, busy) = (ask("n"), join("n", Mode::Exclusive), ask("other"));
            granted(&lock, &holder).await;
            // While the first is in its transaction, the others gather for the next.
            let (_, attempt, released) = futures::join!(
                lock.attempt(&busy),
                lock.attempt(&waiter),
                lock.release(&holder.key, Release::Now)
            );
            assert_eq!(released.unwrap(), dlock_core::spi::Released::Released);
            let Attempt::Queued(wait) = attempt.unwrap() else {
                panic!("not queued");
            };
            let Wake::Poll { probe, .. } = wait.wake else {
                panic!("SQLite cannot push");
            };
            assert_eq!(looks(&probe).await, admitted(&[&waiter]));
            assert!(asked(&lock, &waiter).await.is_some());
            for key in [waiter.key, busy.key] {
                lock.release(&key, Release::Now).await.unwrap();
            }
        }
    });
}
