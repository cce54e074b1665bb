//! The body of a child, and how it is killed and stopped: an operating system process, or a simulated one.

use std::io;
use std::process::{Command as Start, Stdio};
use std::sync::{Arc, Mutex};

use dlock_core::Runtime;

use super::enclosed::Enclosed;
use super::handed::{ARGUMENTS, Handed, VARIABLE};
use super::pipe::{Ears, Pending, Pipe};
use super::signals::{self, Signal};
use super::wall_clock::WallClock;
use crate::harness::Process;
use crate::lock::lock;

/// A child's body. The process, real or simulated, is killed and reaped when this is dropped.
#[derive(Debug)]
pub(super) enum Body {
    Real {
        process: Mutex<std::process::Child>,
        clock: Option<WallClock>,
    },
    Simulated(Arc<Enclosed>),
}

/// A body, the pipe to it, and the answer that it gives unasked when it is connected.
pub(super) type Started = (Body, Arc<Pipe>, Pending);

impl Body {
    /// This test binary again.
    pub(super) fn real(
        handed: &Handed,
        runtime: Arc<dyn Runtime>,
        clock: Option<WallClock>,
    ) -> io::Result<Started> {
        let mut command = Start::new(std::env::current_exe()?);
        command
            .args(ARGUMENTS)
            .env(VARIABLE, serde_json::to_string(handed)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(clock) = &clock {
            clock.show(&mut command);
        }
        let mut process = command.spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let Some((input, output)) = pipes else {
            return Err(io::Error::other("no pipes"));
        };
        let (ears, hello) = Ears::new(runtime);
        ears.listen(output);
        let pipe = Pipe::to_process(process.id(), ears, input);
        let hello = pipe.pending(0, hello);
        let process = Mutex::new(process);
        Ok((Self::Real { process, clock }, pipe, hello))
    }

    /// A process in the simulation in which the rule runs.
    pub(super) fn simulated(process: Arc<dyn Process>, handed: Handed, runtime: Arc<dyn Runtime>) -> Started {
        let (ears, hello) = Ears::new(runtime);
        let number = process.number();
        let enclosed = Enclosed::start(process, handed, ears.clone());
        let pipe = {
            let enclosed = Arc::clone(&enclosed);
            Pipe::new(number, ears, Box::new(move |line| enclosed.hear(line)))
        };
        let hello = pipe.pending(0, hello);
        (Self::Simulated(enclosed), pipe, hello)
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match self {
            Self::Real { process, .. } => signals::send(&mut lock(process), signal),
            Self::Simulated(enclosed) => {
                match signal {
                    Signal::Kill => enclosed.kill(),
                    Signal::Stop => enclosed.stop(),
                    Signal::Continue => enclosed.resume(),
                }
                Ok(())
            }
        }
    }

    /// `None` if it has the machine's.
    pub(super) fn set_wall_clock(&self, seconds: i64) -> Option<io::Result<()>> {
        match self {
            Self::Real { clock, .. } => clock.as_ref().map(|clock| clock.set(seconds)),
            Self::Simulated(enclosed) => {
                enclosed.process().set_wall_clock(seconds);
                Some(Ok(()))
            }
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // It may have ended already. It is reaped either way.
        let _ = self.signal(Signal::Kill);
    }
}
