//! The fence gate in a transaction.

use dlock_core::{Access, FenceGate, FencedValue, LockName, Token};

use super::site::everywhere;

/// Each step is from a state that the ones before have made: what is answered and stored is what the rule of
/// all gates says.
pub(crate) async fn decides_as_the_rule_does(gate: &dyn FenceGate) {
    let first = [
        (3, 'x'),
        (7, 's'),
        (5, 's'),
        (6, 'w'),
        (2, 's'),
        (8, 'w'),
        (8, 'w'),
        (8, 's'),
        (8, 'x'),
    ];
    let later = [
        (9, 's'),
        (9, 'x'),
        (8, 'x'),
        (12, 'x'),
        (10, 's'),
        (14, 's'),
        (13, 'w'),
        (14, 'x'),
        (14, 'w'),
    ];
    for (name, steps) in [
        ("by a writer", [first, later].concat()),
        ("by a reader", later.to_vec()),
    ] {
        let resource = LockName::new(name).unwrap();
        assert_eq!(gate.read(&resource).await.unwrap(), None);
        let mut rule = FencedValue::new(Vec::new(), None, None);
        for (n, how) in steps {
            let (token, value) = (Token::new(n).unwrap(), [n as u8]);
            let access = if how == 's' {
                Access::Shared
            } else {
                Access::Exclusive
            };
            let told = match how {
                'w' => gate.write(&resource, token, &value).await,
                _ => gate.admit(&resource, token, access).await,
            };
            let expected = rule.admit(token, access);
            if how == 'w' && expected.is_admitted() {
                rule.value = value.into();
            }
            assert_eq!(told.unwrap(), expected, "{name}: {n}{how}");
            let stored = gate.read(&resource).await.unwrap();
            assert_eq!(stored.as_ref(), Some(&rule), "{name}: {n}{how}");
        }
    }
}

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use dlock_core::{Access, Admission, FencedValue};
        use dlock_core::{ErrorKind, LockName, Token};
        use dlock_sql::direct::{Tables, gate};

        use crate::direct::site::{Site, run};

        type Db = $db;

        fn token(n: u64) -> Token {
            Token::new(n).unwrap()
        }

        fn stock() -> LockName {
            LockName::new("stock").unwrap()
        }

        async fn open(tables: &Tables) -> Site<Db> {
            let site = $open().await;
            let mut conn = site.pool.acquire().await.unwrap();
            gate::create_table::<Db>(&mut conn, tables).await.unwrap();
            gate::create_table::<Db>(&mut conn, tables).await.unwrap();
            drop(conn);
            sqlx::query("CREATE TABLE written (by_token BIGINT)")
                .execute(&site.pool)
                .await
                .unwrap();
            site
        }

        #[test]
        fn the_check_stands_or_falls_with_its_transaction() {
            run(async {
                let tables = Tables::new("mine_").unwrap();
                let site = open(&tables).await;
                for (n, commit) in [(3, true), (5, false)] {
                    let mut tx = site.pool.begin_with($begin).await.unwrap();
                    let seen = gate::admit_in(&mut tx, &tables, &stock(), token(n), Access::Exclusive).await;
                    assert!(seen.unwrap().is_admitted());
                    if commit {
                        tx.commit().await.unwrap();
                    } else {
                        tx.rollback().await.unwrap();
                    }
                }
                let mut tx = site.pool.begin_with($begin).await.unwrap();
                let late = gate::admit_in(&mut tx, &tables, &stock(), token(2), Access::Exclusive).await;
                assert_eq!(late.unwrap(), Admission::Refused { highest: token(3) });
                let newer = gate::admit_in(&mut tx, &tables, &stock(), token(4), Access::Exclusive).await;
                assert!(newer.unwrap().is_admitted());
                let e = gate::admit_in(&mut tx, &tables, &stock(), token(u64::MAX), Access::Shared).await;
                assert_eq!(e.unwrap_err().kind(), ErrorKind::InvalidInput);
            });
        }

        #[test]
        fn a_row_that_no_dlock_wrote_is_told_of_and_left_as_it_is() {
            run(async {
                let tables = Tables::default();
                let site = open(&tables).await;
                for (exclusive, any) in [
                    ("10", "3"),
                    ("1", "NULL"),
                    ("NULL", "-5"),
                    ("-5", "9"),
                    ("0", "9"),
                ] {
                    for access in [Access::Exclusive, Access::Shared] {
                        let mut tx = site.pool.begin_with($begin).await.unwrap();
                        let admitted = gate::admit_in(&mut tx, &tables, &stock(), token(1), access).await;
                        assert!(admitted.unwrap().is_admitted());
                        let is = format!("max_exclusive = {exclusive}, max_any = {any}");
                        let spoil = sqlx::AssertSqlSafe(format!("UPDATE dlock_fence SET {is}"));
                        sqlx::query(spoil).execute(&mut *tx).await.unwrap();
                        let e = gate::admit_in(&mut tx, &tables, &stock(), token(20), access).await;
                        assert_eq!(e.unwrap_err().kind(), ErrorKind::BackendData, "{is}");
                        let written = "SELECT COUNT(*) FROM dlock_fence WHERE max_any = 20";
                        let (written,): (i64,) = sqlx::query_as(written).fetch_one(&mut *tx).await.unwrap();
                        assert_eq!(written, 0, "{is}");
                    }
                }
            });
        }

        #[test]
        fn the_rule_is_that_of_every_gate() {
            run(async {
                let tables = Tables::default();
                let site = open(&tables).await;
                let mut rule = FencedValue::new(vec![], None, None);
                let mut dice = 12345u64;
                for _ in 0..100 {
                    dice = dice
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let access = match dice >> 62 {
                        0 => Access::Exclusive,
                        _ => Access::Shared,
                    };
                    let n = (dice >> 33) % 50 + 1;
                    let mut tx = site.pool.begin_with($begin).await.unwrap();
                    let seen = gate::admit_in(&mut tx, &tables, &stock(), token(n), access)
                        .await
                        .unwrap();
                    tx.commit().await.unwrap();
                    assert_eq!(seen, rule.admit(token(n), access), "{n} {access:?}");
                }
                assert!(rule.max_exclusive.is_some());
            });
        }

        #[test]
        fn of_many_at_once_what_is_written_never_goes_back() {
            run(async {
                let tables = Tables::default();
                let site = open(&tables).await;
                let writers = (1..=24u64).map(|n| {
                    let (pool, tables, token) = (site.pool.clone(), tables.clone(), token((n * 7) % 25));
                    tokio::spawn(async move {
                        let mut tx = pool.begin_with($begin).await.unwrap();
                        let seen = gate::admit_in(&mut tx, &tables, &stock(), token, Access::Exclusive).await;
                        if seen.unwrap().is_admitted() {
                            let text = concat!("INSERT INTO written VALUES (", $one, ")");
                            let n = token.get() as i64;
                            sqlx::query(text).bind(n).execute(&mut *tx).await.unwrap();
                            tx.commit().await.unwrap();
                        }
                    })
                });
                for writer in writers.collect::<Vec<_>>() {
                    writer.await.unwrap();
                }
                let last: i64 = sqlx::query_scalar("SELECT max(by_token) FROM written")
                    .fetch_one(&site.pool)
                    .await
                    .unwrap();
                assert_eq!(last, 24);
                let mut tx = site.pool.begin_with($begin).await.unwrap();
                let seen = gate::admit_in(&mut tx, &tables, &stock(), token(23), Access::Exclusive).await;
                assert_eq!(seen.unwrap(), Admission::Refused { highest: token(24) });
            });
        }

        #[test]
        fn without_its_table_the_gate_says_so() {
            run(async {
                let site = $open().await;
                let mut tx = site.pool.begin_with($begin).await.unwrap();
                let e = gate::admit_in(
                    &mut tx,
                    &Tables::default(),
                    &stock(),
                    token(1),
                    Access::Shared,
                )
                .await;
                assert_eq!(e.unwrap_err().kind(), ErrorKind::BackendData);
            });
        }
    };
}

everywhere!(tests);

#[cfg(feature = "sqlite")]
#[test]
fn in_one_file_it_remembers_what_the_backend_does() {
    use dlock_core::spi::Lock;
    use dlock_core::{Access, Admission, LockName, Token};
    use dlock_sql::direct::{Tables, gate};
    use dlock_sql::sqlite::Config;

    super::site::run(async {
        let site = super::site::sqlite().await;
        let path = site.pool.connect_options().get_filename().to_owned();
        let lock = Config::new(path).connect(site.runtime.clone()).await.unwrap();
        let stock = LockName::new("stock").unwrap();
        let token = |n| Token::new(n).unwrap();
        let part: &dyn Lock = &lock;
        let theirs = part.fencing().unwrap().gate().unwrap();
        assert!(theirs.write(&stock, token(5), b"v").await.unwrap().is_admitted());
        let mut tx = site.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        let tables = Tables::default();
        let late = gate::admit_in(&mut tx, &tables, &stock, token(4), Access::Exclusive);
        assert_eq!(late.await.unwrap(), Admission::Refused { highest: token(5) });
        let newer = gate::admit_in(&mut tx, &tables, &stock, token(7), Access::Shared);
        assert!(newer.await.unwrap().is_admitted());
        tx.commit().await.unwrap();
        let seen = theirs.read(&stock).await.unwrap().unwrap();
        assert_eq!(
            (seen.value.as_slice(), seen.max_any),
            (b"v".as_slice(), Some(token(7)))
        );
        lock.close().await.unwrap();
    });
}
