//! Where the tests run: a database of its own for each, on a server that all tests of the program share.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use dlock_core::runtime::{Smol, Tokio};
use dlock_core::spi::{Acquire, Attempt, Grant, LeaseKey, Lock, RenewItem, RenewOutcome};
use dlock_core::{LockName, Mode, RequestId, Runtime, Token};
use futures::future::{Either, select};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Longer than a test may take.
const LONG: Duration = Duration::from_secs(300);

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn permits(n: u32) -> Mode {
    Mode::permit(NonZeroU32::new(n).unwrap())
}

pub(crate) fn key(name: &str) -> LeaseKey {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let sequence = NEXT.fetch_add(1, Ordering::Relaxed);
    let client = (u128::from(std::process::id()) << 64) | 11;
    LeaseKey::new(LockName::new(name).unwrap(), RequestId::new(client, sequence))
}

pub(crate) fn ask(name: &str) -> Acquire {
    Acquire::new(key(name), TTL)
}

pub(crate) fn join(name: &str, mode: Mode) -> Acquire {
    ask(name).with_mode(mode).with_queue(TTL)
}

pub(crate) async fn granted(lock: &dyn Lock, a: &Acquire) -> Grant {
    match lock.attempt(a).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn queued(lock: &dyn Lock, a: &Acquire) {
    let answer = lock.attempt(a).await.unwrap();
    assert!(matches!(answer, Attempt::Queued(_)), "not queued: {answer:?}");
}

pub(crate) async fn held(lock: &dyn Lock, a: &Acquire) {
    let answer = lock.attempt(a).await.unwrap();
    assert!(matches!(answer, Attempt::Held(_)), "not held: {answer:?}");
}

pub(crate) async fn renew(lock: &dyn Lock, item: RenewItem) -> RenewOutcome {
    lock.renew().unwrap().renew(&[item]).await.remove(0)
}

/// Asks again for a queued request: the token, if it has been granted.
pub(crate) async fn asked(lock: &dyn Lock, a: &Acquire) -> Option<Token> {
    match renew(lock, RenewItem::queued(a.key.clone(), TTL)).await {
        RenewOutcome::Granted(grant) => grant.token,
        RenewOutcome::Queued { .. } => None,
        other => panic!("neither granted nor queued: {other:?}"),
    }
}

/// Asks again until it is granted: somebody's lease has to run out.
pub(crate) async fn until_asked(lock: &dyn Lock, a: &Acquire) -> Token {
    within(LONG, async {
        loop {
            if let Some(token) = asked(lock, a).await {
                return token;
            }
            smol::Timer::after(ms(50)).await;
        }
    })
    .await
}

/// What blocks, on a thread that may be blocked.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> T {
    smol::unblock(work).await.unwrap()
}

/// Where the futures of a test and of the backend run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    Tokio,
    Smol,
}

pub(crate) fn run<F: Future<Output = ()>>(on: On, test: impl FnOnce(Arc<dyn Runtime>) -> F) {
    match on {
        On::Tokio => {
            let tokio = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            tokio.block_on(async { within(LONG, test(Tokio::current().unwrap())).await });
        }
        On::Smol => smol::block_on(within(LONG, test(Smol::global().unwrap()))),
    }
}

/// What comes in that time, on any runtime.
pub(crate) async fn within<T>(limit: Duration, of: impl Future<Output = T>) -> T {
    let of = std::pin::pin!(of);
    match select(of, smol::Timer::after(limit)).await {
        Either::Left((out, _)) => out,
        Either::Right(_) => panic!("nothing came in {limit:?}"),
    }
}

/// A name that no other test of this program has.
fn fresh() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("lease_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(feature = "postgres")]
pub(crate) static POSTGRES: LazyLock<dlock_testkit::PostgresServer> =
    LazyLock::new(|| dlock_testkit::PostgresServer::start().unwrap());

/// The options for a database that is empty.
#[cfg(feature = "postgres")]
pub(crate) async fn postgres() -> sqlx::postgres::PgConnectOptions {
    let made = smol::unblock(|| {
        let name = fresh();
        POSTGRES
            .ask_in("postgres", &format!("CREATE DATABASE {name}"))
            .unwrap();
        (POSTGRES.url(), name)
    });
    let (url, name) = made.await;
    let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
    options.database(&name)
}

#[cfg(feature = "mysql")]
pub(crate) static MARIADB: LazyLock<dlock_testkit::MariaDbServer> =
    LazyLock::new(|| dlock_testkit::MariaDbServer::start().unwrap());

/// The options for a database that is empty.
#[cfg(feature = "mysql")]
pub(crate) async fn mysql() -> sqlx::mysql::MySqlConnectOptions {
    let made = smol::unblock(|| {
        let name = fresh();
        MARIADB.ask(&format!("CREATE DATABASE {name}")).unwrap();
        (MARIADB.url(), name)
    });
    let (url, name) = made.await;
    let options: sqlx::mysql::MySqlConnectOptions = url.parse().unwrap();
    options.database(&name)
}
