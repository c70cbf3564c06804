//! The provider keeps the contract with real containers.

use std::{collections::VecDeque, fs, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, future::join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_provider::{Config, Context, Factory, NodeEvent, Provider, Result};
use vk_provider_local::{
    LocalFactory,
    factory::sweep,
    image::{self, Store},
    level::Level,
    shim::Program,
};
use vk_testing::{
    conformance::{Case, CaseResult, Subject, cases},
    host,
};

use super::place::Place;

/// How many cases run at a time.
const LANES: usize = 3;
/// Chooses among the cases: a part of their names.
const ONLY: &str = "VK_ONLY";

/// A backend for one case.
struct Live {
    place: Place,
    config: Value,
    context: Mutex<Option<Context>>,
}

impl Live {
    fn new(images: &std::path::Path) -> Self {
        let place = Place::bare(Level::Oci);
        let config = json!({
            "level": "oci",
            "root": place.root(),
            "imageDir": images,
            "cgroupRoot": place.cgroup(),
            "network": "bridge",
        });
        Self { place, config, context: Mutex::default() }
    }

    /// Removes what the case left, as the end of `dev` does.
    async fn end(&self) -> Vec<String> {
        let context = self.context.lock().clone();
        if let Some(context) = context {
            sweep(Config::Inline(self.config.clone()), context).await.expect("everything can be removed");
        }
        self.place.leftovers()
    }
}

#[async_trait]
impl Subject for Live {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        *self.context.lock() = Some(context.clone());
        let program = Program { path: env!("CARGO_BIN_EXE_vk-local-shim").into(), args: vec![] };
        let factory = LocalFactory::with_program(program);
        let backend = factory.open(Config::Inline(self.config.clone()), context).await?;
        match backend.nodes().next().await {
            Some(NodeEvent::Added(_, provider)) => Ok(provider),
            other => panic!("not one node: {other:?}"),
        }
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(1)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn the_provider_keeps_the_contract_with_real_containers() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = folder.path().join("images");
    let store = Store::open(&images, image::Settings::default()).expect("a store");
    // What the pods of the suite ask for. Each is another image, or one would be taken for the other.
    let busybox = |tag: u8| {
        let name = format!("docker.io/library/busybox:1.{tag}");
        host::Image::standard().remove(0).named(&name).file("/version", &name)
    };
    let archive = host::Image::save(&folder.path().join("made"), &[35, 36, 37].map(busybox));
    store.import(fs::File::open(archive).expect("an archive"), &[]).expect("images");

    let only = std::env::var(ONLY).unwrap_or_default();
    let chosen = cases().iter().filter(|case| case.name.contains(&only));
    let queue: Arc<Mutex<VecDeque<&Case>>> = Arc::new(Mutex::new(chosen.collect()));
    let lanes = (0..LANES).map(|_| lane(&images, Arc::clone(&queue)));
    let broken: Vec<String> = join_all(lanes).await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{} cases failed:\n{}", broken.len(), broken.join("\n\n"));
}

/// Runs cases as long as there are any, and answers what they found.
async fn lane(images: &std::path::Path, queue: Arc<Mutex<VecDeque<&'static Case>>>) -> Vec<String> {
    let mut broken = Vec::new();
    loop {
        let Some(case) = queue.lock().pop_front() else { return broken };
        let live = Arc::new(Live::new(images));
        let verdict = case.run(Arc::clone(&live) as Arc<dyn Subject>).await;
        if let CaseResult::Violated(violation) = verdict {
            broken.push(case.report(&violation));
        }
        let left = live.end().await;
        if !left.is_empty() {
            broken.push(format!("{} left behind: {left:?}", case.name));
        }
    }
}
