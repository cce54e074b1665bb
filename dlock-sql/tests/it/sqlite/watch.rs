use std::sync::Arc;
use std::time::Duration;

use dlock_core::Change;
use dlock_core::spi::{Lock, Release, Watch};
use dlock_core::{Mode, Result, Runtime, Timestamp};
use dlock_sql::sqlite::{Config, SqliteLock};
use futures::StreamExt as _;
use futures::future::{Either, select};
use futures::stream::BoxStream;

use super::support::*;

fn watch_of(lock: &SqliteLock) -> &dyn Watch {
    let part: &dyn Lock = lock;
    part.watch().unwrap()
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
        let a = ask("n").with_owner("worker 7".into());
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
        // It is not renewed, and there are no requests: the watcher finds out on its own.
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
        let ours = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let theirs = Config::new(files.path()).connect(runtime).await.unwrap();
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
fn a_slow_watcher_is_told_of_skipped_changes_and_the_last_state() {
    everywhere(|lock| async move {
        let name = ask("n").key.name;
        let mut stream = watch_of(&lock).watch(&name).await.unwrap();
        for _ in 0..800 {
            let a = ask("n");
            granted(&lock, &a).await;
            lock.release(&a.key, Release::Now).await.unwrap();
        }
        // It outlasts what a busy machine needs to tell it.
        let mut last = ask("n");
        last.ttl = TTL * 20;
        let last = granted(&lock, &last).await;
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

/// What has been told, until nothing comes for a while.
async fn all(stream: &mut BoxStream<'static, Result<Change>>, quiet: Duration) -> Vec<Change> {
    let mut told = Vec::new();
    loop {
        match select(stream.next(), smol::Timer::after(quiet)).await {
            Either::Left((change, _)) => told.push(change.expect("the stream goes on").unwrap()),
            Either::Right(_) => return told,
        }
    }
}

/// Two clients of one file, and a watch of the first one that has had its first snapshot.
async fn two(files: &Files, runtime: Arc<dyn Runtime>) -> (SqliteLock, SqliteLock, Stream) {
    let ours = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
    let theirs = Config::new(files.path()).connect(runtime).await.unwrap();
    let mut stream = watch_of(&ours).watch(&key("n").name).await.unwrap();
    let first = next(&mut stream).await;
    assert!(
        matches!(first, Change::Snapshot { skipped: false, .. }),
        "{first:?}"
    );
    (ours, theirs, stream)
}

type Stream = BoxStream<'static, Result<Change>>;

async fn came_and_went(lock: &SqliteLock, name: &str) {
    let a = ask(name);
    granted(lock, &a).await;
    lock.release(&a.key, Release::Now).await.unwrap();
}

#[test]
fn an_unseen_hold_of_another_client_is_told_of_as_skipped() {
    with_files(|files, runtime| async move {
        let (_ours, theirs, mut stream) = two(&files, runtime.clone()).await;
        for round in 0..40 {
            let a = ask("n");
            granted(&theirs, &a).await;
            theirs.release(&a.key, Release::Now).await.unwrap();
            // Either was seen holding, or is told of as skipped. Not nothing.
            loop {
                match next(&mut stream).await {
                    Change::Granted(holder) => assert_eq!(holder.id, a.key.id),
                    Change::Released { id } => {
                        assert_eq!(id, a.key.id);
                        break;
                    }
                    Change::Snapshot { now, skipped: true } if now.holders.is_empty() => break,
                    Change::Snapshot { skipped: true, .. } => {}
                    other => panic!("{other:?} in round {round}"),
                }
            }
            runtime.sleep(ms(round % 7 * 3)).await;
        }
    });
}

#[test]
fn changes_that_add_up_are_told_singly_and_others_as_a_snapshot() {
    with_files(|files, runtime| async move {
        let (_ours, theirs, mut stream) = two(&files, runtime).await;
        let mut told = Vec::new();
        for _ in 0..300 {
            came_and_went(&theirs, "n").await;
        }
        let last = granted(&theirs, &ask("n")).await;
        told.extend(all(&mut stream, ms(500)).await);
        // The holders that the stream leads to, whatever came as a snapshot.
        let (mut holders, mut newest) = (Vec::new(), None);
        for change in &told {
            match change {
                Change::Snapshot { now, skipped } => {
                    assert!(skipped, "{told:?}");
                    holders = now.holders.iter().map(|h| h.id).collect();
                }
                Change::Granted(holder) => {
                    assert!(holder.token > newest, "in the order of the grants");
                    newest = holder.token;
                    holders.push(holder.id);
                }
                Change::Released { id } => holders.retain(|h| h != id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(holders, [last.key.id]);
        let granted = told.iter().filter(|c| matches!(c, Change::Granted(_))).count();
        let skipped = told
            .iter()
            .filter(|c| matches!(c, Change::Snapshot { .. }))
            .count();
        assert!(
            granted == 301 || skipped > 0,
            "{granted} of 301 grants told, none skipped"
        );
    });
}

#[test]
fn what_becomes_of_other_names_does_not_trouble_a_watch() {
    with_files(|files, runtime| async move {
        let (_ours, theirs, mut stream) = two(&files, runtime).await;
        for n in 0..200 {
            came_and_went(&theirs, &format!("other {}", n % 20)).await;
        }
        assert_eq!(all(&mut stream, ms(200)).await, []);
    });
}

#[test]
fn a_forced_end_through_another_client_is_not_told_as_a_release() {
    with_files(|files, runtime| async move {
        let (ours, theirs, mut stream) = two(&files, runtime).await;
        granted(&ours, &ask("n")).await;
        assert!(matches!(next(&mut stream).await, Change::Granted(_)));
        assert_eq!(watch_of(&theirs).force_release(&key("n").name).await.unwrap(), 1);
        let Change::Snapshot { now, skipped: true } = next(&mut stream).await else {
            panic!("no snapshot");
        };
        assert!(now.holders.is_empty());
    });
}

#[test]
fn a_watch_whose_count_was_lost_says_so_and_counts_anew() {
    with_files(|files, runtime| async move {
        let (_ours, theirs, mut stream) = two(&files, runtime).await;
        let mut other = stranger(&files).await;
        for _ in 0..3 {
            // As after a minute in which the watching process stood still.
            sql(&mut other, "UPDATE dlock_entry SET expires = 1 WHERE phase = 4").await;
            came_and_went(&theirs, "n").await;
            while !matches!(next(&mut stream).await, Change::Snapshot { skipped: true, .. }) {}
            let a = ask("n");
            granted(&theirs, &a).await;
            assert!(matches!(next(&mut stream).await, Change::Granted(h) if h.id == a.key.id));
            theirs.release(&a.key, Release::Now).await.unwrap();
            assert_eq!(next(&mut stream).await, Change::Released { id: a.key.id });
        }
    });
}

#[test]
fn an_unread_watch_leaves_no_row() {
    with_files(|files, runtime| async move {
        let (ours, theirs, stream) = two(&files, runtime.clone()).await;
        let mut other = stranger(&files).await;
        let rows = "SELECT count(*) FROM dlock_entry";
        assert_eq!(number(&mut other, rows).await, 1);
        // A second watch of the name needs no second row.
        let second = watch_of(&theirs).watch(&key("n").name).await.unwrap();
        assert_eq!(number(&mut other, rows).await, 1);
        drop((stream, second));
        let left = "SELECT max(expires) FROM dlock_entry";
        let left = Timestamp::from_nanos(number(&mut other, left).await as u64).since(Timestamp::now());
        assert!(left <= Duration::from_secs(60), "{left:?}");
        sql(&mut other, "UPDATE dlock_entry SET expires = 1").await;
        came_and_went(&ours, "n").await;
        assert_eq!(number(&mut other, rows).await, 0);
        // And a name without a watch has no row that would be counted in.
        came_and_went(&theirs, "n").await;
        assert_eq!(number(&mut other, rows).await, 0);
    });
}

#[test]
fn a_kept_name_released_by_another_client_is_told_as_released() {
    with_files(|files, runtime| async move {
        let (_ours, theirs, mut stream) = two(&files, runtime).await;
        let a = ask("n");
        granted(&theirs, &a).await;
        assert!(matches!(next(&mut stream).await, Change::Granted(_)));
        let kept = Release::KeepFor(ms(400));
        theirs.release(&a.key, kept).await.unwrap();
        let told = all(&mut stream, ms(100)).await;
        assert_eq!(told, [], "not free yet");
        smol::Timer::after(ms(400)).await;
        came_and_went(&theirs, "other").await;
        granted(&theirs, &ask("n")).await;
        let told = all(&mut stream, ms(300)).await;
        assert_eq!(told.first(), Some(&Change::Released { id: a.key.id }), "{told:?}");
    });
}
