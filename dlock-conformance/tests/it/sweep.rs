//! The sweep of drops.

use std::task::Poll;

use dlock_conformance::{Cut, Sweep, Waking};
use futures::executor::block_on;
use futures::future::poll_fn;

/// Pending twice, then done.
async fn three_polls() -> u8 {
    let mut left = 2;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(7);
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[test]
fn every_point_before_completion_is_cut_once() {
    block_on(async {
        for (waking, points) in [(Waking::Honest, 2), (Waking::Swapped, 2), (Waking::Spurious, 1)] {
            let mut sweep = Sweep::new(waking, 100);
            let mut last = None;
            while let Some(cut) = sweep.next(three_polls()).await {
                last = Some(cut);
            }
            assert!(matches!(last, Some(Cut::Completed(7))));
            assert_eq!(
                (sweep.cut_points(), sweep.is_complete()),
                (points, true),
                "{waking:?}"
            );
        }
    });
}

#[test]
fn a_sweep_that_never_completes_stops_at_its_limit() {
    block_on(async {
        let mut sweep = Sweep::new(Waking::Honest, 2);
        let mut cuts = 0;
        while sweep.next(three_polls()).await.is_some() {
            cuts += 1;
        }
        // The first of them had not begun.
        assert_eq!((cuts, sweep.cut_points(), sweep.is_complete()), (2, 1, false));
    });
}
