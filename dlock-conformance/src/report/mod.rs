//! The report of a run: `report.json` is complete, and the other forms are made from it.

mod junit;
mod page;
mod profiles;
mod summary;
pub(crate) mod text;
pub mod timeline;
mod types;

use std::io::{self, Write as _};
use std::path::Path;

pub(crate) use self::profiles::{Counted, profile_of, profiles, verdict};
pub use self::profiles::{Profile, State};
pub(crate) use self::types::name_of_file;
pub use self::types::{Report, RuleReport, SCHEMA};
use crate::history::{Head, store};
use crate::options::Histories;
use crate::outcome::Kind;

impl Report {
    /// The summary for people: what is *not* proven comes first.
    pub fn summary(&self) -> String {
        summary::markdown(self)
    }

    /// A page for people that loads nothing and runs no script. Histories of rules that did not pass are
    /// judged again, to draw them.
    pub fn html(&self) -> String {
        page::html(self)
    }

    /// Writes `report.json`, `junit.xml`, `summary.md` and `report.html` to
    /// `<directory>/<backend>-<runtime>/`, and this run's line into `<directory>/summary.json`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_to(&self, directory: &Path) -> io::Result<()> {
        let own = directory.join(self.label());
        std::fs::create_dir_all(&own)?;
        std::fs::write(own.join("report.json"), serde_json::to_vec_pretty(self)?)?;
        std::fs::write(own.join("junit.xml"), junit::xml(self))?;
        std::fs::write(own.join("summary.md"), self.summary())?;
        std::fs::write(own.join("report.html"), self.html())?;
        summary::merge(self, &directory.join("summary.json"))
    }

    /// Writes the histories of rules that did not pass, or of all, to
    /// `<directory>/<backend>-<runtime>/<rule>-<seed>.jsonl`. From then on the failure texts name the files.
    /// Histories of the same rules from an earlier run are removed.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write_histories(&mut self, directory: &Path, which: Histories) -> io::Result<()> {
        let target = self.label();
        let directory = directory.join(&target);
        for rule in self.rules.iter_mut().filter(|r| !r.attempts.is_empty()) {
            remove_of(&directory, &rule.id)?;
            if rule.outcome.kind() == Kind::Pass && which == Histories::NotPassed {
                continue;
            }
            for attempt in rule.attempts.iter_mut().filter(|a| !a.history.is_empty()) {
                let outcome = attempt.outcome.kind().to_string();
                let mut head = Head::new(&rule.id, &self.product, &target, attempt.seed, outcome);
                head.asked.clone_from(&attempt.asked);
                std::fs::create_dir_all(&directory)?;
                let path = directory.join(format!("{}-{:#x}.jsonl", rule.id, attempt.seed));
                let mut file = io::BufWriter::new(std::fs::File::create(&path)?);
                store(&head, &attempt.history, &mut file)?;
                file.flush()?;
                attempt.stored = Some(path);
            }
        }
        Ok(())
    }
}

/// Histories of an earlier run would be mistaken for this one's.
fn remove_of(directory: &Path, rule: &str) -> io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&format!("{rule}-")) && name.ends_with(".jsonl") {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
