//! What the tests of the engine share.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use vk_container_group::{
    backend::Caps,
    conformance::{CaseContext, Node, pod},
    fake::FakeCloud,
};
use vk_provider::{Error, Provider as _};
use vk_supervisor::Clock;

/// A cloud without a node.
pub(crate) fn cloud_with(caps: Caps) -> CaseContext<FakeCloud> {
    let clock = Clock::following_tokio(Timestamp::from_second(1_800_000_000).expect("a valid time"));
    CaseContext { cloud: FakeCloud::with_caps(clock.clone(), caps), clock }
}

/// A cloud, and a node on it that has read its groups.
pub(crate) async fn start() -> (CaseContext<FakeCloud>, Node<FakeCloud>) {
    let context = cloud_with(FakeCloud::all_caps());
    let node = Node::start(&context);
    node.pods().await.expect("the groups are listed");
    (context, node)
}

pub(crate) fn new_pod(context: &CaseContext<FakeCloud>, number: u32) -> Pod {
    pod("web", number, context.clock.now())
}

pub(crate) async fn create(node: &Node<FakeCloud>, pod: &Pod) -> Result<(), Error> {
    node.engine.create_pod(node.bundle(pod)).await
}

pub(crate) async fn update(node: &Node<FakeCloud>, pod: &Pod) -> Result<(), Error> {
    node.engine.update_pod(node.bundle(pod)).await
}

pub(crate) fn set_image(pod: &mut Pod, image: &str) {
    pod.spec.as_mut().expect("a spec").containers[0].image = Some(image.to_owned());
}
