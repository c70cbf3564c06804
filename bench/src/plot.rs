//! Plots the results: one panel per measurement, one bar per candidate. Rates and times have a logarithmic scale; memory and CPU a linear
//! one.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::Context as _;
use clap::Args;

use crate::{
    candidate::Candidate,
    host_info::HostInfo,
    report::{Report, short, thousands},
};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 210.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 18.0;
const STEP: f64 = 24.0;
const HEAD: f64 = 62.0;
const PANEL: f64 = 44.0;
/// The minimum of a logarithmic scale.
const LEAST: f64 = 1e-3;
/// Colours that colour-blind readers can distinguish.
const OURS: &str = "#0072b2";
const LIMIT: &str = "#999999";
const RIVAL: &str = "#e69f00";

#[derive(Debug, Args)]
pub(crate) struct Plot {
    /// The folder with the results
    #[arg(long)]
    from: PathBuf,
    /// The picture, as SVG
    #[arg(long)]
    out: PathBuf,
}

/// One panel of the plot.
struct Panel {
    title: String,
    unit: String,
    bars: Vec<(Candidate, f64)>,
}

impl Plot {
    pub(crate) fn draw(self) -> anyhow::Result<()> {
        let pods = Report::read(&self.from.join("pods.json"))?;
        let nodes = Report::read(&self.from.join("nodes.json"))?;
        let mut panels = Vec::new();
        for what in ["bound pods to Running", "all deleted, 30 s grace", "resident with the pods"] {
            panels
                .extend(pods.counts().into_iter().filter_map(|count| Panel::of(&pods, what, count, "pods")));
        }
        for what in ["processor", "resident"] {
            panels.extend(
                nodes.counts().into_iter().filter_map(|count| Panel::of(&nodes, what, count, "nodes")),
            );
        }
        // Only measured as root.
        let path = self.from.join("containers.json");
        if path.exists() {
            let containers = Report::read(&path)?;
            for what in ["all pods Running", "proportional set size with the pods"] {
                panels.extend(
                    containers
                        .counts()
                        .into_iter()
                        .filter_map(|count| Panel::of(&containers, what, count, "containers")),
                );
            }
        }
        fs::write(&self.out, svg(&panels, &pods.host))
            .with_context(|| format!("cannot write {}", self.out.display()))
    }
}

impl Panel {
    /// `None` if nothing was measured.
    fn of(report: &Report, what: &str, count: usize, things: &str) -> Option<Self> {
        let mut bars: Vec<(Candidate, f64)> = report
            .records
            .iter()
            .filter(|record| record.what == what && record.count == count)
            .filter_map(|record| Some((record.candidate, record.value?)))
            .collect();
        bars.sort_by_key(|(candidate, _)| *candidate);
        let unit = report.records.iter().find(|record| record.what == what)?.unit.clone();
        let better = if unit.ends_with("/s") { "more is better" } else { "less is better" };
        let title = format!("{} {things}: {what}, {unit} ({better})", thousands(count));
        (!bars.is_empty()).then_some(Self { title, unit, bars })
    }

    fn height(&self) -> f64 {
        self.bars.iter().map(|_| STEP).sum::<f64>() + PANEL
    }

    /// The ticks of the scale in ascending order, and whether it is logarithmic.
    fn ticks(&self) -> (Vec<f64>, bool) {
        let values = || self.bars.iter().map(|(_, value)| value.max(LEAST));
        let most = values().fold(LEAST, f64::max);
        if ["MB", "cores"].contains(&self.unit.as_str()) {
            let power = 10_f64.powf(most.log10().floor());
            let steps = [0.25, 0.5, 1.0, 2.5].map(|step| step * power);
            let step = steps.into_iter().find(|step| step * 5.0 >= most).unwrap_or(2.5 * power);
            return ((0..=5).map(|index| f64::from(index) * step).collect(), false);
        }
        let low = values().fold(f64::INFINITY, f64::min).log10().floor();
        let high = most.log10().ceil().max(low + 1.0);
        let powers = std::iter::successors(Some(low), |power| Some(power + 1.0));
        (powers.take_while(|power| *power <= high).map(|power| 10_f64.powf(power)).collect(), true)
    }

    fn draw(&self, svg: &mut String, top: f64) {
        let (ticks, logarithmic) = self.ticks();
        let scale = |value: f64| if logarithmic { value.max(LEAST).log10() } else { value };
        let foot = ticks.first().copied().map_or(0.0, scale);
        let head = ticks.last().copied().map_or(1.0, scale);
        let place = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (scale(value) - foot) / (head - foot);
        let bottom = top + self.height() - PANEL;
        let _ = writeln!(svg, r#"<text x="20" y="{:.1}" class="title">{}</text>"#, top - 8.0, self.title);
        for tick in ticks {
            let x = place(tick);
            let _ = writeln!(
                svg,
                r#"<line x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{bottom:.1}" class="grid"/>"#
            );
            let _ = writeln!(
                svg,
                r#"<text x="{x:.1}" y="{:.1}" class="tick" text-anchor="middle">{}</text>"#,
                bottom + 12.0,
                // Rounded, because a sum of floats has spurious digits.
                (tick * 1e4).round() / 1e4
            );
        }
        let mut y = top + (STEP - BAR) / 2.0;
        for (candidate, value) in &self.bars {
            let fill = match candidate {
                Candidate::Bare => LIMIT,
                Candidate::Ours => OURS,
                _ => RIVAL,
            };
            let (end, middle) = (place(*value), y + BAR / 2.0 + 4.0);
            let _ = writeln!(
                svg,
                r#"<text x="{:.1}" y="{middle:.1}" text-anchor="end">{candidate}</text>"#,
                LEFT - 8.0
            );
            // The smallest value still has a visible bar.
            let length = (end - LEFT).max(2.0);
            let _ = writeln!(
                svg,
                r#"<rect x="{LEFT}" y="{y:.1}" width="{length:.1}" height="{BAR}" fill="{fill}"/>"#
            );
            let _ = writeln!(
                svg,
                r#"<text x="{:.1}" y="{middle:.1}">{} {}</text>"#,
                LEFT + length + 6.0,
                short(*value),
                self.unit
            );
            y += STEP;
        }
    }
}

fn svg(panels: &[Panel], machine: &HostInfo) -> String {
    let height = HEAD + panels.iter().map(Panel::height).sum::<f64>();
    // With a background, so that it is readable on a dark page.
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="Benchmark was measured">
<style>text {{ font: 12px system-ui, sans-serif; fill: #24292f }} .title {{ font-weight: 600; font-size: 13px }} .tick {{ fill: #57606a; font-size: 10px }} .grid {{ stroke: #d0d7de }}</style>
<rect width="100%" height="100%" rx="8" fill="#ffffff"/>
"##
    );
    let HostInfo { date, cores, kubernetes, .. } = machine;
    let _ = writeln!(
        svg,
        r#"<text x="20" y="24" class="tick">{date}, {cores} cores, Kubernetes {kubernetes}. Rates and times are on logarithmic scales.</text>"#
    );
    let mut top = HEAD;
    for panel in panels {
        panel.draw(&mut svg, top);
        top += panel.height();
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(unit: &str, values: &[f64]) -> (Vec<f64>, bool) {
        let bars = values.iter().map(|value| (Candidate::Ours, *value)).collect();
        Panel { title: "pods".to_owned(), unit: unit.to_owned(), bars }.ticks()
    }

    #[test]
    fn times_reach_from_one_power_of_ten_to_another() {
        assert_eq!(ticks("s", &[4.7, 590.0]), (vec![1.0, 10.0, 100.0, 1000.0], true));
        assert_eq!(ticks("s", &[1.0]), (vec![1.0, 10.0], true));
    }

    #[test]
    fn memory_begins_at_nothing() {
        assert_eq!(ticks("MB", &[59.8, 97.2]), (vec![0.0, 25.0, 50.0, 75.0, 100.0, 125.0], false));
    }
}
