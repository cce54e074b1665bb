//! The signals that are passed on to the command.

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, code};

const ALL: [Number; 6] = [
    Number::SIGTERM,
    Number::SIGINT,
    Number::SIGHUP,
    Number::SIGQUIT,
    Number::SIGUSR1,
    Number::SIGUSR2,
];

/// Receives the signals, whose default action is disabled meanwhile.
pub(crate) struct Signals(Vec<(Number, Signal)>);

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |n: Number| Ok((n, signal(SignalKind::from_raw(n as i32))?));
        let all: std::io::Result<_> = ALL.into_iter().map(listen).collect();
        all.map(Self)
            .map_err(|e| Failure::new(code::STORE, format!("cannot listen for signals: {e}")))
    }

    /// Returns the next signal.
    ///
    /// # Cancel safety
    /// Cancel safe: no signal is missed.
    pub(crate) async fn next(&mut self) -> Number {
        poll_fn(|cx| {
            for (number, signal) in &mut self.0 {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Does `work`. If a signal that ends programs comes first, returns its exit code instead.
    pub(crate) async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> Result<T, u8> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                number = self.next() => {
                    if !matches!(number, Number::SIGUSR1 | Number::SIGUSR2) {
                        return Err(128 + number as u8);
                    }
                }
            }
        }
    }
}
