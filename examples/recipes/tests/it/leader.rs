use std::time::Duration;

use dlock::{Client, Holder};
use dlock_recipes::leader::{NAME, run};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Store, soon};

const TICK: Duration = Duration::from_millis(10);

fn start(client: &Client, me: &'static str) -> (oneshot::Sender<()>, JoinHandle<dlock::Result<()>>) {
    let (end, shutdown) = oneshot::channel();
    let client = client.clone();
    (
        end,
        tokio::spawn(async move { run(&client, me, TICK, shutdown).await }),
    )
}

async fn next(leaders: &mut BoxStream<'static, dlock::Result<Holder>>) -> String {
    let leader = soon(leaders.next()).await.unwrap().unwrap();
    leader.owner.unwrap().to_string()
}

/// Waits until the leader has counted on.
async fn counts(client: &Client) {
    let read = async || {
        client
            .gate()
            .unwrap()
            .read(NAME)
            .await
            .unwrap()
            .map(|fenced| fenced.value)
    };
    let before = read().await;
    soon(async {
        while read().await == before {
            tokio::time::sleep(TICK).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_goes_on_after_a_loss_and_steps_down_on_shutdown() {
    let store = Store::new();
    let (first, second) = (store.client().await, store.client().await);
    let observer = store.client().await;
    let mut leaders = observer.election(NAME).unwrap().observe().await.unwrap();

    let (end_first, ended_first) = start(&first, "first");
    assert_eq!(next(&mut leaders).await, "first");
    counts(&observer).await;
    let (end_second, ended_second) = start(&second, "second");
    // The first one loses the lead, and does not know it yet. The gate refuses its next tick.
    observer.force_release(NAME).await.unwrap();
    assert_eq!(next(&mut leaders).await, "second");
    counts(&observer).await;

    end_second.send(()).unwrap();
    soon(ended_second).await.unwrap().unwrap();
    // Sooner than the ttl of 30 s: the second one has resigned, and the first one has campaigned again.
    let next = tokio::time::timeout(Duration::from_secs(20), next(&mut leaders)).await;
    assert_eq!(next.unwrap(), "first");
    counts(&observer).await;

    end_first.send(()).unwrap();
    soon(ended_first).await.unwrap().unwrap();
    for client in [first, second] {
        client.close().await.unwrap();
    }
    assert!(observer.election(NAME).unwrap().leader().await.unwrap().is_none());
    observer.close().await.unwrap();
}
