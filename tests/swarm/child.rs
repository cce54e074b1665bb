//! A process of the swarm: waiters on one client, each in a task of its own, which write down what they see.
//!
//! It says `ready CLIENT`, begins when it reads `go`, and after `last` nobody asks again. One line for each
//! thing seen, with the machine's clock in nanoseconds:
//!
//! * `g ID TOKEN NOW DEADLINE`: granted, and believed in until that deadline;
//! * `r ID NOW DEADLINE`: about to release; it was believed in until then, or until the deadline if that is
//!   sooner;
//! * `d ID NOW`: released, or told that it was lost;
//! * `f TEXT`: an acquire or a release failed;
//! * `end`: all are done.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock::{Client, ErrorKind, Lock, RequestId, Timestamp, Token};
use dlock_conformance::Rng;
use futures::channel::oneshot;
use futures::future::join_all;

/// In the environment of a child.
pub(crate) const VARIABLE: &str = "DLOCK_SWARM";

/// The lock that they all want.
pub(crate) const NAME: &str = "swarm";

/// How long it may take until it is connected.
const STARTING: Duration = Duration::from_secs(30);

/// What a child is told; `None` in the parent.
pub(crate) fn told() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// As it stands in the server's keys.
fn shown(id: RequestId) -> String {
    format!("{:032x}{:016x}", id.client(), id.sequence())
}

fn now() -> u64 {
    Timestamp::now().as_nanos()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        // Nobody reads any more.
        std::process::exit(0);
    }
}

/// `WAITERS SEED LONG URL`: a long hold lasts at most LONG milliseconds.
pub(crate) fn serve(told: &str) -> ExitCode {
    let mut words = told.splitn(4, ' ');
    let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
    let (Some(waiters), Some(seed), Some(long)) = (number(), number(), number()) else {
        return ExitCode::from(2);
    };
    let url = words.next().unwrap_or_default().to_owned();
    let began = Timestamp::now();
    let (go, going) = oneshot::channel();
    let last = Arc::new(AtomicBool::new(false));
    let told_last = Arc::clone(&last);
    std::thread::spawn(move || {
        let mut go = Some(go);
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.as_str() {
                "go" => drop(go.take().map(|go| go.send(()))),
                _ => told_last.store(true, Ordering::Relaxed),
            }
        }
        // The parent is gone. Nothing is released: it is to look like any other death.
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.map_err(|e| e.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            let client = loop {
                // Twenty processes that start at once keep a busy machine from everything else for a while.
                match connect(&url).await {
                    Ok(client) => break client,
                    Err(e) if Timestamp::now() > began + STARTING => return Err(e.to_string()),
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            };
            if going.await.is_err() {
                return Ok(());
            }
            let lock = client.lock(NAME).map_err(|e| e.to_string())?;
            let waiters = (0..waiters).map(|n| wait(lock.clone(), seed ^ (n << 32), long, &last));
            join_all(waiters).await;
            client.close().await.map_err(|e| e.to_string())
        })
    });
    match served {
        Ok(()) => say("end"),
        Err(e) => say(&format!("f {e}")),
    }
    ExitCode::SUCCESS
}

async fn connect(url: &str) -> dlock::Result<Client> {
    let client = dlock::connect(url).await?;
    // Which requests will be this client's.
    let guard = client
        .lock(format!("hello-{}", std::process::id()))?
        .acquire()
        .await?;
    say(&format!("ready {:032x}", guard.id().client()));
    // That it ran out meanwhile, on a machine that has much to do, is no matter of this test's.
    let _ = guard.release().await;
    Ok(client)
}

async fn wait(lock: Lock, seed: u64, long: u64, last: &AtomicBool) {
    let mut rng = Rng::new(seed);
    loop {
        // So that a waiter that was told of the end is still served.
        let is_last = last.load(Ordering::Relaxed);
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            Err(e) => {
                say(&format!("f acquire: {e} ({:?})", e.kind()));
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let id = shown(guard.id());
        let token = guard.token().map_or(0, Token::get);
        say(&format!(
            "g {id} {token} {} {}",
            now(),
            guard.deadline().as_nanos()
        ));
        // Most let go before their grant has to be confirmed; some hold until it was.
        let hold = match rng.one_in(40) {
            true => rng.duration(Duration::from_millis(long / 3), Duration::from_millis(long)),
            false => rng.duration(Duration::ZERO, Duration::from_millis(2)),
        };
        tokio::time::sleep(hold).await;
        let deadline = guard.deadline().as_nanos();
        say(&format!("r {id} {} {deadline}", now()));
        match guard.release().await {
            Ok(()) => say(&format!("d {id} {}", now())),
            Err(e) if e.kind() == ErrorKind::Lost => say(&format!("d {id} {}", now())),
            Err(e) => say(&format!("f release: {e} ({:?})", e.kind())),
        }
        if is_last {
            return;
        }
    }
}
