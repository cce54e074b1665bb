//! Which commands a peer sends, as the server hears them.
//!
//! The server's statistics count what scripts call like what clients send. So we listen for once (MONITOR
//! tells the two apart) and learn the names of the commands that the peer itself sends; those are what is
//! counted while it is measured and nobody listens.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use dlock_benches::redis::{Counted, Server, Spell};

use crate::peer::Peer;

/// Long enough for all that a peer does around a lock: it waits, and is told.
const SPELL: Spell = Spell {
    hold: Duration::from_micros(500),
    think: Duration::ZERO,
    length: Duration::from_millis(200),
};

/// What nobody else says.
const END: &str = "dlock-peers-has-heard-enough";

/// The names of the commands that a peer sends to acquire and to release.
#[derive(Debug, Default)]
pub(crate) struct Sent(BTreeSet<String>);

impl Sent {
    pub(crate) async fn learn(server: &Server, peer: &mut dyn Peer) -> Self {
        // Connections, and scripts that the server does not have yet, are not what is learned.
        Self::exercise(peer).await;
        let mut listener = server.wire();
        listener.ask(&["MONITOR"]);
        Self::exercise(peer).await;
        server.ask(&["ECHO", END]);
        let (mut sent, mut called) = (BTreeSet::new(), BTreeSet::new());
        loop {
            let line = listener.hear();
            if line.contains(END) {
                break;
            }
            let (command, by_script) = parse(&line).expect("a line of MONITOR");
            let names = if by_script { &mut called } else { &mut sent };
            names.insert(command);
        }
        // That is us, who count.
        sent.remove("info");
        let both: Vec<_> = sent.intersection(&called).collect();
        assert!(
            both.is_empty(),
            "{} sends {both:?}, and its scripts call it too: the statistics cannot tell them apart",
            peer.name()
        );
        Self(sent)
    }

    async fn exercise(peer: &mut dyn Peer) {
        peer.pair(Duration::from_millis(20)).await;
        if peer.waits() {
            peer.crowd(2, 4, SPELL).await;
        }
    }

    /// How many of them the server has counted.
    pub(crate) fn among(&self, counted: &Counted) -> u64 {
        self.0.iter().map(|command| counted.of(command)).sum()
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|name| name.to_uppercase()).collect();
        f.write_str(&names.join(", "))
    }
}

/// The command, and if a script called it: `1763806000.123456 [0 127.0.0.1:4711] "EVALSHA" "..."`, or `[0
/// lua]`.
fn parse(line: &str) -> Option<(String, bool)> {
    let (who, rest) = line.split_once('[')?.1.split_once(']')?;
    let command = rest.split('"').nth(1)?;
    Some((command.to_lowercase(), who.ends_with(" lua")))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn own_and_foreign_messages_are_told_apart() {
        let sent = r#"1763806000.123456 [0 127.0.0.1:4711] "EVALSHA" "7a" "1" "[x] lua]""#;
        assert_eq!(parse(sent), Some(("evalsha".into(), false)));
        let called = r#"1763806000.123456 [0 lua] "get" "a""#;
        assert_eq!(parse(called), Some(("get".into(), true)));
    }
}
