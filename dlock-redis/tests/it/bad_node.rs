//! One node of a cluster hangs or is gone, and somebody holds locks there: those at the other nodes live on.

use std::time::{Duration, Instant};

use dlock_core::{Guard, LockOptions};

use crate::cluster::{apart, client, tag};
use dlock_testkit::{RedisCluster, RedisOptions};

/// They are renewed along with those that cannot be, in one question of the engine's.
async fn others_live_on(held_there: usize, hurt: impl FnOnce(&RedisCluster)) {
    let options = RedisOptions::new().line("cluster-node-timeout 60000");
    let cluster = apart(|| RedisCluster::with(options, false).unwrap()).await;
    let client = client(&cluster).await;
    let ttl = LockOptions::new().ttl(Duration::from_secs(3));
    let (mut there, mut elsewhere): (Vec<Guard>, Vec<Guard>) = Default::default();
    for n in 0..600 {
        let name = format!("name-{n}");
        let lock = client.lock(&name).unwrap().options(ttl.clone()).unwrap();
        let guard = lock.acquire().await.unwrap();
        let slot = cluster.slot(tag(&cluster, &name)).unwrap();
        match cluster.master_of(slot).unwrap() {
            0 if there.len() < held_there => there.push(guard),
            0 => guard.release().await.unwrap(),
            _ => elsewhere.push(guard),
        }
        if elsewhere.len() >= 60 && there.len() == held_there {
            break;
        }
    }
    hurt(&cluster);
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let lost = elsewhere.iter().filter(|g| !g.is_valid()).count();
        assert_eq!(lost, 0, "of {} at the others", elsewhere.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(there.iter().all(|g| !g.is_valid()));
    let _ = cluster.nodes()[0].go_on();
}

#[tokio::test]
async fn a_lease_at_a_master_that_hangs_costs_none_at_the_others() {
    others_live_on(1, |cluster| cluster.nodes()[0].pause().unwrap()).await;
}

#[tokio::test]
async fn many_leases_at_a_master_that_hangs_cost_none_at_the_others() {
    others_live_on(30, |cluster| cluster.nodes()[0].pause().unwrap()).await;
}

#[tokio::test]
async fn leases_at_a_master_that_is_gone_cost_none_at_the_others() {
    others_live_on(30, |cluster| cluster.nodes()[0].crash().unwrap()).await;
}
