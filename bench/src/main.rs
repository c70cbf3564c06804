//! What we measure, as ratios to a limit or a peer in the same run. Never asserted in tests: machines differ.

mod nodes;
mod pods;
mod report;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Measures Virtual Kubelet beside a bare client")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Registration of many nodes, and what they cost while idle
    Nodes(nodes::Nodes),
    /// A burst of pods to Running, and their deletion
    Pods(pods::Pods),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().what {
        What::Nodes(nodes) => nodes.measure().await,
        What::Pods(pods) => pods.measure().await,
    }
}
