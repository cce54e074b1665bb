//! Shared code of the rules about networks: a client whose network the rule controls, and one beside it.

use std::fmt;

use super::prelude::*;
use super::steps::Waiting;

/// A over a network that can fail, and B over one that does not.
pub(super) struct Faulty {
    pub(super) net: Arc<dyn Network>,
    pub(super) a: Client,
    pub(super) b: Client,
}

/// Both are connected, so that later faults hit established connections.
pub(super) async fn faulty(cx: &Cx) -> Verdict<Faulty> {
    let net = cx.network()?;
    let (a, b) = (cx.connect_over(&net).await?, cx.connect().await?);
    for (who, client) in [("a", &a), ("b", &b)] {
        let name = cx.name(format!("first-{who}"));
        let when = format!("{who}, over a healthy network");
        client.cycles(&name, &cx.ask(), &when).await?;
    }
    if net.traffic().connections == 0 {
        inconclusive!(
            "A's connection does not pass the kit's proxy: `Harness::connect` must connect to `cx.addr(0)`"
        );
    }
    Ok(Faulty { net, a, b })
}

impl Faulty {
    /// Breaks A's connections. If there was none, the rule is inconclusive.
    pub(super) fn cut(&self, how: Cut) -> Verdict {
        if self.net.cut(how) == 0 {
            inconclusive!("there was no connection to break ({how:?})");
        }
        Ok(())
    }

    /// A acquires.
    pub(super) async fn a_holds(&self, name: &LockName, ask: &Ask) -> Verdict<Arc<dyn Held>> {
        let held = self.a.acquire(name, ask).await;
        Ok(Arc::from(held.seen(format_args!("A acquires `{name}`"))?))
    }

    /// A acquires and the store answers, but A does not get the answer while the guard lives.
    pub(super) async fn a_is_granted_unheard(
        &self,
        cx: &Cx,
        name: &LockName,
        ask: &Ask,
        limit: Option<Duration>,
    ) -> Verdict<(Waiting, FaultGuard)> {
        let hold = self.net.begin(Fault::Hold(Direction::ToClient));
        let acquiring = cx.waits_for(&self.a, name, ask, limit);
        struck(cx, &hold, "the reply to A's acquire is kept").await?;
        Ok((acquiring, hold))
    }
}

/// Waits until the fault has struck. A fault that struck nothing proves nothing.
pub(super) async fn struck(cx: &Cx, fault: &FaultGuard, what: impl fmt::Display + Send) -> Verdict {
    let by = cx.now() + cx.prompt();
    if !cx.comes(by, || fault.hits() > 0).await {
        inconclusive!("{what}: the fault struck nothing");
    }
    Ok(())
}

/// How late replies are while one of them is being caught.
pub(super) const SLOW: Duration = Duration::from_millis(100);

/// Keeps the reply to A's request, and no reply to an earlier message of A, such as a keep-alive. Replies are
/// `slow` in the meantime. The store has carried the request out when the name is free, or held. B tries, and
/// returns its grant.
pub(super) async fn kept(
    cx: &Cx,
    f: &Faulty,
    slow: &FaultGuard,
    (name, ask): (&LockName, &Ask),
    free: bool,
) -> Verdict<(FaultGuard, Option<Box<dyn Held>>)> {
    let by = cx.now() + cx.prompt();
    loop {
        struck(cx, slow, "the reply to A is kept").await?;
        let before = slow.hits();
        let hold = f.net.begin(Fault::Hold(Direction::ToClient));
        let looked = f.b.try_acquire(name, ask).await.seen("B looks")?;
        if looked.is_some() == free {
            return Ok((hold, looked));
        }
        if let Some(held) = looked {
            held.release().await.seen("B releases")?;
        }
        drop(hold);
        if !cx.comes(by, || slow.hits() > before).await {
            inconclusive!("the store has not carried out A's request, and answers nothing more");
        }
    }
}

/// How long an operation may take while the store does not answer.
pub(super) fn patience(cx: &Cx) -> Duration {
    cx.claims().give_up + cx.slack()
}
