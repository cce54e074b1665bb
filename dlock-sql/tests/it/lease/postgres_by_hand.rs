//! The functions of PostgreSQL, called by hand, where as much time passes as a test says; and what is true of
//! the tables after each call, which `invariants.sql` checks.

use std::sync::Arc;

use dlock_core::Runtime;
use dlock_sql::lease::Config;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::site::*;

/// In the text of a call `#1` is an id, and `60_s` are microseconds.
fn written(call: &str) -> String {
    let mut call = call.replace("0_s", "0000000");
    for n in 1..=9 {
        call = call.replace(&format!("#{n}"), &format!("'\\x0{n}'"));
    }
    call
}

/// A request that does not queue.
fn take(name: &str, id: u8, share: i32, ttl: u32) -> String {
    format!("attempt('{name}', #{id}, {share}, {ttl}_s, 0, 5, NULL, NULL)")
}

/// One that does, and its channel.
fn wait(name: &str, id: u8, share: i32, queue: u32) -> String {
    format!("attempt('{name}', #{id}, {share}, 400_s, {queue}_s, 5, 'c{id}', NULL)")
}

fn free(name: &str, id: u8) -> String {
    format!("release('{name}', #{id}, 0, false)")
}

fn keep(name: &str, id: u8, time: u32) -> String {
    format!("release('{name}', #{id}, {time}_s, false)")
}

struct Db {
    conn: PgConnection,
    options: PgConnectOptions,
}

impl Db {
    /// In a database of its own.
    async fn new(runtime: Arc<dyn Runtime>) -> Self {
        let options = postgres().await;
        let config = Config::from_postgres_options(options.clone());
        config.connect(runtime).await.unwrap().close().await.unwrap();
        let mut conn = options.connect().await.unwrap();
        sqlx::raw_sql(include_str!("invariants.sql"))
            .execute(&mut conn)
            .await
            .unwrap();
        let mut db = Self { conn, options };
        db.run("SET statement_timeout = '20s'; SET lock_timeout = '2s'")
            .await;
        db
    }

    async fn run(&mut self, sql: &str) {
        let sql = AssertSqlSafe(written(sql));
        sqlx::raw_sql(sql).execute(&mut self.conn).await.unwrap();
    }

    /// The rows of one column.
    async fn ask(&mut self, sql: &str) -> Vec<String> {
        let sql = written(sql);
        let rows = sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(sql.clone()));
        let rows = rows.fetch_all(&mut self.conn).await;
        let rows = rows.unwrap_or_else(|e| panic!("{sql}: {e}"));
        rows.into_iter().map(Option::unwrap_or_default).collect()
    }

    async fn number(&mut self, sql: &str) -> i64 {
        self.ask(&format!("SELECT ({sql})::text")).await[0]
            .parse()
            .unwrap()
    }

    /// What a function answers: its word, for how long, behind how many; what a watch is told, and how many
    /// others a release leaves.
    async fn call(&mut self, call: &str) -> String {
        let others = if call.starts_with("release") {
            "a.others"
        } else {
            "NULL"
        };
        let said = format!(
            "SELECT concat_ws(' ', left(a.word, 1), 'for ' || ceil(a.life / 20e6) * 20, \
             'behind ' || a.ahead, \
             (SELECT string_agg(m[1], '') FROM regexp_matches(a.word, '[RXFG]0.', 'g') AS m), \
             'beside ' || {others}) FROM dlock_{call} AS a"
        );
        self.ask(&said).await.remove(0)
    }

    /// Calls one after the other.
    async fn says(&mut self, calls: &[(String, &str)]) {
        for (n, (call, said)) in calls.iter().enumerate() {
            assert_eq!(self.call(call).await, *said, "{n}: {call}");
        }
    }

    /// Who is in the row of the name, with its phase and for how long, and how many have been granted or have
    /// ended.
    async fn row(&mut self, name: &str) -> String {
        let row = format!(
            "SELECT concat_ws(' ', coalesce(encode(id, 'hex'), '-'), phase, CASE WHEN phase <> 0 THEN \
             ceil(extract(epoch FROM ends - clock_timestamp()) / 20) * 20 END) FROM dlock_name \
             WHERE name = '{name}'"
        );
        self.ask(&row).await.concat()
    }

    /// The others, with their phases and for how long.
    async fn entries(&mut self, name: &str) -> Vec<String> {
        let entries = format!(
            "SELECT concat_ws(' ', encode(id, 'hex'), phase, \
             ceil(extract(epoch FROM ends - clock_timestamp()) / 20) * 20) FROM dlock_entry \
             WHERE name = '{name}' ORDER BY id"
        );
        self.ask(&entries).await
    }

    /// So many seconds pass.
    async fn pass(&mut self, seconds: u32) {
        let time = format!("interval '{seconds} s'");
        // It is no change that is checked.
        self.run(&format!(
            "BEGIN; SET LOCAL session_replication_role = replica; \
             UPDATE dlock_name SET ends = ends - {time}, earliest = earliest - {time}, \
             alone_until = alone_until - {time}; UPDATE dlock_entry SET ends = ends - {time}; \
             UPDATE dlock_meta SET swept = swept - {time}; COMMIT"
        ))
        .await;
    }
}

/// What the clients are told on their channels.
struct Told(PgListener);

impl Told {
    async fn new(db: &Db) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(db.options.clone());
        let mut told = PgListener::connect_with(&pool).await.unwrap();
        let channels = (0..10).map(|n| format!("c{n}")).collect::<Vec<_>>();
        told.listen_all(channels.iter().map(String::as_str))
            .await
            .unwrap();
        Self(told)
    }

    /// What has been told since.
    async fn since(&mut self, db: &mut Db) -> Vec<String> {
        db.run("NOTIFY c0").await;
        let mut all = Vec::new();
        loop {
            let message = within(ms(20_000), self.0.recv()).await.unwrap();
            if message.channel() == "c0" {
                return all;
            }
            let what = message.payload().get(..3).unwrap_or_default();
            all.push(format!("{} {what}", message.channel()));
        }
    }
}

fn on_a_database<F: Future<Output = ()>>(test: impl FnOnce(Db) -> F) {
    run(On::Tokio, async |runtime| test(Db::new(runtime).await).await);
}

/// The first end in the way, or its own: of its name, and of no other.
#[test]
fn a_waiter_asks_again_when_the_first_in_its_way_ends() {
    on_a_database(async |mut db| {
        db.says(&[
            (take("other", 9, -1, 20), "G for 20"),
            (
                "attempt('other', #8, -1, 20_s, 20_s, 9, NULL, NULL)".into(),
                "Q for 20 behind 0",
            ),
            (take("others", 9, 0, 20), "G for 20"),
            // An exclusive hold, and the waiter's own place.
            (take("x", 1, -1, 100), "G for 100"),
            (take("x", 2, -1, 100), "H for 100"),
            (wait("x", 2, -1, 200), "Q for 100 behind 0"),
            (wait("x", 3, -1, 60), "Q for 100 behind 1"),
            (take("own", 1, -1, 100), "G for 100"),
            (wait("own", 2, -1, 60), "Q for 60 behind 0"),
            // A shared one.
            (take("shared", 1, 0, 60), "G for 60"),
            (wait("shared", 2, -1, 200), "Q for 60 behind 0"),
            // One that is kept.
            (take("kept", 1, 0, 200), "G for 200"),
            (keep("kept", 1, 60), "R beside 1"),
            (wait("kept", 2, -1, 200), "Q for 60 behind 0"),
            // One that is offered.
            (take("offered", 1, -1, 100), "G for 100"),
            (wait("offered", 2, -1, 60), "Q for 60 behind 0"),
            (free("offered", 1), "R beside 1"),
            (wait("offered", 3, -1, 200), "Q for 60 behind 0"),
            // And to a reader.
            (take("reader", 1, -1, 100), "G for 100"),
            (wait("reader", 2, 0, 60), "Q for 60 behind 0"),
            (free("reader", 1), "R beside 1"),
            (wait("reader", 3, -1, 200), "Q for 60 behind 0"),
        ])
        .await;
    });
}

#[test]
fn a_place_is_renewed_when_it_is_asked_for() {
    on_a_database(async |mut db| {
        for name in ["x", "y"] {
            db.says(&[
                (take(name, 1, -1, 400), "G for 400"),
                (wait(name, 2, -1, 160), "Q for 160 behind 0"),
                (wait(name, 3, -1, 160), "Q for 160 behind 1"),
            ])
            .await;
        }
        db.pass(60).await;
        db.says(&[(wait("x", 2, -1, 160), "Q for 160 behind 0")]).await;
        assert_eq!(db.entries("x").await, ["02 0 160", "03 0 100"]);
        assert_eq!(db.entries("y").await, ["02 0 100", "03 0 100"]);
        // What was asked for a moment ago is not stored again; another channel is.
        let version = "SELECT xmin::text FROM dlock_entry WHERE name = 'x' AND id = #2";
        let before = db.ask(version).await;
        db.says(&[(wait("x", 2, -1, 160), "Q for 160 behind 0")]).await;
        assert_eq!(db.ask(version).await, before);
        db.says(&[(wait("x", 2, -1, 160).replace("c2", "c9"), "Q for 160 behind 0")])
            .await;
        let channels = "SELECT channel FROM dlock_entry WHERE name = 'x' ORDER BY id";
        assert_eq!(db.ask(channels).await, ["c9", "c3"]);
        // In a name of its own it is the one that ends first.
        db.says(&[
            (take("alone", 1, -1, 400), "G for 400"),
            (wait("alone", 2, -1, 160), "Q for 160 behind 0"),
        ])
        .await;
        db.pass(60).await;
        db.says(&[(wait("alone", 2, -1, 40), "Q for 100 behind 0")]).await;
        assert_eq!(db.entries("alone").await, ["02 0 100"]);
    });
}

#[test]
fn who_is_ahead_is_counted_up_to_a_limit() {
    on_a_database(async |mut db| {
        db.says(&[(take("x", 1, -1, 400), "G for 400")]).await;
        let all = "SELECT max((dlock_attempt('x', decode(lpad(to_hex(n), 6, '0'), 'hex'), -1, 400_s, 400_s, \
                   5, NULL, NULL)).ahead)::text FROM generate_series(1, 70) AS n";
        for asked in ["for the first time", "again"] {
            assert_eq!(db.ask(all).await, ["64"], "{asked}");
        }
    });
}

#[test]
fn late_copies_of_a_request_are_refused_for_a_minute() {
    on_a_database(async |mut db| {
        db.says(&[("abandon('x', #1)".into(), "N"), (take("x", 1, -1, 100), "A")])
            .await;
        assert_eq!(db.entries("x").await, ["01 5 60"]);
        db.pass(60).await;
        db.says(&[(take("x", 1, -1, 100), "G for 100")]).await;
        assert_eq!(db.entries("x").await, [""; 0]);
        // Also of one that is released in the short way.
        db.says(&[
            (wait("x", 2, -1, 200), "Q for 100 behind 0"),
            ("release('x', #1, 0, true)".into(), "R beside 2"),
            (take("x", 1, -1, 100), "A"),
        ])
        .await;
        assert_eq!(db.row("x").await, "02 1 200");
    });
}

#[test]
fn a_minimum_hold_is_owed_whatever_its_holder_asks() {
    on_a_database(async |mut db| {
        // The last one of those who share has been alone.
        db.says(&[
            (take("x", 3, -1, 200), "G for 200"),
            ("convert('x', #3, 0)".into(), "G for 200"),
            (
                "attempt('x', #2, 0, 200_s, 0, 10, NULL, NULL)".into(),
                "G for 200",
            ),
            (take("x", 1, 0, 200), "G for 200"),
            (take("y", 1, 0, 200), "G for 200"),
            (keep("x", 1, 60), "R beside 3"),
            (keep("x", 2, 60), "R beside 3"),
            (keep("x", 3, 60), "R beside 3"),
            (keep("y", 1, 60), "R beside 1"),
            // Again, for longer, and to end it.
            (keep("x", 1, 200), "R beside 3"),
            (free("x", 1), "R beside 3"),
            (take("x", 1, 0, 200), "R"),
            // No lease of it can be known to who asks, or its late copies come to nothing.
            ("abandon('x', #1)".into(), "N"),
        ])
        .await;
        let kept = ["01 3 60", "02 3 60", "03 3 60"];
        assert_eq!(db.entries("x").await, kept);
        db.pass(60).await;
        db.says(&[
            (take("x", 5, -1, 200), "G for 200"),
            (take("y", 5, -1, 200), "G for 200"),
        ])
        .await;
        assert_eq!(db.entries("x").await, ["01 5 60"]);
        assert_eq!(db.entries("y").await, [""; 0]);
        db.says(&[(take("x", 1, 0, 200), "A")]).await;

        // The same of one that is alone, with one waiter behind it.
        db.says(&[
            (take("z", 1, -1, 200), "G for 200"),
            (wait("z", 2, -1, 200), "Q for 200 behind 0"),
            (keep("z", 1, 60), "R beside 2"),
            (keep("z", 1, 200), "R beside 2"),
            (free("z", 1), "R beside 2"),
            (take("z", 1, -1, 200), "R for 60"),
            ("abandon('z', #1)".into(), "N"),
        ])
        .await;
        assert_eq!(db.row("z").await, "01 3 60");
        assert_eq!(db.entries("z").await, ["01 5 60", "02 0 200"]);
    });
}

#[test]
fn the_next_waiter_is_told_of_a_minimum_hold() {
    on_a_database(async |mut db| {
        let mut told = Told::new(&db).await;
        db.says(&[
            (take("other", 1, -1, 200), "G for 200"),
            (
                "attempt('other', #9, -1, 200_s, 200_s, 9, 'c9', NULL)".into(),
                "Q for 200 behind 0",
            ),
            (take("x", 1, 0, 200), "G for 200"),
            ("attempt('x', #4, 0, 200_s, 0, 9, 'c4', NULL)".into(), "G for 200"),
            (wait("x", 2, -1, 200), "Q for 200 behind 0"),
            (keep("x", 1, 60), "R beside 3"),
        ])
        .await;
        assert_eq!(told.since(&mut db).await, ["c2 K02"]);
        // And when it has become the next.
        db.says(&[
            (wait("x", 3, -1, 200), "Q for 60 behind 1"),
            ("abandon('x', #2)".into(), "W"),
        ])
        .await;
        assert_eq!(told.since(&mut db).await, ["c3 K03"]);
    });
}

#[test]
fn a_watch_is_told_and_ends_as_it_is_asked_to() {
    on_a_database(async |mut db| {
        let mut told = Told::new(&db).await;
        let listen = |time: &str| format!("listen('x', #7, 'c7', {time})");
        db.says(&[
            (listen("60_s"), "B for 60"),
            (take("x", 1, -1, 40), "G for 40"),
            (wait("x", 2, -1, 200), "Q for 40 behind 0"),
        ])
        .await;
        assert_eq!(told.since(&mut db).await, ["c7 W07"]);
        assert_eq!(db.entries("x").await, ["02 0 200", "07 4 60"]);
        db.says(&[(listen("60_s"), "K for 40 G01"), (listen("60_s"), "K for 40")])
            .await;
        // It is renewed, though it is looked at sooner than it has to be.
        db.says(&[(free("x", 1), "R beside 2")]).await;
        db.pass(20).await;
        db.says(&[(listen("60_s"), "K for 40 R01G02")]).await;
        assert_eq!(db.entries("x").await, ["07 4 60"]);
        // Who is alone in the name, and when nobody is.
        db.says(&[(take("x", 2, -1, 40), "G for 400"), (listen("60_s"), "K for 40")])
            .await;
        db.says(&[(free("x", 2), "R beside 1"), (listen("60_s"), "K for 40 R02")])
            .await;
        // It ends, and may come again; or is buried.
        db.says(&[(listen("0"), "B")]).await;
        assert_eq!(db.entries("x").await, [""; 0]);
        db.says(&[
            (listen("60_s"), "B for 40"),
            (listen("-1"), "B"),
            (listen("60_s"), "A for 40"),
        ])
        .await;
        assert_eq!(db.entries("x").await, ["07 5 60"]);
        db.pass(60).await;
        db.says(&[(listen("60_s"), "B for 60")]).await;
    });
}

#[test]
fn a_watch_learns_that_an_offer_has_run_out() {
    on_a_database(async |mut db| {
        let listen = || "listen('x', #7, 'c7', 200_s)".to_owned();
        db.says(&[
            (take("x", 1, -1, 200), "G for 200"),
            (wait("x", 2, 0, 20), "Q for 20 behind 0"),
            (listen(), "B for 20"),
            (free("x", 1), "R beside 2"),
        ])
        .await;
        db.pass(20).await;
        db.says(&[(listen(), "K for 180 R01G02X02")]).await;
        // It is also what admits the next one.
        db.says(&[
            (take("x", 1, -1, 20), "G for 20"),
            (wait("x", 2, -1, 200), "Q for 20 behind 0"),
        ])
        .await;
        db.pass(20).await;
        db.says(&[(listen(), "K for 160 G01X01G02")]).await;
        assert_eq!(db.row("x").await, "02 1 180");
    });
}

#[test]
fn what_is_asked_of_an_unknown_name_makes_no_row() {
    on_a_database(async |mut db| {
        db.says(&[
            ("convert('x', #1, 0)".into(), "N"),
            ("raise('x', #1, 7)".into(), "N"),
            ("force('x')".into(), "N"),
            ("listen('x', #1, 'c1', 0)".into(), "B"),
            (free("x", 1), "N"),
        ])
        .await;
        assert_eq!(db.number("SELECT count(*) FROM dlock_name").await, 0);
        // One that is made has seen no change but its own, and knows the time.
        db.says(&[(take("x", 1, -1, 200), "G for 200")]).await;
        assert_eq!(db.number("SELECT changes FROM dlock_name").await, 1);
        let away =
            "SELECT (extract(epoch FROM clock_timestamp()) * 1e6 - at)::bigint FROM dlock_abandon('x', #2)";
        assert!(db.number(away).await.abs() < 60_000_000);
    });
}

#[test]
fn a_phase_that_is_unknown_is_refused() {
    on_a_database(async |mut db| {
        db.says(&[(take("x", 1, -1, 200), "G for 200")]).await;
        for (phase, known) in [(-1, false), (0, true), (3, true), (4, false)] {
            db.run(&format!(
                "BEGIN; SET LOCAL session_replication_role = replica; \
                 UPDATE dlock_name SET phase = {phase}; COMMIT"
            ))
            .await;
            let asked = sqlx::raw_sql("SELECT dlock_abandon('x', '\\x09')")
                .execute(&mut db.conn)
                .await;
            let code = asked
                .err()
                .map(|e| e.into_database_error().unwrap().code().unwrap().to_string());
            assert_eq!(code.as_deref(), (!known).then_some("DL002"), "{phase}");
        }
    });
}

#[test]
fn who_wants_to_be_alone_is_remembered_for_a_ttl() {
    on_a_database(async |mut db| {
        let convert = |id: u8, share: i32| format!("convert('x', #{id}, {share})");
        let renew = "SELECT string_agg(r.word, '') FROM dlock_renew(ARRAY['x', 'x']::bytea[], \
                     ARRAY[#1, #2]::bytea[], '{f,f}', '{100_s,100_s}', NULL, true) AS r";
        db.says(&[
            (take("x", 1, 0, 100), "G for 100"),
            (take("x", 2, 0, 100), "G for 100"),
            (convert(1, -1), "B"),
            (convert(1, -1), "B"),
            (convert(2, -1), "D"),
        ])
        .await;
        for _ in 0..2 {
            db.pass(60).await;
            assert_eq!(db.ask(renew).await, ["LL"]);
        }
        db.says(&[(convert(2, -1), "B"), (convert(1, -1), "D")]).await;
        // It is given up by asking to share, which renews the lease as well; and with the lease.
        db.pass(40).await;
        db.says(&[(convert(2, 0), "G for 100"), (convert(1, -1), "B")])
            .await;
        assert_eq!(db.entries("x").await, ["01 2 60", "02 2 100"]);
        db.says(&[(keep("x", 1, 60), "R beside 2"), (convert(2, -1), "B")])
            .await;
        db.says(&[
            (take("x", 3, 0, 100), "G for 100"),
            (free("x", 2), "R beside 2"),
            (convert(3, -1), "B"),
        ])
        .await;
    });
}

#[test]
fn a_conversion_sees_what_has_run_out() {
    on_a_database(async |mut db| {
        for name in ["x", "y"] {
            db.says(&[
                (take(name, 1, 0, 200), "G for 200"),
                (wait(name, 2, -1, 20), "Q for 20 behind 0"),
                (wait(name, 3, 0, 200), "Q for 20 behind 1"),
            ])
            .await;
        }
        db.pass(20).await;
        // A reader that waited behind the writer is admitted first.
        db.says(&[
            ("convert('x', #1, -1)".into(), "B"),
            ("raise('y', #1, 7)".into(), "G"),
        ])
        .await;
        for name in ["x", "y"] {
            assert_eq!(db.entries(name).await, ["01 2 180", "03 1 180"]);
        }
        // What was shared before is of no account.
        db.says(&[
            (take("z", 1, 3, 200), "G for 200"),
            (free("z", 1), "R beside 0"),
            (take("z", 2, -1, 200), "G for 200"),
            ("convert('z', #2, 0)".into(), "G for 200"),
        ])
        .await;
    });
}

#[test]
fn tokens_go_on_from_one_that_was_raised() {
    on_a_database(async |mut db| {
        let high = 1_i64 << 60;
        let raise = |name: &str| format!("raise('{name}', #1, {high})");
        // By a conversion, by a release in the short way, by any other, and for who comes by itself.
        db.says(&[
            (take("x", 1, 0, 200), "G for 200"),
            (raise("x"), "G"),
            ("convert('x', #1, -1)".into(), "G for 200"),
        ])
        .await;
        for (name, share) in [("y", -1), ("z", 0)] {
            db.says(&[
                (take(name, 1, -1, 200), "G for 200"),
                (wait(name, 2, share, 200), "Q for 200 behind 0"),
                (raise(name), "G"),
                (free(name, 1), "R beside 1"),
            ])
            .await;
        }
        db.says(&[
            (take("w", 1, -1, 200), "G for 200"),
            (raise("w"), "G"),
            (free("w", 1), "R beside 0"),
            (take("w", 2, -1, 200), "G for 200"),
        ])
        .await;
        let tokens = db
            .ask("SELECT (token > 1152921504606846976)::text FROM dlock_name")
            .await;
        assert_eq!(tokens, ["true"; 4]);
    });
}

#[test]
fn a_forced_end_is_of_those_who_hold_it_then() {
    on_a_database(async |mut db| {
        db.says(&[
            (take("x", 1, -1, 20), "G for 20"),
            (wait("x", 2, -1, 200), "Q for 20 behind 0"),
        ])
        .await;
        db.pass(20).await;
        assert_eq!(db.number("SELECT token FROM dlock_force('x')").await, 0);
        assert_eq!(db.row("x").await, "02 1 180");
        assert_eq!(db.number("SELECT token FROM dlock_force('x')").await, 1);
        // Nor does it admit whoever asks to be forgotten.
        db.says(&[
            (take("y", 1, -1, 20), "G for 20"),
            (wait("y", 2, -1, 200), "Q for 20 behind 0"),
        ])
        .await;
        db.pass(20).await;
        db.says(&[("abandon('y', #2)".into(), "W")]).await;
    });
}

#[test]
fn a_lease_that_was_shared_ends_for_who_is_alone() {
    on_a_database(async |mut db| {
        db.says(&[(take("x", 1, 0, 20), "G for 20")]).await;
        db.pass(20).await;
        db.says(&[(take("x", 2, -1, 200), "G for 200")]).await;
    });
}

#[test]
fn a_release_says_how_many_others_there_are() {
    on_a_database(async |mut db| {
        db.says(&[
            (take("x", 1, -1, 200), "G for 200"),
            (wait("x", 2, -1, 200), "Q for 200 behind 0"),
            (wait("x", 3, -1, 200), "Q for 200 behind 1"),
            (free("x", 1), "R beside 2"),
            (free("x", 2), "R beside 1"),
            (free("x", 3), "R beside 0"),
            (take("y", 1, 0, 200), "G for 200"),
            (take("y", 2, 0, 200), "G for 200"),
            (free("y", 1), "R beside 1"),
            (take("z", 1, -1, 200), "G for 200"),
            (wait("z", 2, -1, 200), "Q for 200 behind 0"),
            (wait("z", 3, -1, 200), "Q for 200 behind 1"),
            (keep("z", 1, 60), "R beside 3"),
        ])
        .await;
    });
}

/// The long way takes twice the time.
#[test]
fn a_plain_wait_and_hand_over_take_the_short_way() {
    on_a_database(async |mut db| {
        db.run("SET track_functions = 'pl'").await;
        // Those of the transactions before may be among them.
        let long = "SELECT coalesce(max(calls), 0) FROM pg_stat_xact_user_functions \
                    WHERE funcname = 'dlock_settle'";
        db.says(&[(take("x", 1, -1, 200), "G for 200")]).await;
        // Behind one that holds it, behind one that it was offered; and to nobody.
        for (call, said, plain) in [
            (wait("x", 2, -1, 200), "Q for 200 behind 0", true),
            (free("x", 1), "R beside 1", true),
            (wait("x", 3, -1, 200), "Q for 200 behind 0", true),
            (free("x", 2), "R beside 1", true),
            (free("x", 3), "R beside 0", false),
        ] {
            db.run("BEGIN").await;
            let before = db.number(long).await;
            db.says(&[(call.clone(), said)]).await;
            assert_eq!(db.number(long).await == before, plain, "{call}");
            db.run("COMMIT").await;
        }
    });
}

#[test]
fn renewals_lock_and_change_what_they_name() {
    on_a_database(async |mut db| {
        db.says(&[
            (take("x", 1, -1, 100), "G for 100"),
            (take("y", 1, 0, 100), "G for 100"),
            (take("z", 1, -1, 100), "G for 100"),
        ])
        .await;
        let renew = |names: &str, wait: bool| {
            let all = names.len();
            let names = names
                .split("")
                .filter(|n| !n.is_empty())
                .collect::<Vec<_>>()
                .join(",");
            let of = |one: &str| vec![one; all].join(",");
            format!(
                "SELECT concat_ws(' ', r.item, r.word, r.life) FROM dlock_renew('{{{names}}}', \
                 ARRAY[{}]::bytea[], '{{{}}}', '{{{}}}', NULL, {wait}) AS r ORDER BY 1",
                of("#1"),
                of("f"),
                of("3600_s")
            )
        };
        for wait in [true, false] {
            assert_eq!(db.ask(&renew("x", wait)).await, ["1 L 3600000000"]);
            let all = ["1 L 3600000000", "2 N", "3 L 3600000000"];
            assert_eq!(db.ask(&renew("xuy", wait)).await, all);
        }
        let ttls = "SELECT convert_from(k.name, 'UTF8') || ' ' || k.ttl FROM (SELECT name, phase, ttl \
                    FROM dlock_name UNION ALL SELECT name, phase, ttl FROM dlock_entry) AS k \
                    WHERE k.phase <> 0 ORDER BY 1";
        assert_eq!(db.ask(ttls).await, ["x 01:00:00", "y 01:00:00", "z 00:01:40"]);
        // One that somebody else has just then.
        let mut other = db.options.connect().await.unwrap();
        let lock = "BEGIN; SELECT 1 FROM dlock_name WHERE name = 'x' FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut other).await.unwrap();
        assert_eq!(db.ask(&renew("xy", false)).await, ["1 B", "2 L 3600000000"]);
    });
}

#[test]
fn a_sweep_deletes_what_has_been_dead_for_long() {
    on_a_database(async |mut db| {
        // In the order of their tokens. One has lapsed after it was shared.
        let mut all = vec![
            (take("held", 1, -1, 160), "G for 160"),
            (take("lapsed", 1, 0, 20), "G for 20"),
            (free("lapsed", 1), "R beside 0"),
            (take("lapsed", 2, -1, 20), "G for 20"),
        ];
        let names = ["old", "older", "raised", "waited", "recent", "new"];
        all.extend(names.map(|name| (take(name, 1, -1, 400), "G for 400")));
        all.push(("raise('raised', #1, 4611686018427387904)".into(), "G"));
        all.push((wait("waited", 2, -1, 20), "Q for 20 behind 0"));
        all.push((wait("recent", 2, -1, 80), "Q for 80 behind 0"));
        all.extend(["old", "older", "raised"].map(|name| (free(name, 1), "R beside 0")));
        db.says(&all).await;
        db.pass(85).await;
        db.says(&[(free("new", 1), "R beside 0")]).await;
        let (floor, left) = (
            "SELECT token_floor FROM dlock_meta",
            "SELECT count(*) FROM dlock_entry",
        );
        let older = db
            .number("SELECT token FROM dlock_name WHERE name = 'older'")
            .await;
        // Nothing before half of that time is over, whoever asks. The first one raises the floor, and has
        // what ran out that long ago forgotten; the next one deletes.
        for (since, deleted, to, entries) in
            [(0, 0, 0, 2), (25, 0, 0, 2), (40, 0, older, 1), (40, 3, older, 1)]
        {
            let swept = format!("UPDATE dlock_meta SET swept = clock_timestamp() - interval '{since} s'");
            db.run(&swept).await;
            assert_eq!(
                db.number("SELECT dlock_sweep(60_s, 10)").await,
                deleted,
                "{since}"
            );
            assert_eq!(db.number(floor).await, to, "{since}");
            assert_eq!(db.number(left).await, entries, "{since}");
            if to > 0 {
                db.pass(40).await;
            }
        }
        let left = "SELECT convert_from(name, 'UTF8') FROM dlock_name ORDER BY 1";
        assert_eq!(db.ask(left).await, ["held", "new", "raised", "recent", "waited"]);
    });
}

#[test]
fn only_what_may_be_missing_can_be_null() {
    on_a_database(async |mut db| {
        let nullable = "SELECT table_name || '.' || column_name FROM information_schema.columns \
                        WHERE table_name IN ('dlock_meta', 'dlock_name', 'dlock_entry') \
                        AND is_nullable = 'YES' ORDER BY table_name, ordinal_position";
        let expected = [
            "dlock_entry.token",
            "dlock_entry.owner",
            "dlock_entry.channel",
            "dlock_name.id",
            "dlock_name.owner",
            "dlock_name.alone",
            "dlock_name.alone_until",
        ];
        assert_eq!(db.ask(nullable).await, expected);
    });
}

/// Otherwise each look goes through all entries of the name.
#[test]
fn what_is_looked_for_among_many_has_an_index() {
    on_a_database(async |mut db| {
        db.run(
            "BEGIN; SET LOCAL session_replication_role = replica; \
             INSERT INTO dlock_entry (name, id, phase, share, priority, place, ttl, ends) \
             SELECT 'x', decode(lpad(to_hex(n), 6, '0'), 'hex'), n % 6, -1, 5, n, interval '0', \
             clock_timestamp() FROM generate_series(1, 6000) AS n; COMMIT; ANALYZE dlock_entry",
        )
        .await;
        for (what, index) in [
            ("phase = 0 ORDER BY place LIMIT 1", "dlock_queue"),
            ("phase IN (1, 2, 3)", "dlock_holder"),
            ("phase = 4", "dlock_watch"),
        ] {
            let plan = format!("EXPLAIN SELECT ends FROM dlock_entry WHERE name = 'x' AND {what}");
            let plan = db.ask(&plan).await.concat();
            assert!(plan.contains(index), "{plan}");
        }
    });
}
