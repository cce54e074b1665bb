//! The version of the tables.

use super::site::everywhere;

macro_rules! tests {
    ($db:ty, $open:path, $begin:literal, $one:literal, $two:literal) => {
        use dlock_core::{ErrorKind, LockName};
        use dlock_sql::direct::Tables;
        use dlock_sql::direct::reentrant::{Entered, ReentrantRows};

        use crate::direct::site::{LONG, run};

        #[test]
        fn tables_of_another_version_are_refused_and_older_ones_brought_up() {
            run(async {
                let site = $open().await;
                let tables = Tables::new("shop_").unwrap();
                let open =
                    || ReentrantRows::<$db>::new(site.pool.clone(), tables.clone(), site.runtime.clone());
                let set = async |version: i64| {
                    let text = concat!("UPDATE shop_direct SET version = ", $one);
                    let set = sqlx::query(text).bind(version).execute(&site.pool).await;
                    assert_eq!(set.unwrap().rows_affected(), 1);
                };
                let enter = async || {
                    let name = LockName::new("a").unwrap();
                    open().owner("one").unwrap().enter(&name, LONG).await
                };
                let e = enter().await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::BackendData, "{e}");
                open().create_table().await.unwrap();
                set(2).await;
                let e = enter().await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unsupported);
                assert!(
                    e.to_string().contains("version 2, this program knows up to 1"),
                    "{e}"
                );
                let e = open().create_table().await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unsupported);
                set(0).await;
                let e = enter().await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Unsupported);
                assert!(e.to_string().contains("create_table"), "{e}");
                open().create_table().await.unwrap();
                let entered = enter().await.unwrap();
                assert!(matches!(entered, Entered::Held(hold) if hold.holds() == 1));
            });
        }

        #[test]
        fn many_make_the_tables_at_once() {
            run(async {
                let site = $open().await;
                let all = (0..6).map(|_| {
                    let rows = ReentrantRows::<$db>::new(
                        site.pool.clone(),
                        Tables::default(),
                        site.runtime.clone(),
                    );
                    tokio::spawn(async move { rows.create_table().await })
                });
                for one in all.collect::<Vec<_>>() {
                    one.await.unwrap().unwrap();
                }
            });
        }
    };
}

everywhere!(tests);
