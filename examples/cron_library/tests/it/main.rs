//! Two machines, one job.

use std::time::Duration;

use dlock_recipes::once::Done;
use tokio::sync::mpsc;
use tokio_cron_scheduler::JobScheduler;

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_do_a_job_once_in_a_period() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("locks.sqlite").display());
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut machines = Vec::new();
    for machine in 0..2 {
        let client = dlock::connect(&url).await.unwrap();
        let tell = tell.clone();
        let period = || "2026-11-27".to_owned();
        let every_second = "* * * * * *";
        let job = cron_library::job(client.clone(), every_second, period, move |done| {
            // The receiver goes when the test is over.
            let _ = tell.send((machine, done));
        });
        let scheduler = JobScheduler::new().await.unwrap();
        scheduler.add(job.unwrap()).await.unwrap();
        scheduler.start().await.unwrap();
        machines.push((scheduler, client));
    }

    let mut runs = [0, 0];
    let mut done = 0;
    while runs.iter().any(|runs| *runs < 2) {
        let next = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        let (machine, outcome) = next.expect("it hangs").unwrap();
        runs[machine] += 1;
        done += u32::from(outcome.unwrap() == Done::Now);
    }
    assert_eq!(done, 1);
    for (mut scheduler, client) in machines {
        scheduler.shutdown().await.unwrap();
        client.close().await.unwrap();
    }
}
