//! Steps of clients, with their expected results, that many rules share.

use std::fmt;
use std::future::Future;

use dlock_core::Error;

use super::prelude::*;
use crate::history::Lane;

/// Ends the rule as not run, with the reason.
macro_rules! not_run {
    ($($why:tt)+) => {
        return Err(Failure::NotRun(format!($($why)+)))
    };
}
pub(super) use not_run;

/// A waiter in a task.
pub(super) type Waiting = Task<dlock_core::Result<Box<dyn Held>>>;

/// A number of milliseconds.
pub(super) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The answer, where an unknown outcome breaks the rule as well.
pub(super) fn answered<T>(answer: dlock_core::Result<T>, doing: impl fmt::Display) -> Verdict<T> {
    answer.map_err(|e| Failure::Broken(format!("{doing}: {e:?}")))
}

/// The answer; `None` if the outcome is unknown.
pub(super) fn if_known<T>(answer: Result<T, Error>, doing: impl fmt::Display) -> Verdict<Option<T>> {
    match answer {
        Err(e) if e.kind() == ErrorKind::Unknown => Ok(None),
        known => known.map(Some).seen(doing),
    }
}

impl dyn Subject + '_ {
    /// Tries, and breaks the rule unless it is granted at once.
    pub(crate) async fn is_granted(
        &self,
        name: &LockName,
        ask: &Ask,
        when: impl fmt::Display + Send,
    ) -> Verdict<Box<dyn Held>> {
        let tried = self.try_acquire(name, ask).await;
        match tried.seen(format_args!("{when}: try_acquire"))? {
            Some(held) => Ok(held),
            None => fail!("{when}: `{name}` was refused although it is free"),
        }
    }

    /// Tries, and breaks the rule unless another client holds the name.
    pub(crate) async fn is_refused(
        &self,
        name: &LockName,
        ask: &Ask,
        when: impl fmt::Display + Send,
    ) -> Verdict {
        let tried = self.try_acquire(name, ask).await;
        let granted = tried.seen(format_args!("{when}: try_acquire"))?.is_some();
        ensure!(!granted, "{when}: `{name}` was granted although it is held");
        Ok(())
    }

    /// Waits for the lock.
    pub(super) async fn takes(
        &self,
        name: &LockName,
        ask: &Ask,
        doing: impl fmt::Display + Send,
    ) -> Verdict<Box<dyn Held>> {
        self.acquire(name, ask).await.seen(doing)
    }

    /// Acquires, and releases.
    pub(super) async fn cycles(
        &self,
        name: &LockName,
        ask: &Ask,
        what: impl fmt::Display + Send + Sync,
    ) -> Verdict {
        let held = self.takes(name, ask, &what).await?;
        held.released(format!("{what}: the release")).await
    }

    /// It is granted at once, and releases.
    pub(super) async fn passes(
        &self,
        name: &LockName,
        ask: &Ask,
        when: impl fmt::Display + Send + Sync,
    ) -> Verdict {
        let held = self.is_granted(name, ask, &when).await?;
        held.released(format!("{when}: the release")).await
    }
}

/// One of several clients that work at once, by its number.
pub(super) type Worker = (Cx, Lane, Rng, usize);

impl Cx {
    /// Each of these clients works in a task of its own. Each gets a clone of what they share.
    pub(super) fn at_work<S, F, T>(
        &self,
        clients: impl IntoIterator<Item = Client>,
        shared: &S,
        work: impl Fn(Worker, S) -> F,
    ) -> Vec<Task<Verdict<T>>>
    where
        S: Clone,
        F: Future<Output = Verdict<T>> + Send + 'static,
        T: Send + 'static,
    {
        let start = |(number, client)| {
            let worker = (self.clone(), self.lane(&client), self.rng(), number);
            self.spawn(work(worker, shared.clone()))
        };
        clients.into_iter().enumerate().map(start).collect()
    }
}

impl dyn Held + '_ {
    /// Releases.
    pub(super) async fn released(&self, doing: impl fmt::Display + Send) -> Verdict {
        self.release().await.seen(doing)
    }

    /// Breaks the rule, with that sentence, unless the guard is valid.
    pub(super) fn must_be_valid(&self, otherwise: impl fmt::Display) -> Verdict {
        ensure!(self.is_valid(), "{otherwise}");
        Ok(())
    }

    /// Breaks the rule if that has changed the token.
    pub(super) fn must_keep(&self, token: Option<Token>, doing: impl fmt::Display) -> Verdict {
        let now = self.token();
        ensure!(now == token, "{doing} turned token {token:?} into {now:?}");
        Ok(())
    }

    /// Breaks the rule unless the token, where tokens are claimed, is larger than the one before.
    pub(super) fn must_follow(&self, cx: &Cx, before: Option<Token>, what: impl fmt::Display) -> Verdict {
        let token = self.token();
        ensure!(
            token > before || !cx.has(Need::Fence),
            "{what} has the token {token:?}, and one before it has {before:?}"
        );
        Ok(())
    }

    /// Breaks the rule, with that sentence, if the guard is still valid.
    pub(super) fn must_be_over(&self, otherwise: impl fmt::Display) -> Verdict {
        ensure!(!self.is_valid(), "{otherwise}");
        Ok(())
    }
}

impl Cx {
    /// New clients, connected one after the other.
    pub(super) async fn clients(&self, n: usize) -> Verdict<Vec<Client>> {
        let mut clients = Vec::new();
        for _ in 0..n {
            clients.push(self.connect().await?);
        }
        Ok(clients)
    }

    /// Names that were not used before, one for each round.
    pub(super) fn names(&self, quick: usize, full: usize) -> impl Iterator<Item = LockName> + Send {
        (0..self.rounds(quick, full)).map(|round| self.name(round))
    }

    /// Waits until that is so: `false` if it is not by then.
    pub(super) async fn comes(&self, by: Timestamp, mut is_so: impl FnMut() -> bool + Send) -> bool {
        while !is_so() {
            if self.now() >= by {
                return false;
            }
            self.sleep(ms(1)).await;
        }
        true
    }

    /// How long an operation without a wait may take.
    pub(super) fn prompt(&self) -> Duration {
        self.claims().op_bound + self.slack()
    }

    /// By when a lease of that ttl, confirmed by now, is over for all clients.
    pub(super) fn lapsed_by(&self, ttl: Duration) -> Timestamp {
        self.now() + ttl + self.skew(ttl) + self.slack()
    }

    /// A client waits for the lock, in a task.
    pub(super) fn waits(&self, client: &Client, name: &LockName, ask: &Ask) -> Waiting {
        self.waits_for(client, name, ask, None)
    }

    /// A client waits for the lock for at most so long, if there is a limit, in a task.
    pub(super) fn waits_for(
        &self,
        client: &Client,
        name: &LockName,
        ask: &Ask,
        limit: impl Into<Option<Duration>>,
    ) -> Waiting {
        let (client, name, ask, limit) = (client.clone(), name.clone(), ask.clone(), limit.into());
        self.spawn(async move { client.wait(&name, &ask, limit).await })
    }

    /// A client tries, or waits for at most so long, in a task.
    pub(super) fn asks(
        &self,
        client: &Client,
        name: &LockName,
        ask: &Ask,
        limit: Option<Duration>,
    ) -> Task<Result<Option<Box<dyn Held>>, Error>> {
        let (client, name, ask) = (client.clone(), name.clone(), ask.clone());
        self.spawn(async move {
            match limit {
                Some(limit) => client.acquire_timeout(&name, &ask, limit).await.map(Some),
                None => client.try_acquire(&name, &ask).await,
            }
        })
    }

    /// With auto-renewal, where that is claimed.
    pub(super) fn renewing(&self, ask: Ask) -> Ask {
        match self.has(Need::AutoRenew) {
            true => ask.auto_renew(),
            false => ask,
        }
    }

    /// A network. Without one there is a note of what was not tested.
    pub(super) fn network_if_any(&self, otherwise: &str) -> Verdict<Option<Arc<dyn Network>>> {
        match self.network() {
            Err(Failure::NotRun(why)) => {
                self.note(format_args!("{otherwise}: {why}"));
                Ok(None)
            }
            network => network.map(Some),
        }
    }

    /// The holder renews, in a task.
    pub(super) fn renews(&self, held: &Arc<dyn Held>) -> Task<Result<(), Error>> {
        let held = Arc::clone(held);
        self.spawn(async move { held.renew().await })
    }

    /// The holder releases, in a task.
    pub(super) fn releases(&self, held: &Arc<dyn Held>) -> Task<Result<(), Error>> {
        let held = Arc::clone(held);
        self.spawn(async move { held.release().await })
    }

    /// An operator ends whatever holds of that name there are.
    pub(super) async fn force(&self, operator: &dyn Subject, name: &LockName) -> Verdict<u32> {
        match operator.observe() {
            Some(operator) => operator.force_release(name).await.seen("an operator ends a hold"),
            None => fail!("ending holds by force is claimed, and the subject does not offer it"),
        }
    }

    /// Expects a result within that time, and without an error.
    pub(super) async fn done<T>(
        &self,
        limit: Duration,
        what: impl fmt::Display + Send + Sync,
        doing: impl Future<Output = Result<T, Error>>,
    ) -> Verdict<T> {
        self.within(limit, &what, doing).await?.seen(what)
    }

    /// It is granted within that time, and releases.
    pub(super) async fn served(
        &self,
        limit: Duration,
        what: impl fmt::Display + Send + Sync,
        waiting: impl Future<Output = Result<Box<dyn Held>, Error>>,
    ) -> Verdict {
        let held = self.done(limit, &what, waiting).await?;
        held.released(format!("{what}: the release")).await
    }

    /// It is granted by then, as by [`free_by`](Self::free_by), and releases.
    pub(super) async fn passes_by(
        &self,
        client: &dyn Subject,
        name: &LockName,
        ask: &Ask,
        by: Timestamp,
        when: impl fmt::Display + Send + Sync,
    ) -> Verdict {
        let held = self.free_by(client, name, ask, by, &when).await?;
        held.released(format!("{when}: the release")).await
    }

    /// Returns when that many waiters are queued, as far as the store shows it.
    pub(super) async fn in_line(&self, client: &dyn Subject, name: &LockName, n: u32) -> Verdict {
        let Some(observe) = client.observe().filter(|_| self.has(Need::Inspect)) else {
            self.sleep(ms(30)).await;
            return Ok(());
        };
        let in_line = async {
            while observe.inspect(name).await.seen("inspect")?.waiting < n {
                self.sleep(ms(2)).await;
            }
            Ok(())
        };
        let what = format!("seeing {n} waiters of a held name");
        self.within(self.claims().op_bound, what, in_line).await?
    }
}

/// Waits for all of them.
pub(super) async fn all<T>(tasks: impl IntoIterator<Item = Task<Verdict<T>>>) -> Verdict<Vec<T>> {
    let mut done = Vec::new();
    for task in tasks {
        done.push(task.await?);
    }
    Ok(done)
}

/// Waits for all of them, also after one has failed.
pub(super) async fn every(tasks: Vec<Task<Verdict>>) -> Verdict {
    let mut ended = Ok(());
    for task in tasks {
        ended = ended.and(task.await);
    }
    ended
}

/// Breaks the rule unless this is an error of that kind.
pub(super) fn refused<T>(answer: Result<T, Error>, kind: ErrorKind, what: impl fmt::Display) -> Verdict {
    match answer {
        Err(e) if e.kind() == kind => Ok(()),
        Err(e) => fail!("{what}: {e:?} instead of `{kind:?}`"),
        Ok(_) => fail!("{what}: answered Ok instead of `{kind:?}`"),
    }
}

/// The token of a grant.
pub(super) fn token_of(held: &dyn Held, how: impl fmt::Display) -> Verdict<Token> {
    match held.token() {
        Some(token) => Ok(token),
        None => fail!("{how}: the grant has no token"),
    }
}

/// The earliest and the latest end of a lease of that ttl. The store cannot have started to count before the
/// request was sent, nor after it was answered.
pub(super) fn end_of(cx: &Cx, sent: Timestamp, answered: Timestamp, ttl: Duration) -> (Timestamp, Timestamp) {
    (
        sent + ttl.saturating_sub(cx.skew(ttl)),
        answered + ttl + cx.slack(),
    )
}

/// Tries until it is granted: not before `earliest`, and by `latest`. Counts the refusals until then.
pub(super) async fn granted_within(
    cx: &Cx,
    client: &dyn Subject,
    (name, ask): (&LockName, &Ask),
    (earliest, latest): (Timestamp, Timestamp),
    refusals: &'static str,
    what: impl fmt::Display + Send,
) -> Verdict<Box<dyn Held>> {
    loop {
        let asked = cx.now();
        let granted = client.try_acquire(name, ask).await;
        let granted = granted.seen(format_args!("{what}: another tries"))?;
        let now = cx.now();
        if let Some(held) = granted {
            let early = now.until(earliest);
            ensure!(
                early.is_zero(),
                "{what}: granted to another {early:?} before its end"
            );
            let late = earliest.until(now);
            cx.note(format_args!(
                "{what}: granted to another {late:?} after its earliest end"
            ));
            return Ok(held);
        }
        if now < earliest {
            cx.evidence(refusals);
        }
        ensure!(
            asked < latest,
            "{what}: others are still refused {:?} after its latest possible end",
            latest.until(asked)
        );
        cx.sleep(ms(3)).await;
    }
}

/// Breaks the rule unless this is the answer `Lost`.
pub(super) fn is_lost<T>(answer: Result<T, Error>, what: impl fmt::Display) -> Verdict {
    refused(answer, ErrorKind::Lost, what)
}
