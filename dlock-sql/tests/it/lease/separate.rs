//! Several applications in one database.

use std::sync::Arc;

use dlock_core::Runtime;
use dlock_core::spi::Lock;
use dlock_sql::lease::Config;

use super::server::{BOTH, Kind, Server};
use super::site::*;

/// By a prefix, a schema (in MySQL a database), or both.
async fn open(
    server: &Server,
    schema: Option<&str>,
    prefix: &str,
    runtime: &Arc<dyn Runtime>,
) -> Arc<dyn Lock> {
    match server {
        Server::Postgres(server) => {
            let mut config = Config::from_url(&server.url()).unwrap().table_prefix(prefix);
            if let Some(schema) = schema {
                config = config.schema(schema);
            }
            config.connect(runtime.clone()).await.unwrap()
        }
        Server::MariaDb(server) => {
            let mut config = Config::from_url(&server.url()).unwrap().table_prefix(prefix);
            if let Some(schema) = schema {
                config = config.schema(schema);
            }
            config.connect(runtime.clone()).await.unwrap()
        }
    }
}

#[test]
fn applications_with_own_schemas_or_prefixes_do_not_interfere() {
    for kind in BOTH {
        run(On::Tokio, async |runtime| {
            let server = Server::start(kind).await;
            if let Kind::MariaDb = kind {
                server.ask("CREATE DATABASE billing").await;
            }
            let places = [
                (None, "dlock_"),
                (None, "shop_"),
                (Some("billing"), "dlock_"),
                (Some("billing"), "shop_"),
            ];
            let mut all = Vec::new();
            for (schema, prefix) in places {
                let lock = open(&server, schema, prefix, &runtime).await;
                granted(&*lock, &ask("stock/42")).await;
                all.push(lock);
            }
            for ((schema, prefix), first) in places.into_iter().zip(&all) {
                held(&**first, &ask("stock/42")).await;
                let second = open(&server, schema, prefix, &runtime).await;
                held(&*second, &ask("stock/42")).await;
            }
        });
    }
}
