//! How a waiter learns that asking again may succeed.
//!
//! A quorum has no queue, so the engine polls, with jitter. A look asks the members that refused, by the
//! probes that they returned: the lock cannot be acquired before one of them has changed. It is a full
//! attempt only if a member has no probe.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::calls::Calls;
use super::shared::Shared;
use crate::error::Result;
use crate::spi::{News, Probe, Wait, Wake};

/// The minimum and maximum pause between two looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// The answer of a member that refused.
pub(super) struct InTheWay {
    /// `None` if the member has none, or would push.
    probe: Option<Arc<dyn Probe>>,
    recheck_in: Option<Duration>,
}

impl InTheWay {
    pub(super) fn new(wait: Wait) -> Self {
        let recheck_in = wait.recheck_in;
        let probe = match wait.wake {
            Wake::Poll { probe, .. } => Some(probe),
            Wake::Push(_) => None,
        };
        Self { probe, recheck_in }
    }
}

/// The wait for a majority, if `granted` members would grant and these refused.
pub(super) fn until_free(in_the_way: Vec<(usize, &InTheWay)>, granted: usize, shared: &Arc<Shared>) -> Wait {
    let probes: Option<Vec<_>> = in_the_way
        .iter()
        .map(|(member, wait)| Some((*member, wait.probe.clone()?)))
        .collect();
    let wake = match probes {
        Some(probes) if !probes.is_empty() => Wake::Poll {
            probe: Arc::new(Look {
                shared: shared.clone(),
                probes,
            }),
            min: LOOKS.0,
            max: LOOKS.1,
        },
        _ => Wake::poll_in_full(LOOKS.0, LOOKS.1),
    };
    let mut wait = Wait::new(wake);
    let known = in_the_way.iter().map(|(_, wait)| wait.recheck_in);
    wait.recheck_in = recheck(known, granted, shared.majority);
    wait
}

/// When so many of the blocking holds have expired that a majority is possible.
fn recheck(of: impl Iterator<Item = Option<Duration>>, granted: usize, majority: usize) -> Option<Duration> {
    let mut known: Vec<_> = of.flatten().collect();
    known.sort_unstable();
    let lacking = majority.checked_sub(granted + 1)?;
    known.get(lacking).copied()
}

/// Whether any of the members that refused has changed.
struct Look {
    shared: Arc<Shared>,
    probes: Vec<(usize, Arc<dyn Probe>)>,
}

#[async_trait]
impl Probe for Look {
    async fn look(&self) -> Result<News> {
        let mut calls = Calls::new(&self.shared, self.shared.patience);
        for (member, probe) in &self.probes {
            let probe = probe.clone();
            calls.send(*member, async move { probe.look().await });
        }
        while let Some((_, news)) = calls.next().await {
            if !matches!(news, Ok(News::Nothing)) {
                return Ok(News::Changed);
            }
        }
        // A member that did not answer may have changed. In a full attempt it counts as away, not as
        // refusing.
        let in_doubt = calls.running().next().is_some();
        Ok(if in_doubt { News::Changed } else { News::Nothing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recheck_when_enough_blockers_have_expired() {
        let ms = |n| Some(Duration::from_millis(n));
        let recheck = |of: &[Option<Duration>], granted| recheck(of.iter().copied(), granted, 2);
        assert_eq!(recheck(&[ms(30), ms(10)], 0), ms(30));
        assert_eq!(recheck(&[ms(30), ms(10), ms(20)], 0), ms(20));
        assert_eq!(recheck(&[ms(30), ms(10)], 1), ms(10));
        assert_eq!(recheck(&[ms(30), None], 0), None);
        assert_eq!(recheck(&[ms(30), None], 1), ms(30));
    }
}
