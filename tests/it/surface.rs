//! The table on the front page has everything that is public at the root.

const FRONT_PAGE: &str = include_str!("../../src/lib.rs");
const CORE: &str = include_str!("../../dlock-core/src/lib.rs");

/// The names that a file makes public, but for hidden ones.
fn names(file: &str) -> Vec<&str> {
    let code: String = file
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let code: &str = code.leak();
    let mut names = Vec::new();
    for item in code.split(';').map(str::trim) {
        let at = ["pub use ", "pub mod "]
            .iter()
            .filter_map(|word| item.find(word))
            .min();
        let Some(at) = at.filter(|_| !item.contains("#[doc(hidden)]")) else {
            continue;
        };
        let item = item[at + 8..].split(" {").next().unwrap_or_default();
        let item = item.rsplit("::").next().unwrap_or_default();
        names.extend(
            item.split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|n| !n.is_empty()),
        );
    }
    names
}

#[test]
fn front_page_lists_every_public_item() {
    let all: Vec<_> = [names(CORE), names(FRONT_PAGE)].concat();
    assert!(
        all.len() > 50 && all.contains(&"Guard") && all.contains(&"direct"),
        "{all:?}"
    );
    for name in all {
        let is_linked = ["`]", "()`]", "()]"]
            .iter()
            .any(|end| FRONT_PAGE.contains(&format!("[`{name}{end}")));
        // `quorum()` is told from the module of that name, and the simulator is for tests.
        assert!(
            is_linked || name == "quorum" || name == "sim",
            "`{name}` is not on the front page"
        );
    }
}
