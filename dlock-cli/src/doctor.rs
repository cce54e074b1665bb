//! `dlock doctor`: checks whether a store is fit for locks.

use std::time::{Duration, Instant};

use dlock::{Access, Capability, Client, Error, ErrorKind, Finding, Guard, Lock, LockOptions, Severity};
use futures::StreamExt as _;
use serde_json::json;
use tokio::time::timeout;

use crate::args::Doctor;
use crate::bench::timed;
use crate::failure::{Failure, code};
use crate::look::say;
use crate::run::ended;
use crate::store::Store;

/// The lock that is acquired, and the resource at the fence gate. Always the same, since a gate keeps one row
/// per resource.
const NAME: &str = "dlock-doctor";

/// How long the lock stays taken if this program is killed, and how long to wait for another doctor.
const TTL: Duration = Duration::from_secs(10);

/// How long to list a store that may have many names, or foreign keys.
const GLANCE: Duration = Duration::from_secs(1);

const TRIPS: usize = 20;

/// A longer round trip is a considerable part of a short ttl.
const SLOW: Duration = Duration::from_millis(250);

pub(crate) async fn main(store: &Store, doctor: Doctor) -> Result<u8, Failure> {
    if !doctor.json {
        say(&store.shown())?;
    }
    let client = match store.connect(None).await {
        Ok(client) => client,
        Err(failure) => {
            tell(&doctor, &Finding::problem("connection", failure.to_string()))?;
            return Ok(failure.code);
        }
    };
    let found = timed("examining", examined(store, &client)).await;
    for finding in &found {
        tell(&doctor, finding)?;
    }
    let count = |severity| {
        found
            .iter()
            .filter(|finding| finding.severity == severity)
            .count()
    };
    let [problems, warnings] = [Severity::Problem, Severity::Warning].map(count);
    if !doctor.json {
        say(&format!("problems: {problems}, warnings: {warnings}"))?;
    }
    let is_fit = problems == 0 && (warnings == 0 || !doctor.strict);
    ended(&client, Ok(if is_fit { 0 } else { code::UNFIT })).await
}

fn tell(
    doctor: &Doctor,
    Finding {
        about,
        severity,
        text,
        ..
    }: &Finding,
) -> Result<(), Failure> {
    let severity = match severity {
        Severity::Good => "good",
        Severity::Warning => "warning",
        _ => "problem",
    };
    match doctor.json {
        true => say(&json!({ "about": about, "severity": severity, "text": text }).to_string()),
        false => say(&format!("  {severity:<8} {about:<12} {text}")),
    }
}

async fn examined(store: &Store, client: &Client) -> Vec<Finding> {
    let mut found = match client.diagnose().await {
        Ok(found) => found,
        Err(e) => vec![failed("server", "asking the server about itself", e)],
    };
    match store.connect(None).await {
        Ok(other) => {
            if let Err(problem) = tried(client, &other, &mut found).await {
                found.push(problem);
            }
            let _ = other.close().await;
        }
        Err(failure) => found.push(Finding::problem(
            "connection",
            format!("opening a second connection failed: {failure}"),
        )),
    }
    let all = Capability::ALL.iter();
    let (able, not): (Vec<_>, Vec<_>) = all.partition(|capability| client.capabilities().has(**capability));
    let words = |all: Vec<&Capability>| all.into_iter().map(words).collect::<Vec<_>>().join(", ");
    found.push(Finding::good("able to", words(able)));
    if !not.is_empty() {
        found.push(Finding::good("not able to", words(not)));
    }
    found
}

/// `MinimumHold` as `minimum hold`.
fn words(capability: &Capability) -> String {
    if *capability == Capability::PerGrantTtl {
        return "a ttl of its own for each lock".to_owned();
    }
    let mut words = String::new();
    for letter in format!("{capability:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

fn failed(about: &'static str, what: &str, e: Error) -> Finding {
    Finding::problem(about, format!("{what} failed: {}", Failure::from(e)))
}

/// Uses each operation once, so that a missing right shows here and not in production. If the lock cannot be
/// acquired, nothing else is tried.
async fn tried(client: &Client, other: &Client, found: &mut Vec<Finding>) -> Result<(), Finding> {
    let lock = |client: &Client| -> dlock::Result<Lock> {
        let ttl = TTL.max(client.capabilities().min_ttl);
        client
            .lock(NAME)?
            .options(LockOptions::new().ttl(ttl).wait_limit(ttl))
    };
    let taking = async { lock(client)?.acquire().await };
    let guard = taking.await.map_err(|e| match e.kind() {
        ErrorKind::Timeout => {
            Finding::warning("locks", format!("another `dlock doctor` holds {NAME}: try again"))
        }
        _ => failed("locks", "acquiring a lock", e),
    })?;
    match trips(lock(other).map_err(|e| failed("locks", "acquiring a lock", e))?).await {
        Ok(trip) => found.push(trip),
        Err(problem) => found.push(problem),
    }
    for (capability, what) in [
        (Capability::Renew, "renewing a lock"),
        (Capability::Inspect, "inspecting a lock"),
        (Capability::Watch, "watching a lock"),
        (Capability::List, "listing locks"),
        (Capability::Gate, "asking the fence gate"),
    ] {
        if client.capabilities().has(capability)
            && let Err(e) = used(capability, client, &guard).await
        {
            // A user that only locks needs no other right than that to renew.
            let spare = capability != Capability::Renew && e.kind() == ErrorKind::PermissionDenied;
            let failed = failed("rights", what, e);
            found.push(match spare {
                true => Finding::warning("rights", failed.text),
                false => failed,
            });
        }
    }
    let token = guard
        .token()
        .map_or(String::new(), |token| format!(", token {token}"));
    guard
        .release()
        .await
        .map_err(|e| failed("locks", "releasing a lock", e))?;
    found.push(Finding::good(
        "locks",
        format!("{NAME} was acquired, refused to a second client, and released{token}"),
    ));
    Ok(())
}

async fn used(capability: Capability, client: &Client, guard: &Guard) -> dlock::Result<()> {
    match (capability, guard.token()) {
        (Capability::Renew, _) => guard.renew().await,
        (Capability::Inspect, _) => client.inspect(NAME).await.map(drop),
        (Capability::Watch, _) => {
            let mut changes = client.watch(NAME).await?;
            let first = timeout(TTL, changes.next()).await;
            let silent = || Error::new(ErrorKind::Unavailable, format!("no answer within {TTL:?}"));
            first.map_err(|_| silent())?.transpose().map(drop)
        }
        // The right to one page is the right to all.
        (Capability::List, _) => match timeout(GLANCE, client.list(NAME)?.next()).await {
            Ok(found) => found.transpose().map(drop),
            Err(_) => Ok(()),
        },
        // Whatever the answer: an earlier doctor may have had a larger token.
        (Capability::Gate, Some(token)) => client
            .gate()?
            .admit(NAME, token, Access::Exclusive)
            .await
            .map(drop),
        _ => Ok(()),
    }
}

/// Measures round trips.
async fn trips(held: Lock) -> Result<Finding, Finding> {
    let mut times = Vec::new();
    for _ in 0..TRIPS {
        let asked = Instant::now();
        match held.try_acquire().await {
            Ok(None) => times.push(asked.elapsed()),
            Ok(Some(_)) => {
                return Err(Finding::problem(
                    "locks",
                    "a held lock was granted to a second client: the store is not safe for locks",
                ));
            }
            Err(e) => return Err(failed("locks", "trying to acquire a lock that is held", e)),
        }
    }
    times.sort_unstable();
    let (middle, most) = (times[TRIPS / 2], times[TRIPS - 1]);
    let text = format!("median {middle:.1?}, longest {most:.1?} of {TRIPS}");
    Ok(match middle > SLOW {
        true => Finding::warning("round trip", format!("{text}: choose a ttl of 30 s or more")),
        false => Finding::good("round trip", text),
    })
}
