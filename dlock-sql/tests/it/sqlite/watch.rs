use std::time::Duration;

use dlock_core::spi::{Change, Lock, Release, Watch};
use dlock_core::{Mode, Result};
use dlock_sql::sqlite::SqliteLock;
use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::BoxStream;

use super::support::*;

fn watch_of(lock: &SqliteLock) -> &dyn Watch {
    let part: &dyn Lock = lock;
    part.watch_part().unwrap()
}

async fn next(stream: &mut BoxStream<'static, Result<Change>>) -> Change {
    let limit = smol::Timer::after(Duration::from_secs(10));
    match select(stream.next(), limit).await {
        Either::Left((change, _)) => change.expect("the stream goes on").unwrap(),
        Either::Right(_) => panic!("no change within ten seconds"),
    }
}

#[test]
fn a_snapshot_comes_first_then_every_change_in_order() {
    everywhere(|lock| async move {
        let mut a = ask("n").with_owner("worker 7".into());
        a.ttl = ms(200);
        let first = granted(&lock, &a).await;
        let mut stream = watch_of(&lock).watch(&a.key.name).await.unwrap();
        let Change::Snapshot { now, skipped: false } = next(&mut stream).await else {
            panic!("no snapshot");
        };
        assert_eq!(now.holders[0].token, first.token);
        assert_eq!(now.holders[0].owner.as_deref(), Some("worker 7"));

        lock.release(&a.key, Release::Now).await.unwrap();
        let mut b = ask("n");
        b.ttl = ms(50);
        let second = granted(&lock, &b).await;
        assert_eq!(next(&mut stream).await, Change::Released { id: a.key.id });
        let Change::Granted(holder) = next(&mut stream).await else {
            panic!("not granted");
        };
        assert_eq!((holder.id, holder.token), (b.key.id, second.token));
        // Nobody renews it and nobody asks: the watcher finds out by itself.
        assert_eq!(next(&mut stream).await, Change::Expired { id: b.key.id });

        let c = ask("n");
        granted(&lock, &c).await;
        assert!(matches!(next(&mut stream).await, Change::Granted(_)));
        assert_eq!(watch_of(&lock).force_release(&c.key.name).await.unwrap(), 1);
        assert_eq!(next(&mut stream).await, Change::Forced { id: c.key.id });
        lock.close().await.unwrap();
        assert!(stream.next().await.unwrap().is_err());
        assert!(stream.next().await.is_none());
    });
}

#[test]
fn changes_of_another_process_are_found() {
    with_files(|files, runtime| async move {
        let ours = SqliteLock::open(files.path(), runtime.clone()).await.unwrap();
        let theirs = SqliteLock::open(files.path(), runtime).await.unwrap();
        let a = ask("n");
        let mut stream = watch_of(&ours).watch(&a.key.name).await.unwrap();
        assert!(matches!(next(&mut stream).await, Change::Snapshot { .. }));
        let grant = granted(&theirs, &a).await;
        let Change::Granted(holder) = next(&mut stream).await else {
            panic!("not granted");
        };
        assert_eq!(holder.token, grant.token);
        theirs.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(next(&mut stream).await, Change::Released { id: a.key.id });
    });
}

#[test]
fn a_slow_watcher_is_told_that_changes_were_skipped_and_gets_the_last_state() {
    everywhere(|lock| async move {
        let name = ask("n").key.name;
        let mut stream = watch_of(&lock).watch(&name).await.unwrap();
        for _ in 0..800 {
            let a = ask("n");
            granted(&lock, &a).await;
            lock.release(&a.key, Release::Now).await.unwrap();
        }
        let last = granted(&lock, &ask("n")).await;
        loop {
            if let Change::Snapshot { now, skipped: true } = next(&mut stream).await
                && now.holders.first().is_some_and(|h| h.token == last.token)
            {
                break;
            }
        }
    });
}

#[test]
fn force_release_ends_all_holders_and_admits_the_next() {
    everywhere(|lock| async move {
        for _ in 0..3 {
            granted(&lock, &ask("n").with_mode(Mode::READER)).await;
        }
        let w = join("n", Mode::Exclusive);
        queued(&lock, &w).await;
        let seen = watch_of(&lock).inspect(&w.key.name).await.unwrap();
        assert_eq!((seen.holders.len(), seen.waiting), (3, 1));
        assert_eq!(watch_of(&lock).force_release(&w.key.name).await.unwrap(), 3);
        assert!(asked(&lock, &w).await.is_some());
    });
}
