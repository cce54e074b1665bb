//! Leases in PostgreSQL: the rule of admission runs in the server (`v1/`), and `NOTIFY` wakes the next
//! waiter.
//!
//! * **Expiry** is judged by the server's clock at the time when the row is locked, not when a transaction
//!   began.
//! * A change of a name waits for the lock of its row, which no client of dlock holds for longer than a
//!   statement. After [`Config::lock_wait`](super::Config::lock_wait) it answers `Unavailable`. (Behind a
//!   pooler the server's own `lock_timeout` decides.)
//! * With `synchronous_commit = off` a crash of the server may undo the last grants, and so may the promotion
//!   of a standby; tokens go on from the clock. Exclusion across a failover is as good as the replication.
//! * `NOTIFY` serialises the commits of all transactions that notify, server-wide. Only hand-offs and watched
//!   names notify.

mod answer;
mod call;
mod connection;
mod lock;
mod notify;
mod renew;
mod schema;
mod together;
mod wait;
mod watch;

use super::connection::Database;
pub(super) use connection::{Postgres, open};

type Db = Database<Postgres>;
type Statement = super::call::Statement<sqlx::Postgres>;
type Rows = super::call::Answer<sqlx::Postgres>;
