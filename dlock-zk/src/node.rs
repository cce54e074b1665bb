//! The names and the data of the nodes in a queue.
//!
//! ```text
//! /dlock/locks/orders                            the line of the lock `orders`, a container
//!   4c1f...e0-2a-x-0000000007                    client, number of its request, mode, place
//!   91ab...77-3-r-0000000008
//!   4c1f...e0-2a-x-0000000007~r                  the first of them has become a reader
//! ```
//!
//! The name has the request and its mode, so that admission needs only the list of children. The client makes
//! it, up to the place, so that it recognises a node whose creation was not answered. The server adds the
//! place: a 32-bit number that starts anew with a new container, so it orders a queue and is never a token.
//! Where the numbers end, the queue does: see [`END`].

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Mode;
use dlock_core::RequestId;

use crate::layout::Layout;

/// What comes between who it is and the place in the layout of Curator.
const CURATOR: &str = "-lock-";

/// A node in a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) node: String,
    pub(crate) mode: Mode,
    pub(crate) place: i64,
}

impl Entry {
    /// Whose it is: in the layout of Curator, what is left of that in 128 bits; see [`as_uuid`].
    pub(crate) fn id(&self) -> RequestId {
        // They were digits when it was read.
        let number = |digits: &str| u128::from_str_radix(digits, 16).unwrap_or(0);
        match self.node.strip_prefix("_c_") {
            Some(guid) => RequestId::new(number(&guid.replace('-', "")[..32]), 0),
            None => {
                let mut parts = self.node.split('-').map(number);
                let (client, sequence) = (parts.next(), parts.next());
                RequestId::new(client.unwrap_or(0), sequence.unwrap_or(0) as u64)
            }
        }
    }
}

/// What a child of a line is, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Child<'a> {
    Entry {
        mode: Mode,
        place: i64,
    },
    /// Says that the entry of that name has now that mode.
    Converted {
        entry: &'a str,
        to: Mode,
    },
}

/// The name of a node up to its place.
pub(crate) fn prefix(layout: Layout, id: RequestId, mode: Mode) -> String {
    let who = who(layout, id);
    match layout {
        Layout::Own => format!("{who}{}-", mode.code()),
        Layout::Curator => who,
    }
}

/// What the name of a node begins with that only one request has.
pub(crate) fn who(layout: Layout, id: RequestId) -> String {
    match layout {
        Layout::Own => format!("{:032x}-{:x}-", id.client(), id.sequence()),
        Layout::Curator => format!("{}{CURATOR}", as_uuid(folded(id))),
    }
}

/// What marks that an entry has another mode now.
pub(crate) fn marker(node: &str, to: Mode) -> String {
    format!("{node}~{}", to.code())
}

/// Reads the name of a child; `None` if it is not one of such a line.
pub(crate) fn parse(layout: Layout, child: &str) -> Option<Child<'_>> {
    match layout {
        Layout::Own => own(child),
        Layout::Curator => curator(child),
    }
}

/// Each waiter reads the names of the whole line, so this looks at no more than it has to.
fn own(child: &str) -> Option<Child<'_>> {
    let (client, rest) = child.split_at_checked(32)?;
    let (sequence, rest) = rest.strip_prefix('-')?.split_once('-')?;
    let (letter, rest) = rest.split_once('-')?;
    if !is_hex(client) || !is_hex(sequence) || sequence.len() > 16 {
        return None;
    }
    let wanted = Mode::from_code(letter)?;
    // The place may have a sign.
    if let Some(place) = place(rest) {
        return Some(Child::Entry { mode: wanted, place });
    }
    let (digits, to) = rest.split_once('~')?;
    place(digits)?;
    let (entry, to) = (&child[..child.len() - to.len() - 1], Mode::from_code(to)?);
    Some(Child::Converted { entry, to })
}

fn curator(name: &str) -> Option<Child<'_>> {
    let at = name.rfind(CURATOR)?;
    let guid = name[..at].strip_prefix("_c_")?.replace('-', "");
    let place = place(&name[at + CURATOR.len()..])?;
    let mode = Mode::Exclusive;
    (guid.len() == 32 && is_hex(&guid)).then_some(Child::Entry { mode, place })
}

fn is_hex(digits: &str) -> bool {
    // Without a branch for each: it is the longest part of reading a name.
    let digits_alone = digits
        .bytes()
        .fold(true, |all, digit| all & digit.is_ascii_hexdigit());
    digits_alone && !digits.is_empty()
}

fn place(digits: &str) -> Option<i64> {
    match digits.len() >= 10 {
        true => digits.parse().ok(),
        false => None,
    }
}

/// An id in 128 bits: those of one client differ by their numbers, those of several by their random bits.
pub(crate) fn folded(id: RequestId) -> u128 {
    id.client() ^ u128::from(id.sequence())
}

/// As Curator writes who it is: `_c_` and a UUID.
fn as_uuid(guid: u128) -> String {
    let hex = format!("{guid:032x}");
    format!(
        "_c_{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// From this place on no node stays in a queue, and none counts.
///
/// A server counts the nodes that were ever created in a queue, up to the largest 32-bit number. After that
/// it gives this number to all; or, while it handles several at once, the smallest numbers: by their order
/// two nodes would be first. So a queue is left to run empty before that, and begins anew. The distance only
/// keeps away from there: a request that draws such a place removes its node again, even if it is one of
/// those.
pub(crate) const END: i64 = i32::MAX as i64 - (1 << 20);

/// Whether that is a place in which one may stay.
pub(crate) fn is_place(place: i64) -> bool {
    (0..END).contains(&place)
}

/// What stands in a node: for operators, and for `inspect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeData {
    /// Where the name of the node has only part of it.
    pub(crate) id: Option<RequestId>,
    /// How long the session of the node lives when it is not heard of.
    pub(crate) ttl: Duration,
    pub(crate) whereabouts: Option<Arc<str>>,
    pub(crate) owner: Option<Arc<str>>,
}

const DATA: &str = "dlock ";

impl NodeData {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut text = format!("{DATA}ttl={}ms", self.ttl.as_millis());
        if let Some(whereabouts) = &self.whereabouts {
            let _ = write!(text, " {whereabouts}");
        }
        if let Some(id) = self.id {
            let _ = write!(text, " id={id}");
        }
        if let Some(owner) = &self.owner {
            // Last, since anything may be in it.
            let _ = write!(text, " owner={owner}");
        }
        text.into_bytes()
    }

    /// What another program wrote there is nothing to us.
    pub(crate) fn read(data: &[u8]) -> Self {
        let text = str::from_utf8(data).ok().and_then(|t| t.strip_prefix(DATA));
        let Some(text) = text else {
            return Self::default();
        };
        let (head, owner) = match text.split_once(" owner=") {
            Some((head, owner)) => (head, Some(owner.into())),
            None => (text, None),
        };
        let value = |key: &str| head.split(' ').find_map(|word| word.strip_prefix(key));
        let ttl = value("ttl=").and_then(|ttl| ttl.strip_suffix("ms")?.parse().ok());
        let whereabouts = value("host=").zip(value("pid="));
        let whereabouts = whereabouts.map(|(host, pid)| format!("host={host} pid={pid}").into());
        Self {
            whereabouts,
            id: value("id=").and_then(RequestId::parse),
            ttl: Duration::from_millis(ttl.unwrap_or(0)),
            owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const ID: RequestId = RequestId::new(0xab << 120, 0x2a);

    fn entry(layout: Layout, name: &str) -> Entry {
        match parse(layout, name) {
            Some(Child::Entry { mode, place }) => Entry {
                node: name.to_owned(),
                mode,
                place,
            },
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn a_node_is_read_as_it_was_made() {
        let permit = Mode::permit(NonZeroU32::new(3).unwrap());
        let longest = RequestId::new(1, u64::MAX);
        let name = format!("{}0000000001", prefix(Layout::Own, longest, permit));
        assert_eq!(entry(Layout::Own, &name).id(), longest);
        for mode in [Mode::Exclusive, Mode::READER, permit] {
            for (digits, place) in [
                ("0000000007", 7),
                ("-2147483648", -(1 << 31)),
                ("0000000000002147483648", 1 << 31),
            ] {
                let name = format!("{}{digits}", prefix(Layout::Own, ID, mode));
                let read = entry(Layout::Own, &name);
                assert_eq!((read.id(), read.mode, read.place), (ID, mode, place));
                let (marker, to) = (marker(&name, Mode::READER), Mode::READER);
                let converted = parse(Layout::Own, &marker);
                assert_eq!(converted, Some(Child::Converted { entry: &name, to }));
            }
        }
    }

    #[test]
    fn what_curator_makes_is_read_and_what_we_make_looks_like_it() {
        let theirs = "_c_0f2a6d1e-5b7c-4c2d-9f00-1234567890ab-lock-0000000012";
        assert_eq!(entry(Layout::Curator, theirs).place, 12);
        let ours = format!("{}0000000013", prefix(Layout::Curator, ID, Mode::Exclusive));
        assert_eq!(ours.len(), theirs.len());
        let read = entry(Layout::Curator, &ours);
        assert_eq!((read.id().client(), read.place), (folded(ID), 13));
    }

    #[test]
    fn what_is_no_node_of_a_line_is_not_taken_for_one() {
        let foreign = " x lock-0000000001 ab-2a-x-0000000001 \
            zz000000000000000000000000000000-2a-x-0000000001 \
            ab000000000000000000000000000000-2a-p0-0000000001 ab000000000000000000000000000000-2a-x-1 \
            ab000000000000000000000000000000-2a-q9-0000000001 \
            ab000000000000000000000000000000-2a-x-0000000001~q _c_0f2a6d1e-lock-0000000012 \
            ab000000000000000000000000000000-2a-x-1~r ab000000000000000000000000000000--x-0000000001 \
            ab000000000000000000000000000000-zz-x-0000000001 \
            ab000000000000000000000000000000-12345678901234567-x-0000000001 \
            _c_zf2a6d1e-5b7c-4c2d-9f00-1234567890ab-lock-0000000012 \
            _c_0f2a6d1e-5b7c-4c2d-9f00-1234567890ab__WRIT__0000000012";
        for name in foreign.split(' ') {
            assert_eq!(parse(Layout::Own, name), None, "{name}");
            assert_eq!(parse(Layout::Curator, name), None, "{name}");
        }
    }

    #[test]
    fn data_are_read_whatever_the_owner_calls_itself() {
        for owner in [None, Some(""), Some("cron owner=x\nttl=1ms id=2"), Some("ü")] {
            let data = NodeData {
                id: Some(ID),
                ttl: Duration::from_secs(12),
                whereabouts: Some("host=web-1 pid=7".into()),
                owner: owner.map(Into::into),
            };
            assert_eq!(NodeData::read(&data.write()), data);
        }
        assert_eq!(NodeData::read(b"10.1.2.3"), NodeData::default());
        assert_eq!(NodeData::read(b"\xff"), NodeData::default());
    }
}
