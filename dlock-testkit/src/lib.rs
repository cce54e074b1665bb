//! Real servers for tests: started by the test program that needs them, stopped when it ends, however it
//! ends.
//!
//! It knows nothing of locks. Each server is a process of its
//! own on a free port of 127.0.0.1, with a folder of its own for its files and its log. What is missing is
//! said with what to do about it (`scripts/services`), and fails the test: no test passes because there was
//! no server.
//!
//! All of it blocks. In an async test, call it from a thread that may be blocked.
#![allow(
    missing_docs,
    missing_debug_implementations,
    clippy::unwrap_used,
    clippy::print_stderr
)] // for tests alone

mod certificates;
mod clock;
mod etcd;
mod etcd_ensemble;
mod etcd_options;
mod http;
mod mariadb;
mod mariadb_pair;
mod pgbouncer;
mod place;
mod ports;
mod postgres;
mod postgres_pair;
mod process;
mod prometheus;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_options;
mod redis_pair;
mod redis_sentinel;
mod resp;
mod sockets;
mod until;
mod zookeeper;
mod zookeeper_ensemble;
mod zookeeper_numbers;
mod zookeeper_options;
mod zookeeper_wire;

pub use certificates::Certificates;
pub use clock::{Clock, wall_clock};
pub use etcd::EtcdServer;
pub use etcd_ensemble::EtcdEnsemble;
pub use etcd_options::{EtcdOptions, etcd_35};
pub use mariadb::{MariaDbOptions, MariaDbServer};
pub use mariadb_pair::MariaDbPair;
pub use pgbouncer::{PgBouncer, PoolMode};
pub use place::{Folder, temporary};
pub use ports::Port;
pub use postgres::{PostgresOptions, PostgresServer, ReadOnly};
pub use postgres_pair::{Following, PostgresPair};
pub use process::Process;
pub use prometheus::{PrometheusServer, promtool};
pub use proxy::Proxy;
pub use redis::RedisServer;
pub use redis_cluster::{Migration, RedisCluster};
pub use redis_options::{Persistence, RedisOptions, Tls};
pub use redis_pair::RedisPair;
pub use redis_sentinel::RedisSentinel;
pub use resp::{Connection, Value, field};
pub use until::until;
pub use zookeeper::{Mode, ZkClient, ZkServer};
pub use zookeeper_ensemble::ZkEnsemble;
pub use zookeeper_options::{JARS_FOLDER, ZkOptions, missing};
pub use zookeeper_wire::{Stat, ZkSession, password};
