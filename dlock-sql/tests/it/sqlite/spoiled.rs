//! Rows that dlock did not write: each is the failure of its own name, and of nobody else.

use dlock_core::ErrorKind;
use dlock_core::spi::{Lock as _, RenewItem, RenewOutcome};
use dlock_sql::sqlite::Config;
use futures::StreamExt as _;

use super::support::*;

/// A row with an unknown phase, which ran out at the beginning of time.
const BAD: &str =
    "INSERT INTO dlock_entry VALUES (CAST('bad' AS BLOB), x'00', 9, 0, 0, 0, NULL, 0, 0, 0, NULL)";
/// A row that is well but for its name.
const NAMELESS: &str = "INSERT INTO dlock_entry VALUES (x'', zeroblob(24), 2, -1, 5, 0, 1, 0, 0, 0, NULL)";

#[test]
fn an_expired_bad_row_blocks_no_request() {
    with_files(|files, runtime| async move {
        leave_a_dead_lease(&files, &runtime).await;
        let mut other = stranger(&files).await;
        sql(&mut other, BAD).await;
        sql(&mut other, NAMELESS).await;
        std::thread::sleep(ms(30));

        // The first write sweeps.
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("good")).await;
        granted(&lock, &ask("better")).await;
        let dead = "SELECT count(*) FROM dlock_entry WHERE name = CAST('dead' AS BLOB)";
        assert_eq!(number(&mut other, dead).await, 0, "the others are swept");
        let e = lock.attempt(&ask("bad")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData);

        sql(
            &mut other,
            "DELETE FROM dlock_entry WHERE name = CAST('bad' AS BLOB)",
        )
        .await;
        granted(&lock, &ask("bad")).await;
    });
}

#[test]
fn many_bad_rows_do_not_keep_the_rest_from_being_swept() {
    with_files(|files, runtime| async move {
        leave_a_dead_lease(&files, &runtime).await;
        let mut other = stranger(&files).await;
        let many = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
            INSERT INTO dlock_entry
            SELECT CAST('a' || i AS BLOB), x'00', 9, 0, 0, 0, NULL, 0, 0, 0, NULL FROM n";
        sql(&mut other, many).await;

        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("good")).await;
        std::thread::sleep(ms(150));
        granted(&lock, &ask("better")).await;
        let dead = "SELECT count(*) FROM dlock_entry WHERE name = CAST('dead' AS BLOB)";
        assert_eq!(number(&mut other, dead).await, 0);
    });
}

#[test]
fn names_that_are_loaded_do_not_keep_the_rest_from_being_swept() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let dead = |name: String| {
            let mut a = ask(&name);
            a.ttl = ms(20);
            a
        };
        let asks: Vec<_> = (0..300)
            .map(|i| dead(format!("a{i}")))
            .chain([dead("z".into())])
            .collect();
        futures::future::join_all(asks.iter().map(|a| granted(&lock, a))).await;
        lock.close().await.unwrap();
        std::thread::sleep(ms(30));

        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let part: &dyn dlock_core::spi::Lock = &lock;
        let watch = part.watch().unwrap();
        // Looking loads them, and takes nothing back.
        for a in &asks[..300] {
            watch.inspect(&a.key.name).await.unwrap();
        }
        granted(&lock, &ask("good")).await;
        std::thread::sleep(ms(150));
        granted(&lock, &ask("better")).await;
        let mut other = stranger(&files).await;
        assert_eq!(number(&mut other, "SELECT count(*) FROM dlock_entry").await, 2);
    });
}

#[test]
fn a_bad_row_of_a_watched_name_ends_its_own_watch_only() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let part: &dyn dlock_core::spi::Lock = &lock;
        let watch = part.watch().unwrap();
        let mut bad = watch.watch(&key("bad").name).await.unwrap();
        let mut good = watch.watch(&key("good").name).await.unwrap();
        bad.next().await.unwrap().unwrap();
        good.next().await.unwrap().unwrap();
        let mut other = stranger(&files).await;
        sql(&mut other, BAD).await;
        granted(&lock, &ask("good")).await;
        good.next().await.unwrap().unwrap();
        let e = bad.next().await.unwrap().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::BackendData);
    });
}

#[test]
fn a_bad_row_fails_its_own_item_of_a_batch_only() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let (bad, good) = (ask("bad"), ask("good"));
        granted(&lock, &bad).await;
        granted(&lock, &good).await;
        let mut other = stranger(&files).await;
        sql(&mut other, BAD).await;
        let items = [&bad, &good].map(|a| RenewItem::lease(a.key.clone(), TTL));
        let part: &dyn dlock_core::spi::Lock = &lock;
        let answers = part.renew().unwrap().renew(&items).await;
        assert!(
            matches!(&answers[0], RenewOutcome::Failed(e) if e.kind() == ErrorKind::BackendData),
            "{answers:?}"
        );
        assert!(matches!(answers[1], RenewOutcome::Renewed(_)), "{answers:?}");
        let answers = lock.abandon(&[bad.key.clone(), good.key.clone()]).await;
        assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
    });
}
