//! Five servers, or three; clients that see some of them; and a resource with a gate of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::Admission;
use dlock::combinators::Quorum;
use dlock::redis::Config;
use dlock::spi::Lock;
use dlock::{Client, Guard, LockName, LockOptions, LossReason, Memory, Timestamp, Token, runtime};
use dlock_conformance::network::{Fault, FaultGuard, Network};
use dlock_conformance::proxy::ProxyNetwork;
use futures::future::try_join_all;

use dlock_testkit::{RedisOptions, RedisServer};

/// Of the locks of these tests. Long enough for a machine that is busy, short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// Of a lock whose end nobody waits for.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Of one exchange.
pub(crate) const OP_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a member that does not answer is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);
/// What a machine that is busy may add to anything.
pub(crate) const SLACK: Duration = Duration::from_secs(2);

/// The lock that the stories are about.
pub(crate) const NAME: &str = "stock/42";

/// The members of a quorum.
pub(crate) struct Site {
    pub(crate) servers: Vec<RedisServer>,
    /// How long a member must have been up.
    pub(crate) rejoin_after: Option<Duration>,
}

/// A client, and what is between it and the members.
pub(crate) struct Party {
    pub(crate) client: Client,
    net: ProxyNetwork,
    /// The members that it does not reach.
    away: Vec<FaultGuard>,
}

impl Site {
    pub(crate) fn new(members: usize, options: &RedisOptions) -> Self {
        let server = |_| RedisServer::with(options.clone()).unwrap();
        Self {
            servers: (0..members).map(server).collect(),
            rejoin_after: None,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.servers.len()
    }

    pub(crate) fn majority(&self) -> usize {
        self.size() / 2 + 1
    }

    /// The first members that are a majority.
    pub(crate) fn first(&self) -> Vec<usize> {
        (0..self.majority()).collect()
    }

    /// The last ones. One member is of both.
    pub(crate) fn last(&self) -> Vec<usize> {
        (self.size() - self.majority()..self.size()).collect()
    }

    /// The member that is of both.
    pub(crate) fn common(&self) -> &RedisServer {
        &self.servers[self.size() - self.majority()]
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(RedisServer::address).collect()
    }

    fn set(&self, config: Config) -> Config {
        let config = config.timeout(Duration::from_secs(1));
        match self.rejoin_after {
            Some(uptime) => config.rejoin_after(uptime),
            None => config,
        }
    }

    /// A client that sees all members, until it is told otherwise.
    pub(crate) async fn party(&self, ttl: Duration) -> Party {
        let servers: Vec<_> = self.addresses().into_iter().map(Into::into).collect();
        let net = ProxyNetwork::start(&servers).unwrap();
        let addresses: Vec<_> = net.addresses().iter().map(|at| at.tcp().unwrap()).collect();
        let client = client(&addresses, |config| self.set(config), ttl).await;
        Party {
            client,
            net,
            away: Vec::new(),
        }
    }

    /// A client that sees those members alone, and has seen no other.
    pub(crate) async fn party_that_sees(&self, members: &[usize], ttl: Duration) -> Party {
        let mut party = self.party(ttl).await;
        let others = (0..self.size()).filter(|n| !members.contains(n));
        others.for_each(|n| party.loses(n, Fault::Away));
        party
    }

    /// At how many members somebody holds the lock, or once did, with a lease that is not over.
    pub(crate) fn held_at(&self) -> Vec<usize> {
        let holds = |server: &RedisServer| {
            let keys = server.ask(&["KEYS", &format!("dlock{{*}}:{}:{NAME}", NAME.len())]);
            !keys.unwrap().list().unwrap().is_empty()
        };
        (0..self.size()).filter(|n| holds(&self.servers[*n])).collect()
    }

    /// Whether that member ever gave a token.
    pub(crate) fn has_granted(&self, member: usize) -> bool {
        let counters = self.servers[member].ask(&["KEYS", "dlock{*}:t"]);
        !counters.unwrap().list().unwrap().is_empty()
    }
}

impl Party {
    /// It does not reach that member from now on.
    pub(crate) fn loses(&mut self, member: usize, how: Fault) {
        let way = self.net.server(member).unwrap();
        self.away.push(way.begin(how));
    }

    /// It reaches all of them again.
    pub(crate) fn reaches_all(&mut self) {
        self.away.clear();
    }

    pub(crate) async fn acquires(&self) -> Guard {
        self.client.lock(NAME).unwrap().acquire().await.unwrap()
    }

    /// One try: a grant or not, for whatever reason.
    pub(crate) async fn tries(&self) -> Option<Guard> {
        self.client.lock(NAME).unwrap().try_acquire().await.ok().flatten()
    }

    /// Tries until it is granted.
    pub(crate) async fn tries_until_granted(&self, limit: Duration) -> Guard {
        let from = Instant::now();
        loop {
            let outcome = self.client.lock(NAME).unwrap().try_acquire().await;
            match outcome {
                Ok(Some(guard)) => return guard,
                other => assert!(from.elapsed() < limit, "not granted within {limit:?}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Of a quorum of those servers, none of which is asked yet.
pub(crate) async fn client(
    addresses: &[SocketAddr],
    set: impl Fn(Config) -> Config,
    ttl: Duration,
) -> Client {
    let runtime = runtime::detect().unwrap();
    let open = |at: &SocketAddr| {
        let config = set(Config::from_url(&format!("redis://{at}")).unwrap()).lazily();
        let runtime = runtime.clone();
        async move {
            config
                .connect(runtime)
                .await
                .map(|lock| Arc::new(lock) as Arc<dyn Lock>)
        }
    };
    let members = try_join_all(addresses.iter().map(open)).await.unwrap();
    client_of(members, ttl)
}

pub(crate) fn client_of(members: Vec<Arc<dyn Lock>>, ttl: Duration) -> Client {
    let runtime = runtime::detect().unwrap();
    let quorum = Quorum::new(members, runtime.clone(), PATIENCE).unwrap();
    let client = Client::builder(Arc::new(quorum), runtime).op_timeout(OP_TIMEOUT);
    client.defaults(LockOptions::new().ttl(ttl)).build().unwrap()
}

/// Waits until that guard is lost: why, and by how much later than its last deadline that was told.
pub(crate) async fn lateness(guard: &Guard) -> (LossReason, Duration) {
    let lost = guard.lost();
    futures::pin_mut!(lost);
    // An ended guard has none.
    let mut deadline = guard.deadline();
    loop {
        match tokio::time::timeout(Duration::from_millis(5), &mut lost).await {
            Ok(why) => return (why, deadline.until(Timestamp::now())),
            Err(_) => deadline = deadline.max(guard.deadline()),
        }
    }
}

/// The resource that the lock protects: it checks the token of each write on its own.
pub(crate) struct Resource(Client);

impl Resource {
    pub(crate) fn new() -> Self {
        let runtime = runtime::detect().unwrap();
        let store = Memory::new(runtime.clone());
        Self(Client::builder(store.connect(), runtime).build().unwrap())
    }

    /// Whether a write with that token came through.
    pub(crate) async fn takes(&self, token: Option<Token>) -> bool {
        let name = LockName::new(NAME).unwrap();
        let token = token.expect("a quorum of Redis servers gives tokens");
        let written = self.0.gate().unwrap().write(&name, token, b"sold").await;
        matches!(written.unwrap(), Admission::Admitted)
    }
}
