//! Locks and backends made of others. They are written once above the SPI, so they work with any store.
//!
//! | combinator | what it is for |
//! |---|---|
//! | [`MultiLock`] | several locks at once, all or none |
//! | [`Namespaced`] | several applications in one store, without name clashes |
//! | [`Sharded`] | more names or more load than one store can take |
//! | [`Quorum`] | one lock over several stores, of which a minority may fail |

mod diagnosis;
mod multi;
mod namespaced;
mod quorum;
mod sharded;
mod shared_claims;

pub use multi::{MultiGuard, MultiLock};
pub use namespaced::Namespaced;
pub use quorum::Quorum;
pub use sharded::{Shard, Sharded};
