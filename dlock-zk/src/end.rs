//! The end of the numbers of a line: it runs empty, is removed, and begins anew.
//!
//! Whoever draws a place behind the [`END`](crate::entries::END) takes its node out again. If the line is empty then, it removes the line, and whoever comes next makes another one, in
//! which the numbers begin anew. Otherwise those who were in time have it first, and it waits beside the line until the last of them has gone. So the order of arrival is not kept
//! over that one moment in two thousand million; everything else is.
//!
//! What could break it, and why it does not:
//!
//! * *Somebody joins just when the line is removed.* A server removes no node that has others below it. Who comes after it was removed finds no line, and makes one.
//! * *A list of the line that was.* The nodes in it have gone. In the new line nobody has the name of one of them, and tokens do not come from places.
//! * *Its node is not taken out*, since an answer is lost or its client dies. It is in nobody's way: it is in no line that anybody reads, and goes by a further
//!   try or with its session. Until then the line cannot be removed, and newcomers wait.
//!
//! In the layout of Curator this holds for dlock's side. Curator's own goes on to the end, and there it breaks by itself.

use std::sync::Arc;

use dlock_core::Result;
use dlock_core::spi::{Acquire, Wait, Wake};
use dlock_core::{Error, ErrorKind};
use zookeeper_client::Error as Zk;

use crate::entries::{Child, is_place, parse};
use crate::failure::Effect;
use crate::lock::ZkLock;
use crate::session::{Node, Session};

impl ZkLock {
    /// Whether that node is none in which a request may stay.
    pub(crate) fn is_at_the_end(&self, node: &Node) -> bool {
        match parse(self.paths().layout, &node.name) {
            Some(Child::Entry(entry)) => !is_place(entry.place),
            _ => false,
        }
    }

    /// Takes that node out, and removes the line if it is empty. Otherwise answers what is to be waited for.
    ///
    /// # Errors
    /// `Unknown` if the node may be there yet.
    pub(crate) async fn leave_to_the_end(
        &self,
        session: &Arc<Session>,
        request: &Acquire,
        node: &Node,
    ) -> Result<Option<Wait>> {
        let key = &request.key;
        self.withdraw(session, request, node).await?;
        let path = self.paths().lock(&key.name);
        let client = session.client()?;
        match session.written(|| client.delete(&path, None)).await {
            Ok(()) | Err(Zk::NoNode) => return Ok(None),
            Err(Zk::NotEmpty) => {}
            Err(e) => return Err(session.told(e, Effect::None)),
        }
        let line = self.read_line_of_now(session, key).await?;
        match line.entries().last() {
            Some(last) => {
                let last = vec![last.node.clone()];
                Ok(Some(Wait::new(Wake::Push(self.change(session, path, last)))))
            }
            None => {
                // Others who came too late, and take their nodes out just now.
                let message = "the line of the lock is at the end of its numbers, and is about to begin anew";
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }
}
