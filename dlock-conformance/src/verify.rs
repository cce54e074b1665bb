//! Stored histories, judged again: with the checkers of this kit, and without the store that they come from.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

use crate::checker::{Judgement, wgl};
use crate::history::{Event, Head, load};
use crate::report::timeline;

/// Judges each file by what its head asks for, and says what came of it.
///
/// The exit code: 0 if all are legal, 1 if one is illegal, 2 if one could not be decided within the budget, 3
/// if one could not be read, is no history, or has the checkers contradict each other. The worst of them.
///
/// # Errors
/// Those of `out`.
pub fn verify<P: AsRef<Path>>(files: impl IntoIterator<Item = P>, mut out: impl Write) -> io::Result<u8> {
    let mut worst = 0;
    for file in files {
        let file = file.as_ref();
        write!(out, "{}: ", file.display())?;
        worst = worst.max(
            match File::open(file).and_then(|opened| load(BufReader::new(opened))) {
                Ok((head, events)) => judged(&head, &events, &mut out)?,
                Err(why) => {
                    writeln!(out, "cannot be read: {why}")?;
                    3
                }
            },
        );
    }
    Ok(worst)
}

fn judged(head: &Head, events: &[Event], out: &mut impl Write) -> io::Result<u8> {
    writeln!(
        out,
        "rule {}, {} on {}, seed {:#x}, kit {}, {} events; it came out as {}",
        head.rule,
        head.product,
        head.target,
        head.seed,
        head.kit,
        events.len(),
        head.outcome
    )?;
    let mut worst = 0;
    for asked in &head.asked {
        let (code, said) = match asked.check.judge(events, &asked.model, wgl::BUDGET) {
            Ok(Judgement::Legal) => (0, "legal".to_owned()),
            Ok(Judgement::Unknown(why)) => (2, format!("not decided: {why}")),
            Ok(Judgement::Illegal(violation)) => {
                let drawing = timeline::of(&violation, events, &asked.model);
                (1, format!("illegal: {violation}\n{drawing}"))
            }
            Err(why) => (3, format!("not judged: {why}")),
        };
        writeln!(out, "  {}: {}", asked.check, said.trim_end())?;
        worst = worst.max(code);
    }
    Ok(worst)
}
