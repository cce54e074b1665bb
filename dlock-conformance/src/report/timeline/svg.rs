//! The drawing as SVG, for the page.
//!
//! What a colour tells is told by a shape or a word as well. Each operation, grant, fault and cut can be
//! pointed at or reached with the keyboard: what is known of it then stands above the drawing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::lanes::Line;
use super::{GRANTS, LANES, SIGNS, Scene, about, ending, extent, shown_ms, token, told};
use crate::checker::Violation;
use crate::history::{Event, Model, Span};
use crate::report::text::escape;

/// How wide these are, in pixels: the drawing, the mark of a cut, what stands before the drawing, a letter.
const COLUMNS: usize = 900;
const CUT: usize = 16;
const LEFT: usize = 94;
const LETTER: usize = 7;

/// How high these are: what is said of the shape that is pointed at, the times, a row.
const SAYS: usize = 40;
const TIMES: usize = 22;
const ROW: usize = 26;

/// Bars by their class: how far below the top of the row they begin, how high they are, what they mean.
const BARS: [(&str, usize, usize, &str); 9] = [
    ("asks", 10, 6, "asks"),
    ("holds", 4, 18, "holds"),
    ("past", 4, 18, "holds past its deadline"),
    ("lets-go", 10, 6, "lets go"),
    ("sure", 4, 18, "granted for sure"),
    ("perhaps", 8, 10, "granted perhaps"),
    ("clash", 4, 18, "cannot both be right"),
    ("fault", 4, 18, "a fault"),
    ("stall", 4, 18, "the machine stood still"),
];

/// What [`super::of`] draws.
pub fn of(violation: &Violation, events: &[Event], model: &Model) -> String {
    draw(&about(violation, events), &violation.operations, model)
}

/// What [`super::latest`] draws.
pub fn latest(events: &[Event], model: &Model) -> String {
    draw(&ending(events), &[], model)
}

/// What [`super::draw`] draws.
pub fn draw(events: &[Event], marked: &[u64], model: &Model) -> String {
    let scene = Scene::new(events, marked, model, COLUMNS, CUT);
    if scene.axis.columns() == 0 {
        return String::new();
    }
    let mut drawing = Drawing {
        scene: &scene,
        text: String::new(),
        y: SAYS + TIMES,
    };
    drawing.behind();
    let (shown, hidden) = scene.lanes.shown(LANES);
    for lane in shown {
        drawing.row(&format!("lane {}", lane.lane), lane.is_marked);
        for line in lane.lines {
            let shapes = drawing.line(line);
            drawing.item(told(events, line.unit).trim(), &shapes);
        }
    }
    drawing.more(hidden, "lanes");
    drawing.granted();
    drawing.faults();
    drawing.clash();
    drawing.cuts();
    let (width, height) = (LEFT + COLUMNS + 12, drawing.y + 4);
    format!(
        "<svg class=\"timeline\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
            role=\"group\" aria-label=\"timeline\">\n{}</svg>\n",
        drawing.text
    )
}

/// What the bars and the signs mean.
pub fn legend() -> String {
    let mut text = String::from("<p class=\"legend\">");
    for (class, top, height, means) in BARS {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "<span><svg width=\"34\" height=\"{ROW}\" aria-hidden=\"true\"><rect class=\"{class}\" x=\"1\" \
                y=\"{top}\" width=\"32\" height=\"{height}\"/></svg> {means}</span> "
        );
    }
    for (sign, means) in SIGNS.iter().filter(|(sign, _)| !"=#.~->".contains(*sign)) {
        let _ = write!(text, "<span><b>{}</b> {means}</span> ", escape(&sign.to_string()));
    }
    text + "</p>"
}

struct Drawing<'a> {
    scene: &'a Scene,
    text: String,
    /// Where the next row begins.
    y: usize,
}

impl Drawing<'_> {
    fn put(&mut self, shape: &str) {
        self.text.push_str(shape);
        self.text.push('\n');
    }

    /// Shapes to point at.
    fn item(&mut self, says: &str, shapes: &str) {
        let (says, width) = (escape(says), LEFT + COLUMNS);
        self.put(&format!(
            "<g class=\"item\" tabindex=\"0\" role=\"img\" aria-label=\"{says}\">{shapes}<foreignObject \
                width=\"{width}\" height=\"{SAYS}\"><p>{says}</p></foreignObject></g>"
        ));
    }

    fn row(&mut self, label: &str, is_marked: bool) {
        let (x, y) = (LEFT - 10, self.y + 17);
        let (class, mark) = if is_marked {
            (" marked", "\u{25b6} ")
        } else {
            ("", "")
        };
        self.put(&format!(
            "<text class=\"label{class}\" x=\"{x}\" y=\"{y}\">{mark}{label}</text>"
        ));
        self.y += ROW;
    }

    fn more(&mut self, hidden: usize, what: &str) {
        if hidden > 0 {
            let y = self.y + 17;
            self.put(&format!(
                "<text x=\"{LEFT}\" y=\"{y}\">and {hidden} {what} more</text>"
            ));
            self.y += ROW;
        }
    }

    fn x(&self, at: u64) -> usize {
        LEFT + self.scene.axis.column(at)
    }

    /// A bar in the row, with words inside if there is room, and not below a cut.
    fn bar(&self, class: &str, (from, until): (u64, u64), words: &str) -> String {
        let (x, end, row) = (self.x(from), self.x(until), self.y - ROW);
        let (_, top, height, _) = BARS.iter().find(|bar| bar.0 == class).unwrap_or(&BARS[0]);
        let mut bar = format!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"{}\" height=\"{height}\"/>",
            row + top,
            end.saturating_sub(x).max(2)
        );
        let wide = 8 + words.chars().count() * LETTER;
        let mut left = x;
        for cut in self.scene.axis.cuts() {
            if left < LEFT + cut.end && LEFT + cut.start < left + wide {
                left = LEFT + cut.end;
            }
        }
        if !words.is_empty() && left + wide <= end {
            let (x, y, words) = (left + 4, row + 17, escape(words));
            bar += &format!("<text class=\"in-{class}\" x=\"{x}\" y=\"{y}\">{words}</text>");
        }
        if until == u64::MAX {
            bar += &self.sign(until, '\u{25b8}');
        }
        bar
    }

    fn sign(&self, at: u64, sign: char) -> String {
        let (x, y, sign) = (self.x(at), self.y - ROW + 17, escape(&sign.to_string()));
        format!("<text class=\"sign\" x=\"{x}\" y=\"{y}\">{sign}</text>")
    }

    /// What goes through all rows: the times, and the bands of faults, stalls and the clash.
    fn behind(&mut self) {
        let bands = self.scene.bands.iter().map(|b| (b.class(), b.from, b.until));
        let clash = self
            .scene
            .clash
            .iter()
            .map(|(from, until)| ("clash", *from, *until));
        for (class, from, until) in bands.chain(clash) {
            let (x, top) = (self.x(from), SAYS + TIMES);
            let width = self.x(until).saturating_sub(x).max(2);
            self.put(&format!(
                "<rect class=\"{class} through\" x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"100%\"/>"
            ));
        }
        let y = SAYS + TIMES - 7;
        let hint = "Point at a shape, or go to it with the Tab key: what is known of it stands here.";
        self.put(&format!("<text class=\"hint\" x=\"4\" y=\"16\">{hint}</text>"));
        self.put(&format!(
            "<text class=\"label\" x=\"{}\" y=\"{y}\">ms</text>",
            LEFT - 10
        ));
        for (column, label) in self.scene.axis.labels(150, LETTER) {
            let x = LEFT + column;
            self.put(&format!(
                "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"100%\"/><text x=\"{}\" \
                    y=\"{y}\">{label}</text>",
                SAYS + 4,
                x + 4
            ));
        }
    }

    fn line(&self, line: &Line) -> String {
        let mut shapes = String::new();
        let mut signs = line.signs.clone();
        if let Some((from, until, sign)) = line.asked {
            shapes += &self.bar("asks", (from, until), "");
            signs.push((until, sign));
        }
        if let Some(from) = line.held {
            let until = line.let_go.map_or(u64::MAX, |(from, ..)| from);
            let deadline = line.believed.clamp(from, until);
            let words = line.token.map_or_else(String::new, |_| token(line.token));
            shapes += &self.bar("holds", (from, deadline), &words);
            if deadline < until {
                shapes += &self.bar("past", (deadline, until), "");
            }
        }
        if let Some((from, until, sign)) = line.let_go {
            shapes += &self.bar("lets-go", (from, until), "");
            signs.push((until, sign));
        }
        // Bars tell by themselves that they begin, and that they go on.
        signs.retain(|(at, sign)| *at < u64::MAX && !matches!(sign, '=' | '-'));
        shapes.extend(signs.iter().map(|(at, sign)| self.sign(*at, *sign)));
        shapes
    }

    fn granted(&mut self) {
        let grants = &self.scene.grants;
        let places = self.scene.rows(grants.iter().map(extent), GRANTS);
        let rows: BTreeSet<usize> = places.iter().flatten().copied().collect();
        for row in rows {
            self.row("granted", false);
            for (span, _) in grants
                .iter()
                .zip(&places)
                .filter(|(_, place)| **place == Some(row))
            {
                let mut shapes = self.bar("perhaps", extent(span), "");
                let (from, until) = span.surely();
                if from < until {
                    shapes += &self.bar("sure", (from, until), &token(span.token));
                }
                self.item(&known(span), &shapes);
            }
        }
        self.more(places.iter().filter(|place| place.is_none()).count(), "grants");
    }

    fn faults(&mut self) {
        for (class, label) in [("fault", "faults"), ("stall", "stalls")] {
            let mut bands = self.scene.bands.iter().filter(|b| b.class() == class).peekable();
            if bands.peek().is_some() {
                self.row(label, false);
            }
            for band in bands {
                let what = band.fault.as_deref().unwrap_or("the machine stood still");
                let says = format!("{what}, {}", between(band.from, band.until));
                let shapes = self.bar(class, (band.from, band.until), what);
                self.item(&says, &shapes);
            }
        }
    }

    fn clash(&mut self) {
        let clash = &self.scene.clash;
        if let Some((from, until)) = clash.first() {
            self.row(if from < until { "both hold" } else { "here" }, true);
        }
        for (from, until) in clash {
            let says = match from < until {
                true => format!("both hold {}", between(*from, *until)),
                false => format!(
                    "what was granted at {} cannot be right with the rest",
                    shown_ms(*from)
                ),
            };
            let shapes = self.bar("clash", (*from, *until), "");
            self.item(&says, &shapes);
        }
    }

    fn cuts(&mut self) {
        for (columns, long) in self.scene.axis.cuts().zip(self.scene.axis.left_out()) {
            // Less wide than it is, so that signs beside it are seen.
            let (x, width) = (LEFT + columns.start + 4, CUT - 8);
            let edge = |x: usize| {
                let (low, high) = (x - 2, x + 2);
                format!("<line class=\"edge\" x1=\"{low}\" x2=\"{high}\" y1=\"100%\" y2=\"{SAYS}\"/>")
            };
            let (left, right) = (edge(x), edge(x + width));
            let shapes = format!(
                "<rect class=\"cut\" x=\"{x}\" y=\"{SAYS}\" width=\"{width}\" height=\"100%\"/>{left}{right}"
            );
            self.item(&format!("{} are left out here", shown_ms(long)), &shapes);
        }
    }
}

/// What is known of a grant, in words.
fn known(span: &Span) -> String {
    let (from, until) = span.surely();
    let sure = match from < until {
        true => format!("for sure {}", between(from, until)),
        false => "never for sure".to_owned(),
    };
    let (begin, end) = extent(span);
    format!(
        "{} of operation {}, lane {}, {:?}: held {sure}; perhaps {}; its end is known by {}",
        token(span.token),
        span.op_id,
        span.lane,
        span.mode,
        between(begin, end),
        span.ended_by
    )
}

fn between(from: u64, until: u64) -> String {
    match until {
        u64::MAX => format!("from {} on", shown_ms(from)),
        _ => format!("from {} to {}", shown_ms(from), shown_ms(until)),
    }
}
