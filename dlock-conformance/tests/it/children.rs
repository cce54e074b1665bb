//! What goes to a child process, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use dlock_conformance::agent::Process;
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Ask, Claims, Clockwork, Conditions, Cx, Effort, Granted, Harness, Held, Kind, Reply, Rule, Subject,
    Verdict, ensure, run_once,
};
use dlock_core::spi;
use dlock_core::{Capabilities, Error, ErrorKind, LockName, Result, Runtime};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::report::declared;

#[test]
fn an_ask_arrives_as_it_was_sent() {
    let ask = Ask::new(Duration::from_millis(300))
        .auto_renew()
        .priority(7)
        .label("me");
    for ask in [
        ask.clone(),
        ask.clone().reader(),
        ask.permit(3).renew_every(Duration::from_millis(9)),
    ] {
        let text = serde_json::to_string(&ask).unwrap();
        let back: Ask = serde_json::from_str(&text).unwrap();
        assert_eq!(back, ask);
    }
}

const KINDS: [ErrorKind; 10] = [
    ErrorKind::Timeout,
    ErrorKind::Lost,
    ErrorKind::Unknown,
    ErrorKind::InvalidInput,
    ErrorKind::Unsupported,
    ErrorKind::LimitReached,
    ErrorKind::Unavailable,
    ErrorKind::PermissionDenied,
    ErrorKind::BackendData,
    ErrorKind::Closed,
];

/// A client whose tries fail in the way that the name ends with.
struct Failing(Arc<dyn Subject>);

impl Subject for Failing {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn try_acquire<'a>(&'a self, name: &'a LockName, _: &'a Ask) -> Reply<'a, Option<Box<dyn Held>>> {
        let named = |kind: &ErrorKind| name.as_bytes().ends_with(format!("/{kind:?}").as_bytes());
        let kind = KINDS.into_iter().find(named).unwrap();
        ready(Err(Error::new(kind, "out of cheese"))).boxed()
    }

    fn wait<'a>(&'a self, name: &'a LockName, ask: &'a Ask, limit: Option<Duration>) -> Granted<'a> {
        self.0.wait(name, ask, limit)
    }

    fn close(&self) -> Reply<'_, ()> {
        self.0.close()
    }

    fn backend(&self) -> Option<&Arc<dyn spi::Lock>> {
        self.0.backend()
    }
}

/// A harness with such clients, and its processes.
struct Fails(Arc<dyn Harness>);

impl Harness for Fails {
    fn claims(&self) -> Claims {
        self.0.claims()
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        self.0.runtime()
    }

    fn connect<'a>(&'a self, cx: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        async move { Ok(Arc::new(Failing(self.0.connect(cx).await?)) as Arc<dyn Subject>) }.boxed()
    }

    fn process(&self) -> Option<Arc<dyn Process>> {
        Some(Arc::new(Elsewhere(self.0.process()?)))
    }

    fn clockwork(&self) -> Arc<dyn Clockwork> {
        self.0.clockwork()
    }
}

#[derive(Debug)]
struct Elsewhere(Arc<dyn Process>);

impl Process for Elsewhere {
    fn number(&self) -> u32 {
        self.0.number()
    }

    fn harness(&self) -> Arc<dyn Harness> {
        Arc::new(Fails(self.0.harness()))
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn resume(&self) {
        self.0.resume();
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn set_wall_clock(&self, seconds: i64) {
        self.0.set_wall_clock(seconds);
    }

    fn wall_clock(&self) -> Duration {
        self.0.wall_clock()
    }
}

async fn fails_in_every_way(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    for kind in KINDS {
        let name = cx.name(format!("{kind:?}"));
        let tried = child.try_take(&name, &cx.ask()).await;
        ensure!(
            matches!(&tried, Err(e) if e.kind() == kind && e.to_string().contains("out of cheese")),
            "{kind:?} became {tried:?}"
        );
    }
    Ok(())
}

#[test]
fn an_error_comes_back_as_it_was() {
    static FAILS: Rule = Rule {
        run: |cx| fails_in_every_way(cx).boxed(),
        ..declared("0.00")
    };
    let harness: Arc<dyn Harness> = Arc::new(Fails(Arc::new(Simulated::new(1))));
    let name = "dlc-fails".to_owned();
    let attempt = run_once(&FAILS, &harness, name, 1, Effort::Quick, Conditions::default());
    assert_eq!(attempt.outcome.kind(), Kind::Pass, "{:?}", attempt.outcome);
}
