//! The calls of the backend are tested over HTTP in `tests/it`; here is what needs no service.

mod account;
mod conformance;
mod logs;
mod provider_suite;
mod running_groups;
mod secrets;
mod usage;
mod vendor_requests;

use vk_provider::{Context, Extensions};

use super::*;

/// The context of a node called `vk`.
pub(crate) fn context() -> Context {
    Context {
        node_name: "vk".to_owned(),
        internal_ip: "127.0.0.1".parse().unwrap(),
        kubelet_port: 10250,
        operating_system: "linux".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster: None,
        state_dir: "unused".into(),
        shared_dir: "unused".into(),
        extensions: Extensions::new(),
        supervisor: Supervisor::new(),
    }
}

#[test]
fn the_limits_are_those_of_the_service() {
    let caps = caps();
    assert_eq!((caps.detail_batch, caps.stats_batch), (20, Some(20)));
    assert_eq!(caps.tags, TagLimits { count: 20, key: 64, value: 128 });
    let create = caps.rates[&Action::Create];
    assert!(create.per_second <= 20.0 && create.burst <= 100.0);
    // Lists and details are the same call, of which 2,000 a minute are allowed.
    let reads = caps.rates[&Action::Observe].per_second + caps.rates[&Action::Detail].per_second;
    assert!(reads <= 2000.0 / 60.0 + 0.01);
}

#[test]
fn a_placement_names_the_subnet_and_the_size() {
    let placement = |size: Option<&str>| {
        let mut parameters = Parameters::default();
        let zone = Some("vsw-1".to_owned());
        let size = size.map(str::to_owned);
        place(&mut parameters, Some(&vk_container_group::backend::Placement { zone, size }));
        parameters
    };
    assert_eq!(placement(None).iter().collect::<Vec<_>>(), [("VSwitchId", "vsw-1")]);
    let sized = placement(Some("2-4Gi"));
    assert_eq!((sized.get("Cpu"), sized.get("Memory")), (Some("2.0"), Some("4.0")));
    assert_eq!(placement(Some("ecs.c6.xlarge")).get("InstanceType"), Some("ecs.c6.xlarge"));
}
