//! A connection of a pool, for as long as a change of ours takes.
//!
//! sqlx gives a connection back to its pool whatever was done with it last. Where a future was dropped
//! half-way, it may be in a transaction of which sqlx does not know (PostgreSQL, MySQL), and what the next
//! user writes is never committed; or it waits without end for an answer that was read already (MySQL). So
//! what is not given back in order is closed, and the server rolls back what was open on it.

use sqlx::Pool;
use sqlx::pool::PoolConnection;

use super::dialect::Store;
use super::failure::Result;

/// Closed when it is dropped, unless it was given back.
pub(super) struct Pooled<DB: Store> {
    pub(super) conn: PoolConnection<DB>,
    in_order: bool,
}

impl<DB: Store> Pooled<DB> {
    pub(super) async fn of(pool: &Pool<DB>) -> Result<Self> {
        let (conn, in_order) = (pool.acquire().await?, DB::RECOVERS);
        Ok(Self { conn, in_order })
    }

    /// All that was asked has been answered, and no transaction is open.
    pub(super) fn give_back(mut self) {
        self.in_order = true;
    }
}

impl<DB: Store> Drop for Pooled<DB> {
    fn drop(&mut self) {
        if !self.in_order {
            self.conn.close_on_drop();
        }
    }
}
