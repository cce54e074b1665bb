//! What PostgreSQL alone does: pushes, versions.

use std::time::Duration;

use dlock_core::spi::{Attempt, Push, Release, Wake};
use dlock_core::{ErrorKind, Mode};
use dlock_sql::lease::Config;
use futures::StreamExt as _;
use sqlx::ConnectOptions as _;

use super::site::*;

const SOON: Duration = Duration::from_secs(5);

#[test]
fn the_next_waiter_is_notified() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let lock = Config::from_postgres_options(options)
            .connect(runtime)
            .await
            .unwrap();
        let a = ask("x");
        let first = granted(&*lock, &a).await;
        let b = join("x", Mode::Exclusive);
        let Attempt::Queued(wait) = lock.attempt(&b).await.unwrap() else {
            panic!()
        };
        assert_eq!(wait.ahead, Some(0));
        assert!(wait.recheck_in.is_some_and(|d| d <= TTL));
        let Wake::Push(mut pushes) = wait.wake else {
            panic!("it looks")
        };
        lock.release(&a.key, Release::Now).await.unwrap();
        let push = within(SOON, pushes.next()).await;
        let Some(Push::Granted(grant)) = push else {
            panic!("{push:?}")
        };
        assert!(grant.provisional && grant.token > first.token && grant.key == b.key);
        assert!(grant.expires_in <= TTL + SOON);
        lock.close().await.unwrap();
    });
}

#[test]
fn tables_of_a_newer_dlock_are_refused() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let lock = Config::from_postgres_options(options.clone())
            .connect(runtime.clone())
            .await
            .unwrap();
        lock.close().await.unwrap();
        let mut conn = options.connect().await.unwrap();
        sqlx::raw_sql("UPDATE dlock_meta SET schema_version = 99")
            .execute(&mut conn)
            .await
            .unwrap();
        let e = Config::from_postgres_options(options)
            .connect(runtime)
            .await
            .err()
            .unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.to_string().contains("99"), "{e}");
    });
}

#[test]
fn concurrent_opens_create_the_tables_once() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let all = (0..8).map(|_| Config::from_postgres_options(options.clone()).connect(runtime.clone()));
        for lock in futures::future::join_all(all).await {
            granted(&*lock.unwrap(), &ask(&format!("{:?}", key("x").id))).await;
        }
    });
}

/// Where nobody watches and nothing has run out, a release hands over in a shorter way. It is made to go the
/// other one by somebody who watches.
#[test]
fn a_plain_hand_over_leaves_what_any_other_does() {
    const NAMES: [&str; 2] = ["plain", "watched"];
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let lock = Config::from_postgres_options(options.clone())
            .connect(runtime)
            .await
            .unwrap();
        let mut conn = options.connect().await.unwrap();
        let mut ask = async |sql: String| -> Vec<String> {
            let rows = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(sql));
            rows.fetch_all(&mut conn).await.unwrap()
        };
        for name in NAMES {
            let asks = [
                "dlock_attempt($N, '\\x01', -1, 30000000, 0, 5, NULL, 'the first')",
                "dlock_listen($N, '\\x09', 'watch', 60000000)",
                "dlock_attempt($N, '\\x02', -1, 20000000, 40000000, 5, 'told', 'the second')",
                "dlock_attempt($N, '\\x03', -1, 60000000, 40000000, 5, NULL, NULL)",
                "dlock_attempt($N, '\\x04', 0, 10000000, 40000000, 5, 'told', 'a reader')",
            ];
            let words = ["G", "B", "Q", "Q", "Q"];
            for (what, word) in asks.iter().zip(words) {
                if name == "watched" || !what.contains("listen") {
                    let what = what.replace("$N", &format!("'{name}'"));
                    assert_eq!(ask(format!("SELECT a.word FROM {what} AS a")).await, [word]);
                }
            }
        }
        // From holder to holder, and at last to the reader.
        for (id, others) in [(1, 3), (2, 2), (3, 1)] {
            let before = ask("SELECT max(token)::text FROM dlock_name".to_owned()).await;
            for name in NAMES {
                let release = format!("dlock_release('{name}', '\\x0{id}', 0, false)");
                assert_eq!(ask(format!("SELECT a.word FROM {release} AS a")).await, ["R"]);
            }
            let row = "concat_ws(' ', phase, encode(id, 'hex'), owner, ttl, others - watching, held, \
                waiting, classed, class, arrivals, changes, hints, \
                 alone, token > $T, ends > clock_timestamp() + least(ttl, interval '30 s') - interval '5 \
                 s', ends <= clock_timestamp() + greatest(ttl, interval '40 s'), \
                 CASE WHEN held = 0 THEN ends <= clock_timestamp() + ttl END)";
            let row = row.replace("$T", &before[0]);
            let rows = ask(format!("SELECT {row} FROM dlock_name ORDER BY name")).await;
            assert_eq!(rows[0], rows[1], "after {id}");
            let left = "concat_ws(' ', encode(id, 'hex'), phase, share, place, ttl, owner, channel)";
            for name in NAMES {
                let left = ask(format!(
                    "SELECT {left} FROM dlock_entry WHERE name = '{name}' AND phase <> 4 ORDER BY id"
                ));
                assert_eq!(
                    left.await.len(),
                    if id < 3 { others - 1 } else { others },
                    "{name} after {id}"
                );
            }
        }
        lock.close().await.unwrap();
    });
}

/// Otherwise the first real call would have them compiled, with the name locked.
#[test]
fn a_new_connection_has_run_what_a_hand_over_calls() {
    run(On::Tokio, async |runtime| {
        let options = postgres().await;
        let mut conn = options.connect().await.unwrap();
        let database = options.get_database().unwrap();
        let counted = format!("ALTER DATABASE {database} SET track_functions = 'pl'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(counted))
            .execute(&mut conn)
            .await
            .unwrap();
        let lock = Config::from_postgres_options(options.clone())
            .connect(runtime)
            .await
            .unwrap();
        lock.close().await.unwrap();
        let expected = ["admit", "attempt", "put", "release", "renew", "settle", "take"];
        let called =
            "SELECT replace(funcname, 'dlock_', '') FROM pg_stat_user_functions WHERE calls > 0 ORDER BY 1";
        // A session tells what it has counted as it ends.
        within(SOON, async {
            loop {
                let called: Vec<String> = sqlx::query_scalar(called).fetch_all(&mut conn).await.unwrap();
                if expected.iter().all(|name| called.iter().any(|c| c == name)) {
                    return;
                }
                tokio::time::sleep(ms(50)).await;
            }
        })
        .await;
    });
}
