//! The server that is measured.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::redis::{Counted, Meter};
use dlock_testkit::{MariaDbOptions, MariaDbServer, PostgresOptions, PostgresServer};

/// A database server of this program's own, which ends with it.
#[derive(Debug)]
pub struct Server {
    database: Database,
    /// Statements of who counts, so far.
    asked: AtomicI64,
}

#[derive(Debug)]
enum Database {
    Postgres(PostgresServer),
    Maria(MariaDbServer),
}

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    Maria,
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
    fn new(database: Database) -> Self {
        Self {
            database,
            asked: AtomicI64::new(0),
        }
    }

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
        Self::new(Database::Postgres(server))
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
        let server = MariaDbServer::with(options).expect("MariaDB is installed: scripts/services");
        Self::new(Database::Maria(server))
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match &self.database {
            Database::Postgres(_) => Kind::Postgres,
            Database::Maria(_) => Kind::Maria,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self.kind() {
            Kind::Postgres => "PostgreSQL",
            Kind::Maria => "MariaDB",
        }
    }

    /// Its name, and its version.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn version(&self) -> String {
        match &self.database {
            Database::Postgres(server) => format!(
                "PostgreSQL {}",
                server.ask("SHOW server_version").expect("it answers")
            ),
            Database::Maria(server) => {
                format!("MariaDB {}", server.ask("SELECT version()").expect("it answers"))
            }
        }
    }

    /// Where it is, for drivers.
    pub fn url(&self) -> String {
        match &self.database {
            Database::Postgres(server) => server.url(),
            Database::Maria(server) => server.url(),
        }
    }

    /// The number of its first process.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        let pid = match &self.database {
            Database::Postgres(server) => server.pid(),
            Database::Maria(server) => server.pid(),
        };
        pid.expect("it runs")
    }

    /// How large its database is, in bytes.
    ///
    /// # Panics
    /// If it does not answer, or is no PostgreSQL.
    pub fn bytes(&self) -> i64 {
        let Database::Postgres(server) = &self.database else {
            panic!("only PostgreSQL is asked that")
        };
        let bytes = server.number("SELECT pg_database_size(current_database())");
        bytes.expect("it answers")
    }

    fn sent(&self) -> i64 {
        let sent = match &self.database {
            Database::Postgres(server) => server.number(
                "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE \
                    '%pg_stat_%'",
            ),
            Database::Maria(server) => server.status("Questions"),
        };
        sent.expect("it answers")
    }
}

/// Statements that programs sent, by the server's own count, without those inside functions and without this
/// one.
impl Meter for Server {
    fn counted(&self) -> Counted {
        // MariaDB counts this question two or three times; a second question shows how often, and so what the
        // first has added.
        let (first, second) = (self.sent(), self.sent());
        let own = self.asked.fetch_add(2 * (second - first), Ordering::Relaxed);
        let count = (first - own).unsigned_abs();
        [("statement".to_owned(), count)].into_iter().collect()
    }
}
