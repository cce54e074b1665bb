//! Advisory locks of PostgreSQL 14 and later.
//!
//! Locks belong to one *database*; a standby is refused, since its locks do not exclude clients of the
//! primary.
//!
//! In the database there is one sequence, `<schema>.<prefix>session_token`. A user of locks needs only
//! `USAGE` on it; the first one to connect needs `CREATE` on the schema, or an operator creates it: `CREATE
//! SEQUENCE dlock_session_token CACHE 1`. The cache must stay 1, since each session has one of its own.
//!
//! Advisory locks are 64-bit numbers, shared with all other programs in the database. A foreign lock under
//! the same number is waited for.

mod connection;
mod schema;
mod transaction;

pub(super) use self::connection::Postgres;
pub use self::transaction::TransactionLocks;
