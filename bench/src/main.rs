//! What we measure, as ratios to a limit or a peer in the same run. Never asserted in tests: machines differ.

mod burst;
mod clusters;
mod containers;
mod contestant;
mod execs;
mod machine;
mod nodes;
mod plot;
mod pods;
mod report;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Measures Virtual Kubelet beside a bare client and its rivals")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Many nodes in one process: their registration, their leases, and what they cost
    Nodes(nodes::Nodes),
    /// A burst of pods to Running, their deletion, and the memory they take
    Pods(pods::Pods),
    /// Commands in containers through the API server: bytes per second, the first byte, many at once
    Exec(execs::Execs),
    /// A burst of pods on a container runtime, beside the real kubelet (as root)
    Containers(containers::Containers),
    /// A lower cluster of many pods behind one node: the first sync, the lag of statuses, and memory
    Clusters(clusters::Clusters),
    /// Draw what was measured
    Plot(plot::Plot),
    /// The bare client of `nodes`, in a process of its own so that its cost can be told
    #[command(hide = true)]
    BareNodes(nodes::BareNodes),
    /// The bare client of `clusters`
    #[command(hide = true)]
    BareCluster(clusters::BareCluster),
    /// The bare node of `exec`
    #[command(hide = true)]
    BareKubelet(execs::BareKubelet),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().what {
        What::Nodes(nodes) => Box::pin(nodes.measure()).await,
        What::Pods(pods) => Box::pin(pods.measure()).await,
        What::Exec(execs) => Box::pin(execs.measure()).await,
        What::Containers(containers) => Box::pin(containers.measure()).await,
        What::Clusters(clusters) => Box::pin(clusters.measure()).await,
        What::Plot(plot) => plot.draw(),
        What::BareNodes(bare) => bare.run().await,
        What::BareCluster(bare) => bare.run().await,
        What::BareKubelet(bare) => bare.run().await,
    }
}
