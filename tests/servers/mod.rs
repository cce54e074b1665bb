//! Real servers for tests: started by the test program that needs them, stopped when it ends, however it
//! ends.
//!
//! Included by `#[path]` wherever it is needed; it knows nothing of locks. Each server is a process of its
//! own on a free port of 127.0.0.1, with a folder of its own for its files and its log. What is missing is
//! said with what to do about it (`scripts/services`), and fails the test: no test passes because there was
//! no server.
//!
//! All of it blocks. In an async test, call it from a thread that may be blocked.
#![allow(dead_code, unused_imports)] // each test uses a part

mod certificates;
mod clock;
mod mariadb;
mod mariadb_pair;
mod pgbouncer;
mod place;
mod ports;
mod postgres;
mod postgres_pair;
mod process;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_options;
mod redis_pair;
mod redis_sentinel;
mod resp;
mod until;
mod zookeeper;
mod zookeeper_ensemble;
mod zookeeper_numbers;
mod zookeeper_options;
mod zookeeper_wire;

pub(crate) use certificates::Certificates;
pub(crate) use clock::{Clock, wall_clock};
pub(crate) use mariadb::{MariaDbOptions, MariaDbServer};
pub(crate) use mariadb_pair::MariaDbPair;
pub(crate) use pgbouncer::{PgBouncer, PoolMode};
pub(crate) use place::{Folder, temporary};
pub(crate) use ports::Port;
pub(crate) use postgres::{PostgresOptions, PostgresServer, ReadOnly};
pub(crate) use postgres_pair::{Following, PostgresPair};
pub(crate) use process::Process;
pub(crate) use proxy::Proxy;
pub(crate) use redis::RedisServer;
pub(crate) use redis_cluster::{Migration, RedisCluster};
pub(crate) use redis_options::{Persistence, RedisOptions, Tls};
pub(crate) use redis_pair::RedisPair;
pub(crate) use redis_sentinel::RedisSentinel;
pub(crate) use resp::{Connection, Value, field};
pub(crate) use until::until;
pub(crate) use zookeeper::{Mode, ZkClient, ZkServer};
pub(crate) use zookeeper_ensemble::ZkEnsemble;
pub(crate) use zookeeper_options::{JARS_FOLDER, ZkOptions, missing};
pub(crate) use zookeeper_wire::{Stat, ZkSession, password};
