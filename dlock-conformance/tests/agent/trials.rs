use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_conformance::agent::{self, Churn, Seen};
use dlock_conformance::simulated::Simulated;
use dlock_conformance::{
    Access, Claims, Conditions, Cx, Effort, EngineSubject, Harness, Held, Layer, Level, Outcome, Rule,
    Seen as _, Subject, Test, Verdict, ensure, fail, run_once,
};
use dlock_core::spi::capabilities_of;
use dlock_core::{Admission, Client, ErrorKind, Memory, Result, Runtime, runtime};
use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::program;
#[cfg(target_os = "linux")]
use crate::threads;

pub(crate) struct Local {
    tokio: tokio::runtime::Runtime,
    store: Memory,
    shared: bool,
}

impl Local {
    pub(crate) fn new(shared: bool) -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_time()
            .build()
            .expect("threads can be started");
        let runtime = runtime::Tokio::from_handle(tokio.handle().clone()).expect("it has timers");
        let store = Memory::new(runtime);
        Self { tokio, store, shared }
    }
}

impl Harness for Local {
    fn claims(&self) -> Claims {
        Claims::new("local", "0", capabilities_of(&*self.store.connect()))
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        runtime::Tokio::from_handle(self.tokio.handle().clone()).expect("it has timers")
    }

    fn connect<'a>(&'a self, _: &'a Cx) -> BoxFuture<'a, Result<Arc<dyn Subject>>> {
        let client = Client::builder(self.store.connect(), self.runtime()).build();
        ready(client.map(|c| Arc::new(EngineSubject::new(c)) as Arc<dyn Subject>)).boxed()
    }

    fn hand_over(&self) -> Option<String> {
        self.shared.then(|| "of this process".to_owned())
    }
}

/// What a trial wants to look at after its rule has ended.
static LEFT: Mutex<Vec<u32>> = Mutex::new(Vec::new());

const fn rule(title: &'static str, run: fn(Cx) -> BoxFuture<'static, Verdict>) -> Rule {
    Rule {
        id: "0.00",
        level: Level::Must,
        phase: 1,
        needs: &[],
        layer: Layer::Both,
        access: Access::C,
        test: Test::D,
        title,
        statement: "A rule to try the kit with.",
        intent: "",
        check_first: "",
        evidence: &[],
        budget: Duration::from_secs(20),
        bug: None,
        run,
    }
}

static TRIALS: [Rule; 8] = [
    rule("a child does what a subject does", |cx| {
        does_what_a_subject_does(cx).boxed()
    }),
    rule("an error comes back as it was", |cx| errors_come_back(cx).boxed()),
    rule("a command waits for a stopped child", |cx| {
        commands_wait(cx).boxed()
    }),
    rule("a dropped question is dropped in the child", |cx| {
        dropped_questions(cx).boxed()
    }),
    rule("a churning child tells its steps in order", |cx| {
        churns(cx).boxed()
    }),
    rule("a child that is killed answers nobody", |cx| killed(cx).boxed()),
    rule("a wall clock is set for one process", |cx| wall_clock(cx).boxed()),
    rule("a rule that panics leaves no child", |cx| panics(cx).boxed()),
];

async fn does_what_a_subject_does(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    let (name, resource) = (cx.name("a"), cx.name("r"));
    let held = child.wait_for(&name, &cx.ask(), None).await.seen("acquires")?;
    ensure!(held.asked < held.answered, "an answer came before its question");
    let held = held.value;
    let token = held.token();
    let Some(token) = token else {
        fail!("the memory backend gives tokens")
    };
    let deadline = held.deadline();
    ensure!(
        held.is_valid() && deadline <= cx.now() + cx.long_ttl(),
        "{deadline:?}"
    );
    ensure!(
        child
            .try_take(&name, &cx.ask())
            .await
            .seen("tries")?
            .value
            .is_none(),
        "a held name was granted"
    );
    held.renew().await.seen("renews")?;
    ensure!(held.deadline() > deadline, "a renewal did not move the deadline");
    let look = held.look().await.seen("looks")?.value;
    ensure!(look.is_valid && look.loss.is_none(), "{look:?}");
    let written = child.write(&resource, token, b"x").await.seen("writes")?.value;
    ensure!(written == Admission::Admitted, "{written:?}");
    let ids = child
        .ids(&[vec![cx.name("b")], vec![cx.name("b")]], &cx.ask())
        .await
        .seen("ids")?
        .value;
    ensure!(
        ids.len() == 2 && ids[0] != ids[1] && !ids.contains(&held.id()),
        "{ids:?}"
    );
    held.release().await.seen("releases")?;
    let subject: Arc<dyn Subject> = child;
    let again = subject
        .try_acquire(&name, &cx.ask())
        .await
        .seen("tries as a subject")?;
    ensure!(again.is_some(), "a released name was refused");
    Ok(())
}

async fn errors_come_back(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    let held = child
        .wait_for(&cx.name("a"), &cx.ask(), None)
        .await
        .seen("acquires")?
        .value;
    held.release().await.seen("releases")?;
    match held.release().await {
        Err(e) if e.kind() == ErrorKind::Lost => {}
        other => fail!("{other:?}"),
    }
    let second = child
        .wait_for(&cx.name("b"), &cx.ask(), None)
        .await
        .seen("acquires")?;
    match child
        .wait_for(&cx.name("b"), &cx.ask(), Some(Duration::from_millis(20)))
        .await
    {
        Err(e) if e.kind() == ErrorKind::Timeout => {}
        other => fail!("{other:?}"),
    }
    drop(second);
    Ok(())
}

async fn commands_wait(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    let ask = cx.ask().ttl(cx.ttl(Duration::from_millis(150)));
    let held = child
        .wait_for(&cx.name("a"), &ask, None)
        .await
        .seen("acquires")?
        .value;
    let signal = held.signal();
    child.stop()?;
    let look = held.look();
    cx.sleep(ask.ttl * 2).await;
    let mut look = look;
    ensure!((&mut look).now_or_never().is_none(), "a stopped process answered");
    let resumed = child.resume()?;
    let look = look.await.seen("looks")?;
    ensure!(!look.value.is_valid, "{look:?}");
    ensure!(look.answered >= resumed.asked, "{look:?}");
    signal.await.seen("is told")?;
    Ok(())
}

async fn dropped_questions(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    let name = cx.name("a");
    let held = child
        .wait_for(&name, &cx.ask(), None)
        .await
        .seen("acquires")?
        .value;
    let waiting = child.wait_for(&name, &cx.ask(), None);
    cx.sleep(Duration::from_millis(30)).await;
    drop(waiting);
    held.release().await.seen("releases")?;
    let by = cx.now() + Duration::from_secs(2);
    drop(
        cx.free_by(&*child, &name, &cx.ask(), by, "a waiter was dropped")
            .await?,
    );
    // And a guard that is dropped here is dropped there.
    let by = cx.now() + Duration::from_secs(2);
    cx.free_by(&*child, &name, &cx.ask(), by, "a guard was dropped")
        .await?;
    Ok(())
}

async fn churns(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    let churn = Churn::new(
        &cx.name("a"),
        &cx.name("r"),
        &cx.ask(),
        Duration::from_millis(3),
        7,
    );
    let mut steps = child.churn(churn);
    let (mut last, mut admitted, mut tokens) = (0, 0, Vec::new());
    while tokens.len() < 10 {
        let Some((step, at)) = cx.within(Duration::from_secs(5), "a step", steps.next()).await? else {
            fail!("the child ended");
        };
        ensure!(
            last <= step.ended && step.began <= step.ended && step.ended <= at.as_nanos(),
            "{step:?}"
        );
        last = step.ended;
        match step.seen {
            Seen::Granted { token, .. } => tokens.push(token),
            Seen::Admitted => admitted += 1,
            Seen::Failed(why) => fail!("{why}"),
            _ => {}
        }
    }
    ensure!(
        admitted >= 9 && tokens.windows(2).all(|w| w[0] < w[1]),
        "{tokens:?}"
    );
    Ok(())
}

async fn killed(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    child.stop()?;
    let asked = child.wall_clock();
    child.kill()?;
    match cx.within(Duration::from_secs(5), "an answer", asked).await? {
        Err(e) if e.kind() == ErrorKind::Unknown => {}
        other => fail!("{other:?}"),
    }
    // Nor to what is asked later.
    match cx
        .within(Duration::from_secs(5), "an answer", child.wall_clock())
        .await?
    {
        Err(e) if e.kind() == ErrorKind::Unknown => Ok(()),
        other => fail!("{other:?}"),
    }
}

async fn wall_clock(cx: Cx) -> Verdict {
    let (plain, child) = (cx.child().await?, cx.child_with_wall_clock().await?);
    for (step, behind) in [(-7200_i64, 7200.0), (3600, -3600.0), (0, 0.0)] {
        child.set_wall_clock(step)?;
        let ours = plain.wall_clock().await.seen("reads")?.value.as_secs_f64();
        let theirs = child.wall_clock().await.seen("reads")?.value.as_secs_f64();
        ensure!(
            (ours - theirs - behind).abs() < 30.0,
            "{step}: {ours} and {theirs}"
        );
    }
    Ok(())
}

async fn panics(cx: Cx) -> Verdict {
    let child = cx.child().await?;
    child.stop()?;
    LEFT.lock().expect("no trial panics with it").push(child.pid());
    // Past the hook, which would print it.
    std::panic::resume_unwind(Box::new("as planned"))
}

fn verdict(rule: &'static Rule, shared: bool) -> Outcome {
    on(rule, Arc::new(Local::new(shared)))
}

fn on(rule: &'static Rule, harness: Arc<dyn Harness>) -> Outcome {
    let attempt = run_once(
        rule,
        &harness,
        "dlc-agent".to_owned(),
        1,
        Effort::Quick,
        Conditions::default(),
    );
    attempt.outcome
}

fn check(rule: &'static Rule) -> std::result::Result<(), String> {
    let outcome = verdict(rule, true);
    match (rule.title, &outcome) {
        ("a rule that panics leaves no child", _) => {
            let left = LEFT.lock().expect("no trial panics with it").clone();
            let there: Vec<_> = left
                .iter()
                .filter(|pid| PathBuf::from(format!("/proc/{pid}")).exists())
                .collect();
            match &there[..] {
                [] if left.len() == 1 => Ok(()),
                _ => Err(format!("of {left:?} are left {there:?}: {outcome:?}")),
            }
        }
        (_, Outcome::Pass) => Ok(()),
        (_, Outcome::NotRun { reason })
            if rule.title.contains("wall clock") && !cfg!(target_os = "linux") =>
        {
            let _ = writeln!(std::io::stdout(), "not run: {reason}");
            Ok(())
        }
        _ => Err(format!("{outcome:?}")),
    }
}

/// Whether it returns without a panic, which is printed.
pub(crate) fn passes(trial: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(trial)).is_ok()
}

pub(crate) fn main() -> ExitCode {
    if let Some(code) = program::main() {
        return code;
    }
    if agent::handed_over().is_some() {
        return agent::serve(Local::new(true));
    }
    let mut out = std::io::stdout();
    if std::env::args().any(|arg| arg == "--list") {
        let _ = writeln!(out, "child_processes: test");
        return ExitCode::SUCCESS;
    }
    let mut red = 0;
    for rule in &TRIALS {
        let line = match check(rule) {
            Ok(()) => "ok".to_owned(),
            Err(why) => {
                red += 1;
                format!("FAILED: {why}")
            }
        };
        let _ = writeln!(out, "test {} ... {line}", rule.title);
    }
    // A simulated process does what a real one does.
    for rule in &TRIALS[..TRIALS.len() - 1] {
        let line = match on(rule, Arc::new(Simulated::new(7))) {
            Outcome::Pass => "ok".to_owned(),
            other => {
                red += 1;
                format!("FAILED: {other:?}")
            }
        };
        let _ = writeln!(out, "test simulated: {} ... {line}", rule.title);
    }
    // A store that is not handed over: the reason is said, and nothing passes.
    match verdict(&TRIALS[0], false) {
        Outcome::NotRun { reason } if reason.contains("no other process can reach this store") => {}
        other => {
            red += 1;
            let _ = writeln!(
                out,
                "test a store that is not shared is not tested ... FAILED: {other:?}"
            );
        }
    }
    // Each in both worlds, but the one that looks for a process of the system; and the store that is not
    // shared.
    let mut all = TRIALS.len() * 2;
    let mut others: Vec<_> = program::trials().collect();
    #[cfg(target_os = "linux")]
    others.push((
        "dropping_a_network_ends_every_thread",
        passes(threads::dropping_a_network_ends_every_thread),
    ));
    for (name, passed) in others {
        let line = if passed { "ok" } else { "FAILED" };
        let _ = writeln!(out, "test {name} ... {line}");
        red += usize::from(!passed);
        all += 1;
    }
    let _ = writeln!(out, "test result: {} of {all} passed", all - red);
    if red == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
