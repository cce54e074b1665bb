//! Breaks things in a simulated run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::faults::{FaultPlan, Partition};
use super::judge::Judge;
use super::link::Link;
use super::node::SimRuntime;
use super::rng::SimRng;
use super::scenario::drawn_plan;
use crate::memory::{Memory, Survives};
use crate::runtime::Runtime;

/// Breaks links, stops clients and the server, and repairs them, until it is stopped.
pub(super) struct Nemesis {
    pub(super) clients: Vec<(SimRuntime, Arc<Link>)>,
    pub(super) server: SimRuntime,
    pub(super) store: Memory,
    pub(super) clock: Arc<dyn Runtime>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) extra_ttl: Duration,
    pub(super) judge: Arc<Judge>,
    /// Whether the server may come back empty.
    pub(super) forgetful: bool,
    pub(super) rng: SimRng,
}

impl Nemesis {
    pub(super) async fn run(mut self) {
        // How often something happens is drawn too, from rarely to often.
        let pace = Duration::from_millis(20 + self.rng.below(800));
        while !self.stop.load(Ordering::Acquire) {
            let wait = self.rng.duration(Duration::ZERO..pace * 2);
            self.clock.sleep(wait).await;
            if !self.stop.load(Ordering::Acquire) {
                self.strike();
            }
        }
        self.heal();
    }

    fn strike(&mut self) {
        let pick = self.rng.below(self.clients.len() as u64) as usize;
        let (client, link) = self.clients[pick].clone();
        match self.rng.below(16) {
            0 => link.partition(Partition::Both),
            1 => link.partition(Partition::Requests),
            2 => link.partition(Partition::Replies),
            3 | 4 => link.heal(),
            5 => link.cut(),
            6 | 7 => link.reconnect(),
            8 => link.hold(),
            9 => link.let_go(),
            10 => client.pause(),
            11 | 12 => client.resume(),
            13 => link.set_plan(drawn_plan(&mut self.rng, self.extra_ttl)),
            14 if self.server.is_paused() => self.server.resume(),
            14 => self.server.pause(),
            _ if self.rng.chance(0.3) => self.restart_server(),
            _ => {
                let time = self.rng.duration(Duration::ZERO..Duration::from_millis(300));
                client.world().stall(time);
            }
        }
    }

    /// The server goes and comes, with its memory or without; every connection breaks.
    fn restart_server(&mut self) {
        if self.forgetful && self.rng.chance(0.5) {
            self.store.crash(Survives::Nothing);
            self.judge.store_forgot();
        } else {
            self.store.crash(Survives::Memory);
        }
        for (_, link) in &self.clients {
            link.cut();
            link.reconnect();
        }
    }

    fn heal(&self) {
        self.server.resume();
        for (client, link) in &self.clients {
            link.set_plan(FaultPlan::healthy());
            link.heal();
            link.let_go();
            link.reconnect();
            client.resume();
        }
    }
}
