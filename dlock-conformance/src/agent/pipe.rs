//! The parent's end of the pipes: numbered commands, their answers, and when each answer came.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dlock_core::{Error, ErrorKind, Result, Runtime, Timestamp};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::churn::Step;
use super::protocol::{Answer, Command, MARK, Order, Reply, error};
use crate::lock::lock;
use crate::shown::shown;

/// A child's answer. The child acted after `asked` and before `answered`, on the parent's clock.
#[derive(Clone, Copy, Debug)]
pub struct Timed<T> {
    /// The answer.
    pub value: T,
    /// The parent's time before the command was written.
    pub asked: Timestamp,
    /// The parent's time after the answer was read.
    pub answered: Timestamp,
}

impl<T> Timed<T> {
    pub(super) fn map<U>(self, of: impl FnOnce(T) -> U) -> Timed<U> {
        Timed {
            value: of(self.value),
            asked: self.asked,
            answered: self.answered,
        }
    }
}

/// A command that was sent when this was made. If this is dropped before the answer, the child drops its work
/// for it.
///
/// The error is the one that the child's operation gave, or `Unknown` if the child ended before it answered.
pub type Asked<T> = BoxFuture<'static, Result<Timed<T>>>;

/// The steps of a child that works on its own, until this is dropped.
#[derive(Debug)]
pub struct Steps(pub(super) Pending);

impl Steps {
    /// The next step, and the parent's time when it was read; `None` when the child has ended.
    pub async fn next(&mut self) -> Option<(Step, Timestamp)> {
        loop {
            if let (Answer::Step(step), at) = self.0.answers.next().await? {
                return Some((step, at));
            }
        }
    }

    /// Those that have been read already.
    pub fn so_far(&mut self) -> Vec<(Step, Timestamp)> {
        let mut steps = Vec::new();
        while let Ok((answer, at)) = self.0.answers.try_recv() {
            if let Answer::Step(step) = answer {
                steps.push((step, at));
            }
        }
        steps
    }
}

/// Carries a line to the child; `false` if it reads no more.
pub(super) type Input = Box<dyn Fn(&str) -> bool + Send + Sync>;

pub(super) struct Pipe {
    pid: u32,
    ears: Ears,
    input: Input,
    next: AtomicU64,
}

/// The end where answers arrive.
#[derive(Clone)]
pub(super) struct Ears {
    runtime: Arc<dyn Runtime>,
    waiting: Arc<Mutex<Waiting>>,
}

type Answers = UnboundedReceiver<(Answer, Timestamp)>;

#[derive(Default)]
struct Waiting {
    /// Its output is closed: nothing will be answered any more.
    ended: bool,
    answers: HashMap<u64, UnboundedSender<(Answer, Timestamp)>>,
}

impl Ears {
    /// With answer number 0, which the child sends unasked.
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> (Self, Answers) {
        let ears = Self {
            runtime,
            waiting: Arc::default(),
        };
        let (sender, answers) = unbounded();
        lock(&ears.waiting).answers.insert(0, sender);
        (ears, answers)
    }

    /// Reads the output of a process on a thread until it closes: the process has ended, or is about to.
    pub(super) fn listen(&self, output: ChildStdout) {
        let ears = self.clone();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            for line in lines.map_while(Result::<_, std::io::Error>::ok) {
                ears.hear(&line);
            }
            ears.end();
        });
    }

    pub(super) fn hear(&self, line: &str) {
        let at = self.runtime.now();
        // A process that is killed may leave half a line.
        let reply = line.strip_prefix(MARK).map(serde_json::from_str::<Reply>);
        if let Some(Ok(Reply { n, answer })) = reply
            && let Some(sender) = lock(&self.waiting).answers.get(&n)
        {
            let _ = sender.unbounded_send((answer, at));
        }
    }

    /// Nothing will be answered any more.
    pub(super) fn end(&self) {
        let mut answers: Vec<_> = {
            let mut waiting = lock(&self.waiting);
            waiting.ended = true;
            waiting.answers.drain().collect()
        };
        // In order, since this wakes the waiters and a simulation must depend only on its seed.
        answers.sort_by_key(|(n, _)| *n);
        answers.into_iter().for_each(drop);
    }
}

impl Pipe {
    pub(super) fn new(pid: u32, ears: Ears, input: Input) -> Arc<Self> {
        Arc::new(Self {
            pid,
            ears,
            input,
            next: AtomicU64::new(1),
        })
    }

    pub(super) fn to_process(pid: u32, ears: Ears, input: ChildStdin) -> Arc<Self> {
        let input = Mutex::new(input);
        let write = move |line: &str| {
            let mut input = lock(&input);
            writeln!(input, "{line}").and_then(|()| input.flush()).is_ok()
        };
        Self::new(pid, ears, Box::new(write))
    }

    /// The answer of that number; the child's hello has 0.
    pub(super) fn pending(self: &Arc<Self>, n: u64, answers: Answers) -> Pending {
        Pending {
            pipe: Arc::clone(self),
            n,
            asked: self.now(),
            answers,
            answered: false,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.ears.runtime.now()
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Writes the command now.
    pub(super) fn send(self: &Arc<Self>, command: Command) -> Pending {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = unbounded();
        {
            let mut waiting = lock(&self.ears.waiting);
            if !waiting.ended {
                waiting.answers.insert(n, sender);
            }
        }
        let pending = self.pending(n, answers);
        self.write(n, command);
        pending
    }

    /// Writes a command without waiting for its answer.
    pub(super) fn tell(&self, command: Command) {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.write(n, command);
    }

    fn write(&self, n: u64, command: Command) {
        let line = serde_json::to_string(&Order { n, command });
        let written = line.is_ok_and(|line| (self.input)(&line));
        if !written {
            // It no longer reads. The dropped sender reports that to the waiter for the answer.
            lock(&self.ears.waiting).answers.remove(&n);
        }
    }

    /// Sends it, and converts its answer with `of`.
    pub(super) fn ask<T: 'static>(
        self: &Arc<Self>,
        command: Command,
        of: impl FnOnce(Answer) -> Option<T> + Send + 'static,
    ) -> Asked<T> {
        let pending = self.send(command);
        async move { pending.answer(of).await }.boxed()
    }
}

shown!(Pipe, it => "Pipe(process {})", it.pid);

/// A command that was sent.
#[derive(Debug)]
pub(super) struct Pending {
    pipe: Arc<Pipe>,
    pub(super) n: u64,
    asked: Timestamp,
    answers: Answers,
    answered: bool,
}

impl Pending {
    pub(super) async fn answer<T>(mut self, of: impl FnOnce(Answer) -> Option<T>) -> Result<Timed<T>> {
        let pid = self.pipe.pid;
        let Some((answer, answered)) = self.answers.next().await else {
            let text = format!("process {pid} ended before it answered");
            return Err(Error::new(ErrorKind::Unknown, text));
        };
        self.answered = true;
        let value = match answer {
            Answer::Failed { kind, text } => return Err(error(&kind, format!("process {pid}: {text}"))),
            answer => {
                let text = format!("process {pid} gave an unexpected answer: {answer:?}");
                of(answer).ok_or_else(|| Error::new(ErrorKind::BackendData, text))?
            }
        };
        Ok(Timed {
            value,
            asked: self.asked,
            answered,
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let waited = lock(&self.pipe.ears.waiting).answers.remove(&self.n).is_some();
        if waited && !self.answered && self.n != 0 {
            self.pipe.tell(Command::Cancel(self.n));
        }
    }
}
