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
//!   and 9p are refused where they can be detected, and so are time namespaces with a shifted clock.
//! * **Containers with a boot id of their own** (LXC, systemd-nspawn) cannot share a file. A process that
//!   opens a file of another boot id takes it over only if no other has it open (which only WAL can prove),
//!   or it has no unexpired lock, or the clock shows that the machine was rebooted since; otherwise opening
//!   fails with `BackendData`. A process whose file was taken over gets `BackendData` too.
//! * **Expiry** is counted on the machine's clock since boot, suspension included; a step of the date changes
//!   nothing, and after a reboot all old leases have ended.
//! * **Tokens** grow over release, expiry, restart and power loss; they come from one row, so dead names cost
//!   nothing. A power loss may undo the last commits of leases, which it ends anyway; the fence gate and
//!   `raise` survive it.
//! * **Waiting** is one poll for all waiters of a client and name when a process writes to the file, and
//!   every 1 to 20 ms for writes that the kernel does not report (`bell.rs`). A poll reads `PRAGMA
//!   data_version`. A release by the same client makes it poll at once.
//! * The next waiter is offered the lock for the rest of its queue lease, so a dead one blocks no longer than
//!   a ttl after it last asked. A paused one keeps its place for at least fifteen sixteenths of its ttl: a
//!   queue lease is not renewed in the file each time.
//!
//! # What it does not
//!
//! * A process that is *stopped* inside a write transaction (tens of microseconds) blocks the file for all
//!   until it resumes or dies; others fail with `Unavailable` after [`Config::busy_budget`].
//! * A file that is deleted or replaced while it is open is two files until the next change: a process with
//!   the old one notices then, fails with `Unavailable` once, and goes on in the new one, with its tokens.
//!   Holds in the old one are lost.
//! * Without Linux's clock since boot only databases in memory can be opened.
//! * A path is relative to the working directory of each process, so give an absolute one.
//! * A watch polls every 5 to 50 ms. Changes by other processes (and other clients of this process that
//!   opened the file separately) come as a snapshot with `skipped: true` if they are too many between two
//!   polls, and so do their forced releases. A watch writes one row, which is renewed while it is read and
//!   gone a minute later.
//!
//! # How it is made
//!
//! One task owns the connection (`task.rs`); calls are jobs in its queue. It runs up to 256 waiting jobs in
//! one `BEGIN IMMEDIATE` transaction: group commit. The task waits on `SQLITE_BUSY`, so no job is half done.
//! An unreadable row fails only its own name; a failed transaction fails all its jobs, and discards
//! everything that was loaded.
//!
//! * *Names* that this process used are cached until `data_version` shows that another process has written
//!   (`view.rs`).
//! * *Waiting*: the queue is in the file, a release grants to the first waiter in its own transaction (the
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
