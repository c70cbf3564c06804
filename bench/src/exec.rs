//! Exec through the API server: throughput, time to the first byte, many sessions at once, and memory of an idle session.

mod bare_kubelet;
mod local_socket;
mod measurement;
mod testbed;

use std::path::PathBuf;

use clap::Args;

pub(crate) use self::bare_kubelet::BareKubelet;
use self::{
    measurement::Transport,
    testbed::{TestNode, Testbed},
};
use crate::{
    candidate::{Candidate, CandidateArgs},
    host_info::HostInfo,
    report::{Figure, Report, print_progress, thousands},
};

#[derive(Debug, Args)]
pub(crate) struct Exec {
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
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

impl Exec {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The rivals cannot run commands: kwok does not simulate them, and the Go original leaves them to its provider.
        self.field.keep(&[Candidate::Bare, Candidate::Ours]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let mut report = Report::new(HostInfo::detect()?);
        for &candidate in &field.selected {
            report.versions.extend(field.version(candidate).map(|version| (candidate, version)));
        }
        for round in 0..self.rounds {
            // New processes in each round: memory that was released earlier would hide what the next measurement needs.
            let testbed = Box::pin(Testbed::start(&field, &mut report.host)).await?;
            for &candidate in &field.selected {
                print_progress(&format!("{} execs, {candidate}, round {}", thousands(self.count), round + 1));
                let figures = Box::pin(self.one(&testbed, candidate)).await;
                report.outcome(candidate, self.count, figures)?;
                report.save(&self.out, "execs")?;
            }
        }
        report.publish(&self.out, "execs")
    }

    async fn one(&self, testbed: &Testbed, who: Candidate) -> anyhow::Result<Vec<Figure>> {
        let node = if who == Candidate::Bare { &testbed.bare } else { &testbed.ours };
        // First, while the process is almost as it started.
        let mut figures = measurement::concurrent_sessions(testbed, node, self.count).await?;
        let (p50, p99) = measurement::first_byte(testbed, node, self.first).await?;
        figures.push(("first byte of a command, p50", p50, "ms"));
        figures.push(("first byte of a command, p99", p99, "ms"));
        figures.extend(self.copies(testbed, node).await?);
        figures.push(match who {
            Candidate::Bare => {
                ("vk-spdy over a local socket", local_socket::plain(self.megabytes).await?, "MB/s")
            }
            _ => ("vk-spdy over a local socket", local_socket::spdy(self.megabytes).await?, "MB/s"),
        });
        Ok(figures)
    }

    /// The bare kubelet has no protocols: its throughput is the limit for both.
    async fn copies(&self, testbed: &Testbed, node: &TestNode) -> anyhow::Result<Vec<Figure>> {
        let transports = if node.is_bare {
            [Transport::Raw, Transport::Raw]
        } else {
            [Transport::WebSocket, Transport::Spdy]
        };
        let mut figures = Vec::new();
        let names = ["output of a command, by WebSocket", "output of a command, by SPDY"];
        for (name, transport) in names.into_iter().zip(transports) {
            figures.push((
                name,
                measurement::output(testbed, node, transport, self.megabytes).await?,
                "MB/s",
            ));
        }
        let names = ["to a command and back, by WebSocket", "to a command and back, by SPDY"];
        for (name, transport) in names.into_iter().zip(transports) {
            figures.push((name, measurement::echo(testbed, node, transport, self.megabytes).await?, "MB/s"));
        }
        Ok(figures)
    }
}
