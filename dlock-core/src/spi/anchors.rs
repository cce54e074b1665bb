//! From the server's word for the end of a grant to a deadline of this client.

use std::time::Duration;

use super::{Grant, LeaseKey};
use crate::{Timestamp, Token};

/// How long the clocks of client and server may drift apart unnoticed before a pushed grant has to be
/// confirmed.
const LIFE: Duration = Duration::from_secs(10);

/// The same, in claim windows: the drift margin grows with it, and must leave something of the window.
const WINDOWS: u32 = 10;

/// For a backend whose server pushes grants: the server's clock, paired with the time at which it was asked.
/// It turns the server's time of the end of a grant into a deadline of this client.
///
/// A pushed grant has no request that bounds its life. So each answer carries the server's time, each push
/// carries the server's time of the grant's end, and the deadline counts from when the *answer* was
/// requested.
///
/// * *The push is late.* Its end counts from the anchor, however long the push was in transit.
/// * *The server's clock was set forward* since then, so that the end looks far away. The server counts no
///   more than the window, and the push came after the window began: the end is at most a window from now.
/// * *The clocks drift apart.* An anchor is valid for ten seconds, and for ten windows of the grant. After
///   that the waiter has to ask, which is always safe.
/// * *The server is another one*, after a failover. An anchor is discarded with its connection, and an answer
///   to a request that was sent before the connection [broke](Self::broke) sets no anchor.
///
/// Times of the server are spans since any moment, as long as it is always the same moment.
#[derive(Debug)]
pub struct Anchors {
    grain: Duration,
    last: Option<(Timestamp, Duration)>,
    broke: Option<Timestamp>,
}

impl Anchors {
    /// Creates anchors for a server that reports times in whole steps of `grain`, rounded down.
    pub fn new(grain: Duration) -> Self {
        Self {
            grain,
            last: None,
            broke: None,
        }
    }

    /// Records the server's time in the answer to a request that was sent at `sent`.
    pub fn heard(&mut self, sent: Timestamp, server: Duration) {
        if self.broke.is_none_or(|broke| sent > broke) {
            self.last = Some((sent, server));
        }
    }

    /// Records that the connection broke now. Answers to requests from before set no anchor any more.
    pub fn broke(&mut self) {
        self.last = None;
        self.broke = Some(Timestamp::now());
    }

    /// Creates the provisional grant of a push that came now, which began and ends at these times of the
    /// server. `None` if the waiter has to ask instead.
    pub fn grant(&self, key: &LeaseKey, token: Token, began: Duration, end: Duration) -> Option<Grant> {
        self.grant_at(key, token, began, end, Timestamp::now())
    }

    fn grant_at(
        &self,
        key: &LeaseKey,
        token: Token,
        began: Duration,
        end: Duration,
        now: Timestamp,
    ) -> Option<Grant> {
        let (sent, server) = self.last?;
        let window = end.checked_sub(began)?;
        let age = now.since(sent);
        if age > LIFE.min(window.saturating_mul(WINDOWS)) {
            return None;
        }
        // Both are rounded down: one step may be missing.
        let life = end.checked_sub(server)?.saturating_sub(self.grain);
        let grant = Grant::new(key.clone(), Some(token), sent, life.min(age + window));
        Some(grant.provisional())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;
    use crate::RequestId;

    const MS: Duration = Duration::from_millis(1);

    /// The end of a grant that came at `now`. The server was asked at 1 s, when its clock showed 50 s. All in
    /// milliseconds.
    fn end(began: u32, end: u32, now: u32) -> Option<Timestamp> {
        let mut anchors = Anchors::new(MS);
        anchors.heard(Timestamp::ZERO + MS * 1_000, MS * 50_000);
        let key = LeaseKey::new(LockName::new("a").unwrap(), RequestId::new(1, 1));
        let token = Token::new(7).unwrap();
        let grant = anchors.grant_at(&key, token, MS * began, MS * end, Timestamp::ZERO + MS * now)?;
        assert!(grant.provisional);
        Some(grant.counted_from + grant.expires_in)
    }

    #[test]
    fn late_push_ends_no_later() {
        let at = Some(Timestamp::ZERO + MS * 3_999);
        assert_eq!(end(52_000, 53_000, 3_000), at);
        assert_eq!(end(52_000, 53_000, 3_900), at);
    }

    #[test]
    fn clock_set_forward_lengthens_no_window() {
        let hour = 3_600_000;
        let ends = end(52_000 + hour, 53_000 + hour, 3_000);
        assert_eq!(ends, Some(Timestamp::ZERO + MS * 4_000));
    }

    #[test]
    fn anchor_is_valid_for_ten_windows_and_ten_seconds() {
        assert!(end(61_000, 62_000, 11_000).is_some());
        assert!(end(61_000, 62_000, 11_001).is_none());
        assert!(end(51_000, 51_050, 1_500).is_some());
        assert!(end(51_000, 51_050, 1_501).is_none());
    }

    #[test]
    fn answer_from_a_broken_connection_sets_no_anchor() {
        let mut anchors = Anchors::new(MS);
        let sent = Timestamp::now();
        anchors.broke();
        anchors.heard(sent, MS);
        assert!(anchors.last.is_none());
        while Timestamp::now() == sent {}
        anchors.heard(Timestamp::now(), MS);
        assert!(anchors.last.is_some());
    }
}
