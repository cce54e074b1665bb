//! A client with a runtime and a network of its own, so that both can end at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::{Client, ErrorKind, Token};
use dlock_etcd::Config;
use dlock_testkit::{EtcdEnsemble, Proxy};
use fastrand::Rng;
use tokio::runtime::{Builder, Runtime};

use super::judge::Judge;
use super::{NAMES, SESSION};
use crate::here;

/// In each process.
const WORKERS: usize = 3;

pub(crate) struct Process {
    number: usize,
    judge: Arc<Judge>,
    runtime: Runtime,
    /// Before each member.
    network: Vec<Proxy>,
}

impl Process {
    pub(crate) fn start(servers: &EtcdEnsemble, judge: &Arc<Judge>, mut rng: Rng) -> Self {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let network = servers
            .addresses()
            .into_iter()
            .map(|at| Proxy::start(at).unwrap());
        let network: Vec<_> = network.collect();
        // Each begins with another member.
        let mut members: Vec<_> = network.iter().map(|p| p.address().to_string()).collect();
        members.rotate_left(number % 3);
        let config = Config::new(&members.join(",")).session_timeout(SESSION);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let works = judge.clone();
        runtime.spawn(async move {
            let lock = loop {
                match config.clone().connect(here()).await {
                    Ok(lock) => break lock,
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            };
            let client = Client::builder(Arc::new(lock), here()).op_timeout(Duration::from_secs(2));
            let client = client.build().unwrap();
            for _ in 0..WORKERS {
                let (client, judge) = (client.clone(), works.clone());
                tokio::spawn(work(number, client, judge, rng.fork()));
            }
        });
        Self {
            number,
            judge: judge.clone(),
            runtime,
            network,
        }
    }

    /// Ends it in the middle of whatever it does: nothing is said to the servers.
    pub(crate) fn kill(self) {
        self.judge.dies(self.number);
        self.network.iter().for_each(|proxy| proxy.bar(|_| true));
        self.runtime.shutdown_background();
    }

    /// From all members, or no more.
    pub(crate) fn cut(&self, off: bool) {
        self.network.iter().for_each(|proxy| proxy.bar(move |_| off));
    }
}

async fn work(process: usize, client: Client, judge: Arc<Judge>, mut rng: Rng) {
    // A token of an earlier hold, which is tried once more.
    let mut stale = None;
    loop {
        let (name, shared) = (NAMES[rng.usize(..NAMES.len())], rng.u8(..4) == 0);
        let lock = client.rwlock(name).unwrap();
        let lock = if shared { lock.read() } else { lock.write() };
        let guard = match lock.acquire_timeout(SESSION).await {
            Ok(guard) => guard,
            Err(e) => {
                use ErrorKind::{Lost, Timeout, Unavailable, Unknown};
                let kind = e.kind();
                if !matches!(kind, Lost | Unavailable | Unknown | Timeout) {
                    judge.wrong(format!("{name}: {e}: {e:?}"));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let held = guard.held();
        judge.granted(process, name, shared, &held);
        let token = held.token().unwrap();
        tokio::time::sleep(Duration::from_millis(rng.u64(..30))).await;
        // Where the store cannot be reached, it holds the lock for as long as it may believe in it.
        while !is_done(&client, &judge, name, token, shared).await && held.is_valid() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        judge.ends(&held);
        // What it has answered is for the next who comes.
        let _ = guard.release().await;
        if let Some((name, token)) = stale.filter(|_| rng.u8(..4) == 0) {
            is_done(&client, &judge, name, token, false).await;
            stale = None;
        }
        if !shared {
            stale = stale.or(Some((name, token)));
        }
    }
}

/// Reads, or writes by that token. Whether that was answered.
async fn is_done(client: &Client, judge: &Judge, name: &'static str, token: Token, reads: bool) -> bool {
    let gate = client.gate().unwrap();
    if reads {
        return gate.read(name).await.is_ok();
    }
    let floor = judge.written(name);
    match gate.write(name, token, &token.get().to_le_bytes()).await {
        Ok(admission) => judge.wrote(name, token, floor, admission.is_admitted()),
        // Of what is not answered nothing is known.
        Err(_) => return false,
    }
    true
}
