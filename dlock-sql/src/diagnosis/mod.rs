//! Findings about a database server, for operators, read on a connection of its own.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dlock_core::{Finding, Result, Runtime};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, select};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::direct::Store;
use crate::driver_url::Options;
use crate::failure::{meaning, runtime_ended};

/// What such a server is asked, and how its answers are read.
pub(crate) trait Diagnosed: Store {
    /// Each answers rows of a name and a value, both texts.
    const ASKED: &'static [&'static str];

    /// What is found in them. `in_sessions`: locks hang on connections.
    fn findings(said: &Said, in_sessions: bool) -> Vec<Finding>;
}

/// The settings of a server, by their names in small letters.
#[derive(Default)]
pub(crate) struct Said(HashMap<String, String>);

impl Said {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name).parse().ok()
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.text(name), "on" | "ON" | "1")
    }

    /// For how long it has been up.
    fn since(&self, seconds: &str) -> String {
        let up = self.number(seconds).map(Duration::from_secs);
        up.map_or(String::new(), |up| format!(", up for {}", shown(up)))
    }

    /// How many connections are in use, and of how many.
    fn connections(&self, used: &str, most: &str) -> Option<Finding> {
        let (used, most) = (self.number(used)?, self.number(most)?);
        let text = format!("{used} of {most} connections are in use");
        Some(match used.saturating_mul(10) > most.saturating_mul(9) {
            true => Finding::warning("connections", format!("{text}: who comes next may find none")),
            false => Finding::good("connections", text),
        })
    }
}

/// Of locks that hang on connections, which end with the server, the tokens alone are kept.
fn lost(in_sessions: bool) -> &'static str {
    match in_sessions {
        true => "the tokens that were given",
        false => "the locks that were granted",
    }
}

/// What is safe where a standby may lack the last of them. Sessions have no gate.
fn or_else(in_sessions: bool) -> &'static str {
    match in_sessions {
        true => "take leases, whose tokens follow the clock: otherwise some are given a second time",
        false => "let tokens be checked at a fence gate",
    }
}

fn kept(in_sessions: bool) -> Finding {
    let text = format!("a crash takes back none of {}", lost(in_sessions));
    Finding::good("persistence", format!("what is answered is on the disk: {text}"))
}

/// In the largest unit that fits.
fn shown(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [
        (86_400, "days"),
        (3_600, "hours"),
        (60, "minutes"),
        (1, "seconds"),
    ];
    let (unit, name) = units
        .into_iter()
        .find(|(unit, _)| seconds >= 2 * unit)
        .unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}

/// Asks the server, in a task of the runtime, whose context sqlx wants. `at` says where it is.
pub(crate) async fn diagnose(
    server: Options,
    in_sessions: bool,
    at: &str,
    runtime: &Arc<dyn Runtime>,
) -> Result<Vec<Finding>> {
    let (mut send, asked) = oneshot::channel();
    let asking = async move {
        let asking = async {
            match server {
                #[cfg(feature = "postgres")]
                Options::Postgres(options) => ask::<sqlx::Postgres>(&options, in_sessions).await,
                #[cfg(feature = "mysql")]
                Options::Mysql(options) => ask::<sqlx::MySql>(&options, in_sessions).await,
            }
        };
        // It ends if its caller has gone.
        let Either::Left((found, _)) = select(pin!(asking), send.cancellation()).await else {
            return;
        };
        let _ = send.send(found);
    };
    runtime.spawn(asking.boxed());
    let found = asked.await.map_err(|_| runtime_ended())?;
    found.map_err(|e| meaning(&e).error(at, e))
}

async fn ask<DB: Diagnosed>(
    options: &<DB::Connection as sqlx::Connection>::Options,
    in_sessions: bool,
) -> sqlx::Result<Vec<Finding>> {
    let mut conn = options.clone().disable_statement_logging().connect().await?;
    let (mut said, mut asked) = (Said::default(), SystemTime::now());
    for text in DB::ASKED {
        asked = SystemTime::now();
        for row in DB::ask(&mut conn, (*text).to_owned()).await? {
            let of = |column| -> sqlx::Result<Option<String>> { DB::read(&row, column) };
            if let (Some(name), Some(value)) = (of(0)?, of(1)?) {
                said.0.insert(name.to_lowercase(), value);
            }
        }
    }
    // The clock is in the last answer.
    let answered = SystemTime::now();
    let _ = conn.close().await;
    let mut found = DB::findings(&said, in_sessions);
    if in_sessions {
        let text = "locks hang on connections: they end with the server, and one that takes over knows none";
        found.push(Finding::good("sessions", text));
    }
    if let Some(micros) = said.number("clock") {
        let server = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        found.push(Finding::clock(server, asked, answered));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use dlock_core::Severity;

    use super::*;

    /// What is found by these settings: the severity of what it is about.
    pub(super) fn severity<DB: Diagnosed>(about: &str, in_sessions: bool, said: &[(&str, &str)]) -> Severity {
        let said = said
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let found = DB::findings(&Said(said.collect()), in_sessions);
        let of = found.iter().filter(|finding| finding.about == about);
        of.map(|finding| finding.severity)
            .max()
            .expect("something is found about it")
    }

    #[test]
    fn a_time_is_shown_in_its_largest_unit() {
        let of = |seconds| shown(Duration::from_secs(seconds));
        assert_eq!(
            [of(0), of(119), of(120), of(7_200), of(400_000)],
            ["0 seconds", "119 seconds", "2 minutes", "2 hours", "4 days"]
        );
    }

    #[test]
    fn connections_are_short_when_nine_of_ten_are_used() {
        let of = |used: &str| {
            let said = [("used", used), ("most", "100")].map(|(n, v)| (n.to_owned(), v.to_owned()));
            Said(said.into())
                .connections("used", "most")
                .map(|finding| finding.severity)
        };
        assert_eq!(
            (of("90"), of("91")),
            (Some(Severity::Good), Some(Severity::Warning))
        );
        assert_eq!(of("unknown"), None);
    }
}
