//! The page in Markdown and in HTML.

use std::fmt::Write as _;

use crate::draw::svg;
use crate::plots::Plot;

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;font-size:14px;display:block;overflow-x:auto}\
td,th{border:1px solid #ccc;padding:3px 8px;text-align:left}figure{margin:2em 0}figcaption{font-weight:bold}\
svg{max-width:100%;height:auto}.behind{color:#b2321f}";

fn is_behind(plot: &Plot) -> bool {
    matches!(plot.ahead()[0], Some((_, times)) if times > 1.0)
}

/// With the tables, and in words what the plots show. `html` names the page beside it.
pub(crate) fn markdown(html: &str, about: &str, plots: &[Plot], parts: &[(&str, String)]) -> String {
    let mut text = format!(
        "# Benchmarks\n\nWritten by `scripts/bench`; the same with plots is [{html}]({html}). \
         What the rows mean, and what is known of those that fall short, is in \
         [benches/README.md](https://github.com/dlock-rs/dlock/blob/main/benches/README.md).\n\n\
         {about}\n## Who is ahead\n\nWhere a peer is ahead comes first.\n\n"
    );
    for plot in plots.iter().filter(|plot| !plot.verdict().is_empty()) {
        let _ = writeln!(text, "- {} ({:?}): {}.", plot.title, plot.shows, plot.verdict());
    }
    for (title, part) in parts {
        let _ = write!(text, "\n## {title}\n\n{}\n", part.trim_end());
    }
    text.lines().map(folded).collect()
}

/// In lines of 110 columns, unless it is of a table.
fn folded(line: &str) -> String {
    let options = textwrap::Options::new(110)
        .subsequent_indent(if line.starts_with("- ") { "  " } else { "" })
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    match line.starts_with(['|', '#']) {
        true => format!("{line}\n"),
        false => textwrap::fill(line, options) + "\n",
    }
}

/// With everything in it: it is one file, and asks nobody for anything.
pub(crate) fn html(about: &str, plots: &[Plot], parts: &[(&str, String)]) -> String {
    let mut text = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>dlock: benchmarks</title>\
         <style>{STYLE}</style></head><body>\n<h1>dlock: benchmarks</h1>\n{}\n",
        blocks(about)
    );
    text.push_str(
        "<p>Where a peer is ahead comes first. Blue is dlock, grey what the store can do at most.</p>\n",
    );
    for plot in plots {
        let class = if is_behind(plot) { " class=\"behind\"" } else { "" };
        let _ = writeln!(
            text,
            "<figure><figcaption>{}</figcaption><p{class}>{}</p>{}</figure>",
            escaped(&format!("{} ({:?})", plot.title, plot.shows)),
            escaped(&plot.verdict()),
            svg(plot)
        );
    }
    for (title, part) in parts {
        let _ = writeln!(text, "<h2>{}</h2>\n{}", escaped(title), blocks(part));
    }
    text.push_str("</body></html>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Tables, items and paragraphs, which is all that the programs print.
fn blocks(markdown: &str) -> String {
    let mut html = String::new();
    let mut open = "";
    for line in markdown.lines().chain([""]) {
        let wants = match line {
            row if row.starts_with('|') => "table",
            item if item.starts_with("- ") => "ul",
            _ => "",
        };
        if wants != open {
            if !open.is_empty() {
                let _ = writeln!(html, "</{open}>");
            }
            if !wants.is_empty() {
                let _ = writeln!(html, "<{wants}>");
            }
        }
        let begins = wants != open;
        open = wants;
        let _ = match wants {
            "table" if line.starts_with("|--") => Ok(()),
            "table" => {
                let cell = if begins { "th" } else { "td" };
                let cells = line.trim_matches('|').split(" | ");
                let cells = cells.map(|c| format!("<{cell}>{}</{cell}>", escaped(c.trim())));
                writeln!(html, "<tr>{}</tr>", cells.collect::<String>())
            }
            "ul" => writeln!(html, "<li>{}</li>", escaped(&line[2..])),
            _ if line.is_empty() => Ok(()),
            _ => writeln!(html, "<p>{}</p>", escaped(line)),
        };
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_and_what_is_around_it_become_html() {
        let html = blocks("1 < 2\n\n| a | b |\n|---|---|\n| 1 |  |\n\n- x & y\n");
        assert_eq!(
            html,
            "<p>1 &lt; 2</p>\n<table>\n<tr><th>a</th><th>b</th></tr>\n\
             <tr><td>1</td><td></td></tr>\n</table>\n<ul>\n<li>x &amp; y</li>\n</ul>\n"
        );
    }
}
