//! A row of your own that is locked while it is read, decided on and written: stock that is never oversold.
//!
//! `cargo run --example sql_row`: eight buyers, twenty pieces. It needs no server: it makes a SQLite file,
//! and removes it. With PostgreSQL, MySQL or MariaDB only the pool, the placeholders and the beginning of the
//! transaction are others, and only the row is locked, not the file.
#![allow(clippy::print_stdout)] // showing is what it is for

use std::time::Duration;

use dlock::direct::row::{Locked, Rows, Wait};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Row as _, Sqlite, SqlitePool};

/// What became of an order.
enum Order {
    Sold { left: i64 },
    SoldOut,
    TooBusy,
}

async fn buy(pool: &SqlitePool, id: i64) -> Result<Order, Box<dyn std::error::Error + Send + Sync>> {
    // PostgreSQL: `pool.begin()`. In SQLite a transaction that will write says so when it begins.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let piece = Rows::<Sqlite>::of("stock", "SELECT n FROM stock WHERE id = ?")
        .bind(id)
        .wait(Wait::AtMost(Duration::from_secs(2)));
    let left = match piece.lock(&mut tx).await? {
        Locked::Held(mut held) => {
            // Read under the lock: nobody else can change it until the transaction ends.
            let n: i64 = held.rows()[0].try_get("n")?;
            if n == 0 {
                return Ok(Order::SoldOut); // the transaction is rolled back, which frees the row
            }
            let sell = sqlx::query("UPDATE stock SET n = ? WHERE id = ?")
                .bind(n - 1)
                .bind(id);
            sell.execute(&mut *held).await?;
            n - 1
        }
        Locked::Busy => return Ok(Order::TooBusy),
        _ => return Err("there is no such piece".into()),
    };
    // What is written and the lock end together. Had the connection been lost before, nothing would be
    // stored.
    tx.commit().await?;
    Ok(Order::Sold { left })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file = std::env::temp_dir().join(format!("dlock-sql-row-{}.sqlite", std::process::id()));
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete);
    let pool = SqlitePoolOptions::new()
        .max_connections(8)
        .connect_with(options)
        .await?;
    sqlx::query("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n >= 0))")
        .execute(&pool)
        .await?;
    sqlx::query("INSERT INTO stock VALUES (7, 20)")
        .execute(&pool)
        .await?;

    let buyers: Vec<_> = (0..8)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut bought = 0;
                loop {
                    match buy(&pool, 7).await? {
                        Order::Sold { left } => {
                            println!("{left} left");
                            bought += 1;
                        }
                        Order::SoldOut => return Ok::<u32, Box<dyn std::error::Error + Send + Sync>>(bought),
                        Order::TooBusy => println!("too many at once; again"),
                    }
                }
            })
        })
        .collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += buyer.await??;
    }
    println!("sold {sold} of 20");
    pool.close().await;
    std::fs::remove_file(file)?;
    assert_eq!(sold, 20);
    Ok(())
}
