//! One page of what the other programs have measured: a table in Markdown, and plots in HTML.
//!
//! `page FOLDER MARKDOWN HTML`: the folder is the one that they have left their figures in. See
//! `scripts/bench`.
#![allow(clippy::print_stdout)] // it is a program that prints

mod draw;
mod plots;
mod text;

use std::path::Path;

/// The programs, in the order of the page, and what each compares.
const PROGRAMS: [(&str, &str); 7] = [
    ("peers", "Redis beside other libraries"),
    ("redis", "Redis beside the bare driver"),
    ("sql", "PostgreSQL, MariaDB and SQLite beside the bare driver"),
    (
        "zookeeper",
        "ZooKeeper beside the bare driver, its recipe and Curator",
    ),
    ("etcd", "etcd beside the bare driver and its own lock API"),
    ("cost", "The engine on the backend in memory"),
    ("held", "Ten thousand locks that are held"),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, markdown, html] = &words[..] else {
        println!("page FOLDER MARKDOWN HTML");
        std::process::exit(2);
    };
    let folder = Path::new(folder);
    let read = |name: &str, ending: &str| {
        std::fs::read_to_string(folder.join(format!("{name}.{ending}"))).unwrap_or_default()
    };
    let plots = plots::all(PROGRAMS.map(|(name, _)| read(name, "tsv")));
    let parts: Vec<_> = PROGRAMS
        .into_iter()
        .map(|(name, title)| (title, read(name, "md")))
        .filter(|(_, text)| !text.is_empty())
        .collect();
    let about = read("about", "md");
    let beside = html.rsplit('/').next().unwrap_or(html);
    std::fs::write(markdown, text::markdown(beside, &about, &plots, &parts))
        .expect("the file can be written");
    std::fs::write(html, text::html(&about, &plots, &parts)).expect("the file can be written");
    println!(
        "{} plots, {} tables: {markdown}, {html}",
        plots.len(),
        parts.len()
    );
}
