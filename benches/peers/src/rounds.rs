//! Each round runs all peers in turn, so that other load on the machine affects all of them equally.

use std::time::Duration;

use dlock_benches::redis::{Counted, Effort, Seen, Server, Spell, floor, middle};

use crate::listen::Sent;
use crate::peer::Peer;

/// How many tasks there are where there are many.
pub(crate) const TASKS: usize = 64;
/// How many clients they have together: one of a busy process, or one each as of a process each.
pub(crate) const CLIENTS: [usize; 2] = [1, TASKS];

/// What was measured of a peer.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) sent: Sent,
    pub(crate) pairs: Vec<Duration>,
    pub(crate) counted: Counted,
    rates: Vec<f64>,
    /// Cycles a second of all tasks, in the middle round.
    pub(crate) rate: f64,
    /// By number of clients, as in [`CLIENTS`].
    pub(crate) busy: [Option<Crowded>; 2],
    pub(crate) handoff: [Option<Crowded>; 2],
    /// For the bare driver, which cannot wait: the minimum time of a hand-off.
    pub(crate) floor: Option<Duration>,
}

/// What crowds of all rounds have shown together.
#[derive(Default)]
pub(crate) struct Crowded {
    pub(crate) all: Seen,
    /// Of the round in which they were furthest apart.
    pub(crate) turns: (u64, u64),
}

impl Crowded {
    fn add(&mut self, seen: Seen) {
        let apart = |(most, least): (u64, u64)| most as f64 / least as f64;
        let turns = seen.turns();
        if self.all.took.is_zero() || apart(turns) > apart(self.turns) {
            self.turns = turns;
        }
        self.all.handoffs += seen.handoffs;
        self.all.gaps.extend(seen.gaps);
        self.all.counted.add(&seen.counted);
        self.all.took += seen.took;
        self.all.held += seen.held;
    }
}

/// Measures what is asked for. The figures are in the order of the peers.
pub(crate) async fn all(
    server: &Server,
    peers: &mut [Box<dyn Peer>],
    parts: &[String],
    effort: Effort,
) -> Vec<Figures> {
    let mut measured = Vec::new();
    for peer in peers.iter_mut() {
        let sent = Sent::learn(server, peer.as_mut()).await;
        println!("{} sends {sent}", peer.name());
        measured.push(Figures {
            name: peer.name(),
            sent,
            ..Figures::default()
        });
    }
    for part in parts {
        // A crowd takes several times as long, and settles within a round.
        let rounds = match part.as_str() {
            "pair" | "inflight" => effort.rounds,
            _ => effort.rounds.div_ceil(3),
        };
        for round in 0..=rounds {
            println!("{part}: round {round} of {rounds}");
            for (peer, figures) in peers.iter_mut().zip(&mut measured) {
                let turn = turn(server, peer.as_mut(), part, effort, round > 0, figures);
                turn.await;
            }
        }
    }
    for figures in &mut measured {
        figures.rate = middle(&mut figures.rates);
    }
    measured
}

/// One turn of one peer, which counts unless it is for warming up.
async fn turn(
    server: &Server,
    peer: &mut dyn Peer,
    part: &str,
    effort: Effort,
    counts: bool,
    figures: &mut Figures,
) {
    let spell = match part {
        "pair" => {
            let before = Counted::now(server);
            let pairs = peer.pair(effort.times(1)).await;
            if counts {
                figures.counted.add(&Counted::now(server).since(&before));
                figures.pairs.extend(pairs);
            }
            return;
        }
        "inflight" => {
            let rate = peer.inflight(TASKS, effort.times(1)).await;
            if counts {
                figures.rates.push(rate);
            }
            return;
        }
        "busy" => Spell {
            hold: Duration::from_millis(2),
            think: Duration::from_millis(20),
            length: effort.times(5),
        },
        _ => Spell {
            hold: Duration::ZERO,
            think: Duration::ZERO,
            length: effort.times(3),
        },
    };
    if !peer.waits() {
        if part != "handoff" {
            return;
        }
        figures.floor = Some(floor(server, effort.times(1)).await);
        return;
    }
    for (n, clients) in CLIENTS.into_iter().enumerate() {
        let seen = peer.crowd(clients, TASKS, spell).await;
        if counts {
            let of = match part {
                "busy" => &mut figures.busy[n],
                _ => &mut figures.handoff[n],
            };
            of.get_or_insert_default().add(seen);
        }
    }
}
