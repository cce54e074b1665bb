//! The hooks for rules: each with a proof of its effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::LockName;

use super::{Hooks, Offer, Restart, Step, Vitals};
use crate::claims::Need;
use crate::cx::Cx;
use crate::harness::Harness;
use crate::subject::{Ask, Held, Subject};
use crate::verdict::{Failure, Seen, Verdict};

/// How far a clock may be from where it was set: a look at it takes its time.
const NEAR: Duration = Duration::from_millis(100);

fn missing(hook: &str) -> Failure {
    Failure::NotRun(format!(
        "it needs access to the server, and the harness does not offer `Hooks::{hook}`"
    ))
}

fn idle(hook: &str, why: impl fmt::Display) -> Failure {
    Failure::Kit(format!(
        "the harness's hook `{hook}` had no effect: {why}; this is no verdict on the rule"
    ))
}

fn hooks<'a>(harness: &'a Arc<dyn Harness>, wanted: &str) -> Verdict<&'a dyn Hooks> {
    harness.hooks().ok_or_else(|| missing(wanted))
}

/// Runs the hook. If it is not offered, or fails, the rule ends.
async fn done<T>(hook: &str, offer: Offer<'_, T>) -> Verdict<T> {
    let does = offer.ok_or_else(|| missing(hook))?;
    does.await.map_err(|e| {
        Failure::Kit(format!(
            "the harness's hook `{hook}` failed: {e:?}; this is no verdict on the rule"
        ))
    })
}

/// A part of a look at the server: the hook that tells it, what it is, and where it stands.
type Part = (&'static str, &'static str, fn(Vitals) -> Option<String>);

/// Runs the hook that must change that part. Returns the values before and after.
async fn replaced(
    hooks: &dyn Hooks,
    hook: &str,
    offer: Offer<'_>,
    (told_by, what, part): Part,
) -> Verdict<(String, Option<String>)> {
    // First, so that the error names the missing hook.
    let does = offer.ok_or_else(|| missing(hook))?;
    let look = || done("vitals", hooks.vitals());
    let before = part(look().await?).ok_or_else(|| missing(told_by))?;
    done(hook, Some(does)).await?;
    let after = part(look().await?);
    if after.as_ref() == Some(&before) {
        return Err(idle(hook, format_args!("{what} is still `{before}`")));
    }
    Ok((before, after))
}

/// The hooks of the harness, each with its proof. If a hook or its proof is not offered, the rule ends as
/// *not run*. If a hook failed or did nothing, the rule ends as an error that names the hook.
///
/// # Cancel safety
/// Dropped, each of them drops the hook of the harness at whatever it does.
impl Cx {
    /// The ways in which the server can be restarted, the gentler first.
    ///
    /// # Errors
    /// [`Failure::NotRun`] if in none.
    pub fn restarts(&self) -> Verdict<Vec<Restart>> {
        let harness = self.harness()?;
        let hooks = hooks(&harness, "restart")?;
        let mut ways = vec![Restart::InOrder, Restart::Crash];
        ways.retain(|how| hooks.restart(*how).is_some());
        match ways.is_empty() {
            true => Err(missing("restart")),
            false => Ok(ways),
        }
    }

    /// Restarts the server: its run id is another one afterwards.
    pub async fn restart(&self, how: Restart) -> Verdict {
        let harness = self.harness()?;
        let hooks = hooks(&harness, "restart")?;
        let run: Part = ("vitals (run)", "the run id of the server", |v| v.run);
        let (before, after) = replaced(hooks, "restart", hooks.restart(how), run).await?;
        self.note(format_args!("restarted ({how:?}): run {before} became {after:?}"));
        Ok(())
    }

    /// Another server takes over: the leader is another one afterwards.
    pub async fn fail_over(&self) -> Verdict {
        let harness = self.harness()?;
        let hooks = hooks(&harness, "fail_over")?;
        let leader: Part = ("vitals (leader)", "the leader", |v| v.leader);
        replaced(hooks, "fail_over", hooks.fail_over(), leader).await?;
        Ok(())
    }

    /// Sets the server's clock: it shows another time afterwards, by as much.
    pub async fn step_clock(&self, step: Step) -> Verdict {
        let harness = self.harness()?;
        let hooks = hooks(&harness, "step_clock")?;
        let set = hooks.step_clock(step).ok_or_else(|| missing("step_clock"))?;
        let clock = |v: Vitals| v.clock.ok_or_else(|| missing("vitals (clock)"));
        let look = || done("vitals", hooks.vitals());
        let (before, from) = (clock(look().await?)?, self.now());
        done("step_clock", Some(set)).await?;
        let after = clock(look().await?)?;
        let passed = from.until(self.now());
        let due = match step {
            Step::Forward(by) => (before + passed).saturating_add(by),
            Step::Back(by) => (before + passed).saturating_sub(by),
        };
        if after.abs_diff(due) > NEAR + self.slack() {
            return Err(idle(
                "step_clock",
                format_args!("{step:?}, and {passed:?} later, its clock shows {after:?}; it was {before:?}"),
            ));
        }
        Ok(())
    }

    /// Sets the counter of the tokens of that name: that is what is stored afterwards. `false` if it is
    /// beyond that already.
    pub async fn set_counter(&self, name: &LockName, to: u64) -> Verdict<bool> {
        let harness = self.harness()?;
        let hooks = hooks(&harness, "set_counter")?;
        let set = hooks.set_counter(name, to);
        let set = set.ok_or_else(|| missing("set_counter"))?;
        if done("counter", hooks.counter(name)).await? > to {
            return Ok(false);
        }
        done("set_counter", Some(set)).await?;
        let stored = done("counter", hooks.counter(name)).await?;
        let why = format!("the counter should be {to} and is {stored}");
        if stored == to {
            Ok(true)
        } else {
            Err(idle("set_counter", why))
        }
    }

    /// Fills the store: afterwards an acquire of a free name must fail.
    pub async fn fill(&self, by: &dyn Subject, free: &LockName) -> Verdict {
        let harness = self.harness()?;
        done("fill", hooks(&harness, "fill")?.fill(true)).await?;
        match by.try_acquire(free, &self.ask()).await {
            Err(_) => Ok(()),
            Ok(answer) => {
                self.make_room().await?;
                let why = format!("a try was answered, granted: {}", answer.is_some());
                Err(idle("fill", why))
            }
        }
    }

    /// Undoes [`fill`](Self::fill).
    pub async fn make_room(&self) -> Verdict {
        let harness = self.harness()?;
        done("fill", hooks(&harness, "fill")?.fill(false)).await
    }

    /// Writes foreign data to where that name is stored, and reads it back.
    pub async fn spoil(&self, name: &LockName, with: &str) -> Verdict {
        let harness = self.harness()?;
        let hooks = hooks(&harness, "spoil")?;
        // Without it the name would stay as it is after the rule.
        if hooks.mend(name).is_none() {
            return Err(missing("mend"));
        }
        let stored = hooks.stored(name).ok_or_else(|| missing("stored"))?;
        done("spoil", hooks.spoil(name, with)).await?;
        let stored = done("stored", Some(stored)).await?;
        if !contains(&stored, with) {
            return Err(idle("spoil", format_args!("`{with}` is not stored at the name")));
        }
        Ok(())
    }

    /// Whether that foreign data is still stored at that name.
    pub async fn is_spoiled(&self, name: &LockName, with: &str) -> Verdict<bool> {
        let harness = self.harness()?;
        let stored = done("stored", hooks(&harness, "stored")?.stored(name)).await?;
        Ok(contains(&stored, with))
    }

    /// Removes what [`spoil`](Self::spoil) wrote.
    pub async fn mend(&self, name: &LockName, with: &str) -> Verdict {
        let harness = self.harness()?;
        done("mend", hooks(&harness, "mend")?.mend(name)).await?;
        if self.is_spoiled(name, with).await? {
            return Err(idle("mend", format_args!("`{with}` is still stored at the name")));
        }
        Ok(())
    }

    /// Ends the holds of that name without their holders, and lets `by` acquire it, which proves that. Uses
    /// `force_release` if that is claimed, and the hook of the harness if not.
    ///
    /// # Errors
    /// As all hooks; [`Failure::Broken`] if a claimed `force_release` ended nothing.
    pub async fn evict(&self, by: &dyn Subject, name: &LockName, ask: &Ask) -> Verdict<Box<dyn Held>> {
        if self.claims().has(Need::ForceRelease)
            && let Some(observe) = by.observe()
        {
            let ended = observe.force_release(name).await;
            ended.seen("an operator ends the hold")?;
            let when = "after an operator ended the hold";
            return by.is_granted(name, ask, when).await;
        }
        let harness = self.harness()?;
        done("evict", hooks(&harness, "evict")?.evict(name)).await?;
        let taken = by.try_acquire(name, ask).await;
        let taken = taken.seen("B tries after an eviction")?;
        taken.ok_or_else(|| idle("evict", "the name is still held"))
    }
}

fn contains(stored: &[u8], with: &str) -> bool {
    stored.windows(with.len()).any(|part| part == with.as_bytes())
}
