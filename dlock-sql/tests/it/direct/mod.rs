//! Locking by hand, each way against each database. Where SQL is the same for all three, a test is written
//! once.

mod dropped;
mod faults;
pub(crate) mod gate;
mod optimistic;
mod reentrant;
mod row;
mod site;
mod version;
