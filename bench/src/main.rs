//! What we measure, as ratios to a limit or a peer in the same run. Never asserted in tests: machines differ.

mod nodes;
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
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().what {
        What::Nodes(nodes) => nodes.measure().await,
    }
}
