//! Placement of pods on virtual nodes: the scheduling gate, trials, the extender, the fit query, pods that wait, and conversion. Each is a part
//! with a report of its own.

mod admission;
mod extender;
mod fit_query;
mod pod_observer;
mod process_metrics;
mod scheduling_gate;
mod testbed;
mod trial;
mod waiting_pods;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

pub(crate) use self::{extender::BareExtender, fit_query::SnapshotLoad};
use crate::{
    candidate::{Candidate, CandidateArgs, Candidates},
    host_info::HostInfo,
    report::{Report, print_progress},
};

/// The longest time of a part. One that hangs must not keep the others from being measured.
const PART_LIMIT: Duration = Duration::from_mins(15);

#[derive(Debug, Args)]
pub(crate) struct Placement {
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    part: Vec<Part>,
    /// Runs of each candidate, in turn, in the parts gates, trial and extender
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    gates: scheduling_gate::GateLoad,
    #[command(flatten)]
    trial: trial::TrialLoad,
    #[command(flatten)]
    extender: extender::ExtenderLoad,
    #[command(flatten)]
    fit: fit_query::FitLoad,
    #[command(flatten)]
    waiting: waiting_pods::WaitingLoad,
    #[command(flatten)]
    admission: admission::AdmissionLoad,
    #[command(flatten)]
    field: CandidateArgs,
    /// The folder for the results
    #[arg(long)]
    out: PathBuf,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pods behind the scheduling gate, placed by estimate, beside a client that removes the gates
    Gates,
    /// Pods on trial, beside the same pods bound by hand
    Trial,
    /// kube-scheduler with our extender, with one that passes everything, and without
    Extender,
    /// Time of a query whether pods fit, and memory of the snapshot
    Fit,
    /// Many pods that fit nowhere
    Waiting,
    /// Creation of pods that the policy or the webhook converts
    Admission,
}

/// What all parts share.
struct Session<'a> {
    field: &'a Candidates,
    host: &'a HostInfo,
    rounds: usize,
    out: &'a Path,
}

impl Placement {
    pub(crate) async fn measure(mut self) -> anyhow::Result<()> {
        // The rivals have nothing to compare.
        self.field.keep(&[Candidate::Bare, Candidate::Ours]);
        let field = self.field.prepare(&self.out.join("logs"))?;
        let host = HostInfo::detect()?;
        let session = Session { field: &field, host: &host, rounds: self.rounds, out: &self.out };
        let mut failed = Vec::new();
        for &part in &self.part {
            let measured =
                tokio::time::timeout(PART_LIMIT, Box::pin(self.measure_part(part, &session))).await;
            if let Err(error) = measured.context("took too long").flatten() {
                print_progress(&format!("{part:?}: {error:#}"));
                failed.push(format!("{part:?}"));
            }
        }
        anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
        Ok(())
    }

    async fn measure_part(&self, part: Part, session: &Session<'_>) -> anyhow::Result<()> {
        match part {
            Part::Gates => self.gates.measure(session).await,
            Part::Trial => self.trial.measure(session).await,
            Part::Extender => self.extender.measure(session).await,
            Part::Fit => self.fit.measure(session).await,
            Part::Waiting => self.waiting.measure(session).await,
            Part::Admission => self.admission.measure(session).await,
        }
    }
}

// === impl Session ===

impl Session<'_> {
    /// An empty report that compares with this candidate.
    fn report(&self, beside: Candidate) -> Report {
        let mut report = Report::beside(self.host.clone(), beside);
        let version = self.field.version(Candidate::Ours);
        report.versions.extend(version.map(|version| (Candidate::Ours, version)));
        report
    }
}
