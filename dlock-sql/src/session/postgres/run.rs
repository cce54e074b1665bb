//! Which run of the server it is, and how old: for the grace after a [restart](crate::session::restart).
//!
//! `pg_postmaster_start_time` is not enough. When one of its processes has crashed, the postmaster ends all
//! others and begins with empty memory, and stays itself. Then statistics are thrown away: those of two kinds
//! begin at that moment. One kind alone does so when somebody resets it.

use std::time::Duration;

macro_rules! began {
    () => {
        "greatest(pg_postmaster_start_time(), \
         least(pg_stat_get_bgwriter_stat_reset_time(), (SELECT stats_reset FROM pg_stat_archiver)))"
    };
}

/// Its name, as a text.
pub(super) const RUN: &str = concat!("extract(epoch FROM ", began!(), ")::text");

/// How old it is, in seconds.
pub(super) const AGE: &str = concat!("extract(epoch FROM clock_timestamp() - ", began!(), ")::float8");

/// How many seconds are left of that grace, as an expression of the server's.
pub(super) fn left(lasts: Duration, made_in: Option<&str>) -> String {
    let left = format!("greatest({} - {AGE}, 0)", lasts.as_secs_f64());
    match made_in {
        Some(run) => format!(
            "CASE WHEN {RUN} = '{}' THEN 0 ELSE {left} END",
            run.replace('\'', "''")
        ),
        None => left,
    }
}
