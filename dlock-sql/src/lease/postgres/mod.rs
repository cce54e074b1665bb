//! Leases in PostgreSQL: the rule of admission runs in the server (`v1/`), and `NOTIFY` wakes the one who is
//! next.
//!
//! * **Expiry** is by the server's clock as it is when the row is locked, not as it was when a transaction
//!   began.
//! * A change of a name waits for the lock of its row, which no client of dlock holds for longer than a
//!   statement. After [`Config::lock_wait`](super::Config::lock_wait) it answers `Unavailable`. (Behind a
//!   pooler the server's own `lock_timeout` decides.)
//! * With `synchronous_commit = off` a crash of the server may take back the last grants, as a standby that
//!   is promoted may; tokens go on from the clock. Exclusion over a fail-over is as good as the replication.
//! * `NOTIFY` puts the commits of all transactions that notify into one line, server-wide. Only hand-offs and
//!   watched names do.

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
