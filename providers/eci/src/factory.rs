//! Opens the provider from its configuration.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use vk_container_group::{
    budget::{self, Budget},
    cloud::Limits,
    engine::{Engine, GroupInventory, Settings as EngineSettings},
};
use vk_provider::{
    Abilities, Backend, Config, Context, Error, Factory, Finding, NodeTemplate, Result, SingleNode,
    config::ConfigAlias,
    explanation::{ExplainRequest, Explanation},
    inventory::Inventory,
};
use vk_supervisor::{Clock, Supervisor};

use crate::{
    backend,
    config::{Prices, Settings, VARIABLES},
    connection::Connection,
    doctor, explanation,
};

/// What container ids begin with.
const RUNTIME: &str = "eci";
const REGION_LABEL: &str = "topology.kubernetes.io/region";

/// The factory of the provider `eci`.
#[derive(Default)]
pub struct EciFactory {
    /// The budgets of the accounts, for all nodes of this process.
    budgets: Mutex<HashMap<String, Weak<AccountBudget>>>,
}

/// The budget of an account. Its task ends with the last node.
#[derive(Debug)]
pub(crate) struct AccountBudget {
    budget: Budget,
    supervisor: Supervisor,
}

// === impl AccountBudget ===

impl AccountBudget {
    fn new(settings: &Settings) -> Self {
        let supervisor = Supervisor::new();
        let limits = budget::Limits::new(settings.rate, &backend::caps());
        Self { budget: Budget::new(&limits, &supervisor), supervisor }
    }
}

impl Drop for AccountBudget {
    fn drop(&mut self) {
        self.supervisor.stop();
    }
}

// === impl EciFactory ===

impl EciFactory {
    /// The budget of the account that these settings are for.
    fn budget(&self, settings: &Settings) -> Arc<AccountBudget> {
        let mut budgets = self.budgets.lock();
        let key = account(settings);
        if let Some(budget) = budgets.get(&key).and_then(Weak::upgrade) {
            return budget;
        }
        let budget = Arc::new(AccountBudget::new(settings));
        budgets.retain(|_, budget| budget.strong_count() > 0);
        budgets.insert(key, Arc::downgrade(&budget));
        budget
    }
}

/// Names the account and the region, as far as the configuration tells them apart: limits are for both.
fn account(settings: &Settings) -> String {
    let credentials = &settings.credentials;
    let key = credentials.access_key.as_ref().map_or("", |key| &key.access_key_id);
    let (profile, role) = (credentials.profile.as_deref(), credentials.role_name.as_deref());
    format!("{} {:?} {key} {profile:?} {role:?}", settings.endpoint, credentials.mode)
}

/// The name of the cluster in the account.
pub(crate) fn cluster_name(settings: &Settings, context: &Context) -> Result<String> {
    settings.cluster_name.clone().or_else(|| context.cluster.clone()).ok_or_else(|| {
        Error::invalid(
            "the name of this cluster in the account is not known: set clusterName in the configuration of provider eci, or let this \
             process read the namespace kube-system, whose UID is the default",
        )
    })
}

fn engine_settings(settings: &Settings, context: &Context) -> Result<EngineSettings> {
    let cluster = cluster_name(settings, context)?;
    let region = settings.region.clone();
    let mut engine = EngineSettings::new(cluster, context.node_name.clone(), RUNTIME);
    engine.node_ips = vec![context.internal_ip];
    engine.tags.clone_from(&settings.tags);
    engine.capacity.clone_from(&settings.capacity);
    engine.prices = settings.prices != Prices::Off;
    engine.file_updates = settings.file_updates;
    engine.configure_node = Some(Box::new(move |node: &mut NodeTemplate| {
        node.labels.insert(REGION_LABEL.to_owned(), region.clone());
        "linux".clone_into(&mut node.system.operating_system);
        "amd64".clone_into(&mut node.system.architecture);
    }));
    Ok(engine)
}

#[async_trait]
impl Factory for EciFactory {
    fn name(&self) -> &'static str {
        "eci"
    }

    fn description(&self) -> &'static str {
        "container groups of Alibaba Cloud ECI"
    }

    fn abilities(&self) -> Abilities {
        Abilities { logs: true, exec: true, stats: true, ..Abilities::default() }
    }

    fn needs_cluster_id(&self) -> bool {
        true
    }

    fn elastic(&self) -> bool {
        true
    }

    fn variables(&self) -> &'static [ConfigAlias] {
        &VARIABLES
    }

    /// Needs no answer from the service: the node is NotReady until it answers.
    async fn open(&self, config: Config, context: Context) -> Result<Arc<dyn Backend>> {
        let settings = Settings::read(&config)?;
        let engine_settings = engine_settings(&settings, &context)?;
        let clock = Clock::system();
        let connection = Connection::new(&settings, Limits::default(), &clock);
        let account = self.budget(&settings);
        let budget = account.budget.clone();
        let backend = Arc::new(connection.backend(&settings, &context).keeping(account));
        let engine = Engine::new(backend, engine_settings, budget, clock, &context.supervisor)?;
        Ok(Arc::new(SingleNode::new(&context, engine)))
    }

    async fn examine(&self, config: Config, context: Context) -> Vec<Finding> {
        match Settings::read(&config) {
            Ok(settings) => doctor::examine(&settings, &context).await,
            Err(error) => vec![Finding::error("configuration", error.message(), "correct the configuration")],
        }
    }

    async fn explain(
        &self,
        config: Config,
        context: Context,
        request: ExplainRequest,
    ) -> Result<Explanation> {
        let settings = Settings::read(&config)?;
        Ok(explanation::explain(&settings, &context, &request).await)
    }

    async fn inventory(&self, config: Config, context: Context) -> Result<Option<Arc<dyn Inventory>>> {
        let settings = Settings::read(&config)?;
        let account = self.budget(&settings);
        let budget = account.budget.clone();
        let connection = Connection::new(&settings, Limits::default(), &Clock::system());
        let backend = connection.backend(&settings, &context).keeping(account).with_go_groups();
        let cluster = settings.cluster_name.clone().or_else(|| context.cluster.clone());
        let asks_prices = settings.prices != Prices::Off;
        Ok(Some(Arc::new(GroupInventory::new(Arc::new(backend), budget, cluster, asks_prices))))
    }
}

impl std::fmt::Debug for EciFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EciFactory").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(change: (&str, Value)) -> Settings {
        let mut config = json!({
            "region": "cn-hangzhou", "vSwitches": ["vsw-a"], "securityGroup": "sg-1", "accessKey": "one", "secretKey": "secret",
        });
        config[change.0] = change.1;
        Settings::read(&Config::Inline(config)).unwrap()
    }

    #[tokio::test]
    async fn nodes_of_one_account_and_region_share_a_budget() {
        let factory = EciFactory::default();
        let first = factory.budget(&settings(("vSwitches", json!(["vsw-a"]))));
        // Another node: other subnets, another name in the account.
        for change in [("vSwitches", json!(["vsw-b"])), ("clusterName", json!("shop"))] {
            assert!(Arc::ptr_eq(&first, &factory.budget(&settings(change))));
        }
        for change in
            [("accessKey", json!("two")), ("region", json!("cn-beijing")), ("roleName", json!("other"))]
        {
            let other = factory.budget(&settings(change.clone()));
            assert!(!Arc::ptr_eq(&first, &other), "{change:?}");
        }
        assert!(Arc::ptr_eq(&first, &factory.budget(&settings(("tags", json!({"team": "a"}))))));
        let ended = Arc::downgrade(&first);
        drop(first);
        assert!(ended.upgrade().is_none(), "it ends with the last node");
    }
}
