//! The engine passes the conformance tests of providers with every variant of the fake runtime.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use vk_pod_engine::{
    engine::Engine,
    testing::{Events, FakeRuntime},
};
use vk_provider::{Context, Provider, Quantity, Result};
use vk_supervisor::{Clock, Supervisor};
use vk_testing::conformance::{Feature, Subject};

use crate::support::settings;

/// The fake runtime, which outlives the engines on it.
struct Fake {
    runtime: FakeRuntime,
    clock: Clock,
    supervisor: Supervisor,
}

impl Fake {
    fn new() -> Self {
        let clock = Clock::system();
        Self { runtime: FakeRuntime::new(clock.clone()), clock, supervisor: Supervisor::new() }
    }

    /// As CRI-O behaves where it differs from containerd.
    fn other() -> Self {
        let this = Self::new();
        this.runtime.set(|quirks| {
            quirks.bad_command_at_create = true;
            quirks.duplicate_is_existing = true;
            quirks.timeout_is_an_end = true;
            quirks.events = Events::Silent;
        });
        this
    }

    fn with_events() -> Self {
        let this = Self::new();
        this.runtime.set(|quirks| quirks.events = Events::Flowing);
        this
    }
}

#[async_trait]
impl Subject for Fake {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        let settings = settings(&context.state_dir, &context.node_name);
        let backend = Arc::new(self.runtime.clone());
        let engine = Engine::new(backend, settings, self.clock.clone(), &self.supervisor)?;
        let engine = engine.with_node_config(|node| {
            for (resource, amount) in [("cpu", 4), ("memory", 8 << 30), ("pods", 110)] {
                node.capacity.insert(resource.to_owned(), Quantity::units(amount));
            }
        });
        // The node includes the runtime's version.
        engine.ping().await?;
        Ok(Arc::new(engine))
    }

    fn lacks(&self) -> &[Feature] {
        &[Feature::Fit]
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(1)
    }

    fn port(&self) -> Option<u16> {
        Some(80)
    }
}

mod containerd {
    vk_testing::conformance!(super::Fake::new());
}

mod other_manners {
    vk_testing::conformance!(super::Fake::other());
}

mod events {
    vk_testing::conformance!(super::Fake::with_events());
}
