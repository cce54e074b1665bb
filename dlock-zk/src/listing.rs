//! The names in use: those with a queue.

use std::sync::Arc;

use dlock_core::Result;
use dlock_core::spi::Page;
use futures::future::join_all;
use zookeeper_client::{Client, Error as Zk};

use crate::keys::decode;
use crate::lock::ZkLock;
use crate::session::Session;

/// How many lines are looked at for one page.
const PAGE: usize = 500;

impl ZkLock {
    /// Each page asks for all lines anew, which the server can only tell together, and goes on behind the
    /// name at which the page before ended.
    pub(crate) async fn page(
        &self,
        session: Arc<Session>,
        client: Arc<Client>,
        prefix: &[u8],
        from: Option<&[u8]>,
    ) -> Result<Page> {
        let lines = session.children(&client, &self.paths().locks).await?;
        let names = lines.iter().filter_map(|line| decode(line));
        let is_asked = |name: &[u8]| name.starts_with(prefix) && from.is_none_or(|from| name > from);
        let mut names: Vec<_> = names.filter(|name| is_asked(name.as_bytes())).collect();
        names.sort_unstable();
        let is_last = names.len() <= PAGE;
        names.truncate(PAGE);
        let next = names
            .last()
            .filter(|_| !is_last)
            .map(|name| name.as_bytes().to_vec());
        let stats = join_all(names.into_iter().map(|name| {
            let asking = client.check_stat(&self.paths().lock(&name));
            async move { (asking.await, name) }
        }));
        let mut in_use = Vec::new();
        for (stat, name) in stats.await {
            match stat {
                // A line is there for a while after the last one has left it; an unfair lock has no line.
                Ok(Some(stat)) if stat.num_children > 0 || self.paths().unfair => in_use.push(name),
                Ok(_) | Err(Zk::NoNode) => {}
                Err(e) => return Err(session.failed(e)),
            }
        }
        Ok(Page::new(in_use, next))
    }
}
