//! The servers that other tests start do what is asked of them: each way to stop, kill, cut or set one is
//! seen to have happened.
#![allow(clippy::unwrap_used)] // in a test, a panic is the report

mod cluster;
mod etcd;
mod process;
mod prometheus;
mod redis;
mod sentinel;
mod sql;
mod zookeeper;
