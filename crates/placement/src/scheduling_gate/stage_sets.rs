//! Which pods are in which stage, for those that are looked after one by one. Thousands of others just wait.

use std::{collections::BTreeSet, sync::Arc};

use super::tracked_pod::Stage;

/// The pods by stage.
#[derive(Debug, Default)]
pub(super) struct StageSets {
    pub(super) placing: BTreeSet<Arc<str>>,
    pub(super) on_trial: BTreeSet<Arc<str>>,
    pub(super) ungated: BTreeSet<Arc<str>>,
}

// === impl StageSets ===

impl StageSets {
    /// A pod has entered a stage.
    pub(super) fn enter(&mut self, uid: &Arc<str>, stage: &Stage) {
        if let Some(set) = self.set(stage) {
            set.insert(Arc::clone(uid));
        }
    }

    /// A pod has left a stage.
    pub(super) fn leave(&mut self, uid: &str, stage: &Stage) {
        if let Some(set) = self.set(stage) {
            set.remove(uid);
        }
    }

    fn set(&mut self, stage: &Stage) -> Option<&mut BTreeSet<Arc<str>>> {
        match stage {
            Stage::Waiting { .. } => None,
            Stage::Placing(_) => Some(&mut self.placing),
            Stage::OnTrial(_) => Some(&mut self.on_trial),
            Stage::Ungated(_) => Some(&mut self.ungated),
        }
    }
}
