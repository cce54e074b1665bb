//! §13 Names and limits.

use std::collections::BTreeSet;

use super::colliding::HASHES;
use super::prelude::*;
use super::s02_acquire::refused_as_invalid;

rules! {
    names_up_to_the_limit_work, different_bytes_different_locks, colliding_hashes_stay_apart, case_matters,
    blanks_are_significant, unicode_is_not_normalised, names_are_no_paths, names_are_no_patterns,
    names_are_never_executed, oversize_names_are_refused,
}

/// Names of more than 64 KiB prove no more than names of that length.
fn longest(cx: &Cx) -> usize {
    cx.claims().capabilities.max_name_len.min(64 * 1024)
}

rule! { "13.01" Must phase 1 [Lock, Try] Both A D names_up_to_the_limit_work, evidence ["lengths" >= 8],
    bug "name_max_255"
    "Names of one byte up to the declared maximum, which is at least 1 KiB, are acquired, exclude and are \
        released."
    why "A name that is longer than a column or a key limit fails on the day that a tenant has a long name."
    check "Is there a column, key or path limit below the declared one, or a prefix that was not counted?"
}
async fn names_up_to_the_limit_work(cx: Cx) -> Verdict {
    let max = longest(&cx);
    ensure!(
        max >= 1024,
        "names of {max} bytes are the longest that are claimed: 1024 is the least"
    );
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask().ttl(cx.steady_ttl());
    // A name of one byte cannot be unique to this run. If another client has it, the next one is tried;
    // hardly all of them are held.
    let mut single = None;
    for byte in *b"\x7f~^q7" {
        let name = LockName::new([byte]).map_err(Failure::from)?;
        if let Some(guard) = a.try_acquire(&name, &ask).await.seen("a name of one byte")? {
            b.is_refused(&name, &ask, "a name of one byte").await?;
            single = Some(guard);
            break;
        }
    }
    match single {
        Some(guard) => guard.release().await.seen("releasing a name of one byte")?,
        None => inconclusive!("every name of one byte that was tried is held already"),
    }
    cx.evidence("lengths");
    let least = cx.namespace().len() + 2;
    let lengths: BTreeSet<usize> = [63, 127, 191, 255, 511, 767, 1023, 2047, 3071, 4095, 8191, 65535]
        .into_iter()
        .flat_map(|n| n..n + 3)
        .chain([least, max - 1, max])
        .filter(|n| (least..=max).contains(n))
        .collect();
    for length in lengths {
        let name = name_of_length(&cx, length, b"");
        let doing = format!("a name of {length} bytes");
        let guard = a.is_granted(&name, &ask, &doing).await?;
        b.is_refused(&name, &ask, &doing).await?;
        guard.released(doing).await?;
        cx.evidence("lengths");
    }
    Ok(())
}

rule! { "13.02" Must phase 1 [Lock, Try] Both A D different_bytes_different_locks,
    evidence ["names_held_at_once" >= 6], bug "name_truncated"
    "Names that differ in one byte, including the last one at the maximum length, and names that are not \
        valid text, are different locks or are refused."
    why "If names are cut silently, strangers wait for each other, and one client's release frees another's \
        lock."
    check "Is the name cut to a column's width, ended at a zero byte, or converted to text with replacement \
        characters?"
}
async fn different_bytes_different_locks(cx: Cx) -> Verdict {
    let max = longest(&cx);
    let long = [
        (max, b"a"),
        (max, b"b"),
        (max, b"A"),
        (max - 1, b"a"),
        (max / 2, b"a"),
    ];
    let long = long.map(|(length, ending)| name_of_length(&cx, length, ending));
    all_apart(&cx, &long, Refusal::No).await?;
    all_apart(&cx, &names(&cx, &["a", "b", "aa", "ab", "ba"]), Refusal::No).await?;
    let raw = b"\xff|\xfe|\x80|\xc3|\xc3\x28|z\0a|z\0b|z".split(|byte| *byte == b'|');
    let raw: Vec<_> = raw.map(|bytes| cx.name_bytes(bytes)).collect();
    all_apart(&cx, &raw, Refusal::InvalidInput).await
}

rule! { "13.03" Must phase 1 [Lock, Try] Both A D colliding_hashes_stay_apart,
    evidence ["names_held_at_once" >= 8], bug "name_hash32"
    "Names with the same CRC-32, Java hashCode, FNV-1a, murmur3 or PostgreSQL hashtext are different locks."
    why "Among 77,000 names, two have the same 32-bit hash with even odds. Two tenants then share one lock, \
        and nothing shows why."
    check "Is the store's key a 32-bit hash of the name, for example an advisory lock number?"
}
async fn colliding_hashes_stay_apart(cx: Cx) -> Verdict {
    let beginning = cx.name_bytes("");
    for hash in HASHES {
        let Some(pair) = hash.pair(beginning.as_bytes()) else {
            cx.note(format_args!(
                "no two names with the same {} were found",
                hash.name
            ));
            continue;
        };
        let pair = pair.map(|bytes| cx.name_bytes(&bytes[beginning.as_bytes().len()..]));
        all_apart(&cx, &pair, Refusal::No)
            .await
            .seen(format_args!("two names with the same {}", hash.name))?;
    }
    Ok(())
}

rule! { "13.04" Must phase 1 [Lock, Try] Both A D case_matters, evidence ["names_held_at_once" >= 12],
    bug "name_case_fold"
    "Names that differ only in case are different locks."
    why "MySQL's GET_LOCK and many collations fold case. A program that moves there from another store \
        changes its meaning silently."
    check "Does the column have a case-insensitive collation?"
}
async fn case_matters(cx: Cx) -> Verdict {
    let set = [
        "case", "CASE", "Case", "cASE", "straße", "STRASSE", "STRAẞE", "é", "É", "σ", "ς", "Σ", "i", "I",
        "İ", "ı", "k", "K", "\u{212a}",
    ];
    all_apart(&cx, &names(&cx, &set), Refusal::No).await
}

rule! { "13.05" Must phase 1 [Lock, Try] Both A D blanks_are_significant,
    evidence ["names_held_at_once" >= 2], bug "name_trailing_space"
    "Leading and trailing blanks, tabs, line ends and control characters are significant or refused with \
        InvalidInput. They are never ignored or folded."
    why "SQL compares padded strings as equal. A name that was read from a file together with its line end \
        is another name."
    check "Does the column pad or trim (CHAR, PAD SPACE), or does a client trim its input?"
}
async fn blanks_are_significant(cx: Cx) -> Verdict {
    let set = [
        "t", "t ", "t  ", " t", "t\t", "\tt", "t\n", "\nt", "t\r\n", "t\r", "t\0", "t\u{1}", "t\u{1b}",
        "t\u{7f}", "t\u{a0}",
    ];
    let set = [&set[..], &["t\u{3000}"]].concat();
    all_apart(&cx, &names(&cx, &set), Refusal::InvalidInput).await
}

rule! { "13.06" Must phase 1 [Lock, Try] Both A D unicode_is_not_normalised,
    evidence ["names_held_at_once" >= 20], bug "name_nfc"
    "Composed and decomposed forms, characters beyond the basic plane, right-to-left marks and zero-width \
        characters make names that work and are distinct."
    why "Unless only bytes count, two spellings that look the same are one lock in one store and two in \
        another."
    check "Does the collation compare by Unicode equivalence, or ignore characters without a weight?"
}
async fn unicode_is_not_normalised(cx: Cx) -> Verdict {
    let set = [
        // Composed, decomposed, and compatible forms.
        "\u{e9} e\u{301} e \u{c5} \u{212b} A\u{30a} \u{fb01} fi \u{ff21} A \u{d55c} \u{1112}\u{1161}\u{11ab}",
        // Beyond the basic plane.
        "\u{1f600} \u{1f601} \u{1d4b3} X",
        // Marks of direction, and characters without a width.
        "\u{202e}ab ab a\u{200b}b a\u{200d}b \u{feff}ab a\u{ad}b \u{5d0}\u{5d1} \u{5d1}\u{5d0}",
    ];
    let set: Vec<_> = set.iter().flat_map(|some| some.split(' ')).collect();
    all_apart(&cx, &names(&cx, &set), Refusal::No).await
}

rule! { "13.07" Must phase 1 [Lock, Try] Both A D names_are_no_paths, evidence ["names_held_at_once" >= 12],
    bug "name_as_path"
    "`a`, `a/b`, `/a`, `a//b`, `.`, `..` and the like are independent locks, without parents and children."
    why "In a tree-shaped store a lock on `orders` must not block, hide or remove one on `orders/42`."
    check "Is the name escaped into one path element, or used as a path as it is?"
}
async fn names_are_no_paths(cx: Cx) -> Verdict {
    let set = [
        "a", "a/b", "/a", "a//b", ".", "..", "a/", "a/.", "a/..", "./a", "../a", "a/b/c", "//", "a\\b",
    ];
    all_apart(&cx, &names(&cx, &set), Refusal::No).await
}

rule! { "13.08" Must phase 1 [Lock, Try] Both A D names_are_no_patterns,
    evidence ["names_held_at_once" >= 16], bug "name_as_glob"
    "Glob characters, LIKE wildcards and hash tags in a name have no effect on other names."
    why "A clean-up by KEYS or LIKE with a user's name in it removes the locks of other users."
    check "Does a lookup, a clean-up or a subscription use the name as a pattern?"
}
async fn names_are_no_patterns(cx: Cx) -> Verdict {
    // The plain names first, so that a pattern has something to match when it comes; then once more in the
    // other order.
    let mut set = names(
        &cx,
        &[
            "ab", "abc", "xb", "b", "{t}a", "{t}b", "a%c", "a_c", "*", "a*", "?b", "[ax]b", "[^y]b",
            "{a,x}b", "{t}", "%", "_b", "a\\b", "**", "ab$", "^ab", ".*",
        ],
    );
    all_apart(&cx, &set, Refusal::No).await?;
    set.reverse();
    all_apart(&cx, &set, Refusal::No).await
}

const PAYLOADS: [&str; 16] = [
    "x'; DROP TABLE locks; --",
    "x'; DELETE FROM dlock_locks; --",
    "x' OR '1'='1",
    "x\" OR \"\"=\"",
    "x\\'; TRUNCATE locks; #",
    "$$; DELETE FROM locks; $$",
    "x') ON CONFLICT DO NOTHING; --",
    "]] redis.call('FLUSHALL') --[[",
    "' .. redis.call('FLUSHALL') .. '",
    "x\r\nFLUSHALL\r\n",
    "x\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    "$(touch /tmp/x)`touch /tmp/x`",
    "x; rm -rf /",
    "%s%s%s%n%x",
    "{}{0}{name}",
    "${jndi:ldap://localhost/x}",
];

rule! { "13.09" Must phase 1 [Lock, Try] Both A D names_are_never_executed, evidence ["payloads" >= 12],
    bug "name_interpolated"
    "SQL, Lua, protocol, shell and format payloads are plain names, and locks that were held before survive \
        them."
    why "Users type lock names. A name that is pasted into a statement is an injection."
    check "Is the name bound as a parameter everywhere, including scripts, notifications and error paths?"
}
async fn names_are_never_executed(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let mut sentinels = Vec::new();
    for name in names(&cx, &["sentinel", "x", "locks"]) {
        let guard = a.is_granted(&name, &ask, "before any payload").await?;
        sentinels.push((name, guard));
    }
    for payload in PAYLOADS {
        let name = cx.name(payload);
        match b.try_acquire(&name, &ask).await {
            Ok(Some(guard)) => {
                a.is_refused(&name, &ask, "while B holds it").await?;
                guard.release().await.seen(format_args!("B releases `{name}`"))?;
                a.passes(&name, &ask, "after B's release").await?;
            }
            Ok(None) => fail!("`{name}` is refused although it is free"),
            // Control characters may be refused (13.05); a refused name must do no harm either.
            Err(e) if e.kind() == ErrorKind::InvalidInput && payload.contains('\r') => {}
            Err(e) => fail!("acquiring `{name}`: {e:?}"),
        }
        for (sentinel, _) in &sentinels {
            b.is_refused(sentinel, &ask, format!("after the name `{name}` was used"))
                .await?;
        }
        cx.evidence("payloads");
    }
    for (name, guard) in sentinels {
        let released = guard.release().await;
        released.seen(format_args!("releasing `{name}` after all payloads"))?;
    }
    Ok(())
}

rule! { "13.10" Must phase 1 [Lock, Try] Both A D oversize_names_are_refused, evidence ["refusals" >= 6],
    bug "oversize_hashed"
    "Empty names and names beyond the declared maximum answer InvalidInput, and nothing is held under them, \
        under a prefix of them or under their hash."
    why "Silent cutting or hashing merges two locks into one, but only for the longest names."
    check "Is the length checked against the declared maximum, in bytes, before anything is sent?"
}
async fn oversize_names_are_refused(cx: Cx) -> Verdict {
    refused(LockName::new(""), ErrorKind::InvalidInput, "an empty name")?;
    let max = cx.claims().capabilities.max_name_len;
    if max > 1 << 24 {
        not_run!("names of {max} bytes are too long to try");
    }
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let limit = cx.claims().op_bound;
    for beyond in [1, 2, 1024] {
        let name = name_of_length(&cx, max + beyond, b"");
        let what = format!("a name of {} bytes, {beyond} more than the maximum", max + beyond);
        let tried = cx.within(limit, &what, a.try_acquire(&name, &ask)).await?;
        let waited = cx
            .within(limit * 2, &what, a.acquire_timeout(&name, &ask, limit))
            .await?;
        refused_as_invalid(&cx, tried, &what, "try_acquire")?;
        refused_as_invalid(&cx, waited.map(Some), &what, "acquire_timeout")?;
        let cut = name_of_length(&cx, max, b"");
        b.passes(&cut, &ask, "its beginning, after the refusal").await?;
    }
    Ok(())
}

/// Whether a store may say that it takes no such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// They are names like any other.
    No,
    /// `InvalidInput` is allowed. Taking one name for another is not.
    InvalidInput,
}

/// Holds all of these at once, sees that each is held under its own name, and that a release ends that one
/// alone.
pub(super) async fn all_apart(cx: &Cx, names: &[LockName], refusal: Refusal) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let ask = cx.ask();
    let mut held = Vec::new();
    for name in names {
        match a.try_acquire(name, &ask).await {
            Ok(Some(guard)) => held.push((name, guard)),
            Ok(None) => fail!(
                "`{name}` is refused although it is free; held are {:?}: two names are one lock",
                held.iter().map(|(n, _)| *n).collect::<Vec<_>>()
            ),
            Err(e) if refusal == Refusal::InvalidInput && e.kind() == ErrorKind::InvalidInput => {
                cx.evidence("names_refused");
            }
            Err(e) => fail!("acquiring `{name}`: {e:?}"),
        }
    }
    for (name, _) in &held {
        b.is_refused(name, &ask, "while every name of the set is held")
            .await?;
        cx.evidence("names_held_at_once");
    }
    let mut taken = Vec::new();
    while !held.is_empty() {
        let (name, guard) = held.remove(0);
        guard.release().await.seen(format_args!("releasing `{name}`"))?;
        let when = "after its own release, the others still held";
        taken.push(b.is_granted(name, &ask, when).await?);
        for (other, _) in &held {
            b.is_refused(other, &ask, format!("after the release of `{name}`"))
                .await?;
        }
    }
    for guard in taken {
        guard.release().await.seen("the second holder releases")?;
    }
    Ok(())
}

/// The texts as names of this run.
pub(super) fn names(cx: &Cx, endings: &[&str]) -> Vec<LockName> {
    endings.iter().map(|ending| cx.name(ending)).collect()
}

/// A name of this run that is exactly that long, and ends like that.
pub(super) fn name_of_length(cx: &Cx, length: usize, ending: &[u8]) -> LockName {
    let room = length.saturating_sub(cx.namespace().len() + 1 + ending.len());
    let mut bytes = vec![b'n'; room];
    bytes.extend_from_slice(ending);
    cx.name_bytes(bytes)
}
