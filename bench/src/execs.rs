//! Commands in containers, through the API server: bytes per second, the first byte, many at once, and what an idle one takes.

mod bare;
mod measure;
mod site;
mod socket;

use std::path::PathBuf;

use clap::Args;

pub(crate) use self::bare::BareKubelet;
use self::{
    measure::Way,
    site::{Side, Site},
};
use crate::{
    contestant::{Contestant, Field},
    machine::Machine,
    report::{Figure, Report, say, thousands},
};

#[derive(Debug, Args)]
pub(crate) struct Execs {
    /// How many commands at once
    #[arg(long, default_value_t = 500)]
    count: usize,
    /// How many megabytes each copy moves
    #[arg(long, default_value_t = 500)]
    megabytes: u32,
    /// How many commands, one after the other, for the time to the first byte
    #[arg(long, default_value_t = 100)]
    first: usize,
    /// How often; the round in the middle counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    field: Field,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Execs {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The rivals have no commands to run: kwok simulates none, and the Go original leaves all of them to its provider.
        self.field.keep(&[Contestant::Bare, Contestant::Ours]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::new(Machine::look()?);
        for &contestant in &field.contestants {
            report.versions.extend(field.version(contestant).map(|version| (contestant, version)));
        }
        for round in 0..self.rounds {
            // Fresh processes in each round: memory that an earlier one gave back would hide what the next one takes.
            let site = Box::pin(Site::start(&field, &mut report.machine)).await?;
            for &contestant in &field.contestants {
                say(&format!("{} execs, {contestant}, round {}", thousands(self.count), round + 1));
                let figures = Box::pin(self.one(&site, contestant)).await;
                report.outcome(contestant, self.count, figures)?;
                report.save(&self.out, "execs")?;
            }
        }
        report.publish(&self.out, "execs")
    }

    async fn one(&self, site: &Site, who: Contestant) -> anyhow::Result<Vec<Figure>> {
        let side = if who == Contestant::Bare { &site.bare } else { &site.ours };
        // First, while the process is as it started but for one command.
        let mut figures = measure::crowd(site, side, self.count).await?;
        let (p50, p99) = measure::first_byte(site, side, self.first).await?;
        figures.push(("first byte of a command, p50", p50, "ms"));
        figures.push(("first byte of a command, p99", p99, "ms"));
        figures.extend(self.copies(site, side).await?);
        figures.push(match who {
            Contestant::Bare => ("vk-spdy over a local socket", socket::plain(self.megabytes).await?, "MB/s"),
            _ => ("vk-spdy over a local socket", socket::spdy(self.megabytes).await?, "MB/s"),
        });
        Ok(figures)
    }

    /// The bare node knows no protocols: what it makes is the limit of both.
    async fn copies(&self, site: &Site, side: &Side) -> anyhow::Result<Vec<Figure>> {
        let ways = if side.is_bare { [Way::Raw, Way::Raw] } else { [Way::WebSocket, Way::Spdy] };
        let mut figures = Vec::new();
        let names = ["output of a command, by WebSocket", "output of a command, by SPDY"];
        for (name, way) in names.into_iter().zip(ways) {
            figures.push((name, measure::output(site, side, way, self.megabytes).await?, "MB/s"));
        }
        let names = ["to a command and back, by WebSocket", "to a command and back, by SPDY"];
        for (name, way) in names.into_iter().zip(ways) {
            figures.push((name, measure::there_and_back(site, side, way, self.megabytes).await?, "MB/s"));
        }
        Ok(figures)
    }
}
