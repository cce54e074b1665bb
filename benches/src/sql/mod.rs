//! What the programs about SQL share: the servers, the bare driver, and what is counted.
//!
//! Server and program are on one core, so that what is measured is work and not which core slept. Statements
//! are counted by the server.

mod file;
mod maria;
mod postgres;
mod server;
mod syncs;

use std::sync::Arc;

use dlock_core::{Client, runtime, spi};

pub use file::{BareFile, Place, Turn, file_client, gaps_between_processes, take_turns};
pub use maria::Maria;
pub use postgres::{Postgres, notify_floor};
pub use server::{Disk, Kind, Server};
pub use syncs::syncs;

/// One of our strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Rows with an end.
    Lease,
    /// Locks of a connection.
    Session,
}

/// Our backend, on connections of its own.
///
/// # Panics
/// If it cannot be opened.
pub async fn backend(server: &Server, strategy: Strategy) -> Arc<dyn spi::Lock> {
    use dlock_sql::{lease, session};
    let (here, url) = (runtime::detect().expect("tokio is current"), server.url());
    let there = "the server is there";
    match (server.kind(), strategy) {
        (Kind::Postgres | Kind::Maria, Strategy::Lease) => {
            let config = lease::Config::from_url(&url).expect("it is a URL of a server");
            config.connect(here).await.expect(there)
        }
        (Kind::Postgres | Kind::Maria, Strategy::Session) => {
            let config = session::Config::from_url(&url).expect("it is a URL of a server");
            Arc::new(config.connect(here).await.expect(there))
        }
    }
}

/// A client of our backend.
///
/// # Panics
/// If it cannot be opened.
pub async fn client(server: &Server, strategy: Strategy) -> Client {
    let here = runtime::detect().expect("tokio is current");
    let client = Client::builder(backend(server, strategy).await, here);
    client.build().expect("it keeps its claims")
}
