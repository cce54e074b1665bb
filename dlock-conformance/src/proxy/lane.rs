//! One direction of a connection: the data that was read and is not written yet.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::faults::{Faults, Judgement};
use crate::lock::lock;
use crate::network::Direction;

/// The data of one read.
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    pub(super) arrived: Instant,
    pub(super) delay: Duration,
    pub(super) struck_by: Vec<u64>,
}

impl Piece {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            arrived: Instant::now(),
            delay: Duration::ZERO,
            struck_by: Vec::new(),
        }
    }
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    /// Nothing follows: the source has ended.
    ended: bool,
    /// The connection is cut: nothing is delivered any more.
    dead: bool,
}

/// What the writer must do.
pub(super) enum Next {
    Write(Vec<u8>),
    Lost,
    /// All is delivered, and nothing follows.
    End,
    Dead,
}

pub(super) struct Lane {
    pub(super) way: Direction,
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Lane {
    pub(super) fn new(way: Direction) -> Self {
        Self {
            way,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn push(&self, bytes: Vec<u8>) {
        lock(&self.queue).pieces.push_back(Piece::new(bytes));
        self.changed.notify_all();
    }

    pub(super) fn end(&self) {
        lock(&self.queue).ended = true;
        self.changed.notify_all();
    }

    pub(super) fn kill(&self) {
        lock(&self.queue).dead = true;
        self.changed.notify_all();
    }

    /// A fault has begun or ended. Under the lock, so that no writer is between its check and its wait.
    pub(super) fn wake(&self) {
        drop(lock(&self.queue));
        self.changed.notify_all();
    }

    /// Waits for the next thing to do.
    pub(super) fn next(&self, faults: &Faults) -> Next {
        let mut queue = lock(&self.queue);
        loop {
            if queue.dead {
                return Next::Dead;
            }
            let ended = queue.ended;
            let verdict = match queue.pieces.front_mut() {
                Some(piece) => faults.judge(self.way, piece),
                None if ended => return Next::End,
                None => Judgement::Wait(None),
            };
            match verdict {
                Judgement::Deliver | Judgement::Lose => {
                    let piece = queue.pieces.pop_front();
                    let delivered = piece.filter(|_| verdict == Judgement::Deliver);
                    return delivered.map_or(Next::Lost, |piece| Next::Write(piece.bytes));
                }
                Judgement::Wait(None) => {
                    queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
                Judgement::Wait(Some(until)) => {
                    let left = until.saturating_duration_since(Instant::now());
                    let woken = self.changed.wait_timeout(queue, left);
                    queue = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}
