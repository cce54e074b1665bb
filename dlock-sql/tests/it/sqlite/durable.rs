use dlock_core::spi::{Lock, Raised, Release, RenewItem, RenewOutcome};
use dlock_core::{ErrorKind, Mode, Token};
use dlock_sql::sqlite::Config;

use super::support::*;

#[test]
fn leases_and_tokens_survive_a_restart() {
    with_files(|files, runtime| async move {
        let first = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let (a, b) = (ask("a"), ask("b"));
        granted(&first, &a).await;
        let before = granted(&first, &b).await;
        first.release(&b.key, Release::Now).await.unwrap();
        first.close().await.unwrap();

        let second = Config::new(files.path()).connect(runtime).await.unwrap();
        held(&second, &ask("a")).await;
        let renewed = renew(&second, RenewItem::lease(a.key.clone(), TTL)).await;
        assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
        assert!(granted(&second, &ask("b")).await.token > before.token);
    });
}

#[test]
fn a_free_name_leaves_nothing_in_the_file() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        for i in 0..20 {
            let a = ask(&format!("n{i}"));
            granted(&lock, &a).await;
            let waiter = join(&format!("n{i}"), Mode::Exclusive);
            queued(&lock, &waiter).await;
            lock.abandon(&[waiter.key]).await.remove(0).unwrap();
            lock.release(&a.key, Release::Now).await.unwrap();
        }
        let mut other = stranger(&files).await;
        assert_eq!(number(&mut other, "SELECT count(*) FROM dlock_entry").await, 0);
        assert_eq!(number(&mut other, "SELECT count(*) FROM dlock_meta").await, 1);
    });
}

#[test]
fn a_raised_token_is_durable_and_the_next_grant_is_larger() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        let a = ask("n");
        granted(&lock, &a).await;
        let part: &dyn Lock = &lock;
        let fencing = part.fencing().unwrap();
        let far = Token::new(1 << 53).unwrap();
        assert_eq!(fencing.raise(&a.key, far).await.unwrap(), Raised::Raised(far));
        let lower = fencing.raise(&a.key, Token::MIN).await.unwrap();
        assert_eq!(lower, Raised::Raised(far));
        assert_eq!(fencing.raise(&key("n"), far).await.unwrap(), Raised::NotHeld);
        let e = fencing
            .raise(&a.key, Token::new(u64::MAX).unwrap())
            .await
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
        lock.release(&a.key, Release::Now).await.unwrap();
        lock.close().await.unwrap();

        let mut other = stranger(&files).await;
        let above = "SELECT token_ceiling > last_token AND last_token = 1 << 53 FROM dlock_meta";
        assert_eq!(number(&mut other, above).await, 1);
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        assert!(granted(&lock, &ask("n")).await.token > Some(far));
    });
}

#[test]
fn no_token_is_granted_that_a_power_loss_could_bring_again() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let mut other = stranger(&files).await;
        let far_below = "SELECT token_ceiling - last_token >= 500000 FROM dlock_meta";
        // Others have used up all but one: the next change waits for the disk, and raises the ceiling.
        sql(&mut other, "UPDATE dlock_meta SET last_token = token_ceiling - 1").await;
        granted(&lock, &ask("a")).await;
        assert_eq!(number(&mut other, far_below).await, 0);
        granted(&lock, &ask("b")).await;
        assert_eq!(number(&mut other, far_below).await, 1);
        // None is left: nothing is granted before that.
        sql(&mut other, "UPDATE dlock_meta SET last_token = token_ceiling").await;
        let refused = lock.attempt(&ask("c")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        granted(&lock, &ask("c")).await;
        assert_eq!(number(&mut other, far_below).await, 1);
    });
}

#[test]
fn a_newer_schema_is_refused_by_name() {
    with_files(|files, runtime| async move {
        let open = Config::new(files.path()).connect(runtime.clone()).await.unwrap();
        granted(&open, &ask("n")).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "UPDATE dlock_meta SET schema_version = 99").await;
        let e = Config::new(files.path()).connect(runtime).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains("version 99"), "{e}");
        // One that was open before stops too, instead of writing rows of the old form.
        let e = open.attempt(&ask("n")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn prefixes_are_separate_sets_of_locks() {
    with_files(|files, runtime| async move {
        let open = |prefix: &str| {
            Config::new(files.path())
                .table_prefix(prefix)
                .connect(runtime.clone())
        };
        let (a, b) = (open("a_").await.unwrap(), open("b_").await.unwrap());
        granted(&a, &ask("n")).await;
        granted(&b, &ask("n")).await;
        let e = open("a b").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn unused_entries_are_swept() {
    with_files(|files, runtime| async move {
        leave_a_dead_lease(&files, &runtime).await;
        std::thread::sleep(ms(30));
        // The first write after opening sweeps.
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        granted(&lock, &ask("alive")).await;
        let mut other = stranger(&files).await;
        let left = "SELECT count(*) FROM dlock_entry WHERE name = CAST('dead' AS BLOB)";
        assert_eq!(number(&mut other, left).await, 0);
    });
}

#[test]
fn after_the_last_token_nothing_is_granted() {
    everywhere(|lock| async move {
        let (a, reader) = (ask("n"), ask("shared").with_mode(Mode::READER));
        granted(&lock, &a).await;
        granted(&lock, &reader).await;
        let waiter = join("n", Mode::Exclusive);
        queued(&lock, &waiter).await;
        let part: &dyn Lock = &lock;
        let last = Token::new(i64::MAX as u64).unwrap();
        let raised = part.fencing().unwrap().raise(&a.key, last).await.unwrap();
        assert_eq!(raised, Raised::Raised(last));
        // What holds goes on; what would need a token is refused.
        let renewed = renew(&lock, RenewItem::lease(a.key.clone(), TTL)).await;
        assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
        for late in [ask("other"), join("n", Mode::Exclusive)] {
            let e = lock.attempt(&late).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::LimitReached);
        }
        let rwlock = part.rwlock().unwrap();
        let e = rwlock.convert(&reader.key, Mode::Exclusive).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::LimitReached);
        lock.release(&a.key, Release::Now).await.unwrap();
        assert_eq!(asked(&lock, &waiter).await, None);
    });
}

#[test]
fn the_last_arrival_number_loses_no_waiter() {
    with_files(|files, runtime| async move {
        let lock = Config::new(files.path()).connect(runtime).await.unwrap();
        let holder = ask("n");
        granted(&lock, &holder).await;
        let mut waiters = vec![join("n", Mode::Exclusive)];
        queued(&lock, &waiters[0]).await;
        let mut other = stranger(&files).await;
        sql(&mut other, "UPDATE dlock_entry SET arrival = 9223372036854775807").await;
        for _ in 0..2 {
            let next = join("n", Mode::Exclusive);
            queued(&lock, &next).await;
            waiters.push(next);
        }
        let mut before = holder.key;
        for waiter in &waiters {
            lock.release(&before, Release::Now).await.unwrap();
            assert!(asked(&lock, waiter).await.is_some());
            before = waiter.key.clone();
        }
    });
}
