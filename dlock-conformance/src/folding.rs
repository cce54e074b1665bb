//! Pages of prose in lines of 110 columns.

/// Folds the lines of a page in Markdown at 110 columns; tables, headings and code stay as they are.
pub fn folded(page: &str) -> String {
    let (mut text, mut is_code) = (String::new(), false);
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let indent = match line.get(..2) {
            Some("* " | "- ") => "  ",
            Some("> ") => "> ",
            _ => "",
        };
        match is_code || line.starts_with(['|', '#', ' ', '[']) {
            true => text += &format!("{line}\n"),
            false => text += &wrapped(line, indent),
        }
    }
    text
}

/// Wraps at 110 columns. All lines but the first get the indent.
pub(crate) fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let word_width = word.chars().count();
        if width + word_width >= 110 {
            lines += &format!("\n{indent}");
            width = indent.len();
        } else if width > 0 {
            lines += " ";
            width += 1;
        }
        lines += word;
        width += word_width;
    }
    lines + "\n"
}
