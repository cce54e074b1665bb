//! A process in simulated time: not an operating system process, but the same agent in the same simulation.

use std::sync::{Arc, Mutex, MutexGuard};

use super::handed::Handed;
use super::pipe::Ears;
use super::protocol::{Answer, MARK, Order, Reply};
use super::serve::{Agent, Outside};
use crate::harness::Process;
use crate::lock::lock;
use crate::shown::shown;

/// The agent in such a process, and its end of the pipe.
pub(super) struct Enclosed {
    process: Arc<dyn Process>,
    agent: Arc<Agent>,
    ears: Ears,
    state: Mutex<State>,
}

enum State {
    Running,
    /// With what waits in the pipe.
    Stopped(Vec<Order>),
    Dead,
}

impl Enclosed {
    pub(super) fn start(process: Arc<dyn Process>, handed: Handed, ears: Ears) -> Arc<Self> {
        let outside = Outside {
            tell: {
                let ears = ears.clone();
                Box::new(move |n, answer| tell(&ears, n, answer))
            },
            wall_clock: {
                let process = Arc::clone(&process);
                Box::new(move || process.wall_clock())
            },
        };
        let agent = Agent::start(process.harness(), handed, outside);
        Arc::new(Self {
            process,
            agent,
            ears,
            state: Mutex::new(State::Running),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// `false` if the reader is gone.
    pub(super) fn hear(&self, line: &str) -> bool {
        let Ok(order) = serde_json::from_str::<Order>(line) else {
            return false;
        };
        match &mut *self.state() {
            State::Running => {}
            State::Stopped(waiting) => {
                waiting.push(order);
                return true;
            }
            State::Dead => return false,
        }
        self.agent.obey(order);
        true
    }

    pub(super) fn stop(&self) {
        let mut state = self.state();
        if matches!(*state, State::Running) {
            *state = State::Stopped(Vec::new());
            drop(state);
            self.process.stop();
        }
    }

    pub(super) fn resume(&self) {
        let mut state = self.state();
        if !matches!(*state, State::Stopped(_)) {
            return;
        }
        let before = std::mem::replace(&mut *state, State::Running);
        drop(state);
        self.process.resume();
        // Waiting commands are read at once, before any task is polled. The thread of a real process does the
        // same.
        if let State::Stopped(waiting) = before {
            waiting.into_iter().for_each(|order| self.agent.obey(order));
        }
    }

    pub(super) fn kill(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Dead);
        if matches!(before, State::Dead) {
            return;
        }
        // First, so that whatever is dropped after this can neither spawn nor send. (The only difference from
        // a real process is that destructors run.)
        self.process.kill();
        self.agent.perish();
        self.ears.end();
    }

    pub(super) fn process(&self) -> &dyn Process {
        &*self.process
    }
}

fn tell(ears: &Ears, n: u64, answer: Answer) {
    if let Ok(text) = serde_json::to_string(&Reply { n, answer }) {
        ears.hear(&format!("{MARK}{text}"));
    }
}

shown!(Enclosed, it => "Enclosed({:?})", it.process);
