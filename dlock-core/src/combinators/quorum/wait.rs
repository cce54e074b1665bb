//! How a waiter learns that it pays to ask again.
//!
//! A quorum has no queue, so the engine looks now and then, with jitter. A look asks the members that were in
//! the way, by the probes that they gave with their refusals: nothing can be had before one of them has
//! changed. It is an attempt in full only where a member has no probe.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::calls::Calls;
use super::shared::Shared;
use crate::error::Result;
use crate::spi::{News, Probe, Wait, Wake};

/// Between two looks: not sooner than the least, not later than the most.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));

/// What a member said that refused.
pub(super) struct InTheWay {
    /// `None` where the member has none, or would push.
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

/// The wait for a majority, of which `granted` could be had and those are in the way.
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

/// When as many of those in the way have run out as are lacking.
fn recheck(of: impl Iterator<Item = Option<Duration>>, granted: usize, majority: usize) -> Option<Duration> {
    let mut known: Vec<_> = of.flatten().collect();
    known.sort_unstable();
    let lacking = majority.checked_sub(granted + 1)?;
    known.get(lacking).copied()
}

/// Whether any of those in the way has changed.
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
        // One that did not answer may have changed. Asked in full it is not in the way any more: it is away.
        let in_doubt = calls.running().next().is_some();
        Ok(if in_doubt { News::Changed } else { News::Nothing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_again_pays_when_as_many_have_run_out_as_are_lacking() {
        let ms = |n| Some(Duration::from_millis(n));
        let recheck = |of: &[Option<Duration>], granted| recheck(of.iter().copied(), granted, 2);
        assert_eq!(recheck(&[ms(30), ms(10)], 0), ms(30));
        assert_eq!(recheck(&[ms(30), ms(10), ms(20)], 0), ms(20));
        assert_eq!(recheck(&[ms(30), ms(10)], 1), ms(10));
        assert_eq!(recheck(&[ms(30), None], 0), None);
        assert_eq!(recheck(&[ms(30), None], 1), ms(30));
    }
}
