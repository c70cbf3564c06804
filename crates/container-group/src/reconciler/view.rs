//! What the reconciler knows, for those who read.

use std::time::Duration;

use vk_provider::PodRef;

use super::Reconciler;
use crate::{
    backend::Observed,
    lifecycle::{Creation, Goal, Group, PodGroups},
};

/// What is known about one pod.
#[derive(Debug)]
pub enum PodView<'a> {
    /// Nothing of it is in the cloud.
    Absent,
    /// It has no group yet.
    Creating,
    /// It is not known whether it has a group.
    Unclear,
    /// It has this group.
    Present(&'a Group),
}

// === impl Reconciler ===

impl Reconciler {
    /// What is known about a pod.
    pub fn view(&self, uid: &str) -> PodView<'_> {
        let Some(groups) = self.pods.get(uid) else {
            // Before the lists are up to date, an earlier process may have created it.
            return if self.synced && self.certain { PodView::Absent } else { PodView::Unclear };
        };
        if let Some(group) = groups.main() {
            return PodView::Present(group);
        }
        match groups.creation() {
            _ if groups.is_absent(self.synced, self.certain) => PodView::Absent,
            Creation::None => PodView::Unclear,
            _ if groups.goal() == Goal::Run => PodView::Creating,
            _ => PodView::Unclear,
        }
    }

    /// Whether all groups of the node are known.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether this process owns the node.
    pub fn is_leading(&self) -> bool {
        self.leading
    }

    /// When the last look at the cloud began that saw all changes.
    pub fn followed(&self) -> Option<Duration> {
        self.followed
    }

    /// Why we may not see our groups.
    pub fn blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// The pods that have a group, with the group that counts.
    pub fn present(&self) -> impl Iterator<Item = (&PodRef, &Group)> {
        self.pods.values().filter_map(|groups| Some((groups.pod(), groups.main()?)))
    }

    /// All groups of all pods.
    pub fn groups(&self) -> impl Iterator<Item = (&PodRef, &Group)> {
        self.pods.values().flat_map(|groups| groups.groups().iter().map(|group| (groups.pod(), group)))
    }

    /// What was seen of a pod's group.
    pub fn observed(&self, uid: &str) -> Option<&Observed> {
        self.pods.get(uid).and_then(PodGroups::main).map(Group::observed)
    }
}
