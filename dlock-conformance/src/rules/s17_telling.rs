//! §17 The contract: the contents of errors, debug output and `tracing` events.

use std::collections::BTreeMap;
use std::error::Error as StdError;

use super::prelude::*;
use crate::ear::{Ear, Told};

rules! {
    secrets_stay_secret, each_turn_is_told_once,
}

/// Reads text that others may read, and looks for the secret in it.
struct Reader<'a> {
    cx: &'a Cx,
    secret: String,
}

impl Reader<'_> {
    fn read(&self, what: &str, text: &str) -> Verdict {
        self.cx.evidence("texts_read");
        ensure!(
            !text.contains(&self.secret),
            "{what} shows the password: {}",
            text.replace(&self.secret, "<the password>")
        );
        Ok(())
    }

    fn read_error(&self, what: &str, error: &dlock_core::Error) -> Verdict {
        self.cx.evidence("errors_read");
        self.read(&format!("the error of {what}"), &error.to_string())?;
        self.read(
            &format!("the error of {what}, printed for debugging"),
            &format!("{error:?} {error:#?}"),
        )?;
        let mut cause = error.source();
        while let Some(e) = cause {
            self.read(
                &format!("a cause of the error of {what}"),
                &format!("{e} {e:?} {e:#?}"),
            )?;
            cause = e.source();
        }
        Ok(())
    }

    async fn use_client(&self, client: &dyn Subject) -> Verdict {
        if let Some(printed) = client.printed() {
            self.read("a client, printed", &printed)?;
        }
        self.read("its capabilities", &format!("{:?}", client.capabilities()))?;
        let (cx, name, ask) = (self.cx, self.cx.name("secret"), self.cx.ask());
        let bound = cx.claims().give_up + cx.slack();
        if let Err(e) = cx.within(bound, "a try", client.try_acquire(&name, &ask)).await? {
            self.read_error("a try", &e)?;
        }
        let limit = ms(20);
        let waiting = client.acquire_timeout(&name, &ask, limit);
        if let Err(e) = cx.within(bound, "a wait with a limit", waiting).await? {
            self.read_error("a wait with a limit", &e)?;
        }
        if let Some(observe) = client.observe().filter(|_| cx.has(Need::Inspect))
            && let Err(e) = cx.within(bound, "inspecting", observe.inspect(&name)).await?
        {
            self.read_error("inspecting", &e)?;
        }
        if let Err(e) = cx.within(bound, "close", client.close()).await? {
            self.read_error("close", &e)?;
        }
        Ok(())
    }
}

rule! { "17.05" Must phase 2 [Secrets] Both A D secrets_stay_secret,
    evidence ["texts_read" >= 6, "errors_read" >= 2], bug "leaks_password"
    "The password of a client appears in no error, no cause of an error, no printed client, and no event or \
        span of tracing."
    why "The log of an outage is attached to a ticket the next morning, with the store's password in it."
    check "Where is the address put into a message, and does a driver error that is kept as the cause repeat \
        it?"
}
async fn secrets_stay_secret(cx: Cx) -> Verdict {
    let ear = cx.listen();
    if ear.is_none() {
        cx.note("tracing events were not read: this process has its own subscriber");
    }
    let secret = format!("sentinel{:016x}", cx.rng().bits());
    let reader = Reader { cx: &cx, secret };
    // Plain, and with the signs by which an address is taken apart: what follows could not be read.
    let core = &reader.secret;
    for password in [
        core.clone(),
        format!("p@{core}"),
        format!("p/{core}?{core}"),
        format!("{core}%zz#"),
    ] {
        match cx.connect_with_secret(&password).await {
            None => {
                not_run!(
                    "the harness gives no client a password (connect_with_secret); if the store has none, \
                        claim without(Need::Secrets)"
                );
            }
            Some(Err(e)) => reader.read_error("connecting", &e)?,
            Some(Ok(client)) => reader.use_client(&*client).await?,
        }
    }
    for told in ear.iter().flat_map(Ear::heard) {
        reader.read("the tracing output", &told.to_string())?;
    }
    Ok(())
}

/// What was told of this run's names.
struct Tale<'a> {
    cx: &'a Cx,
    ear: Ear,
}

impl Tale<'_> {
    /// The events of that kind about that guard.
    fn of(&self, kind: &str, held: &Guarded) -> Vec<Told> {
        let of_it = |told: &Told| {
            told.name.ends_with(kind)
                && told.fields.get("id").is_some_and(|id| *id == held.id)
                && told.fields.get("lock").is_some_and(|lock| *lock == held.lock)
                && told.fields.get("token").map(String::as_str) == held.token.as_deref()
        };
        self.ear.heard().into_iter().filter(of_it).collect()
    }

    /// Waits until that many were emitted, and checks that no more follow.
    async fn told(&self, kind: &str, held: &Guarded, times: usize, what: &str) -> Verdict {
        let cx = self.cx;
        let by = cx.now() + cx.claims().drop_prompt + cx.slack();
        cx.comes(by, || self.of(kind, held).len() >= times).await;
        let told = self.of(kind, held);
        if told.len() == times {
            return Ok(());
        }
        let all: Vec<String> = (self.ear.heard().iter())
            .filter(|t| t.fields.get("lock").is_some_and(|lock| *lock == held.lock))
            .map(Told::to_string)
            .collect();
        fail!(
            "{what}: {} events `*{kind}` were emitted for the grant {} of `{}` with the token {:?}, instead \
                of {times}; the events were {all:?}",
            told.len(),
            held.id,
            held.lock,
            held.token
        )
    }
}

/// What an event has to say of a guard.
struct Guarded {
    lock: String,
    id: String,
    token: Option<String>,
}

impl Guarded {
    fn new(lock: &dlock_core::LockName, held: &dyn Held) -> Self {
        Self {
            lock: lock.to_string(),
            id: held.id(),
            token: held.token().map(|token| token.get().to_string()),
        }
    }
}

rule! { "17.08" Should phase 3 [Lock, Try, Wait, Events] Engine A D each_turn_is_told_once,
    evidence ["grants_told" >= 4, "releases_told" >= 2], bug "no_events"
    "Each grant, renewal, loss and release is one event of tracing, with the name, the id of the grant, and \
        its token where there is one. A refusal is no event."
    why "The log is read afterwards. A missing or repeated event tells a wrong story."
    check "Is the event emitted where the state changes, on every path: a call, the drop of a guard, the \
        background?"
}
async fn each_turn_is_told_once(cx: Cx) -> Verdict {
    let Some(ear) = cx.listen() else {
        not_run!("this process has its own tracing subscriber");
    };
    let tale = Tale { cx: &cx, ear };
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let name = cx.name("told");
    // Taken, refused, waited for, handed over, let go, dropped.
    let held = a.is_granted(&name, &ask, "A tries").await?;
    let first = Guarded::new(&name, &*held);
    tale.told(".acquired", &first, 1, "a try").await?;
    cx.evidence("grants_told");
    b.is_refused(&name, &ask, "while A holds").await?;
    if cx.has(Need::Renew) {
        for times in 1..3 {
            held.renew().await.seen("renewing")?;
            tale.told(".renewed", &first, times, "a manual renewal").await?;
        }
    }
    let waiting = cx.waits(&b, &name, &ask);
    cx.in_line(&*a, &name, 1).await?;
    held.release().await.seen("A releases")?;
    tale.told(".released", &first, 1, "a release").await?;
    cx.evidence("releases_told");
    let handed = waiting.await.seen("B waits")?;
    let second = Guarded::new(&name, &*handed);
    tale.told(".acquired", &second, 1, "a hand-over").await?;
    cx.evidence("grants_told");
    drop(handed);
    tale.told(".released", &second, 1, "the drop of a guard").await?;
    cx.evidence("releases_told");
    let renewing = cx.name("renewing");
    if cx.has(Need::AutoRenew) && cx.has(Need::PerGrantTtl) {
        let ttl = cx.steady_ttl();
        let kept = a
            .is_granted(&renewing, &ask.clone().ttl(ttl).auto_renew(), "at first")
            .await?;
        let third = Guarded::new(&renewing, &*kept);
        cx.sleep(ttl / 2).await;
        let renewals = tale.of(".renewed", &third).len();
        ensure!(
            (1..=20).contains(&renewals),
            "{renewals} renewals were emitted within half the ttl of a guard with auto-renewal"
        );
        cx.evidence("renewals_told");
        kept.release().await.seen("A releases")?;
        tale.told(".released", &third, 1, "the release of a guard with auto-renewal")
            .await?;
    }
    let lapsing = cx.name("lapsing");
    if cx.has(Need::LossSignal) && cx.has(Need::PerGrantTtl) {
        let ttl = cx.short_ttl();
        let short = a.is_granted(&lapsing, &ask.clone().ttl(ttl), "at first").await?;
        let fourth = Guarded::new(&lapsing, &*short);
        tale.told(".acquired", &fourth, 1, "a grant").await?;
        cx.evidence("grants_told");
        let bound = ttl + cx.skew(ttl) + cx.slack();
        cx.within(bound, "the loss signal", short.lost()).await?;
        tale.told(".lost", &fourth, 1, "a loss").await?;
        drop(short);
        tale.told(".lost", &fourth, 1, "a loss, and the drop of its guard")
            .await?;
        tale.told(".released", &fourth, 0, "a loss").await?;
        cx.evidence("losses_told");
    } else {
        // How long it lasts is the store's to say: it is let go.
        let kept = a.is_granted(&lapsing, &ask, "at first").await?;
        let fourth = Guarded::new(&lapsing, &*kept);
        tale.told(".acquired", &fourth, 1, "a grant").await?;
        cx.evidence("grants_told");
        kept.release().await.seen("A releases")?;
        tale.told(".released", &fourth, 1, "a release").await?;
    }
    // However often it is looked at: each thing once.
    cx.sleep(ms(20)).await;
    tale.told(".acquired", &first, 1, "a try").await?;
    tale.told(".released", &first, 1, "a release").await?;
    tale.told(".lost", &first, 0, "a release").await?;
    let mut of = BTreeMap::<String, usize>::new();
    for told in tale.ear.heard() {
        if told.fields.get("lock") == Some(&first.lock) && told.name.ends_with(".acquired") {
            *of.entry(told.fields.get("id").cloned().unwrap_or_default())
                .or_default() += 1;
        }
    }
    ensure!(
        of.len() == 2,
        "two grants of `{name}` are reported as grants of {:?}",
        of.keys().collect::<Vec<_>>()
    );
    cx.evidence("grants_told");
    Ok(())
}
