use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock::{Error, ErrorKind};
use dlock_recipes::once::{Done, once};
use futures::future::join_all;

use crate::Store;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn three_machines_do_a_job_once_in_each_period() {
    let store = Store::new();
    let machines = [store.client().await, store.client().await, store.client().await];
    let runs = &AtomicUsize::new(0);
    // The clock of a machine that starts the first day's job once more is behind.
    for (period, expected) in [("2026-11-27", 1), ("2026-11-28", 1), ("2026-11-27", 0)] {
        let started = machines.iter().map(|machine| {
            once(machine, "report", period, HOUR, |_| async move {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        });
        let done = join_all(started).await.into_iter().map(Result::unwrap);
        assert_eq!(done.filter(|done| *done == Done::Now).count(), expected);
        assert_eq!(runs.swap(0, Ordering::Relaxed), expected);
    }
}

#[tokio::test]
async fn a_job_that_failed_is_done_by_the_next_machine() {
    let store = Store::new();
    let (broken, sound) = (store.client().await, store.client().await);
    let failed = once(&broken, "report", "1", HOUR, async |_| Err("no disk".into())).await;
    assert_eq!(failed.unwrap_err().to_string(), "no disk");
    let done = once(&sound, "report", "1", HOUR, async |_| Ok(())).await;
    assert_eq!(done.unwrap(), Done::Now);
}

#[tokio::test]
async fn a_job_that_hangs_is_cancelled_and_not_recorded() {
    let store = Store::new();
    let client = store.client().await;
    let moment = Duration::from_millis(50);
    let hung = once(&client, "report", "1", moment, async |_| {
        std::future::pending().await
    })
    .await;
    let hung = hung.unwrap_err().downcast::<Error>().unwrap();
    assert_eq!(hung.kind(), ErrorKind::Lost);
    let done = once(&client, "report", "1", HOUR, async |_| Ok(())).await;
    assert_eq!(done.unwrap(), Done::Now);
}
