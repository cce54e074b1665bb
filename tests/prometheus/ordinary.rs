//! What is no alarm, and what is shown.

use std::collections::BTreeMap;
use std::time::Instant;

use dlock::{Client, runtime};
use futures::FutureExt as _;
use serde_json::Value;

use crate::files::{expressions, metrics_in};
use crate::site::{LONG, client_of, get, in_memory, query, scraped};

/// Grants, a hand-off, renewals, a try in vain, a write, a call that is dropped, a client that is closed.
async fn day(client: &Client, other: &Client) {
    let lock = client.lock("a").unwrap();
    let held = lock.acquire().await.unwrap();
    held.renew().await.unwrap();
    let gate = client.gate().unwrap();
    assert!(
        gate.write("r", held.token().unwrap(), b"")
            .await
            .unwrap()
            .is_admitted()
    );
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.acquire().now_or_never().is_none());
    let next = async { other.lock("a").unwrap().acquire().await.unwrap() };
    let (taken, released) = futures::join!(next, held.release());
    released.unwrap();
    taken.release().await.unwrap();
}

#[test]
fn an_ordinary_day_raises_no_alarm() {
    scraped(async |site| {
        let (store, client) = in_memory();
        let other = client_of(&store, runtime::detect().unwrap());
        site.is_quiet().await;

        day(&client, &other).await;
        let lock = client.lock("a").unwrap();
        let leads = lock.acquire().await.unwrap();
        // A candidate that waits while another leads.
        let candidate = async {
            site.has_scraped("dlock_waiting", 1.0).await;
            site.is_still_quiet().await;
            drop(leads);
        };
        let (granted, ()) = futures::join!(lock.acquire(), candidate);
        let _held = granted.unwrap();
        client.close().await.unwrap();
        site.has_scraped("dlock_lost_total{reason='closed'}", 1.0).await;
        site.has_scraped("dlock_held", 0.0).await;
        site.is_still_quiet().await;
    });
}

#[test]
fn every_panel_shows_something() {
    scraped(async |site| {
        let (store, client) = in_memory();
        let end = Instant::now() + LONG;
        let mut left = expressions();
        assert!(left.len() > 15);
        while !left.is_empty() {
            let other = client_of(&store, runtime::detect().unwrap());
            day(&client, &other).await;
            let _closed_with = other.lock("b").unwrap().acquire().await.unwrap();
            other.close().await.unwrap();
            let job = site.job().to_owned();
            let asked = tokio::task::spawn_blocking(move || {
                left.retain(|expression| !shows_something(expression, &job));
                left
            });
            left = asked.await.unwrap();
            assert!(Instant::now() < end, "nothing is shown by {left:#?}");
        }
    });
}

/// Whether the server has a number for that expression of the dashboard.
fn shows_something(expression: &str, job: &str) -> bool {
    let set = expression
        .replace("$__rate_interval", "1m")
        .replace("$__range", "5m")
        .replace("$job", job)
        .replace("$backend", "memory");
    assert!(!set.contains('$'), "{set}");
    let seen = query(&set).unwrap();
    assert!(
        seen.iter().all(|(labels, _)| labels["backend"] == "memory"),
        "{set}: {seen:?}"
    );
    seen.iter().any(|(_, value)| !value.is_nan())
}

#[test]
fn the_help_and_the_kind_of_every_metric_arrive() {
    scraped(async |site| {
        let (_store, _client) = in_memory();
        site.is_quiet().await;

        let told = get("/api/v1/metadata").unwrap();
        let own: BTreeMap<&str, &Value> = told
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| name.starts_with("dlock_"))
            .map(|(name, about)| (name.as_str(), &about[0]))
            .collect();
        for (name, about) in &own {
            let kind = match name.rsplit('_').next() {
                Some("total") => "counter",
                Some("seconds") => "histogram",
                _ => "gauge",
            };
            assert_eq!(about["type"], kind, "{name}");
            assert!(
                about["help"].as_str().is_some_and(|help| help.len() > 10),
                "{name}: {about}"
            );
        }
        // Those that observe.rs lists. A unit other than that in the name would have changed the name.
        let listed = metrics_in(include_str!("../../dlock-core/src/observe.rs"));
        assert_eq!(
            own.into_keys().collect::<Vec<_>>(),
            listed.into_iter().collect::<Vec<_>>()
        );
    });
}
