//! The version of the table.

use super::site::everywhere;

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use dlock_core::{ErrorKind, LockName};
        use dlock_sql::direct::Tables;
        use dlock_sql::direct::reentrant::{Entered, ReentrantRows};

        use crate::direct::site::{LONG, run};

        #[test]
        fn a_table_that_is_not_there_or_of_a_newer_version_is_refused() {
            run(async {
                let site = $open().await;
                let tables = Tables::new("shop_").unwrap();
                let rows = ReentrantRows::<$db>::new(site.pool.clone(), tables, site.runtime.clone());
                let mut owner = rows.owner("one").unwrap();
                let name = LockName::new("a").unwrap();
                let e = owner.enter(&name, LONG).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
                rows.create_table().await.unwrap();
                let entered = owner.enter(&name, LONG).await.unwrap();
                assert!(matches!(entered, Entered::Held(hold) if hold.holds() == 1));
                let text = "UPDATE shop_reentrant SET version = 2";
                let set = sqlx::query(text).execute(&site.pool).await;
                assert_eq!(set.unwrap().rows_affected(), 1);
                for e in [
                    owner.enter(&name, LONG).await.unwrap_err(),
                    rows.inspect(&name).await.unwrap_err(),
                ] {
                    assert_eq!(e.kind(), ErrorKind::Unsupported);
                    let told = e.to_string();
                    assert!(told.contains("version 2, this program knows up to 1"), "{e}");
                }
            });
        }

        #[test]
        fn many_make_the_tables_at_once() {
            run(async {
                let site = $open().await;
                for round in 0..10 {
                    let tables = Tables::new(&format!("round_{round}_")).unwrap();
                    let all = (0..6).map(|_| {
                        let (tables, runtime) = (tables.clone(), site.runtime.clone());
                        let rows = ReentrantRows::<$db>::new(site.pool.clone(), tables, runtime);
                        tokio::spawn(async move { rows.create_table().await })
                    });
                    for one in all.collect::<Vec<_>>() {
                        one.await.unwrap().unwrap();
                    }
                }
            });
        }
    };
}

everywhere!(tests);
