//! The lease strategy, against real servers. What holds for all of them is written once, in `contract`.

#[cfg(all(feature = "postgres", feature = "mysql"))]
mod bell;
mod contract;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod counts;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod fail_over;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod faults;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod migration;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod mysql_faults;
#[cfg(feature = "postgres")]
mod pooler;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
mod postgres_by_hand;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod postgres_faults;
#[cfg(all(feature = "postgres", feature = "sqlite"))]
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod separate;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod server;
pub(crate) mod site;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod tables;
#[cfg(all(feature = "postgres", feature = "mysql"))]
mod together;
