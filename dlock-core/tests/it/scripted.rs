//! A store that answers as a test says, and notes what it was asked, and when.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use dlock_core::sim::{Sim, World};
use dlock_core::spi::{
    self, Abandoned, Acquire, Attempt, Converted, Grant, LeaseKey, News, Probe, Push, Release, Released,
    Renew, RenewItem, RenewKind, RenewOutcome, Renewal, Signal, Wait, Wake,
};
use dlock_core::{
    Capabilities, Capability, Client, Error, ErrorKind, Mode, Nature, RequestId, Result, Runtime, Timestamp,
};
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt as _};

/// One answer. What a question has no answer for is answered as `Yes`.
#[derive(Clone, Debug, Default)]
pub(crate) enum Says {
    /// Granted or renewed for the ttl that was asked for, released, undone, converted; something changed.
    #[default]
    Yes,
    /// Yes, for that long.
    For(Duration),
    /// Granted for that long, or until it is renewed.
    Provisional(Duration),
    /// Granted, renewed or converted, and over by the time that it is heard.
    Over,
    Held,
    /// In line, with that many ahead.
    Queued(u32),
    /// In line, and to be asked again after that long at the latest.
    Recheck(u32, Duration),
    /// It is not there; a conversion is not possible now; nothing has changed.
    Not,
    Fails(ErrorKind),
    /// No answer, for ever.
    Silence,
    After(Duration, Box<Says>),
    /// Nobody runs for so long, and then that.
    Stalls(Duration, Box<Says>),
    Panics,
}

pub(crate) fn after(d: Duration, says: Says) -> Says {
    Says::After(d, Box::new(says))
}

/// The answers to one kind of question, in order. The last one is given for ever if it `goes_on`.
#[derive(Default)]
pub(crate) struct Script(Mutex<(VecDeque<Says>, Option<Says>)>);

impl Script {
    pub(crate) fn set(&self, answers: impl IntoIterator<Item = Says>) {
        *self.0.lock().unwrap() = (answers.into_iter().collect(), None);
    }

    pub(crate) fn set_for_ever(&self, answer: Says) {
        *self.0.lock().unwrap() = (VecDeque::new(), Some(answer));
    }

    /// These come before what is there already.
    pub(crate) fn begin_with(&self, answers: impl IntoIterator<Item = Says>) {
        self.0.lock().unwrap().0 = answers.into_iter().collect();
    }

    fn next(&self) -> Says {
        let mut script = self.0.lock().unwrap();
        let next = script.0.pop_front();
        next.or_else(|| script.1.clone()).unwrap_or_default()
    }
}

pub(crate) struct Scripted {
    capabilities: Capabilities,
    runtime: Arc<dyn Runtime>,
    began: Timestamp,
    pub(crate) attempts: Script,
    pub(crate) renewals: Script,
    pub(crate) releases: Script,
    pub(crate) abandons: Script,
    pub(crate) conversions: Script,
    pub(crate) looks: Arc<Script>,
    pub(crate) closes: Script,
    /// How often waiters look, where they are not pushed to.
    pub(crate) polled: Mutex<Option<(Duration, Duration)>>,
    asked: Arc<Mutex<Vec<(Duration, String)>>>,
    keys: Mutex<Vec<LeaseKey>>,
    pub(crate) acquires: Mutex<Vec<Acquire>>,
    /// To those in line, in the order of their attempts.
    pub(crate) lines: Mutex<Vec<mpsc::UnboundedSender<Push>>>,
    signals: Mutex<Option<mpsc::UnboundedReceiver<Signal>>>,
    pub(crate) tell: mpsc::UnboundedSender<Signal>,
    sleeps: Arc<AtomicU64>,
    world: Arc<World>,
}

/// Counts how often somebody sleeps.
#[derive(Debug)]
struct Counted(Arc<dyn Runtime>, Arc<AtomicU64>);

impl Runtime for Counted {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.sleep(duration)
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn fill_random(&self, buffer: &mut [u8]) {
        self.0.fill_random(buffer);
    }

    fn name(&self) -> &'static str {
        "counted"
    }
}

impl Scripted {
    /// What was asked: `attempt 1`, `renew 1`, `ask 1` (for one in line), `release 1`, `abandon 1`,
    /// `convert 1 to shared`, `look`, `close`. The number is that of the key, in the order in which they came
    /// up.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .map(|(_, what)| what.clone())
            .collect()
    }

    /// When that was asked, since the beginning.
    pub(crate) fn times_of(&self, what: &str) -> Vec<Duration> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|(_, w)| w == what)
            .map(|(at, _)| *at)
            .collect()
    }

    /// How long after the beginning it is.
    pub(crate) fn now(&self) -> Duration {
        self.runtime.now().since(self.began)
    }

    pub(crate) async fn sleep(&self, d: Duration) {
        self.runtime.sleep(d).await;
    }

    pub(crate) fn key(&self, n: usize) -> LeaseKey {
        self.keys.lock().unwrap()[n - 1].clone()
    }

    /// Nobody runs for so long.
    pub(crate) fn stall(&self, d: Duration) {
        self.world.stall(d);
    }

    /// How many tasks there are: of an open client, its keeper.
    pub(crate) fn tasks(&self) -> usize {
        self.world.tasks_alive()
    }

    /// How often somebody has slept on the runtime of the client.
    pub(crate) fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::SeqCst)
    }

    pub(crate) fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }

    fn note(&self, what: &str, key: &LeaseKey, more: &str) {
        let mut keys = self.keys.lock().unwrap();
        let n = keys.iter().position(|k| k == key).unwrap_or_else(|| {
            keys.push(key.clone());
            keys.len() - 1
        });
        let what = format!("{what} {}{more}", n + 1);
        self.asked.lock().unwrap().push((self.now(), what));
    }

    fn wait(&self, ahead: u32, recheck_in: Option<Duration>) -> Wait {
        let wake = match *self.polled.lock().unwrap() {
            Some((min, max)) => Wake::Poll {
                probe: Arc::new(Look {
                    runtime: self.runtime.clone(),
                    began: self.began,
                    looks: self.looks.clone(),
                    asked: self.asked.clone(),
                }),
                min,
                max,
            },
            None => {
                let (push, pushes) = mpsc::unbounded();
                self.lines.lock().unwrap().push(push);
                Wake::Push(pushes.boxed())
            }
        };
        let wait = Wait::new(wake).ahead(ahead);
        match recheck_in {
            Some(d) => wait.recheck_in(d),
            None => wait,
        }
    }

    /// For how long, from when; `None` is a no.
    async fn life(&self, says: Says, ttl: Duration) -> Result<Option<(Timestamp, Duration)>> {
        let now = self.runtime.now();
        match settled(&self.runtime, says).await? {
            Says::Yes => Ok(Some((now, ttl))),
            Says::For(d) | Says::Provisional(d) => Ok(Some((now, d))),
            Says::Over => {
                self.sleep(Duration::from_millis(2)).await;
                Ok(Some((now, Duration::from_millis(1))))
            }
            _ => Ok(None),
        }
    }
}

/// The answer when its time has come.
async fn settled(runtime: &Arc<dyn Runtime>, mut says: Says) -> Result<Says> {
    loop {
        says = match says {
            Says::After(d, later) => {
                runtime.sleep(d).await;
                *later
            }
            Says::Silence => std::future::pending().await,
            Says::Fails(kind) => return Err(Error::new(kind, "as the test says")),
            Says::Panics => std::panic::resume_unwind(Box::new("as the test says")),
            other => return Ok(other),
        }
    }
}

struct Look {
    runtime: Arc<dyn Runtime>,
    began: Timestamp,
    looks: Arc<Script>,
    asked: Arc<Mutex<Vec<(Duration, String)>>>,
}

#[async_trait]
impl Probe for Look {
    async fn look(&self) -> Result<News> {
        let at = self.runtime.now().since(self.began);
        self.asked.lock().unwrap().push((at, "look".to_owned()));
        Ok(match settled(&self.runtime, self.looks.next()).await? {
            Says::Not => News::Nothing,
            Says::Held => News::Admitted(Vec::<RequestId>::new()),
            _ => News::Changed,
        })
    }
}

#[async_trait]
impl spi::Lock for Scripted {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }

    fn rwlock(&self) -> Option<&dyn spi::RwLock> {
        Some(self)
    }

    fn signals(&self) -> BoxStream<'static, Signal> {
        self.signals.lock().unwrap().take().unwrap().boxed()
    }

    async fn attempt(&self, request: &Acquire) -> Result<Attempt> {
        self.note("attempt", &request.key, "");
        self.acquires.lock().unwrap().push(request.clone());
        let mut says = self.attempts.next();
        if let Says::Stalls(d, later) = says {
            self.stall(d);
            says = *later;
        }
        let says = settled_last(says);
        if let Says::Held | Says::Queued(_) | Says::Recheck(..) = says.1 {
            return Ok(match settled(&self.runtime, says.0).await? {
                Says::Held => Attempt::Held(self.wait(0, None)),
                Says::Recheck(ahead, d) => Attempt::Queued(self.wait(ahead, Some(d))),
                Says::Queued(ahead) => Attempt::Queued(self.wait(ahead, None)),
                other => panic!("{other:?} answers no attempt"),
            });
        }
        let provisional = matches!(says.1, Says::Provisional(_));
        let (from, lasts) = self.life(says.0, request.ttl).await?.unwrap();
        let grant = Grant::new(request.key.clone(), None, from, lasts);
        Ok(Attempt::Granted(if provisional {
            grant.provisional()
        } else {
            grant
        }))
    }

    async fn release(&self, lease: &LeaseKey, how: Release) -> Result<Released> {
        let more = match how {
            Release::KeepFor(d) => format!(" and keep for {d:?}"),
            _ => String::new(),
        };
        self.note("release", lease, &more);
        Ok(match settled(&self.runtime, self.releases.next()).await? {
            Says::Not => Released::NotHeld,
            _ => Released::Released,
        })
    }

    async fn abandon(&self, requests: &[LeaseKey]) -> Vec<Result<Abandoned>> {
        let mut answers = Vec::new();
        for key in requests {
            self.note("abandon", key, "");
            match self.abandons.next() {
                // One answer too few.
                Says::Not => {}
                says => answers.push(settled(&self.runtime, says).await.map(|_| Abandoned::Nothing)),
            }
        }
        answers
    }

    async fn close(&self) -> Result<()> {
        let at = self.now();
        self.asked.lock().unwrap().push((at, "close".to_owned()));
        settled(&self.runtime, self.closes.next()).await.map(drop)
    }
}

/// That answer, and what it comes to.
fn settled_last(says: Says) -> (Says, Says) {
    let mut last = says.clone();
    while let Says::After(_, later) = last {
        last = *later;
    }
    (says, last)
}

#[async_trait]
impl Renew for Scripted {
    async fn renew(&self, items: &[RenewItem]) -> Vec<RenewOutcome> {
        let mut outcomes = Vec::new();
        for item in items {
            let queued = item.kind == RenewKind::Queued;
            self.note(if queued { "ask" } else { "renew" }, &item.key, "");
            let (says, last) = settled_last(self.renewals.next());
            let outcome = match last {
                // One answer too few.
                Says::Panics => continue,
                Says::Queued(ahead) | Says::Recheck(ahead, _) => {
                    settled(&self.runtime, says)
                        .await
                        .map(|says| RenewOutcome::Queued {
                            recheck_in: match says {
                                Says::Recheck(_, d) => Some(d),
                                _ => None,
                            },
                            ahead: Some(ahead),
                        })
                }
                _ => self.life(says, item.ttl).await.map(|life| match life {
                    Some((from, lasts)) if queued => {
                        RenewOutcome::Granted(Grant::new(item.key.clone(), None, from, lasts))
                    }
                    Some((from, lasts)) => RenewOutcome::Renewed(Renewal::new(from, lasts)),
                    None => RenewOutcome::Gone,
                }),
            };
            outcomes.push(outcome.unwrap_or_else(RenewOutcome::Failed));
        }
        outcomes
    }
}

#[async_trait]
impl spi::RwLock for Scripted {
    async fn convert(&self, lease: &LeaseKey, to: Mode) -> Result<Converted> {
        let more = match to {
            Mode::Exclusive => " to exclusive",
            _ => " to shared",
        };
        self.note("convert", lease, more);
        let life = self
            .life(self.conversions.next(), Duration::from_secs(30))
            .await?;
        Ok(life.map_or(Converted::Busy, |(from, lasts)| {
            Converted::Done(Grant::new(lease.clone(), None, from, lasts))
        }))
    }
}

/// What the store of a test is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Store {
    /// Queues, and pushes to those in line.
    Queues,
    /// Knows no line.
    Plain,
    /// Queues, and its leases hang on the session of the client.
    Session,
    /// Queues, and claims no upgrade.
    Exclusive,
}

/// Plays a test in virtual time, under a few schedules.
pub(crate) fn play(store: Store, test: impl AsyncFn(Client, &Scripted)) {
    for seed in 0..3 {
        let sim = Sim::new(seed);
        let sleeps = Arc::<AtomicU64>::default();
        let runtime: Arc<dyn Runtime> = Arc::new(Counted(sim.runtime(), sleeps.clone()));
        let (tell, signals) = mpsc::unbounded();
        let capabilities = Capabilities::new("scripted").with_everything();
        let capabilities = match store {
            Store::Plain => capabilities
                .without(Capability::Queue)
                .without(Capability::Priority),
            Store::Queues => capabilities,
            Store::Exclusive => capabilities.without(Capability::Upgrade),
            Store::Session => capabilities.with_nature(Nature::Session),
        };
        let capabilities = capabilities.without(Capability::Raise).without(Capability::List);
        let store = Arc::new(Scripted {
            capabilities,
            began: runtime.now(),
            runtime: runtime.clone(),
            attempts: Script::default(),
            renewals: Script::default(),
            releases: Script::default(),
            abandons: Script::default(),
            conversions: Script::default(),
            looks: Arc::default(),
            closes: Script::default(),
            polled: Mutex::default(),
            asked: Arc::default(),
            keys: Mutex::default(),
            acquires: Mutex::default(),
            lines: Mutex::default(),
            signals: Mutex::new(Some(signals)),
            tell,
            sleeps,
            world: sim.world().clone(),
        });
        let client = Client::builder(store.clone(), runtime).build().unwrap();
        sim.block_on(test(client, &store));
    }
}
