//! Benchmarks. Results are ratios to a limit or to another implementation in the same run, and never asserted in tests, because
//! machines differ.

mod candidate;
mod clusters;
mod containers;
mod exec;
mod groups;
mod host_info;
mod nodes;
mod objects;
mod placement;
mod plot;
mod pod_load;
mod pods;
mod report;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(about = "Measures Virtual Kubelet beside a bare client and its rivals")]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Many nodes in one process: registration, leases, CPU and memory
    Nodes(nodes::Nodes),
    /// Many pods to Running, their deletion, and memory
    Pods(pods::Pods),
    /// Exec through the API server: throughput, time to the first byte, many sessions at once
    Exec(exec::Exec),
    /// Many pods on a container runtime, compared with the real kubelet (as root)
    Containers(containers::Containers),
    /// A large lower cluster behind one node: first sync, lag of statuses, and memory
    Clusters(clusters::Clusters),
    /// Many pods on container groups of an emulated cloud, beside the mock provider
    Groups(groups::Groups),
    /// Placement: gates, trials, the extender, the fit query, waiting pods, conversion
    Placement(placement::Placement),
    /// Plot the results
    Plot(plot::Plot),
    /// The bare client of `nodes`, in a process of its own so that its usage can be measured
    #[command(hide = true)]
    BareNodes(nodes::BareNodes),
    /// The bare client of `clusters`
    #[command(hide = true)]
    BareCluster(clusters::BareCluster),
    /// The bare node of `exec`
    #[command(hide = true)]
    BareKubelet(exec::BareKubelet),
    /// The extender of `placement` that passes everything
    #[command(hide = true)]
    BareExtender(placement::BareExtender),
    /// The snapshot of `placement`, in a process of its own so that its memory can be measured
    #[command(hide = true)]
    SnapshotLoad(placement::SnapshotLoad),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().benchmark {
        Benchmark::Nodes(nodes) => Box::pin(nodes.measure()).await,
        Benchmark::Pods(pods) => Box::pin(pods.measure()).await,
        Benchmark::Exec(execs) => Box::pin(execs.measure()).await,
        Benchmark::Containers(containers) => Box::pin(containers.measure()).await,
        Benchmark::Clusters(clusters) => Box::pin(clusters.measure()).await,
        Benchmark::Groups(groups) => Box::pin(groups.measure()).await,
        Benchmark::Placement(placement) => Box::pin(placement.measure()).await,
        Benchmark::Plot(plot) => plot.draw(),
        Benchmark::BareNodes(bare) => bare.run().await,
        Benchmark::BareCluster(bare) => bare.run().await,
        Benchmark::BareExtender(extender) => extender.serve().await,
        Benchmark::SnapshotLoad(load) => load.measure(),
        Benchmark::BareKubelet(bare) => bare.run().await,
    }
}
