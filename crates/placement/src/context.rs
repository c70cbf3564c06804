//! What the parts of the state machine share.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rand::rngs::StdRng;
use vk_provider::placement::FitQuery;

use crate::{
    avoid::AvoidTable,
    cluster_state::ClusterState,
    effect::{CallIds, Effect},
    fit_answers::{AnswerTimes, FitAnswers},
    query_budget::QueryBudget,
};

/// What the parts of the state machine share.
#[derive(Debug)]
pub(crate) struct PlacementContext {
    pub(crate) cluster: ClusterState,
    pub(crate) answers: FitAnswers,
    pub(crate) budget: QueryBudget,
    pub(crate) avoid: AvoidTable,
    pub(crate) ids: CallIds,
    pub(crate) rng: StdRng,
    /// What the wall clock shows.
    pub(crate) wall: Timestamp,
    /// What is to be done.
    pub(crate) effects: Vec<Effect>,
}

// === impl PlacementContext ===

impl PlacementContext {
    pub(crate) fn new(avoid: AvoidTable, rng: StdRng) -> Self {
        Self {
            cluster: ClusterState::default(),
            answers: FitAnswers::new(AnswerTimes::GATE),
            budget: QueryBudget::default(),
            avoid,
            ids: CallIds::default(),
            rng,
            wall: Timestamp::default(),
            effects: Vec::new(),
        }
    }

    /// Asks a node about a pod of this shape, or about several that go there together.
    pub(crate) fn ask(&mut self, now: Duration, shape: &Arc<str>, pods: &[Arc<Pod>], node: &Arc<str>) {
        let Some(object) = self.cluster.virtual_node(node).cloned() else { return };
        let id = self.answers.ask_about(now, shape, pods.len(), node);
        let held = self.cluster.held(node);
        let query = FitQuery { held, pods: pods.to_vec(), ..FitQuery::default() };
        self.effects.push(Effect::Ask(id, object, Box::new(query)));
    }
}
