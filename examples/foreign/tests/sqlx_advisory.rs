//! `PgAdvisoryLock` of sqlx before the kit. `DATABASE_URL` names a PostgreSQL server for the test.

use std::time::Duration;

use dlock_conformance::{Claims, Harness, Library, Need, OneServer, Reply};
use dlock_core::{Capabilities, Error, ErrorKind, LockName, Nature, runtime};
use futures::FutureExt;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Postgres, pool::PoolConnection};

struct Advisory(PgPool);

impl Library for Advisory {
    type Guard = PgAdvisoryLockGuard<PoolConnection<Postgres>>;

    fn try_lock<'a>(&'a self, name: &'a LockName, _: Duration) -> Reply<'a, Option<Self::Guard>> {
        async move {
            let connection = self.0.acquire().await.map_err(error(ErrorKind::Unavailable))?;
            Ok(key(name).try_acquire(connection).await.map_err(error(ErrorKind::Unknown))?.left())
        }
        .boxed()
    }

    fn lock<'a>(&'a self, name: &'a LockName, _: Duration) -> Reply<'a, Self::Guard> {
        async move {
            let connection = self.0.acquire().await.map_err(error(ErrorKind::Unavailable))?;
            key(name).acquire(connection).await.map_err(error(ErrorKind::Unknown))
        }
        .boxed()
    }

    fn unlock(&self, guard: Self::Guard) -> Reply<'_, bool> {
        async move { guard.release_now().await.map(|_| true).map_err(error(ErrorKind::Unknown)) }.boxed()
    }
}

fn key(name: &LockName) -> PgAdvisoryLock {
    PgAdvisoryLock::new(name.as_bytes().escape_ascii().to_string())
}

fn error(kind: ErrorKind) -> impl Fn(sqlx::Error) -> Error {
    move |e| Error::new(kind, "PostgreSQL does not answer").with_source(e)
}

fn harness() -> impl Harness {
    let url =
        std::env::var("DATABASE_URL").expect("DATABASE_URL is not set: postgres://USER:PASSWORD@HOST/NAME");
    let options: PgConnectOptions = url.parse().expect("DATABASE_URL is no URL of PostgreSQL");
    let host = (options.get_host().to_owned(), options.get_port());
    let mut can = Capabilities::new("sqlx-advisory").with_nature(Nature::Session);
    (can.name_hash_bits, can.max_held) = (Some(64), Some(100));
    // "Released on-drop", when the pool has the connection back. It pings at both ends of that.
    let claims = Claims::foreign("sqlx::PgAdvisoryLock", "0.9.0", can).claim(Need::DropFrees).round_trips(4);
    OneServer::new(claims, runtime::own_thread().expect("a thread"), host, move |server| {
        let options = options.clone().host(&server.ip().to_string()).port(server.port());
        Advisory(PgPoolOptions::new().max_connections(100).connect_lazy_with(options))
    })
}

dlock_conformance::main!(harness());
