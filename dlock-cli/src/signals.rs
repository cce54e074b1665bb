//! What this process is told by signals, to be passed on.

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

/// Those signals, which do nothing by themselves while this is there.
pub(crate) struct Signals(Vec<(Number, Signal)>);

impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |n: Number| Ok((n, signal(SignalKind::from_raw(n as i32))?));
        let all: std::io::Result<_> = ALL.into_iter().map(listen).collect();
        all.map(Self)
            .map_err(|e| Failure::new(code::STORE, format!("cannot listen to signals: {e}")))
    }

    /// # Cancel safety
    /// None is missed.
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

    /// Does that work, unless a signal comes that ends a program.
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
