//! A plot as SVG.

use dlock_benches::figures::Shows;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::plots::{Plot, Series};

const SIZE: (u32, u32) = (760, 380);
const TEXT: (&str, i32) = ("sans-serif", 14);

/// Ours is blue, what the store can do at most is grey, and peers are warm.
fn colour(name: &str, nth: usize) -> RGBColor {
    const PEERS: [RGBColor; 6] = [
        RGBColor(214, 96, 77),
        RGBColor(230, 150, 50),
        RGBColor(120, 150, 60),
        RGBColor(150, 80, 140),
        RGBColor(170, 120, 90),
        RGBColor(60, 150, 140),
    ];
    match name {
        "dlock" => RGBColor(33, 102, 172),
        raw if raw.starts_with("raw") => RGBColor(120, 120, 120),
        "backend alone" => RGBColor(146, 197, 222),
        _ => PEERS[nth % PEERS.len()],
    }
}

/// As SVG.
pub(crate) fn svg(plot: &Plot) -> String {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    let drawn = match plot.shows {
        Shows::Throughput => bars(plot, &area),
        Shows::Latency => {
            let (least, most) = plot.range();
            lines(plot, &area, (least / 1.3..most * 1.3).log_scale())
        }
        Shows::Requests | Shows::Held => lines(plot, &area, 0.0..plot.range().1 * 1.5),
    };
    drawn
        .and_then(|()| area.present().map_err(Into::into))
        .expect("it is drawn in memory");
    drop(area);
    text
}

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn rounded(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// One bar for each, with its value beside it.
fn bars(plot: &Plot, area: &Area<'_>) -> Drawn {
    let value = |s: &Series| s.values.first().map_or(0.0, |(_, value)| *value);
    let most = plot.series.iter().map(value).fold(1.0, f64::max) * 1.15;
    let count = plot.series.len();
    let name = |y: &f64| {
        let nth = (count as f64 - y).floor() as usize;
        plot.series.get(nth).map_or(String::new(), |s| s.name.clone())
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(10)
        .build_cartesian_2d(0.0..most, 0.0..count as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_desc("a second")
        .x_label_formatter(&|x| rounded(*x))
        .label_style(TEXT)
        .draw()?;
    for (nth, series) in plot.series.iter().enumerate() {
        let (value, top) = (value(series), (count - nth) as f64);
        let bar = [(0.0, top - 0.35), (value, top - 0.85)];
        let label = format!("{}: {}", name(&(top - 0.5)), rounded(value));
        chart.draw_series([Rectangle::new(bar, colour(&series.name, nth).filled())])?;
        chart.draw_series([Text::new(label, (most * 0.004, top - 0.03), TEXT)])?;
    }
    Ok(())
}

/// A line for each, over places that are as far apart as they are many.
fn lines<Y>(plot: &Plot, area: &Area<'_>, scale: Y) -> Drawn
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut places: Vec<&str> = Vec::new();
    for (place, _) in plot.series.iter().flat_map(|s| &s.values) {
        if !places.contains(&place.as_str()) {
            places.push(place);
        }
    }
    let last = (places.len().max(2) - 1) as f64;
    let name = |x: &f64| match (x.fract().abs() < 0.01).then(|| places.get(x.round() as usize)) {
        Some(Some(place)) => (*place).to_owned(),
        _ => String::new(),
    };
    let described = match plot.shows {
        Shows::Latency => ("share that took no longer", "µs"),
        Shows::Requests => ("who want it all the time", "requests"),
        _ => ("locks held", "of each lock"),
    };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.1..last + 0.1, scale)?;
    chart
        .configure_mesh()
        .x_labels(places.len() * 2 + 1)
        .x_label_formatter(&name)
        .x_desc(described.0)
        .y_desc(described.1)
        .y_label_formatter(&|y| rounded(*y))
        .label_style(TEXT)
        .disable_x_mesh()
        .light_line_style(RGBColor(240, 240, 240))
        .draw()?;
    for (nth, series) in plot.series.iter().enumerate() {
        let colour = colour(&series.name, nth);
        let points: Vec<_> = series
            .values
            .iter()
            .filter_map(|(place, v)| Some((places.iter().position(|p| p == place)? as f64, *v)))
            .collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        chart.draw_series(
            points
                .into_iter()
                .map(|point| Circle::new(point, 4, colour.filled())),
        )?;
    }
    let corner = match plot.shows {
        Shows::Latency => SeriesLabelPosition::UpperLeft,
        _ => SeriesLabelPosition::MiddleRight,
    };
    chart
        .configure_series_labels()
        .position(corner)
        .background_style(WHITE.mix(0.8))
        .label_font(TEXT)
        .draw()?;
    Ok(())
}
