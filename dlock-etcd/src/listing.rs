//! The names in use: those with a queue.

use dlock_core::spi::Page;
use dlock_core::{LockName, Result};
use etcd_client::{GetOptions, SortOrder, SortTarget};

use crate::keys::behind;
use crate::lock::EtcdLock;
use crate::session::Session;

/// How many entries are read for one page.
const PAGE: i64 = 1_000;

impl EtcdLock {
    /// Goes through the entries in the order of their keys, and from each full page on behind the last name
    /// in it: so a name with many waiters is read once.
    pub(crate) async fn page(&self, session: &Session, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        let locks = self.keys().locks();
        let begin = match from {
            Some(from) => from.to_vec(),
            // No key is empty.
            None if locks.is_empty() => vec![0],
            None => locks.as_bytes().to_vec(),
        };
        let how = GetOptions::new()
            .with_range(behind(locks))
            .with_keys_only()
            .with_sort(SortTarget::Key, SortOrder::Ascend)
            .with_limit(PAGE);
        let read = session.get(begin, how).await?;
        let mut names: Vec<LockName> = Vec::new();
        let mut last = None;
        for kv in read.kvs() {
            let rest = kv.key().get(locks.len()..).unwrap_or_default();
            let part = rest.split(|b| *b == b'/').next().unwrap_or_default();
            if last.as_deref() == Some(part) {
                continue;
            }
            last = Some(part.to_vec());
            // What stands beside the locks is none of ours.
            let text = str::from_utf8(part).ok().filter(|_| part.len() < rest.len());
            let name = text.and_then(LockName::from_path_part);
            let name = name.filter(|name| name.to_path_part().as_bytes() == part);
            names.extend(name.filter(|name| name.as_bytes().starts_with(prefix)));
        }
        let next = last.filter(|_| read.more());
        let next = next.map(|part| behind([locks.as_bytes(), &part, b"/"].concat()));
        Ok(Page::new(names, next))
    }
}
