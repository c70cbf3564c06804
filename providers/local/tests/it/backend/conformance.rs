//! The conformance suite for providers, with real containers.

use std::{collections::VecDeque, fs, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{StreamExt, future::join_all};
use parking_lot::Mutex;
use serde_json::{Value, json};
use vk_provider::{Config, Context, Factory, NodeEvent, Provider, Result};
use vk_provider_local::{
    LocalFactory,
    factory::remove_node,
    image::{self, Store},
    isolation::Isolation,
    shim::Program,
};
use vk_testing::{
    conformance::{Case, CaseResult, Feature, Subject, cases},
    host,
};

use super::test_backend::TestBackend;

/// Number of cases that run concurrently.
const CONCURRENCY: usize = 3;
/// Environment variable to select cases by a part of their name.
const ONLY: &str = "VK_ONLY";

/// A provider for one case.
struct LocalSubject {
    test_backend: TestBackend,
    config: Value,
    context: Mutex<Option<Context>>,
    /// The folder of the suite, which it removes.
    folder: Mutex<Option<PathBuf>>,
}

impl LocalSubject {
    fn new(images: &std::path::Path) -> Self {
        let test_backend = TestBackend::bare(Isolation::Oci);
        let config = json!({
            "level": "oci",
            "root": test_backend.root(),
            "imageDir": images,
            "cgroupRoot": test_backend.cgroup(),
            "network": "bridge",
        });
        Self { test_backend, config, context: Mutex::default(), folder: Mutex::default() }
    }

    /// Removes everything of the case, as the end of `dev` does; returns what is left.
    async fn end(&self) -> Vec<String> {
        let context = self.context.lock().clone();
        if let Some(context) = context {
            remove_node(Config::Inline(self.config.clone()), context)
                .await
                .expect("everything can be removed");
        }
        let folder = self.folder.lock().take().filter(|folder| folder.exists());
        let mut left = self.test_backend.leftovers();
        left.extend(folder.map(|folder| folder.display().to_string()));
        left
    }
}

#[async_trait]
impl Subject for LocalSubject {
    async fn open(&self, context: Context) -> Result<Arc<dyn Provider>> {
        *self.folder.lock() = Some(context.state_dir.clone());
        // The suite removes its folder before everything else of the case is removed, which would make it again.
        let root = self.test_backend.root();
        let context = Context { state_dir: root.clone(), shared_dir: root, ..context };
        *self.context.lock() = Some(context.clone());
        let program = Program { path: env!("CARGO_BIN_EXE_vk-local-shim").into(), args: vec![] };
        let factory = LocalFactory::with_program(program);
        let backend = factory.open(Config::Inline(self.config.clone()), context).await?;
        match backend.nodes().next().await {
            Some(NodeEvent::Added(_, provider)) => Ok(provider),
            other => panic!("expected one node: {other:?}"),
        }
    }

    fn lacks(&self) -> &[Feature] {
        &[Feature::Fit]
    }

    fn limit(&self) -> Duration {
        Duration::from_mins(1)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root: make test"]
async fn the_provider_passes_the_conformance_suite() {
    let folder = tempfile::tempdir().expect("a folder");
    let images = folder.path().join("images");
    let store = Store::open(&images, image::Settings::default()).expect("a store");
    // The images of the suite's pods. Each has other content, so that they get different ids.
    let busybox = |tag: u8| {
        let name = format!("docker.io/library/busybox:1.{tag}");
        host::Image::standard().remove(0).named(&name).file("/version", &name)
    };
    let archive = host::Image::save(&folder.path().join("made"), &[35, 36, 37].map(busybox));
    store.import(fs::File::open(archive).expect("an archive"), &[]).expect("images");

    let only = std::env::var(ONLY).unwrap_or_default();
    let chosen = cases().iter().filter(|case| case.name.contains(&only));
    let queue: Arc<Mutex<VecDeque<&Case>>> = Arc::new(Mutex::new(chosen.collect()));
    let runners = (0..CONCURRENCY).map(|_| run_cases(&images, Arc::clone(&queue)));
    let broken: Vec<String> = join_all(runners).await.into_iter().flatten().collect();
    assert!(broken.is_empty(), "{} cases failed:\n{}", broken.len(), broken.join("\n\n"));
}

/// Runs cases until the queue is empty; returns the failures.
async fn run_cases(images: &std::path::Path, queue: Arc<Mutex<VecDeque<&'static Case>>>) -> Vec<String> {
    let mut broken = Vec::new();
    loop {
        let Some(case) = queue.lock().pop_front() else { return broken };
        let live = Arc::new(LocalSubject::new(images));
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
