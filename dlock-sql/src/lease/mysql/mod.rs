//! Leases in MySQL and MariaDB: the rule of admission runs in the program, under the lock of the name's row;
//! waiters poll.
//!
//! * There is no push: of all waiters for a name in one client, one polls when a doorbell rings (see
//!   `bell.rs`), and every 20 to 200 ms. For that a waiting client has one connection beyond its limit, which
//!   only sleeps. Without it the client polls every 5 to 100 ms. Clients with different accounts, or at other
//!   servers of a cluster, do not hear one another's bells.
//! * A program that is *paused* or *cut off* between the two round trips of a transaction blocks that one
//!   name for all others, which wait for two seconds (`lock_wait`) and then fail with `Unavailable`. MariaDB
//!   ends the transaction after a second (`idle_transaction_timeout`), and they go on; MySQL has no such
//!   limit, and ends it with the program or its connection.
//! * With `innodb_flush_log_at_trx_commit` other than 1 a crash of the server may undo the last grants;
//!   tokens go on from the clock.
//! * A watch polls too, every 5 to 30 ms, and renews itself with two transactions a second. While a name is
//!   watched, acquiring it takes a transaction.

mod bell;
mod connection;
mod lock;
mod renew;
mod schema;
mod state;
mod sweep;
mod transaction;
mod watch;

use super::connection::Database;
use crate::direct::Dialect as _;
pub(super) use connection::{Mysql, open};

type Db = Database<Mysql>;
type Statement = super::call::Statement<sqlx::MySql>;
type Answer = super::call::Answer<sqlx::MySql>;

// The few statements of the fast path are prepared. A transaction on a name is two texts of several
// statements each, in two round trips; prepared statements would make it six. Nothing of a value can be read
// as SQL in them: bytes and texts are written as hexadecimal digits, numbers as numbers.

fn bytes(bytes: &[u8]) -> String {
    sqlx::MySql::bytes(bytes)
}

fn label(owner: Option<&str>) -> String {
    owner.map_or_else(|| "NULL".to_owned(), sqlx::MySql::text)
}

fn list<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> String {
    let all: Vec<_> = all.into_iter().map(bytes).collect();
    all.join(",")
}
