//! One session: the driver's client, what is known of its life, and the requests that have nodes in it.
//!
//! All that a client holds or waits for hangs on one session, and ends with it. What is asked for is therefore noted here and nowhere else: a node of
//! an earlier session, which a server may show for a while yet, is never taken for one of ours. (That is Curator's oldest open bug: a lock granted on the node of a session that has ended.)

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use dlock_core::spi::{Acquire, Grant, LeaseKey};
use dlock_core::{Error, Mode, RequestId, Result, Runtime, Timestamp, Token};
use futures::future::join;
use zookeeper_client::{Client, Error as Zk, SessionState, Stat};

use crate::address::invalid;
use crate::failure::{Effect, is_answer, told};
use crate::hand::Hands;
use crate::life::Life;
use crate::question::Questions;
use crate::watches::Watches;

/// A session with an ensemble.
pub(crate) struct Session {
    /// Gone when the session is over: dropping the last one closes it.
    client: RwLock<Option<Arc<Client>>>,
    pub(crate) id: i64,
    pub(crate) timeout: Duration,
    pub(crate) life: Arc<Life>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) at: Arc<str>,
    requests: Mutex<HashMap<RequestId, Request>>,
    /// Which of them a call has in hand.
    pub(crate) hands: Arc<Hands>,
    /// Nothing is asked for in it any more, and nothing is handed out. Set under the mutex of the requests.
    over: AtomicBool,
    questions: Questions,
    pub(crate) watches: Arc<Watches>,
    mark: Arc<Mark>,
    /// The root under which `sync` is asked for.
    root: String,
}

/// The node that shows that a session is there: to operators, to whoever looks on, and to the session itself, which writes it to be heard.
pub(crate) struct Mark {
    pub(crate) path: String,
    pub(crate) data: Vec<u8>,
}

/// What was asked for in this session and may have a node in it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) key: LeaseKey,
    /// As it was asked for.
    pub(crate) mode: Mode,
    /// Not known until its creation has been answered, or it has been found.
    pub(crate) node: Option<Node>,
    /// It was handed out.
    pub(crate) granted: bool,
    /// The mode that it has now, if that is another one.
    pub(crate) converted: Option<Mode>,
    /// The mode of which there may be a mark beside its node.
    pub(crate) marked: Option<Mode>,
    /// A deletion was sent: it is never granted again.
    pub(crate) leaving: bool,
    /// Locks were ended by force while the answer to its creation was under way, and whether it was among them was not told.
    pub(crate) doubted: bool,
    /// It was tried to have the lock beside the line: see [`priority`](crate::priority). Never taken back: another try may be under way.
    pub(crate) taking: bool,
    /// The label that its holder gives itself.
    pub(crate) owner: Option<Arc<str>>,
}

/// A node of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) czxid: i64,
}

impl Node {
    pub(crate) fn token(&self) -> Option<Token> {
        u64::try_from(self.czxid).ok().and_then(Token::new)
    }
}

impl Session {
    pub(crate) fn new(
        client: Client,
        asked: Timestamp,
        runtime: Arc<dyn Runtime>,
        at: Arc<str>,
        root: String,
        mark: Mark,
    ) -> Self {
        let timeout = client.session_timeout();
        Self {
            id: client.session_id().0,
            timeout,
            life: Arc::new(Life::new(asked, timeout)),
            client: RwLock::new(Some(Arc::new(client))),
            runtime,
            at,
            requests: Mutex::default(),
            hands: Arc::default(),
            over: AtomicBool::new(false),
            questions: Questions::default(),
            watches: Arc::default(),
            mark: Arc::new(mark),
            root,
        }
    }

    /// The driver's client, while the session may be there.
    pub(crate) fn client(&self) -> Result<Arc<Client>> {
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        client
            .clone()
            .ok_or_else(|| self.told(Zk::SessionExpired, Effect::None))
    }

    /// Whether a request would be sent now.
    pub(crate) fn is_connected(&self) -> bool {
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        client
            .as_ref()
            .is_some_and(|c| c.state() == SessionState::SyncConnected)
    }

    /// Closes it, once nobody waits for an answer any more.
    pub(crate) fn end(&self) {
        {
            let _requests = self.requests();
            self.over.store(true, Ordering::SeqCst);
        }
        let client = self.client.write().unwrap_or_else(PoisonError::into_inner).take();
        self.questions.forget();
        drop(client);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.runtime.now()
    }

    pub(crate) fn told(&self, e: Zk, effect: Effect) -> Error {
        told(e, effect, &self.at)
    }

    /// Sends a write, and takes its answer as a sign that the session lives.
    pub(crate) async fn written<T, F>(&self, write: impl FnOnce() -> F) -> Result<T, Zk>
    where
        F: Future<Output = Result<T, Zk>>,
    {
        let sent = self.now();
        let answer = write().await;
        self.heard(sent, &answer);
        answer
    }

    /// A write that was sent at that time was answered so.
    pub(crate) fn heard<T>(&self, sent: Timestamp, answer: &Result<T, Zk>) {
        if is_answer(answer) {
            self.life.confirm(sent);
        }
    }

    /// Asks for the answer to a read that is no older than this call.
    ///
    /// A server may be behind its leader. `sync` is answered by way of the leader, and what is asked behind it in the same session comes after: one round trip for both. It is
    /// no sign that the session lives, see [`life`](crate::life).
    pub(crate) async fn synced<T, F>(&self, client: &Client, read: impl FnOnce() -> F) -> Result<T, Zk>
    where
        F: Future<Output = Result<T, Zk>>,
    {
        let sync = client.sync(&self.root);
        let (synced, answer) = join(sync, read()).await;
        synced?;
        answer
    }

    /// Sees to it that a lock which is handed out now lasts for a while.
    pub(crate) async fn be_ample(&self) -> Result<()> {
        match self.life.is_ample(self.now()) {
            true => Ok(()),
            false => self.be_heard().await,
        }
    }

    /// The same for many leases, whose renewals come batch after batch as they were acquired: a question for each would be hundreds for ten thousand. What was heard in the last twentieth
    /// of the timeout is enough for them; they last from then, and not from now.
    pub(crate) async fn be_heard_lately(&self) -> Result<()> {
        let _is_there = self.client()?;
        match self.now().since(self.life.confirmed()) <= self.timeout / 20 {
            true => Ok(()),
            false => self.be_heard().await,
        }
    }

    /// Asks whether the session lives, by writing its own node. One question serves all who come until it is answered.
    pub(crate) async fn be_heard(&self) -> Result<()> {
        let client = self.client()?;
        let (life, runtime, known) = (self.life.clone(), self.runtime.clone(), self.life.confirmed());
        // Since this call, and recently.
        let is_enough = move || life.confirmed() > known && life.is_ample(runtime.now());
        let answer = self.questions.next(is_enough, || {
            let (life, runtime, mark) = (self.life.clone(), self.runtime.clone(), self.mark.clone());
            async move {
                let sent = runtime.now();
                let answer = client.set_data(&mark.path, &mark.data, None).await.map(drop);
                if is_answer(&answer) {
                    life.confirm(sent);
                }
                match answer {
                    // Somebody has deleted it. That was found out by the leader and its followers, as what is written is.
                    Err(Zk::NoNode) => Ok(()),
                    answer => answer,
                }
            }
        });
        answer.await.map_err(|e| self.told(e, Effect::None))
    }

    /// Whether a node is one of this session.
    pub(crate) fn owns(&self, stat: &Stat) -> bool {
        stat.ephemeral_owner == self.id
    }

    // ---- requests ----

    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn request(&self, key: &LeaseKey) -> Option<Request> {
        self.requests().get(&key.id).filter(|r| r.key == *key).cloned()
    }

    /// Notes a request before it is sent.
    ///
    /// # Errors
    /// `InvalidInput` if one with that id asked for something else; `Unavailable` if the session is over.
    pub(crate) fn note(&self, request: &Acquire) -> Result<()> {
        let mut requests = self.requests();
        if self.is_over() {
            return Err(self.told(Zk::SessionExpired, Effect::None));
        }
        noted(&mut requests, request).map(drop)
    }

    /// Notes that node of a request which is in [hand](crate::hand), also if it was forgotten since: what is there belongs to somebody.
    ///
    /// # Errors
    /// `InvalidInput` as [`note`](Self::note).
    pub(crate) fn keep(&self, request: &Acquire, node: &Node) -> Result<Request> {
        let mut requests = self.requests();
        let was_known = requests.contains_key(&request.key.id);
        let noted = noted(&mut requests, request)?;
        noted.node.get_or_insert_with(|| node.clone());
        // Of one that was forgotten it is not known any more.
        noted.taking |= !was_known;
        Ok(noted.clone())
    }

    pub(crate) fn change(&self, key: &LeaseKey, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.requests().get_mut(&key.id) {
            change(request);
        }
    }

    pub(crate) fn forget(&self, key: &LeaseKey) -> Option<Request> {
        self.requests().remove(&key.id)
    }

    /// Forgets a request, unless it is about a node of another name by now. With priorities the token of a node changes when the lock is taken.
    pub(crate) fn forget_named(&self, seen: &Request) -> Option<Request> {
        let name = |request: &Request| request.node.as_ref().map(|node| node.name.clone());
        let mut requests = self.requests();
        let same = requests.get(&seen.key.id).is_some_and(|r| name(r) == name(seen));
        if same { requests.remove(&seen.key.id) } else { None }
    }

    /// Forgets a request, unless it is about another node by now.
    pub(crate) fn forget_node(&self, seen: &Request) -> Option<Request> {
        let mut requests = self.requests();
        let same = requests.get(&seen.key.id).is_some_and(|r| r.node == seen.node);
        if same { requests.remove(&seen.key.id) } else { None }
    }

    /// All that have a node. Of the others those that `may_be` concerned are to read the line anew when they have one: that is noted in one step with the look at whether they have.
    pub(crate) fn noted(&self, may_be: impl Fn(&Request) -> bool) -> Vec<Request> {
        let mut requests = self.requests();
        for request in requests.values_mut() {
            request.doubted |= request.node.is_none() && may_be(request);
        }
        requests.values().filter(|r| r.node.is_some()).cloned().collect()
    }

    /// Whether something happened that makes what was read before worthless; and says that it will be read anew.
    pub(crate) fn is_doubted(&self, key: &LeaseKey) -> bool {
        let mut requests = self.requests();
        let doubted = requests.get_mut(&key.id).map(|r| &mut r.doubted);
        doubted.is_some_and(std::mem::take)
    }

    /// Notes that the lock is tried to be had, beside the line; whether that was tried before. `None` if the request is not to be granted any more.
    pub(crate) fn begin_taking(&self, key: &LeaseKey) -> Option<bool> {
        let mut requests = self.requests();
        let request = requests
            .get_mut(&key.id)
            .filter(|r| r.key == *key && !r.leaving)?;
        Some(std::mem::replace(&mut request.taking, true))
    }

    /// A grant of that node, which lasts as long as the session is believed in.
    ///
    /// `None` if the request has ended since its node was seen in the line: its deletion was sent, it was ended by force, or with the session. The look and the note are one step:
    /// whoever ends it later finds that it was handed out.
    pub(crate) fn grant(&self, key: &LeaseKey, node: &Node) -> Option<Grant> {
        let mut requests = self.requests();
        let request = requests
            .get_mut(&key.id)
            .filter(|r| r.key == *key && !r.leaving && !self.is_over())?;
        if request.node.as_ref().is_none_or(|n| n.name != node.name) {
            return None;
        }
        request.granted = true;
        let (from, span) = (self.life.confirmed(), self.life.span());
        Some(Grant::new(key.clone(), node.token(), from, span))
    }

    /// Sees to it that nothing more is asked for, unless something is, or is held. Whether nothing is.
    pub(crate) fn shut_if_idle(&self) -> bool {
        let requests = self.requests();
        if requests.is_empty() {
            self.over.store(true, Ordering::SeqCst);
        }
        requests.is_empty()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

fn noted<'a>(requests: &'a mut HashMap<RequestId, Request>, request: &Acquire) -> Result<&'a mut Request> {
    let (key, mode, owner) = (&request.key, request.mode, &request.owner);
    let noted = requests.entry(key.id).or_insert_with(|| Request {
        key: key.clone(),
        mode,
        node: None,
        granted: false,
        converted: None,
        marked: None,
        leaving: false,
        doubted: false,
        taking: false,
        owner: owner.clone(),
    });
    match noted.key == *key && noted.mode == mode {
        true => Ok(noted),
        false => Err(invalid("the id of this request was used for another one")),
    }
}
