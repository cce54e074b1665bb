//! §13 Owner labels.

use super::prelude::*;

rules! {
    labels_come_back,
}

/// Labels that something on the way might change, at most `max` bytes long.
fn labels(max: usize) -> Vec<String> {
    let plain = [
        "a",
        "nightly@web-3",
        "  spaces before and after  ",
        "it's; DROP TABLE locks; -- %s $1 {}",
        "tab\tand\r\nlines",
        "\u{e9} e\u{301} \u{1f512} \u{5d0}",
    ];
    let mut labels: Vec<String> = plain.into_iter().map(str::to_owned).collect();
    labels.push("x".repeat(max));
    // Two bytes a letter: whoever counts letters is wrong by half.
    labels.push("\u{e9}".repeat(max / 2));
    labels.retain(|label| !label.is_empty() && label.len() <= max);
    labels
}

rule! { "13.14" Must phase 3 [Lock, Try, OwnerLabel, Inspect] Both A D labels_come_back,
    evidence ["labels" >= 6], bug "label_truncated"
    "An owner label of up to the declared length comes back from inspect byte for byte; a longer one answers \
        InvalidInput, and nothing is held."
    why "The label is what an operator goes by at night: half of a host name is another host."
    check "Is the label cut, trimmed or written in another encoding on its way to the store?"
}
async fn labels_come_back(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let max = cx.claims().capabilities.max_owner_len;
    ensure!(max > 0, "labels are claimed, and none of any length");
    // Labels of more than 64 KiB prove no more than labels of that length.
    let longest = max.min(64 * 1024);
    let Some(observer) = b.observe() else {
        fail!("inspecting is claimed, and the subject offers none");
    };
    for (n, label) in labels(longest).into_iter().enumerate() {
        let name = cx.name(format_args!("labelled-{n}"));
        let ask = cx.ask().label(label.as_str());
        let held = cx.expect_free(&*a, &name, &ask, "with a label").await?;
        let seen = observer.inspect(&name).await.seen("inspecting")?;
        let [holder] = &seen.holders[..] else {
            fail!(
                "{} holders are shown of a lock that one holds",
                seen.holders.len()
            );
        };
        ensure!(
            holder.owner.as_deref() == Some(label.as_str()),
            "the label {label:?} of {} bytes comes back as {:?}",
            label.len(),
            holder.owner
        );
        held.release().await.seen("releasing")?;
        cx.evidence("labels");
    }
    if longest < max {
        return Ok(());
    }
    let name = cx.name("too long");
    let ask = cx.ask().label("x".repeat(max + 1));
    match a.try_acquire(&name, &ask).await {
        Err(e) if e.kind() == ErrorKind::InvalidInput => {}
        other => fail!(
            "a label of {} bytes is answered by {:?} rather than InvalidInput",
            max + 1,
            other.map(drop)
        ),
    }
    cx.passes(&*b, &name, &cx.ask(), "after a label that is too long")
        .await
}
