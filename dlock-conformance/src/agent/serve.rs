//! The child's side: carries out the commands that it reads.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dlock_core::{Admission, Error, ErrorKind, LockName, Result, Token};
use futures::FutureExt;
use futures::future::{AbortHandle, Abortable};

use super::handed::{Handed, handed};
use super::hold::Look;
use super::protocol::{Answer, Command, MARK, Order, Reply, WireHold, failed};
use crate::cx::{Conditions, Cx, Setup};
use crate::harness::Harness;
use crate::lock::lock;
use crate::run_state::RunState;
use crate::subject::{Ask, Held, Subject};

/// What the agent in a process needs to carry out its commands.
pub(super) struct Agent {
    cx: Cx,
    outside: Outside,
    client: Mutex<Option<Arc<dyn Subject>>>,
    // Ordered: a simulated process drops them in the same order each time.
    holds: Mutex<BTreeMap<u64, Arc<dyn Held>>>,
    running: Mutex<BTreeMap<u64, AbortHandle>>,
    /// The context keeps only a weak one.
    _harness: Arc<dyn Harness>,
}

/// The parts that differ between a real process and a simulated one.
pub(super) struct Outside {
    /// Answers the command of that number.
    pub(super) tell: Box<dyn Fn(u64, Answer) + Send + Sync>,
    /// The wall clock, since 1970.
    pub(super) wall_clock: Box<dyn Fn() -> Duration + Send + Sync>,
}

/// Serves the parent until it closes the pipe. Your own `main` calls this if
/// [`handed_over`](super::handed_over) returns `Some`; [`main!`](crate::main) does it for you.
pub fn serve(harness: impl Harness) -> ExitCode {
    serve_with(Arc::new(harness))
}

pub(crate) fn serve_with(harness: Arc<dyn Harness>) -> ExitCode {
    let handed = match handed() {
        Some(Ok(handed)) => handed,
        Some(Err(e)) => return refuse(&format!("the handed-over store is not understood: {e}")),
        None => return refuse("this process was not started by a parent"),
    };
    let outside = Outside {
        tell: Box::new(say),
        wall_clock: Box::new(|| {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            since.unwrap_or(Duration::ZERO)
        }),
    };
    let agent = Agent::start(harness, handed, outside);
    // This thread is no part of the runtime: a command that waited in the pipe while the process was stopped
    // is read at once.
    for line in io::stdin().lock().lines().map_while(std::result::Result::ok) {
        match serde_json::from_str::<Order>(&line) {
            Ok(order) => agent.obey(order),
            Err(e) => return refuse(&format!("a command is not understood: {e}: {line}")),
        }
    }
    // The parent is gone, or has finished. Nothing is released, so that this looks like any other death.
    std::process::exit(0)
}

fn refuse(why: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "dlock-conformance: {why}");
    ExitCode::from(2)
}

fn say(n: u64, answer: Answer) {
    let written = serde_json::to_string(&Reply { n, answer }).map(|line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{MARK}{line}").and_then(|()| out.flush())
    });
    if !matches!(written, Ok(Ok(()))) {
        // The reader is gone.
        std::process::exit(0);
    }
}

impl Agent {
    /// Connects, and says hello.
    pub(super) fn start(harness: Arc<dyn Harness>, handed: Handed, outside: Outside) -> Arc<Self> {
        let agent = Arc::new(Self {
            cx: Cx::new(Setup {
                rule: handed.rule,
                namespace: handed.namespace,
                seed: handed.seed,
                effort: handed.effort,
                harness: Arc::clone(&harness),
                run: Arc::new(RunState::new(harness.claims())),
                conditions: Conditions::default(),
            }),
            outside,
            client: Mutex::default(),
            holds: Mutex::default(),
            running: Mutex::default(),
            _harness: harness,
        });
        let connecting = {
            let agent = Arc::clone(&agent);
            async move {
                match agent.cx.connect().await {
                    Ok(client) => {
                        *lock(&agent.client) = Some(client);
                        agent.say(0, Answer::Hello);
                    }
                    Err(failure) => agent.say(0, failed(ErrorKind::Unavailable, failure)),
                }
            }
        };
        agent.cx.runtime().spawn(connecting.boxed());
        agent
    }

    /// Drops everything without a release, as the end of a process does.
    pub(super) fn perish(&self) {
        let held = std::mem::take(&mut *lock(&self.holds));
        let running = std::mem::take(&mut *lock(&self.running));
        let client = lock(&self.client).take();
        drop((held, running, client, self.cx.take_clients()));
    }

    fn say(&self, n: u64, answer: Answer) {
        (self.outside.tell)(n, answer);
    }

    pub(super) fn obey(self: &Arc<Self>, Order { n, command }: Order) {
        match command {
            Command::Look(hold) => {
                let held = match self.hold(hold) {
                    Ok(held) => held,
                    Err(e) => return self.say(n, failed(e.kind(), e)),
                };
                // Before anything else, since the first look after a stop is the point of it.
                let is_valid = held.is_valid();
                let look = Look {
                    is_valid,
                    remaining: held.remaining(),
                    loss: held.loss().map(|reason| format!("{reason:?}")),
                };
                self.say(n, Answer::Look(look));
            }
            Command::Drop(hold) => drop(lock(&self.holds).remove(&hold)),
            Command::Cancel(task) => {
                if let Some(abort) = lock(&self.running).remove(&task) {
                    abort.abort();
                }
                let held = lock(&self.holds).remove(&task);
                drop(held);
            }
            command => {
                let agent = Arc::clone(self);
                let (abort, registration) = AbortHandle::new_pair();
                lock(&self.running).insert(n, abort.clone());
                let work = async move {
                    let work = Abortable::new(agent.work(n, command), registration);
                    let answer = work.await;
                    lock(&agent.running).remove(&n);
                    match answer {
                        Ok(Ok(answer)) => agent.say(n, answer),
                        Ok(Err(e)) => agent.say(n, failed(e.kind(), e)),
                        Err(_) => {}
                    }
                    if abort.is_aborted() {
                        // Cancelled when it was granted already.
                        let held = lock(&agent.holds).remove(&n);
                        drop(held);
                    }
                };
                self.cx.runtime().spawn(work.boxed());
            }
        }
    }

    async fn work(&self, n: u64, command: Command) -> Result<Answer> {
        let client = lock(&self.client).clone();
        let Some(client) = client else {
            return Ok(failed(ErrorKind::Unavailable, "it is not connected yet"));
        };
        match command {
            Command::Try { name, ask } => {
                let held = client.try_acquire(&LockName::new(name)?, &ask).await?;
                Ok(held.map_or(Answer::HeldByAnother, |held| self.keep(n, held)))
            }
            Command::Acquire { name, ask, limit } => {
                let name = LockName::new(name)?;
                let held = client.wait(&name, &ask, limit).await?;
                Ok(self.keep(n, held))
            }
            Command::Renew(hold) => {
                let held = self.hold(hold)?;
                held.renew().await.map(|()| describe(&*held))
            }
            Command::Release(hold) => self.hold(hold)?.release().await.map(|()| Answer::Done),
            Command::Lost(hold) => {
                // The guard itself is let go of at once: it must be possible to drop it.
                let lost = self.hold(hold)?.lost();
                Ok(Answer::Lost(format!("{:?}", lost.await)))
            }
            Command::Write {
                resource,
                token,
                value,
            } => {
                let (Some(gate), Some(token)) = (client.gate(), Token::new(token)) else {
                    return Ok(failed(ErrorKind::Unsupported, "no gate, or no token"));
                };
                Ok(
                    match gate.write(&LockName::new(resource)?, token, &value).await? {
                        Admission::Refused { highest } => Answer::Refused {
                            highest: highest.get(),
                        },
                        _ => Answer::Admitted,
                    },
                )
            }
            Command::Ids { clients, ask } => self.ids(clients, &ask).await,
            Command::WallClock => Ok(Answer::WallClock((self.outside.wall_clock)())),
            Command::Churn(churn) => {
                let tell = |step| self.say(n, Answer::Step(step));
                churn.run(self.cx.clone(), client, tell).await;
                Ok(Answer::Done)
            }
            // Done where it is read.
            Command::Look(_) | Command::Drop(_) | Command::Cancel(_) => Ok(Answer::Done),
        }
    }

    async fn ids(&self, clients: Vec<Vec<Vec<u8>>>, ask: &Ask) -> Result<Answer> {
        let mut ids = Vec::new();
        for names in clients {
            let client = match self.cx.connect().await {
                Ok(client) => client,
                Err(failure) => return Ok(failed(ErrorKind::Unavailable, failure)),
            };
            for name in names {
                let held = client.acquire(&LockName::new(name)?, ask).await?;
                ids.push(held.id());
                held.release().await?;
            }
            client.close().await?;
        }
        Ok(Answer::Ids(ids))
    }

    fn keep(&self, n: u64, held: Box<dyn Held>) -> Answer {
        let held: Arc<dyn Held> = held.into();
        let answer = describe(&*held);
        lock(&self.holds).insert(n, held);
        answer
    }

    fn hold(&self, n: u64) -> Result<Arc<dyn Held>> {
        let dropped = || Error::new(ErrorKind::Lost, "this guard was dropped");
        lock(&self.holds).get(&n).cloned().ok_or_else(dropped)
    }
}

fn describe(held: &dyn Held) -> Answer {
    Answer::Held(WireHold {
        id: held.id(),
        token: held.token().map(Token::get),
        ttl: held.ttl(),
        remaining: held.remaining(),
        deadline: held.deadline().as_nanos(),
    })
}
