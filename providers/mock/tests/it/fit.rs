//! Whether pods fit.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::api::resource::Quantity as ApiQuantity};
use vk_provider::{PodChange, Provider, Quantity, ability::Fit};
use vk_provider_mock::{FitScript, Mock};

use crate::support::{bundle, changes, pod, reference, until};

fn requesting(uid: &str, cpu: &str, annotations: &[(&str, &str)]) -> Pod {
    let mut pod = pod(uid, annotations);
    let resources = pod.spec.as_mut().unwrap().containers[0].resources.get_or_insert_default();
    resources.requests = Some([("cpu".to_owned(), ApiQuantity(cpu.to_owned()))].into());
    pod
}

fn shown(mock: &Mock, cpu: &str) -> String {
    Fit::fit(mock, &[], &[Arc::new(requesting("asked", cpu, &[]))], &[])[0].to_string()
}

fn lower_nodes(count: u32) -> FitScript {
    FitScript { lower_nodes: NonZeroU32::new(count).unwrap(), ..FitScript::default() }
}

#[tokio::test]
async fn the_capacity_is_one_lower_node_unless_it_is_divided() {
    let mock = Mock::builder("node").capacity("cpu", Quantity::units(8)).build();
    assert_eq!(shown(&mock, "6"), "fits (room for 1, 75% full)");
    mock.set_fit(lower_nodes(4));
    assert_eq!(shown(&mock, "6"), "0 of 4 lower nodes (4 insufficient cpu)");
    assert_eq!(shown(&mock, "2"), "fits (room for 4, 100% full)");
    mock.set_capacity("cpu", Quantity::units(16));
    assert_eq!(shown(&mock, "2"), "fits (room for 8, 50% full)");
    mock.set_fit(lower_nodes(1));
    assert_eq!(shown(&mock, "17"), "0 of 1 lower nodes (1 insufficient cpu)");
}

#[tokio::test]
async fn a_pod_takes_its_room_until_it_is_gone() {
    let mock = Mock::builder("node").capacity("cpu", Quantity::units(4)).fit(lower_nodes(2)).build();
    mock.create_pod(bundle(requesting("u1", "2", &[]))).await.unwrap();
    mock.create_pod(bundle(requesting("u1", "2", &[]))).await.unwrap();
    assert_eq!(shown(&mock, "2"), "fits (room for 1, 100% full)");
    mock.create_pod(bundle(requesting("u2", "2", &[]))).await.unwrap();
    assert_eq!(shown(&mock, "1"), "0 of 2 lower nodes (2 insufficient cpu)");
    mock.delete_pod(&reference("u1"), None, Duration::ZERO).await.unwrap();
    let gone = mock.delete_pod(&reference("u1"), None, Duration::ZERO).await;
    assert!(gone.is_err(), "it has stopped already");
    assert_eq!(shown(&mock, "2"), "fits (room for 1, 100% full)");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_leaves_its_room() {
    let mock = Mock::builder("node").capacity("cpu", Quantity::units(4)).build();
    let mut changes = changes(&mock);
    let mut job = requesting("u1", "4", &[("run-for", "1s")]);
    job.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    mock.create_pod(bundle(job)).await.unwrap();
    assert_eq!(shown(&mock, "1"), "0 of 1 lower nodes (1 insufficient cpu)");
    let ended = |change: &PodChange| matches!(change, PodChange::Status(_, status) if status.phase.as_deref() == Some("Succeeded"));
    until(&mut changes, ended).await;
    assert_eq!(shown(&mock, "4"), "fits (room for 1, 100% full)");
}

#[tokio::test]
async fn a_script_answers_for_every_pod() {
    let mock = Mock::builder("node").build();
    mock.set_fit(FitScript { unknown: Some("maintenance".to_owned()), ..FitScript::default() });
    assert_eq!(shown(&mock, "1"), "unknown: maintenance");
    let script = FitScript { refused: Some("full".to_owned()), lasting: true, ..FitScript::default() };
    mock.set_fit(script);
    assert_eq!(shown(&mock, "1"), "full");
}

#[tokio::test]
async fn what_is_about_upper_nodes_does_not_count() {
    let mock = Mock::builder("node").build();
    let mut pod = requesting("asked", "1", &[]);
    let spec = pod.spec.as_mut().unwrap();
    spec.node_selector = Some([("type".to_owned(), "virtual-kubelet".to_owned())].into());
    spec.node_name = Some("another-node".to_owned());
    assert!(Fit::fit(&mock, &[], &[Arc::new(pod)], &[])[0].fits());
}

#[tokio::test]
async fn the_best_lower_nodes_are_the_emptiest_with_what_is_free_on_them() {
    let mock = Mock::builder("node")
        .capacity("cpu", Quantity::units(6))
        .capacity("memory", Quantity::bytes(3 << 30))
        .capacity("pods", Quantity::units(30))
        .fit(lower_nodes(3))
        .build();
    for (uid, cpu) in [("u1", "2"), ("u2", "500m")] {
        mock.create_pod(bundle(requesting(uid, cpu, &[]))).await.unwrap();
    }
    let best = |cpu: &str, count| {
        let nodes = mock.best_nodes(&requesting("asked", cpu, &[]), count).into_iter();
        let free =
            nodes.map(|node| ["cpu", "memory", "pods"].map(|name| node.free[name].to_string()).join(" "));
        free.collect::<Vec<_>>()
    };
    assert_eq!(best("20", 9), ["2 1Gi 10", "1500m 1Gi 9", "0 1Gi 9"]);
    assert_eq!(best("20", 2), ["2 1Gi 10", "1500m 1Gi 9"]);
    mock.delete_pod(&reference("u1"), None, Duration::ZERO).await.unwrap();
    let gone = mock.delete_pod(&reference("u1"), None, Duration::ZERO).await;
    assert!(gone.is_err(), "it has stopped already");
    assert_eq!(best("1", 2), ["2 1Gi 10", "2 1Gi 10"]);
}
