use std::fs;
use std::path::{Path, PathBuf};

/// Without indentation, and with one space for each break of a line.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .collect()
}

/// Only the indentation may differ.
#[test]
fn every_block_of_the_page_stands_in_a_recipe() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [here.join("src"), here.join("../cron_library/src")];
    let recipes = folders.iter().flat_map(|folder| sources(folder));
    let recipes: Vec<String> = recipes
        .map(|file| words(&fs::read_to_string(file).unwrap()))
        .collect();
    let page = fs::read_to_string(here.join("../../docs/recipes.md")).unwrap();
    let blocks: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() >= 6, "the page has {} blocks", blocks.len());
    for block in blocks {
        assert!(
            recipes.iter().any(|recipe| recipe.contains(&words(block))),
            "not in a recipe:\n{block}"
        );
    }
}
