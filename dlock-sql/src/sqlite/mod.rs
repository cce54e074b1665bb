//! Locks in a SQLite database: leases shared by the processes of one machine.
//!
//! ```no_run
//! # async fn f(runtime: std::sync::Arc<dyn dlock_core::Runtime>) -> dlock_core::Result<()> {
//! use dlock_sql::sqlite::Config;
//!
//! let backend = Config::new("/var/lib/app/locks.db").connect(runtime).await?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! * **All processes of one machine** that open the same file and see the same boot id exclude one another,
//!   in all modes, through one fair queue with priorities. Different machines do not: network file systems
//!   and 9p are refused where they can be seen. Time namespaces with a shifted clock are refused.
//! * **Containers with a boot id of their own** (LXC, systemd-nspawn) cannot share a file. One that opens a
//!   file of another boot id takes it over only if nobody else has it open (which only WAL can prove), or it
//!   holds no lock that runs on, or the clock shows that the machine was started anew since; otherwise
//!   opening answers `BackendData`. Whose file was taken over gets `BackendData` too.
//! * **Expiry** is counted on the machine's clock since boot, suspension included; stepping the date changes
//!   nothing, and after a reboot every old lease has ended.
//! * **Tokens** grow over release, expiry, restart and power loss; they come from one row, so dead names cost
//!   nothing. A power loss may take back the last commits of leases, since it ends all leases anyway; the
//!   fence gate and `raise` survive it.
//! * **Waiting** is one look for all waiters of a client and name when somebody writes to the file, and every
//!   1 to 20 ms for what the kernel does not tell (`bell.rs`). A look asks the file for
//!   `PRAGMA data_version`. A release by the same client has it look at once.
//! * A waiter that comes to its turn is offered the lock for what is left of its queue lease, so a dead one
//!   blocks no longer than a ttl after it last asked. A live one that stands still keeps its place for
//!   fifteen sixteenths of its ttl at least: what is missing of a queue lease is not stored at once.
//!
//! # What it does not
//!
//! * A process that is *stopped* inside a write transaction (tens of microseconds) blocks the file for all
//!   until it goes on or dies; others answer `Unavailable` after [`Config::busy_budget`].
//! * A file that is deleted or replaced while it is open goes on as two files until the next change: who has
//!   the old one open notices then, answers `Unavailable` once, and goes on in the new one, with its tokens.
//!   What was held in the old one is lost.
//! * Without Linux's clock since boot only in-memory databases can be opened.
//! * A path is relative to the working directory of each process, so give an absolute one.
//! * In a stream of changes, what somebody else (also another client of this process that opened the file by
//!   itself) did between two looks, 5 to 50 ms apart, comes as a snapshot with `skipped: true` when it is too
//!   much to be told one by one, and so does what somebody else ended by force. A watch writes one row, which
//!   is renewed while it is looked at and gone a minute later.
//!
//! # How it is made
//!
//! One task owns the connection (`task.rs`); calls are jobs in its queue. It takes what waits there, up to
//! 256 jobs, into one `BEGIN IMMEDIATE` transaction: group commit. `SQLITE_BUSY` is waited for inside the
//! task, so no job is half done. A row that cannot be read is the failure of its own name; a transaction that
//! fails is the failure of all its jobs, and nothing that was loaded is trusted after it.
//!
//! * *Names* that this process used are cached, until `data_version` tells that somebody else has written
//!   (`view.rs`).
//! * *Waiting*: the queue is in the file, a release grants to the first in line in its own transaction (the
//!   [rule](dlock_core::spi::admission) is run by every change), and waiters poll (`wait.rs`).
//! * *Time, and the file's place*: see `boot.rs`. *Tokens across power loss*: see `schema.rs`.

mod bell;
pub(crate) mod boot;
mod config;
mod connection;
mod failure;
mod fencing;
mod gate;
mod lock;
mod renew;
mod row;
mod rwlock;
mod schema;
mod store;
mod task;
#[cfg(test)]
mod tests;
mod view;
mod watch;
mod watchers;

pub use config::Config;
pub use lock::SqliteLock;
