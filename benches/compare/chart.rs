//! The chart of a run: cost against the size of the batch, on logarithmic axes.

use std::fmt::Write;

use crate::{
    BATCHES, LATENCY_MS,
    candidates::{CONSUMER, PYTHON, RAW, RAW_BATCHES, SINGLE, TYPESCRIPT},
    numbers::thousands,
    process::Run,
    results::{Measure, Results},
};

/// The lines. Their colours are legible on a light and on a dark ground.
const LINES: [(&str, &str); 6] = [
    (RAW, "#8a8a8a"),
    (CONSUMER, "#d9662b"),
    (SINGLE, "#c99a06"),
    (RAW_BATCHES, "#17a2a2"),
    (TYPESCRIPT, "#3f8ad8"),
    (PYTHON, "#a566c9"),
];
const PANELS: [(&str, Measure); 2] = [
    ("CPU per 1000 messages, ms", Run::cpu_ms),
    ("p50 of a batch, ms", Run::p50_ms),
];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 440.0;
/// The plot of a panel.
const PLOT: (f64, f64) = (370.0, 300.0);
const TOP: f64 = 85.0;
const LEFT: [f64; 2] = [55.0, 505.0];

const STYLE: &str = "\
text { font: 13px sans-serif; fill: #333 }
.axis { fill: none; stroke: #888; stroke-width: 1 }
.grid { stroke: #888; stroke-opacity: .25; stroke-width: 1 }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round }
@media (prefers-color-scheme: dark) { text { fill: #ddd } }
";

pub(crate) fn svg(results: &Results) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>CPU time and p50 against the size of the batch</title>\n<style>\n{STYLE}</style>\n"
    );
    for ((title, measure), left) in PANELS.into_iter().zip(LEFT) {
        panel(&mut svg, results, title, measure, left);
    }
    legend(&mut svg, results);
    svg + "</svg>\n"
}

/// The points of a candidate: messages in a batch, and the figure.
fn points(results: &Results, name: &'static str, measure: Measure) -> Vec<(f64, f64)> {
    let sizes = BATCHES.iter().map(|(messages, _)| *messages);
    let points = sizes.filter_map(|messages| {
        let value = results.of(name, LATENCY_MS, messages, measure)?;
        Some((messages as f64, value))
    });
    points.collect()
}

fn panel(svg: &mut String, results: &Results, title: &str, measure: Measure, left: f64) {
    let (width, height) = PLOT;
    let bottom = TOP + height;
    let lines = LINES.map(|(name, colour)| (colour, points(results, name, measure)));
    let values = || {
        lines
            .iter()
            .flat_map(|(_, line)| line)
            .map(|(_, value)| value.log10())
    };
    let lowest = values().fold(f64::INFINITY, f64::min).floor();
    let highest = values().fold(f64::NEG_INFINITY, f64::max).ceil();
    let widest = (BATCHES[BATCHES.len() - 1].0 as f64).log10();
    let x = |messages: f64| left + messages.log10() / widest * width;
    let y = |value: f64| bottom - (value.log10() - lowest) / (highest - lowest) * height;

    writeln!(
        svg,
        r#"<text x="{left}" y="{:.0}">{title}</text>"#,
        TOP - 15.0
    )
    .unwrap();
    for power in lowest as i32..=highest as i32 {
        let value = 10_f64.powi(power);
        let label = thousands(value);
        let (y, right) = (y(value), left + width);
        writeln!(
            svg,
            r#"<path class="grid" d="M{left:.1} {y:.1}H{right:.1}"/>"#
        )
        .unwrap();
        let (x, y) = (left - 6.0, y + 4.0);
        writeln!(
            svg,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="end">{label}</text>"#
        )
        .unwrap();
    }
    for power in 0..=widest as i32 {
        let value = 10_f64.powi(power);
        let label = thousands(value);
        let (x, y) = (x(value), bottom + 18.0);
        writeln!(
            svg,
            r#"<path class="grid" d="M{x:.1} {TOP:.1}V{bottom:.1}"/>"#
        )
        .unwrap();
        writeln!(
            svg,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#
        )
        .unwrap();
    }
    writeln!(
        svg,
        r#"<path class="axis" d="M{left:.1} {TOP:.1}V{bottom:.1}h{width}"/>"#
    )
    .unwrap();
    let (middle, below) = (left + width / 2.0, bottom + 38.0);
    writeln!(
        svg,
        r#"<text x="{middle:.1}" y="{below:.1}" text-anchor="middle">messages in a batch</text>"#
    )
    .unwrap();
    for (colour, line) in &lines {
        let line: Vec<_> = line
            .iter()
            .map(|&(messages, value)| (x(messages), y(value)))
            .collect();
        let path: Vec<_> = line.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if path.len() > 1 {
            let path = path.join("L");
            writeln!(svg, r#"<path class="line" stroke="{colour}" d="M{path}"/>"#).unwrap();
        }
        for (x, y) in line {
            writeln!(
                svg,
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#
            )
            .unwrap();
        }
    }
}

fn legend(svg: &mut String, results: &Results) {
    let (mut x, mut y) = (LEFT[0], 18.0);
    for (name, colour) in LINES {
        if points(results, name, Run::cpu_ms).is_empty() {
            continue;
        }
        // A letter takes about 6.6 units.
        let width = 36.0 + 6.6 * name.len() as f64;
        if x + width > WIDTH {
            (x, y) = (LEFT[0], y + 20.0);
        }
        let (line, text) = (y - 7.0, x + 19.0);
        writeln!(
            svg,
            r#"<rect x="{x:.1}" y="{line}" width="14" height="4" fill="{colour}"/>"#
        )
        .unwrap();
        writeln!(svg, r#"<text x="{text:.1}" y="{y}">{name}</text>"#).unwrap();
        x += width;
    }
}
