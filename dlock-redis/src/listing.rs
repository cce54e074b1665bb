//! The names in use, by SCAN; on a cluster one master after the other.
//!
//! SCAN reports every key that exists all the time, some of them twice. It may miss:
//!
//! * *Keys of a slot that moves meanwhile*; and *a name that goes from exclusive to shared or back*, since
//!   those are other keys. The documentation of lists says both.
//! * *What lies behind a cursor of another server*, or of the same one before it was started again: to each
//!   its keys are in another order. So a page begins anew where the connection is not that of the page
//!   before.
//!
//! Each find is checked: an expired lease leaves keys behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::spi::Page;
use dlock_core::{ErrorKind, LockName, Result};
use futures::future::join_all;

use crate::backend::Backend;
use crate::failure::{invalid, nothing_done};
use crate::keys::name_of_key;
use crate::reply::{Reply, strange};

/// How many keys the server goes through for one page. It does nothing else for about a millisecond.
const KEYS: u64 = 1_000;

/// Where a page begins: how far SCAN has come on the first of those nodes, on the how manieth connection to
/// it, and which others are to come.
struct Place {
    cursor: u64,
    generation: u64,
    nodes: Vec<String>,
}

impl Place {
    fn read(from: &[u8]) -> Option<Self> {
        let (cursor, rest) = std::str::from_utf8(from).ok()?.split_once(' ')?;
        let (generation, nodes) = rest.split_once(' ')?;
        Some(Self {
            cursor: cursor.parse().ok()?,
            generation: generation.parse().ok()?,
            nodes: nodes.split(' ').map(str::to_owned).collect(),
        })
    }

    /// Behind a page after which SCAN has come so far.
    fn next(mut self, cursor: u64, generation: u64) -> Option<Vec<u8>> {
        if cursor == 0 {
            self.nodes.remove(0);
        }
        let is_over = self.nodes.is_empty();
        (!is_over).then(|| format!("{cursor} {generation} {}", self.nodes.join(" ")).into_bytes())
    }
}

impl Backend {
    pub(crate) async fn list(self: &Arc<Self>, prefix: &[u8], from: Option<&[u8]>) -> Result<Page> {
        self.open()?;
        let failed = |e| nothing_done(e, &self.at);
        let mut place = match from {
            Some(from) => Place::read(from)
                .ok_or_else(|| invalid("the page to list from is not one of this Redis backend"))?,
            None => Place {
                cursor: 0,
                generation: 0,
                nodes: self.connection.nodes().await.map_err(failed)?,
            },
        };
        let (generation, answer) = loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(place.cursor).arg("COUNT").arg(KEYS);
            scan.arg("MATCH").arg(pattern(&self.prefix, prefix));
            let answer = self.connection.ask_node(&place.nodes[0], &scan).await;
            let (generation, answer) = answer.map_err(failed)?;
            if place.cursor == 0 || generation == place.generation {
                break (generation, answer);
            }
            place.cursor = 0;
        };
        let mut answer = Reply::new(answer)?;
        let cursor = answer.text()?.parse().map_err(|_| strange("no cursor"))?;
        let mut names = BTreeSet::new();
        for key in Reply::new(answer.next()?)?.rest() {
            let redis::Value::BulkString(key) = key else {
                continue;
            };
            names.extend(name_of_key(&self.prefix, &key).filter(|name| name.as_bytes().starts_with(prefix)));
        }
        let looks = join_all(names.into_iter().map(|name| self.in_use(name))).await;
        let names: Result<Vec<_>> = looks.into_iter().filter_map(Result::transpose).collect();
        Ok(Page::new(names?, place.next(cursor, generation)))
    }

    async fn in_use(self: &Arc<Self>, name: LockName) -> Result<Option<LockName>> {
        let is_in_use = match self.look(&name, Some(Duration::ZERO), false).await {
            Ok(seen) => !seen.now.holders.is_empty() || seen.now.waiting > 0,
            // It can be looked at by nobody, and taken by nobody: what it is keeps no other name from the
            // list.
            Err(e) => match e.kind() {
                ErrorKind::BackendData | ErrorKind::Unsupported => true,
                _ => return Err(e),
            },
        };
        Ok(is_in_use.then_some(name))
    }
}

/// What all keys of such names look like, in terms of SCAN.
fn pattern(prefix: &str, name: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::new();
    let mut literally = |text: &[u8], behind: &[u8]| {
        for byte in text {
            if b"*?[]^-\\".contains(byte) {
                pattern.push(b'\\');
            }
            pattern.push(*byte);
        }
        pattern.extend_from_slice(behind);
    };
    literally(prefix.as_bytes(), b"{??}:*:");
    literally(name, b"*");
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scan_takes_for_a_sign_stands_for_itself() {
        assert_eq!(pattern("a?", b"[x]*\\"), br"a\?{??}:*:\[x\]\*\\*");
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let nodes = vec!["a:1".to_owned(), "[::1]:2".to_owned()];
        let first = Place {
            cursor: 0,
            generation: 0,
            nodes,
        };
        let place = Place::read(&first.next(7, 3).expect("more")).expect("a place");
        assert_eq!(
            (place.cursor, place.generation, &*place.nodes),
            (7, 3, &["a:1".to_owned(), "[::1]:2".to_owned()][..])
        );
        let last = place
            .next(0, 3)
            .and_then(|next| Place::read(&next))
            .expect("another node");
        assert_eq!((last.cursor, &*last.nodes), (0, &["[::1]:2".to_owned()][..]));
        assert_eq!(last.next(0, 3), None);
        assert!(Place::read(b"x").is_none());
    }
}
