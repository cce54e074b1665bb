//! `GET_LOCK` of MySQL 8 and MariaDB 10.5 and later.
//!
//! These locks belong to one *server*; the name of the database is part of the hash, so locks of two
//! databases are independent.
//!
//! # The tokens
//!
//! They come from the database: from a sequence in MariaDB, which keeps a block of them in the memory of the
//! server for all sessions, and from a row in MySQL, which has no sequences: there each lock costs another
//! statement and a commit. In both the log has to be safe at each commit (`innodb_flush_log_at_trx_commit =
//! 1`) for tokens to grow across a crash; where it is not, the declared strength is `WhileStateSurvives`. A
//! user of locks needs `SELECT` and `INSERT` on the sequence, or `SELECT` and `UPDATE` on the table.
//!
//! # What it does not guarantee
//!
//! * The driver does not read without a request. A killed session is noticed at the next ping: a second later
//!   while something is held, or a third of the ttl if that is less. Until then another may hold the lock as
//!   well: use the tokens.
//! * Nodes of a Galera cluster know nothing of one another's locks.

mod connection;
mod schema;

pub(super) use self::connection::MySql;
