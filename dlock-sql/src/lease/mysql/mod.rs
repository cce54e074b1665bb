//! Locks in a MySQL or MariaDB database: leases in rows, with a queue; whoever waits looks.
//!
//! # What it promises
//!
//! * **Whoever uses the same tables** excludes one another, in all modes, through one fair queue with
//!   priorities.
//! * **Expiry** is by the server's clock, without time zones. No clock of a client counts.
//! * **Tokens** grow per name: each is larger than the last one of that name, and not less than the server's
//!   clock in microseconds.
//! * **One exclusive lock that nobody else wants** takes one statement to be had and one to be let go.
//!   Everything else is a transaction of two round trips, which locks the name's row first.
//! * **Connections** are its own, made with your pool's options. Waiters have none.
//!
//! # What it does not
//!
//! * There is no push: of all that wait for a name in one client, one looks every 5 to 100 ms. That is 10 to
//!   200 reads of one row a second for each client and name that somebody waits for, and none otherwise.
//! * A program that is *stopped* or *cut off* between the two round trips keeps that one name from all
//!   others, who wait for two seconds (`lock_wait`) and then answer `Unavailable`. MariaDB ends the
//!   transaction after a second (`idle_transaction_timeout`), and they go on; MySQL has no such limit, and
//!   ends it with the program or its connection.
//! * A server clock that is set forward ends leases early; the fence decides then.
//! * With `innodb_flush_log_at_trx_commit` other than 1 a crash of the server may take back the last grants;
//!   tokens go on from the clock.
//! * Whoever watches a name looks too, every 5 to 30 ms, and keeps the watch with two transactions a second.
//!   While somebody does, taking the name is a transaction.
//! * A name that nobody has used for some minutes loses its row, and what dead waiters left of it; one client
//!   a minute sees to that.

mod call;
mod connection;
mod failure;
mod fencing;
pub mod gate;
mod lock;
mod open;
mod renew;
mod rwlock;
mod schema;
mod sight;
mod state;
mod sweep;
#[cfg(test)]
mod tests;
mod text;
mod transaction;
mod wait;
mod watch;

pub use lock::MysqlLease;
pub use open::{Builder, DEFAULT_PREFIX};
