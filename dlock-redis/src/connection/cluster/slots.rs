//! Which node has which slot, as the cluster reports it.

use std::collections::BTreeMap;

use dlock_core::spi::Host;
use redis::Value;

/// How many there are.
const SLOTS: u16 = 16_384;

/// The address of a node, from a redirection. Without a host it is the host of the node that sent it.
pub(super) fn host(text: &str, told_by: &Host) -> Option<Host> {
    let (name, port) = text.rsplit_once(':')?;
    Some(Host::new(host_of(name, told_by), port.parse().ok()?))
}

fn host_of(name: &str, told_by: &Host) -> String {
    match name {
        "" | "?" => told_by.name.clone(),
        name => name.to_owned(),
    }
}

/// The slot of a key: of what is in its first braces, if there is anything in them.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let end = rest.iter().position(|b| *b == b'}')?;
        (end > 0).then(|| &rest[..end])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// The masters of the slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slots {
    /// By the last slot of a range: its first one, and who has it.
    ranges: BTreeMap<u16, (u16, Host)>,
}

impl Slots {
    /// Reads the answer to `CLUSTER SLOTS`; `None` if it is none.
    pub(super) fn read(answer: &Value, told_by: &Host) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut slots = Self::default();
        for range in ranges {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
                return None;
            };
            let [host, Value::Int(port), ..] = master.as_slice() else {
                return None;
            };
            let host = match host {
                Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
                Value::SimpleString(host) => host.clone(),
                Value::Nil => String::new(),
                _ => return None,
            };
            let at = Host::new(host_of(&host, told_by), u16::try_from(*port).ok()?);
            slots
                .ranges
                .insert(u16::try_from(*last).ok()?, (u16::try_from(*first).ok()?, at));
        }
        Some(slots)
    }

    pub(super) fn master(&self, slot: u16) -> Option<&Host> {
        let (_, (first, at)) = self.ranges.range(slot..).next()?;
        (*first <= slot).then_some(at)
    }

    /// How many have a master.
    pub(super) fn count(&self) -> usize {
        let ranges = self.ranges.iter();
        ranges
            .map(|(last, (first, _))| usize::from(last.saturating_sub(*first)) + 1)
            .sum()
    }

    pub(super) fn are_all(&self) -> bool {
        self.count() >= usize::from(SLOTS)
    }

    /// That slot is there now.
    pub(super) fn moved(&mut self, slot: u16, to: Host) {
        let Some((&last, &(first, _))) = self.ranges.range(slot..).next() else {
            self.ranges.insert(slot, (slot, to));
            return;
        };
        if first <= slot
            && let Some((_, old)) = self.ranges.remove(&last)
        {
            if first < slot {
                self.ranges.insert(slot - 1, (first, old.clone()));
            }
            if slot < last {
                self.ranges.insert(last, (slot + 1, old));
            }
        }
        self.ranges.insert(slot, (slot, to));
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Host> {
        self.ranges.values().map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Host {
        Host::new("h", port)
    }

    fn two() -> Slots {
        let node = |host: &str, port| {
            Value::Array(vec![
                Value::BulkString(host.as_bytes().to_vec()),
                Value::Int(port),
                Value::BulkString(b"id".to_vec()),
            ])
        };
        let range = |from, to, node| Value::Array(vec![Value::Int(from), Value::Int(to), node]);
        let answer = Value::Array(vec![range(0, 99, node("h", 1)), range(200, 16_383, node("", 2))]);
        // Without a host it is the one that was asked.
        Slots::read(&answer, &at(7)).unwrap()
    }

    fn ports<const N: usize>(slots: &Slots, of: [u16; N]) -> [u16; N] {
        of.map(|slot| slots.master(slot).map_or(0, |at| at.port))
    }

    #[test]
    fn a_slot_is_found_by_its_range_and_moves_alone() {
        let mut slots = two();
        assert_eq!(ports(&slots, [0, 99, 100, 200, 16_383]), [1, 1, 0, 2, 2]);
        for (slot, to) in [(0, 3), (50, 3), (99, 4), (150, 5), (16_383, 6)] {
            slots.moved(slot, at(to));
        }
        let of = [0, 1, 49, 50, 51, 98, 99, 100, 150, 151, 200, 16_382, 16_383];
        assert_eq!(ports(&slots, of), [3, 1, 1, 3, 1, 1, 4, 0, 5, 0, 2, 2, 6]);
    }

    #[test]
    fn slots_without_a_node_are_not_counted() {
        let mut slots = two();
        assert_eq!((slots.count(), slots.are_all()), (16_384 - 100, false));
        for slot in 100..200 {
            slots.moved(slot, at(3));
        }
        assert_eq!((slots.count(), slots.are_all()), (16_384, true));
        assert_eq!(Slots::default().count(), 0);
    }

    #[test]
    fn a_redirection_is_read() {
        assert_eq!(host("h:3", &at(7)), Some(at(3)));
        assert_eq!(host(":3", &at(7)), Some(at(3)));
        let six = host("fe80::1:6379", &at(7)).unwrap();
        assert_eq!((six.name.as_str(), six.port), ("fe80::1", 6379));
        assert_eq!(host("nonsense", &at(7)), None);
    }

    #[test]
    fn the_slot_of_a_key_is_that_of_its_tag() {
        // As Redis says with `CLUSTER KEYSLOT`.
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"a{foo}b{c}"), 12_182);
        assert_eq!(slot_of(b"{}foo"), 9_500);
    }
}
