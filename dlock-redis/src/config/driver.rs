//! The driver's clients, made from the options.

use std::sync::Arc;

#[cfg(feature = "cluster")]
use dlock_core::spi::Host;
use dlock_core::{Error, Result};
use redis::{Client, ProtocolVersion, RedisError};

use super::Config;
use super::url::Form;
use crate::connection::Connection;
#[cfg(feature = "cluster")]
use crate::connection::cluster::Cluster;
#[cfg(feature = "sentinel")]
use crate::connection::sentinel::Sentinels;
#[cfg(feature = "cluster")]
use crate::connection::server::Moved;
use crate::connection::server::{Server, Setup, Source};
use crate::failure::{Failed, invalid, nothing_done};

impl Config {
    /// The servers of these settings, none of them connected to.
    pub(super) fn connection(&self, at: &Arc<str>, setup: &Setup) -> Result<Connection> {
        #[cfg(feature = "cluster")]
        if self.address.is_cluster() {
            return self.cluster(at, setup).map(Connection::Cluster);
        }
        Ok(Connection::Single(self.server(at, setup)?))
    }

    /// The one server, or the master that the sentinels name.
    pub(super) fn server(&self, at: &str, setup: &Setup) -> Result<Arc<Server>> {
        Ok(Server::new(setup.clone(), self.source(at)?, None))
    }

    fn source(&self, at: &str) -> Result<Source> {
        let client = match &self.address.form {
            #[cfg(feature = "sentinel")]
            Form::Sentinel(master) => return self.sentinels(master, at),
            Form::Client(client) => own(client)?,
            _ => {
                let host = self.address.hosts.first();
                let host = host.ok_or_else(|| invalid("the URL names no host"))?;
                self.client(self.address.info(host)?, at)?
            }
        };
        Ok(Source::Server(Box::new(client)))
    }

    #[cfg(feature = "cluster")]
    fn cluster(&self, at: &Arc<str>, setup: &Setup) -> Result<Arc<Cluster>> {
        let address = &self.address;
        // What is wrong with the settings is wrong with each node.
        for host in &address.hosts {
            self.client(address.info(host)?, at)?;
        }
        let (config, place, theirs) = (self.clone(), Arc::clone(at), setup.clone());
        let connect = move |at: &Host, moved: Option<Moved>| {
            let source = Source::Server(Box::new(config.client(config.address.info(at)?, &place)?));
            Ok(Server::new(theirs.clone(), source, moved))
        };
        let seeds = address.hosts.clone();
        Ok(Cluster::new(seeds, Box::new(connect), setup.clone()))
    }

    /// A client of each of them.
    #[cfg(feature = "sentinel")]
    fn sentinels(&self, master: &str, at: &str) -> Result<Source> {
        use redis::sentinel::{SentinelClientBuilder, SentinelServerType};

        let address = &self.address;
        let one = |host| {
            let node = address.info(host)?;
            let addr = [node.addr().clone()];
            let mut builder = SentinelClientBuilder::new(addr, master, SentinelServerType::Master)
                .map_err(|e| unsent(e, at))?
                .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                .set_client_to_redis_db(address.database)
                .set_client_to_redis_tcp_settings(node.tcp_settings().clone());
            if let Some(user) = &address.user {
                builder = builder.set_client_to_redis_username(user);
            }
            if let Some(password) = &address.password {
                builder = builder.set_client_to_redis_password(password);
            }
            if let Some((user, password)) = &self.sentinel_login {
                builder = builder.set_client_to_sentinel_password(password);
                if let Some(user) = user {
                    builder = builder.set_client_to_sentinel_username(user);
                }
            }
            #[cfg(feature = "tls")]
            if address.tls {
                builder = builder
                    .set_client_to_redis_tls_mode(redis::TlsMode::Secure)
                    .set_client_to_redis_certificates(self.certificates.clone())
                    .set_client_to_sentinel_tls_mode(redis::TlsMode::Secure)
                    .set_client_to_sentinel_certificates(self.certificates.clone());
            }
            builder.build().map_err(|e| unsent(e, at))
        };
        let each = address.hosts.iter().map(one).collect::<Result<Vec<_>>>()?;
        Ok(Source::Sentinel(Sentinels::new(each)))
    }

    #[cfg_attr(not(feature = "tls"), expect(clippy::unused_self, reason = "as with TLS"))]
    fn client(&self, info: redis::ConnectionInfo, at: &str) -> Result<Client> {
        #[cfg(feature = "tls")]
        if matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
            let client = Client::build_with_tls(info, self.certificates.clone());
            return client.map_err(|e| unsent(e, at));
        }
        Client::open(info).map_err(|e| unsent(e, at))
    }
}

/// The same client for connections of our own, which have pushes.
fn own(client: &Client) -> Result<Client> {
    let info = client.get_connection_info().clone();
    let at = info.addr().to_string();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings)).map_err(|e| unsent(e, &at))
}

fn unsent(e: RedisError, at: &str) -> Error {
    nothing_done(Failed::unsent(e), at)
}

/// Where a program has not chosen a provider, and its crates bring several, rustls would panic.
#[cfg(feature = "tls")]
pub(super) fn choose_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If another thread was faster, one is chosen as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
