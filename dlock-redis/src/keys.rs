//! The keys of a name.
//!
//! All keys of a name share a hash tag, so that one script may touch them on a cluster too. The tag is one of
//! 256 buckets: the names of a bucket share the counter of their tokens, so 256 keys stay and not one for
//! each name that was ever locked.
//!
//! A script gets two of the keys and derives the others. A name is preceded by its length: whatever its
//! bytes, a suffix never makes a key of another name.

use dlock_core::{LockName, RequestId};

/// How many hash tags there are. Never to be changed: clients that differ in it do not exclude one another.
const BUCKETS: u64 = 256;

/// The bucket of a name.
pub(crate) fn bucket_of(name: &[u8]) -> u64 {
    // FNV-1a: it has to be the same for ever, and to spread, and nothing else.
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) % BUCKETS
}

/// `<prefix>{<bucket>}`, which all keys of a bucket begin with; with room for so much more.
fn bucket(prefix: &str, name: &[u8], room: usize) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bucket = bucket_of(name) as usize;
    let mut key = Vec::with_capacity(prefix.len() + 4 + room);
    key.extend_from_slice(prefix.as_bytes());
    key.extend_from_slice(&[b'{', HEX[bucket / 16], HEX[bucket % 16], b'}']);
    key
}

/// Where the holder of a name is, which all other keys of the name begin with; and the channel on which its
/// changes are told.
pub(crate) fn holder(prefix: &str, name: &LockName) -> Vec<u8> {
    let name = name.as_bytes();
    let mut key = bucket(prefix, name, name.len() + 24);
    key.push(b':');
    push_number(&mut key, name.len() as u64);
    key.push(b':');
    key.extend_from_slice(name);
    key
}

/// The name that has that key, if it is one that is there while the name is in use.
pub(crate) fn name_of_key(prefix: &str, key: &[u8]) -> Option<LockName> {
    let (_bucket, rest) = key.strip_prefix(prefix.as_bytes())?.split_at_checked(4)?;
    let rest = rest.strip_prefix(b":")?;
    let digits = rest.iter().position(|byte| *byte == b':')?;
    let len = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let (name, others) = rest[digits + 1..].split_at_checked(len)?;
    let name = LockName::new(name)
        .ok()
        .filter(|_| matches!(others, b"" | b":e" | b":q" | b":s"))?;
    // What another program has put there is no key of ours.
    key.starts_with(&holder(prefix, &name)).then_some(name)
}

/// A number in decimal digits. What is written here is written for each request: `write!` takes its time.
pub(crate) fn push_number(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The same, and where the last token of the bucket of that name is.
pub(crate) fn holder_and_counter(prefix: &str, name: &LockName) -> (Vec<u8>, Vec<u8>) {
    let holder = holder(prefix, name);
    let bucket = prefix.len() + 4;
    let mut counter = Vec::with_capacity(bucket + 2);
    counter.extend_from_slice(&holder[..bucket]);
    counter.extend_from_slice(b":t");
    (holder, counter)
}

/// Where a resource of the fence gate is.
pub(crate) fn resource(prefix: &str, resource: &LockName) -> Vec<u8> {
    let mut key = holder(prefix, resource);
    key.extend_from_slice(b":f");
    key
}

/// The channel of a client: one, or on a cluster one in each bucket. Without a colon: the scripts write it
/// between two.
pub(crate) fn channel(prefix: &str, of: Option<&LockName>, client: u128) -> Vec<u8> {
    let mut channel = match of {
        Some(name) => bucket(prefix, name.as_bytes(), 35),
        None => prefix.as_bytes().to_vec(),
    };
    channel.extend_from_slice(format!("/c/{client:032x}").as_bytes());
    channel
}

pub(crate) fn id_bytes(id: RequestId) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&id.client().to_be_bytes());
    bytes[16..].copy_from_slice(&id.sequence().to_be_bytes());
    bytes
}

pub(crate) fn read_id(bytes: &[u8]) -> Option<RequestId> {
    let (client, sequence) = bytes.split_at_checked(16)?;
    Some(RequestId::new(
        u128::from_be_bytes(client.try_into().ok()?),
        u64::from_be_bytes(sequence.try_into().ok()?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_they_have_always_been() {
        let name = |text: &str| LockName::new(text).unwrap();
        let show = |key: Vec<u8>| String::from_utf8(key).unwrap();
        assert_eq!(show(holder("dlock", &name("stock/42"))), "dlock{5b}:8:stock/42");
        let (holder, counter) = holder_and_counter("dlock", &name("stock/42"));
        assert_eq!(
            (show(holder).as_str(), show(counter).as_str()),
            ("dlock{5b}:8:stock/42", "dlock{5b}:t")
        );
        assert_eq!(show(resource("p", &name("a"))), "p{c0}:1:a:f");
        assert_eq!(show(channel("p", None, 255)), format!("p/c/{:030}ff", 0));
        assert_eq!(
            show(channel("p", Some(&name("a")), 1)),
            format!("p{{c0}}/c/{:031}1", 0)
        );
    }

    #[test]
    fn a_name_is_found_in_its_keys() {
        for text in ["a", "8:x:q", ":e", "\u{1f512}*", "{5b}"] {
            let name = LockName::new(text).unwrap();
            let key = holder("p:", &name);
            let with = |suffix: &str| [&*key, suffix.as_bytes()].concat();
            for suffix in ["", ":e", ":q", ":s"] {
                assert_eq!(
                    name_of_key("p:", &with(suffix)),
                    Some(name.clone()),
                    "{text} {suffix}"
                );
            }
            for key in [
                with(":f"),
                with(":x"),
                [b"x", &*key].concat(),
                key[..key.len() - 1].to_vec(),
            ] {
                assert_eq!(name_of_key("p:", &key), None, "{}", key.escape_ascii());
            }
        }
        assert_eq!(name_of_key("p:", b"p:{00}:1:a"), None, "another bucket");
        assert_eq!(name_of_key("p:", b"p:{c0}:t"), None);
    }

    #[test]
    fn an_id_is_read_as_it_was_written() {
        let id = RequestId::new(u128::MAX - 5, 77);
        assert_eq!(read_id(&id_bytes(id)), Some(id));
        assert_eq!(read_id(&[0; 23]), None);
    }
}
