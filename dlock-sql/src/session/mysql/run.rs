//! Which run of the server it is, and how old: for the grace after a [restart](crate::session::restart).
//!
//! Both servers tell their age in whole seconds, by the time of the statement. Taken from that time, it is
//! when the server started: the same second each time.

use super::schema::Product;

/// How old it is, in seconds.
pub(super) fn age(product: Product) -> String {
    let status = match product {
        Product::MariaDb => "information_schema.GLOBAL_STATUS",
        Product::MySql => "performance_schema.global_status",
    };
    format!("(SELECT CAST(VARIABLE_VALUE AS SIGNED) FROM {status} WHERE VARIABLE_NAME = 'UPTIME')")
}

/// Its name, as a number.
pub(super) fn run(product: Product) -> String {
    format!("CAST(UNIX_TIMESTAMP() AS SIGNED) - {}", age(product))
}
