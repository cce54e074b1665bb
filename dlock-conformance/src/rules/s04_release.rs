//! §4 Release and guard drop.

use crate::cx::Cx;
use crate::rule::{Rule, rule};
use crate::verdict::{Seen, Verdict};

pub(super) static RULES: &[Rule] = &[rule! {
    "4.01" MUST phase 1 [Lock, Try]
    layer: Both, access: A, test: D,
    title: "released is free at once",
    statement: "When release answers Ok, with no waiter queued and no minimum hold, another client's try_acquire succeeds at once.",
    intent: "A release that takes effect some time later makes every hand-over slow and every cron job skip a turn.",
    check_first: "Does release answer before the store has confirmed it?",
    evidence: ["hand_overs" >= 20],
    budget: 60 s,
    bug: LazyRelease deterministic,
    blast: ["2.02", "2.09", "4.03", "4.07"]
    => released_is_free_at_once
}];

async fn released_is_free_at_once(cx: Cx) -> Verdict {
    let (a, b) = (cx.connect().await?, cx.connect().await?);
    let name = cx.name("released");
    let ask = cx.ask();
    for round in 0..cx.rounds(20, 200) {
        let held = a
            .acquire(&name, &ask)
            .await
            .seen(format_args!("round {round}: A acquires"))?;
        cx.expect_held(&*b, &name, &ask, format!("round {round}: while A holds"))
            .await?;
        held.release()
            .await
            .seen(format_args!("round {round}: A releases"))?;
        let next = cx
            .expect_free(&*b, &name, &ask, format!("round {round}: after A's release"))
            .await?;
        next.release()
            .await
            .seen(format_args!("round {round}: B releases"))?;
        cx.evidence("hand_overs");
    }
    Ok(())
}
