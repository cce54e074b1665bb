//! What `docs/` has operators say to their servers is said to real ones, as it stands there.

use std::sync::Arc;

use dlock_core::spi::{Lock, Release};
use dlock_core::{Access, LockName, Mode, Runtime, Token};
use dlock_sql::direct::reentrant::{Entered, ReentrantRows};
use dlock_sql::direct::{Store, Tables, gate};
use dlock_sql::lease::Config;
use dlock_sql::session;
use sqlx::{Executor as _, Pool};

use crate::lease::site::{On, TTL, ask, blocking, granted, join, queued, run};
use dlock_testkit::{MariaDbServer, PostgresServer};

const DOCS: [&str; 2] = [
    include_str!("../../../docs/sql.md"),
    include_str!("../../../docs/sql-by-hand.md"),
];

/// The statements that are for that server: what they are about, and they.
fn of(server: &str) -> Vec<(&'static str, &'static str)> {
    let blocks = DOCS.iter().flat_map(|text| text.split("```sql\n").skip(1));
    let mut found = Vec::new();
    for block in blocks {
        let (sql, _) = block.split_once("```").expect("a block ends");
        let about = sql.lines().next().expect("it is not empty");
        let about = about
            .strip_prefix("-- ")
            .expect("the first line says for which server it is");
        if let Some(what) = about.strip_prefix(server) {
            found.push((what.trim_start_matches(": "), sql));
        }
    }
    found
}

/// Two locks are held, alone and shared, and somebody waits for each.
async fn in_use(lock: &dyn Lock) {
    granted(lock, &ask("alone").with_owner("web-1".into())).await;
    granted(
        lock,
        &ask("shared").with_mode(Mode::READER).with_owner("web-2".into()),
    )
    .await;
    for name in ["alone", "shared"] {
        queued(lock, &join(name, Mode::Exclusive)).await;
    }
}

/// The granted rights suffice for their purpose.
async fn works(lock: &dyn Lock) {
    let a = ask("of the app");
    granted(lock, &a).await;
    lock.release(&a.key, Release::Now).await.unwrap();
}

/// The tables of locking by hand.
async fn by_hand<DB: Store>(pool: Pool<DB>, runtime: &Arc<dyn Runtime>) {
    let mut conn = pool.acquire().await.unwrap();
    gate::create_table::<DB>(&mut conn, &Tables::default())
        .await
        .unwrap();
    drop(conn);
    let rows = ReentrantRows::new(pool, Tables::default(), runtime.clone());
    rows.create_table().await.unwrap();
}

async fn enters<DB: Store>(pool: Pool<DB>, runtime: Arc<dyn Runtime>) {
    let mut tx = pool.begin().await.unwrap();
    let (stock, token) = (LockName::new("stock").unwrap(), Token::new(7).unwrap());
    let tables = Tables::default();
    let admitted = gate::admit_in::<DB>(&mut tx, &tables, &stock, token, Access::Exclusive);
    assert!(admitted.await.unwrap().is_admitted());
    tx.commit().await.unwrap();
    let rows = ReentrantRows::new(pool, tables, runtime);
    let mut owner = rows.owner("app").unwrap();
    match owner.enter(&stock, TTL).await.unwrap() {
        Entered::Held(hold) => owner.leave(hold).await.unwrap(),
        other => panic!("nobody else is there, but: {other:?}"),
    }
}

/// Each statement, with a look at what the questions find.
fn said(all: &[(&str, &str)], mut say: impl FnMut(&str) -> std::io::Result<String>) {
    assert!(all.len() >= 4, "few statements are found: {all:?}");
    for (what, sql) in all {
        let answer = say(sql).unwrap_or_else(|e| panic!("{what}: {e}"));
        let lines = answer.lines().count();
        match *what {
            "who holds what" => {
                assert_eq!(lines, 2, "{answer}");
                assert!(answer.contains("web-1") && answer.contains("web-2"), "{answer}");
            }
            "who waits, in their order" => assert_eq!(lines, 2, "{answer}"),
            "sessions that hold or wait for advisory locks, of dlock and of others" => {
                assert_eq!(lines, 1, "{answer}");
            }
            _ => {}
        }
    }
}

/// `sql-by-hand` recommends it against transactions that are begun and dropped: of what is stored by way of
/// such a pool nothing is lost.
#[test]
fn a_pool_that_rolls_back_what_comes_home_loses_nothing() {
    run(On::Tokio, async |_| {
        let server = blocking(PostgresServer::start).await;
        server.ask("CREATE TABLE stored (n integer)").unwrap();
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
        let options = options.after_release(|conn, _| {
            Box::pin(async move {
                conn.execute("ROLLBACK").await?;
                Ok(true)
            })
        });
        let pool = options.connect(&server.url()).await.unwrap();
        const ALL: u64 = 40;
        for n in 0..ALL {
            // Before it is sent, after that, and when it was answered.
            let dropped = tokio::time::timeout(std::time::Duration::from_micros(20 * n), pool.begin());
            drop(dropped.await);
            let insert = sqlx::query("INSERT INTO stored VALUES (1)").execute(&pool);
            assert_eq!(insert.await.unwrap().rows_affected(), 1);
        }
        assert_eq!(server.number("SELECT count(*) FROM stored").unwrap(), ALL as i64);
    });
}

#[test]
fn what_the_pages_have_operators_say_to_postgres_is_right() {
    run(On::Tokio, async |runtime: Arc<dyn Runtime>| {
        let server = blocking(PostgresServer::start).await;
        server
            .ask(
                "SET password_encryption = 'scram-sha-256'; CREATE ROLE app LOGIN PASSWORD 'secret'; \
                 CREATE SCHEMA locks",
            )
            .unwrap();
        let lease = Config::from_url(&server.url()).unwrap().schema("locks");
        let lease = lease.connect(runtime.clone()).await.unwrap();
        let session = session::Config::from_url(&server.url()).unwrap().schema("locks");
        let session = session.connect(runtime.clone()).await.unwrap();
        let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
        by_hand(pool, &runtime).await;
        in_use(&*lease).await;
        granted(&session, &ask("session")).await;
        said(&of("PostgreSQL"), |sql| server.ask(sql));

        let url = server.url_of("app", "secret");
        let lease = Config::from_url(&url).unwrap().schema("locks");
        works(&*lease.connect(runtime.clone()).await.unwrap()).await;
        let session = session::Config::from_url(&url).unwrap().schema("locks");
        works(&session.connect(runtime.clone()).await.unwrap()).await;
        enters(sqlx::PgPool::connect(&url).await.unwrap(), runtime).await;
    });
}

#[test]
fn what_the_pages_have_operators_say_to_mariadb_is_right() {
    run(On::Tokio, async |runtime: Arc<dyn Runtime>| {
        let server = blocking(MariaDbServer::start).await;
        server
            .ask("CREATE DATABASE locks; CREATE USER app IDENTIFIED BY 'secret'")
            .unwrap();
        let of_locks = |url: String| url.replace("/dlock", "/locks");
        let lease = Config::from_url(&of_locks(server.url())).unwrap();
        let lease = lease.connect(runtime.clone()).await.unwrap();
        let session = session::Config::from_url(&of_locks(server.url())).unwrap();
        let session = session.connect(runtime.clone()).await.unwrap();
        let pool = sqlx::MySqlPool::connect(&of_locks(server.url())).await.unwrap();
        by_hand(pool, &runtime).await;
        in_use(&*lease).await;
        granted(&session, &ask("session")).await;
        said(&of("MariaDB"), |sql| server.ask(&format!("USE locks; {sql}")));

        let url = of_locks(server.url_of("app", "secret"));
        let lease = Config::from_url(&url).unwrap();
        works(&*lease.connect(runtime.clone()).await.unwrap()).await;
        let session = session::Config::from_url(&url).unwrap();
        works(&session.connect(runtime.clone()).await.unwrap()).await;
        enters(sqlx::MySqlPool::connect(&url).await.unwrap(), runtime).await;
    });
}
