//! The server that is measured.

use crate::redis::{Counted, Meter};
use crate::servers::{MariaDbOptions, MariaDbServer, PostgresOptions, PostgresServer};

/// A database server of this program's own, which ends with it.
#[derive(Debug)]
pub enum Server {
    /// PostgreSQL.
    Postgres(PostgresServer),
    /// MariaDB.
    Maria(MariaDbServer),
}

/// Whether commits wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// They do.
    Waited,
    /// They do not: what is measured is the work.
    Not,
}

impl Server {
    /// A PostgreSQL that answers, and counts statements.
    ///
    /// # Panics
    /// Where it is not installed.
    pub fn postgres(disk: Disk) -> Self {
        let mut options = PostgresOptions::new()
            .setting("shared_preload_libraries", "pg_stat_statements")
            .setting("max_connections", "100")
            .setting("autovacuum_naptime", "1s");
        if disk == Disk::Waited {
            options = options.durable();
        }
        let server = PostgresServer::with(options).expect("PostgreSQL is installed: scripts/services");
        server
            .ask("CREATE EXTENSION pg_stat_statements")
            .expect("it comes with the server");
        Self::Postgres(server)
    }

    /// A MariaDB that answers.
    ///
    /// # Panics
    /// Where it is not installed.
    pub fn maria(disk: Disk) -> Self {
        let mut options = MariaDbOptions::new();
        if disk == Disk::Waited {
            options = options.durable();
        }
        Self::Maria(MariaDbServer::with(options).expect("MariaDB is installed: scripts/services"))
    }

    /// What it is.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::Maria(_) => "MariaDB",
        }
    }

    /// Its name, and its version.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn version(&self) -> String {
        match self {
            Self::Postgres(server) => format!(
                "PostgreSQL {}",
                server.ask("SHOW server_version").expect("it answers")
            ),
            Self::Maria(server) => format!("MariaDB {}", server.ask("SELECT version()").expect("it answers")),
        }
    }

    /// Where it is, for drivers.
    pub fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url(),
            Self::Maria(server) => server.url(),
        }
    }

    /// How often it has waited for the disk to have its log. Where that is told late, after a while.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn syncs(&self) -> u64 {
        let syncs = match self {
            Self::Postgres(server) => server.number("SELECT wal_sync FROM pg_stat_wal"),
            Self::Maria(server) => server.status("Innodb_os_log_fsyncs"),
        };
        syncs.expect("it answers").unsigned_abs()
    }
}

/// Statements that programs sent, by the server's own count; what functions do inside is not in it.
impl Meter for Server {
    fn counted(&self) -> Counted {
        let count = match self {
            Self::Postgres(server) => server.number(
                "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_%'",
            ),
            Self::Maria(server) => server.status("Questions"),
        };
        let count = count.expect("it answers").unsigned_abs();
        [("statement".to_owned(), count)].into_iter().collect()
    }
}
