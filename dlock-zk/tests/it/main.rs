//! The ZooKeeper backend against real servers, which these tests start and stop: what the conformance kit, which takes any backend, cannot
//! know of this one.

#![allow(missing_docs, clippy::unwrap_used)]
