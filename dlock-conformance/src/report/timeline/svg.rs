//! The drawing as SVG, for the page.
//!
//! A shape or a word repeats the meaning of each colour. Each operation, grant, fault and cut can be selected
//! with the pointer or the keyboard, which shows its details above the drawing.

use super::lanes::Line;
use super::{Band, GRANTS, LANES, SIGNS, Scene, about, ending, extent, token, told};
use crate::checker::{Violation, ms};
use crate::history::{Event, Model, Span};
use crate::report::text::escape;

/// How wide these are, in pixels: the drawing, the mark of a cut, what stands before the drawing, a letter.
const COLUMNS: usize = 900;
const CUT: usize = 16;
const LEFT: usize = 94;
const LETTER: usize = 7;

/// How high these are: the details of the selected shape, the times, a row.
const SAYS: usize = 40;
const TIMES: usize = 22;
const ROW: usize = 26;

/// Bars by their class: how far below the top of the row they begin, how high they are, what they mean.
const BARS: [(&str, usize, usize, &str); 8] = [
    ("asks", 10, 6, "asks"),
    ("holds", 4, 18, "holds"),
    ("past", 4, 18, "holds past its deadline"),
    ("lets-go", 10, 6, "lets go"),
    ("sure", 4, 18, "granted for sure"),
    ("perhaps", 8, 10, "granted perhaps"),
    ("clash", 4, 18, "cannot both be right"),
    ("fault", 4, 18, "a fault"),
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
    let bands = bands(&scene);
    for (class, _, (from, until), _) in &bands {
        let x = drawing.x(*from);
        let (y, width) = (drawing.y, drawing.x(*until).saturating_sub(x).max(2));
        drawing.put(&format!(
            "<rect class=\"{class} through\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"100%\"/>"
        ));
    }
    drawing.times();
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
    let mut above = "";
    for (class, label, span, what) in &bands {
        if *label != above {
            drawing.row(label, *class == "clash");
            above = label;
        }
        let shapes = drawing.bar(class, *span, what);
        drawing.item(&format!("{what}, {}", between(*span)), &shapes);
    }
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
    let bar = |(class, top, height, means)| {
        format!(
            "<span><svg width=\"34\" height=\"{ROW}\" aria-hidden=\"true\"><rect class=\"{class}\" x=\"1\" \
                y=\"{top}\" width=\"32\" height=\"{height}\"/></svg> {means}</span> "
        )
    };
    let sign = |(sign, means)| format!("<span><b>{}</b> {means}</span> ", escape(&String::from(sign)));
    let signs = SIGNS.into_iter().filter(|(sign, _)| !"=#.~->".contains(*sign));
    let all: String = BARS.into_iter().map(bar).chain(signs.map(sign)).collect();
    format!("<p class=\"legend\">{all}</p>")
}

/// What goes through all rows, faults first: its class, the label of its row, when, and what it is.
fn bands<'a>(scene: &'a Scene) -> Vec<(&'a str, &'a str, (u64, u64), &'a str)> {
    let fault = |band: &'a Band| ("fault", "faults", band.span, band.fault.as_str());
    let clash = |span: &(u64, u64)| match span.0 < span.1 {
        true => ("clash", "both hold", *span, "both hold"),
        false => ("clash", "here", *span, "conflicts with the rest"),
    };
    let faults = scene.bands.iter().map(fault);
    faults.chain(scene.clash.iter().map(clash)).collect()
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
        let (class, mark) = match is_marked {
            true => (" marked", "\u{25b6} "),
            false => ("", ""),
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
                "<text x=\"{LEFT}\" y=\"{y}\">and {hidden} more {what}</text>"
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

    fn times(&mut self) {
        let y = SAYS + TIMES - 7;
        let hint = "Point at a shape, or reach it with the Tab key, to see its details here.";
        self.put(&format!("<text class=\"hint\" x=\"4\" y=\"16\">{hint}</text>"));
        let (before, top) = (LEFT - 10, SAYS + 4);
        self.put(&format!(
            "<text class=\"label\" x=\"{before}\" y=\"{y}\">ms</text>"
        ));
        for (column, label) in self.scene.axis.labels(150, LETTER) {
            let (x, right) = (LEFT + column, LEFT + column + 4);
            self.put(&format!(
                "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"100%\"/>\
                    <text x=\"{right}\" y=\"{y}\">{label}</text>"
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
            let deadline = line.believed.min(until).max(from);
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
        for row in 0..GRANTS {
            let here = |place: &Option<usize>| *place == Some(row);
            if places.iter().any(here) {
                self.row("granted", false);
            }
            for (span, _) in grants.iter().zip(&places).filter(|(_, place)| here(place)) {
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
            self.item(&format!("{} are left out here", ms(long)), &shapes);
        }
    }
}

/// The details of a grant, in words.
fn known(span: &Span) -> String {
    let sure = match span.surely() {
        (from, until) if from < until => format!("for sure {}", between((from, until))),
        _ => "never for sure".to_owned(),
    };
    let (token, perhaps) = (token(span.token), between(extent(span)));
    format!(
        "{token} of operation {}, lane {}, {:?}: held {sure}; perhaps {perhaps}; its end is known by {}",
        span.op_id, span.lane, span.mode, span.ended_by
    )
}

fn between((from, until): (u64, u64)) -> String {
    match until {
        u64::MAX => format!("from {} on", ms(from)),
        _ if from == until => format!("at {}", ms(from)),
        _ => format!("from {} to {}", ms(from), ms(until)),
    }
}
